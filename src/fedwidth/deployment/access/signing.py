"""Signs requests: `python -P signing.py COMMAND …` runs one of Flower's commands, and signs each of its requests.

    fedwidth-signature: TIME NONCE DIGEST SIGNATURE

The signature (Ed25519) is over method, path and query of the request, the SHA-256 of its body, the time in milliseconds
and a number that is used once. `flwr` signs the requests of operators, and the app that a run starts, with the key that
$FEDWIDTH_OPERATOR_KEY names. Flower's processes on the server sign with a key of their own, which the server hands to
them.

This file is run by its path: importing fedwidth would bring PyTorch into processes that need none of it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey as PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

SIGNATURE, APP_SIGNATURE = "fedwidth-signature", "fedwidth-app-signature"
OPERATOR_KEY, RUNTIME_KEY = "FEDWIDTH_OPERATOR_KEY", "FEDWIDTH_RUNTIME_KEY"
"""Environment variables in which a command finds its key: the name of a file, and the key itself."""
CONTROL, RUNTIME = "/v1/control/", "/v1/runtime/"
"""How the paths of operators' requests begin, and those of Flower's own processes on the server."""
START_RUN = CONTROL + "start-run"
TOO_EARLY, AHEAD_SECONDS = "it was signed before this server was started", 2.0
"""What a server says of a request that an earlier one may have taken, and for how long after its start it does: so far
may the operator's clock be ahead. Who asks on purpose signs once more."""


def text_of(method: str, target: str, digest: str, moment: str, nonce: str) -> bytes:
    """The text that is signed; by its first line it cannot be taken for anything else that the key signs."""
    return "\n".join(("fedwidth request 1", method, target, digest, moment, nonce)).encode()


def sign(key: PrivateKey, method: str, target: str, body: bytes, *, clock: Callable[[], float] = time.time) -> str:
    """The header that signs a request: time, number used once, digest and signature."""
    digest, nonce = hashlib.sha256(body).hexdigest(), secrets.token_hex(16)
    moment = str(int(1000 * clock()))
    signature = key.sign(text_of(method, target, digest, moment, nonce))
    return " ".join((moment, nonce, digest, base64.b64encode(signature).decode()))


def is_signed(key: PublicKey, signature: bytes, text: bytes) -> bool:
    """Whether this key made the signature."""
    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True


def target_of(path: str, query: bytes) -> str:
    """Path and query of a request, as they are signed."""
    return path + (f"?{query.decode('latin-1')}" if query else "")


def name_of(key: PublicKey) -> str:
    """The short name under which devices know a public key."""
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"fpk_{hashlib.sha256(raw).hexdigest()[:32]}"


def public_line(key: PublicKey) -> str:
    """A public key as OpenSSH writes it, in one line."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def sign_app(key: PrivateKey, body: bytes) -> str:
    """The signature of the app in a request that starts a run, in the form that Flower's SuperNodes check."""
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

    app, moment = StartRunRequest.FromString(body).fab.content, int(time.time())
    signature = key.sign(create_message_to_sign(hashlib.sha256(app).digest(), moment))
    return f"{hashlib.sha256(app).hexdigest()} {moment} {base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def ask(send: Callable[[], Any]) -> Any:
    """The answer to a request that `send` signs and sends: once more where the server has only just started."""
    response = send()
    if response.status_code != HTTPStatus.FORBIDDEN or TOO_EARLY not in response.read().decode(errors="replace"):
        return response
    time.sleep(AHEAD_SECONDS)
    return send()


def sign_requests(key: PrivateKey, prefix: str) -> None:
    """Have this process sign every request whose path begins with `prefix`."""
    import httpx

    send = httpx.Client.send

    def send_signed(client: Any, request: Any, **options: Any) -> Any:
        body, target = request.read(), target_of(request.url.path, request.url.query)
        request.headers[SIGNATURE] = sign(key, request.method, target, body)
        if request.url.path == START_RUN:
            request.headers[APP_SIGNATURE] = sign_app(key, body)
        return send(client, request, **options)

    def signed(client: Any, request: Any, **options: Any) -> Any:
        if request.url.path.startswith(prefix):
            return ask(lambda: send_signed(client, request, **options))
        return send(client, request, **options)

    httpx.Client.send = signed


def command(name: str, *arguments: str) -> list[str]:
    """The command line that runs one of Flower's commands and signs its requests."""
    return [sys.executable, "-P", str(Path(__file__).absolute()), name, *arguments]


def read_key(path: Path) -> PrivateKey:
    """Read an operator's private key from an OpenSSH file; `ValueError` says why it cannot be used."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"the operator's key {path} cannot be used: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not isinstance(key, PrivateKey):
        raise ValueError(f"the operator's key {path} must be an Ed25519 key")
    return key


def key_of(name: str, environment: Mapping[str, str]) -> PrivateKey:
    """The key with which a command signs."""
    if name == "flwr":
        if not (path := environment.get(OPERATOR_KEY)):
            raise ValueError(f"{OPERATOR_KEY} must name the file of an operator's key")
        return read_key(Path(path))
    if not (text := environment.get(RUNTIME_KEY)):
        raise ValueError(f"{name} is started by the server, which hands its key to it")
    return PrivateKey.from_private_bytes(base64.b64decode(text))


def main() -> None:
    """Run the Flower command that the first argument names, with the other arguments."""
    if len(sys.argv) < 2:
        raise SystemExit("error: give one of Flower's commands, such as flwr")
    name = sys.argv[1]
    found = list(entry_points(group="console_scripts", name=name))
    if not found:
        raise SystemExit(f"error: there is no command {name}; pip install 'fedwidth[flower]'")
    try:
        sign_requests(key_of(name, os.environ), CONTROL if name == "flwr" else RUNTIME)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    if name != "flower-superexec":  # which starts the others
        os.environ.pop(RUNTIME_KEY, None)
    sys.argv = sys.argv[1:]
    raise SystemExit(found[0].load()())


if __name__ == "__main__":
    main()
