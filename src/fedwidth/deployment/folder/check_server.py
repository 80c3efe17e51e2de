"""Checks a deployment's server: whether it answers, with which certificate, and which devices it knows."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from fedwidth.deployment.access.enrolment import read_enrolled
from fedwidth.deployment.folder.app_folder import ENROLLED
from fedwidth.deployment.folder.findings import Finding, note, ok, wrong
from fedwidth.deployment.folder.registration import statuses
from fedwidth.deployment.folder.setup import LOOPBACK, Setup, listens, with_port
from fedwidth.errors import OptionError


def check_server(folder: Path, setup: Setup) -> Iterator[Finding]:
    """Contact the server as a device would."""
    shown = with_port(setup.address, setup.port)
    try:
        context = ssl.create_default_context(cafile=str(folder / "certificates" / "ca.pem"))
        with (
            socket.create_connection((setup.address, setup.port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=setup.address),
        ):
            pass
    except ConnectionRefusedError:
        yield note(f"nothing listens at {shown}; start ./superlink.sh")
        return
    except ssl.SSLCertVerificationError as error:
        yield wrong(f"the server at {shown} shows a certificate that is refused: {error.verify_message}")
        return
    except ssl.SSLError as error:
        yield wrong(f"what listens at {shown} does not speak TLS ({error.reason}): another program, or --insecure?")
        return
    except socket.gaierror as error:
        why = error.strerror or str(error)
        yield wrong(f"no address is known for the name {setup.address} ({why}): is it right, and does DNS work here?")
        return
    except OSError as error:
        yield wrong(f"{shown} cannot be reached: {error.strerror or error}; is a firewall between?")
        return
    yield ok(f"the server at {shown} answers with the deployment's certificate")
    if setup.address in LOOPBACK or listens(setup):
        yield from _registered(folder, setup)


def _registered(folder: Path, setup: Setup) -> Iterator[Finding]:
    """Compare the devices that the server knows with those that are enrolled; only an operator may ask it."""
    try:
        enrolled, known = read_enrolled(folder / ENROLLED), statuses(folder, setup)
    except OptionError as error:
        yield note(f"the server's list of devices could not be read: {error}")
        return
    if len(known) < len(enrolled):
        yield wrong(f"the server knows only {len(known)} of {len(enrolled)} enrolled devices; run ./register.sh")
    online = list(known.values()).count("online")
    yield (ok if online >= setup.nodes else note)(f"{online} of {max(setup.nodes, len(enrolled))} nodes are online")
