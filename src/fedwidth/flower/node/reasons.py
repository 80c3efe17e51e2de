"""Why a device is not connected: from the server's certificate, and from the last words of Flower.

Standard library only, and copied into the nodes' folders beside `device.py`.
"""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

FINAL = (302, 303, 304, 600, 602, 603, 604, 605, 606)
"""Exit codes of Flower for keys, certificates, addresses and versions that are no good."""
ENDED = "SuperNode terminated gracefully"
NOT_YET_VALID = 9
"""OpenSSL's number: a device's clock may still be waiting to be set."""


def reachable(superlink: str, authority: str) -> bool:
    """Whether the server can be talked to."""
    try:
        _shake_hands(superlink, authority)
    except (OSError, ValueError):
        return False
    return True


def _shake_hands(superlink: str, authority: str) -> None:
    host, _, port = superlink.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass


def distrust(superlink: str, authority: str) -> str | None:
    """Why this device must not trust the server's certificate, or None; also where the server cannot be reached."""
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
        return None  # Flower says so, and tries again


def why_final(said: str) -> str | None:
    """What Flower's last words say that trying again cannot heal, or None.

    >>> why_final("ERROR :     Exit Code: 302\\nThe key is invalid.\\n\\nFor more information, visit: <…>\\n")
    'The key is invalid.'
    >>> why_final("ERROR :     Exit Code: 305\\nFailed to initialize the connection to the SuperLink.\\n")
    >>> why_final("usage: flower-supernode [-h]\\nflower-supernode: error: unrecognized arguments: --prot 1\\n")
    'flower-supernode: error: unrecognized arguments: --prot 1'
    """
    if said.lstrip().startswith("usage:"):
        return said.strip().splitlines()[-1]
    if (taken := re.search(r"error while attempting to bind on address.*", said)) is not None:
        return f"{taken[0].strip()} (give another --port)"
    code, text = _exit_code(said)
    if code not in FINAL:
        return None
    return " ".join(text.partition("For more information")[0].split()) or f"Flower's exit code {code}"


def is_refusal(said: str) -> bool:
    """Whether the server let the node in neither because of its key nor its signature.

    >>> is_refusal("Exit Code: 305\\nFailed to initialize the connection to the SuperLink.\\n[code: 2004] Failed to …")
    True
    >>> is_refusal("Exit Code: 305\\nFailed to initialize the connection to the SuperLink.\\nproxy error")
    False
    """
    code, text = _exit_code(said)
    if code is None:
        return ENDED in said  # with a signature that is not accepted, it ends without a word about that
    return code == 305 and "[code: 2004]" in text


def _exit_code(said: str) -> tuple[int | None, str]:
    found = re.search(r"Exit Code: (\d+)\s*(.*)", said, re.DOTALL)
    return (int(found[1]), found[2]) if found else (None, "")
