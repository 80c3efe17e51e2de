"""What is wrong with a deployment's server: whether it answers, as whom, and which nodes it knows."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fedwidth.flower.app_folder import ENVIRONMENT, LINK, LOOPBACK, Plan
from fedwidth.flower.findings import Finding, note, ok, wrong


def check_server(folder: Path, plan: Plan) -> Iterator[Finding]:
    """Contact it as a node would."""
    address = ("127.0.0.1" if plan.address in LOOPBACK else plan.address, plan.port)
    shown = f"{address[0]}:{address[1]}"
    try:
        context = ssl.create_default_context(cafile=str(folder / "certificates" / "ca.pem"))
        with (
            socket.create_connection(address, timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=plan.address),
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
    except OSError as error:
        yield wrong(f"{shown} cannot be reached: {error.strerror or error}; is a firewall between?")
        return
    yield ok(f"the server at {shown} answers with the deployment's certificate")
    if plan.address in LOOPBACK or _listens_here(plan.port):
        yield from _registered(folder, plan)


def _registered(folder: Path, plan: Plan) -> Iterator[Finding]:
    """Which nodes the server knows; only its own machine may ask."""
    environment = {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(folder.absolute() / "flower")}
    command = [str(Path(sys.executable).parent / "flwr"), "supernode", "list", LINK, "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        status = [str(node["status"]) for node in json.loads(done.stdout)["nodes"]]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        yield note("the server's list of nodes could not be read")
        return
    if len(status) < plan.nodes:
        yield wrong(f"only {len(status)} of {plan.nodes} nodes' keys are registered; run ./register.sh")
    online = status.count("online")
    yield (ok if online >= plan.nodes else note)(f"{online} of {plan.nodes} nodes are online")


def _listens_here(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
