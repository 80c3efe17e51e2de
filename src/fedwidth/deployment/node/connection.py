"""Finds out why a device is not connected, from the server's certificate and from the SuperNode's last output.

It is copied into the devices' folders beside `device.py`, so it imports the standard library only.
"""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

FINAL = (302, 303, 304, 600, 602, 603, 604, 605, 606)
"""Flower's exit codes for keys, certificates, addresses and versions that cannot be used."""
ENDED = "SuperNode terminated gracefully"
"""What a SuperNode prints last when it ends by itself."""
NOT_YET_VALID = 9
"""OpenSSL's code for a certificate of the future: the device's clock may not have been set yet."""


def is_reachable(superlink: str, authority: str) -> bool:
    """Whether the server answers with a certificate of this authority."""
    try:
        _shake_hands(superlink, authority)
    except (OSError, ValueError):
        return False
    return True


def _shake_hands(superlink: str, authority: str) -> None:
    """Connect by TLS, and hang up."""
    host, _, port = superlink.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass


def why_distrusted(superlink: str, authority: str) -> str | None:
    """Why this device must not trust the server's certificate; None where it may, or the server cannot be reached."""
    try:
        _shake_hands(superlink, authority)
        return None
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == NOT_YET_VALID:
            return None
        return f"the certificate of the server at {superlink} is refused: {error.verify_message}"
    except ssl.SSLError as error:
        if "NO_CERTIFICATE" in (error.reason or "") or not Path(authority).stat().st_size:
            return f"{authority} holds no certificate"
        return None
    except FileNotFoundError:
        return f"{authority} is missing: copy the device's whole folder"
    except (OSError, ValueError):
        return None  # the SuperNode says so, and tries again


def why_final(output: str) -> str | None:
    """Why starting a SuperNode again cannot help, judged by the last output of this one; None where it can.

    >>> why_final("ERROR :     Exit Code: 302\\nThe key is invalid.\\n\\nFor more information, visit: <…>\\n")
    'The key is invalid.'
    >>> why_final("ERROR :     Exit Code: 305\\nFailed to initialize the connection to the SuperLink.\\n")
    >>> why_final("usage: flower-supernode [-h]\\nflower-supernode: error: unrecognized arguments: --prot 1\\n")
    'flower-supernode: error: unrecognized arguments: --prot 1'
    """
    if output.lstrip().startswith("usage:"):
        return output.strip().splitlines()[-1]
    if (taken := re.search(r"error while attempting to bind on address.*", output)) is not None:
        return f"{taken[0].strip()} (give another --port)"
    code, text = _exit_code(output)
    if code not in FINAL:
        return None
    return " ".join(text.partition("For more information")[0].split()) or f"Flower's exit code {code}"


def is_refusal(output: str) -> bool:
    """Whether the server has refused the SuperNode's key or its signature, judged by its last output.

    >>> is_refusal("Exit Code: 305\\nFailed to initialize the connection to the SuperLink.\\n[code: 2004] Failed to …")
    True
    >>> is_refusal("Exit Code: 305\\nFailed to initialize the connection to the SuperLink.\\nproxy error")
    False
    """
    code, text = _exit_code(output)
    if code is None:
        return ENDED in output  # with a signature that is not accepted, it ends without a word about that
    return code == 305 and "[code: 2004]" in text


def _exit_code(output: str) -> tuple[int | None, str]:
    found = re.search(r"Exit Code: (\d+)\s*(.*)", output, re.DOTALL)
    return (int(found[1]), found[2]) if found else (None, "")
