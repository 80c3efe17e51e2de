"""Who may ask the SuperLink for what.

| path | who |
| --- | --- |
| `/v1/fleet/…` | devices that are enrolled; Flower then checks that they hold the private half of their key |
| `/v1/runtime/…` | processes that this server started: SuperExec and the ServerApp |
| `/health` | everyone |
| everything else: runs, lists, logs, registrations | operators |

A request of the second and of the last kind must be signed (`signing.py`). It counts once, for a minute, and only if it
was signed after this server was started, because the numbers that were used are kept in memory alone. Where it comes
from does not matter: a process on the server's machine, or behind a proxy there, may do nothing without a key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey as PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedwidth.deployment.access.audit_trail import AuditTrail
from fedwidth.deployment.access.enrolment import Enrolled, EnrolmentFolder, pem_of
from fedwidth.deployment.access.signing import (
    AHEAD_SECONDS,
    APP_SIGNATURE,
    RUNTIME,
    SIGNATURE,
    START_RUN,
    TOO_EARLY,
    is_signed,
    name_of,
    target_of,
    text_of,
)
from fedwidth.errors import FedwidthError, OptionError

FLEET, HEALTH = "/v1/fleet/", "/health"
ACTIVATE, NOT_ACTIVATED = "/v1/fleet/activate-node", 2004
"""The path by which a device asks to be let in, and the code by which Flower refuses that, which devices know."""
NODE_KEY = b"flwr-public-key"
"""The header in which a device sends its public key."""
WINDOW_SECONDS = 60.0
"""How far the clocks of operator and server may be apart, and how long a signature counts."""
MAX_SIGNED = 64 << 20
"""Bytes of a signed request; an app has 10 MiB at most, the chunks of messages 5."""


class Authorisation:
    """ASGI middleware that lets a request through if its sender may make it, and refuses it otherwise."""

    def __init__(
        self,
        app: Any,
        *,
        operators: Path,
        enrolled: Path,
        runtime: PublicKey,
        apps: dict[str, dict[str, str]] | None = None,
        clock: Callable[[], float] = time.time,
        max_signed: int = MAX_SIGNED,
        audit: AuditTrail | None = None,
    ) -> None:
        """`runtime` is the key of the server's own processes; `apps` collects signatures of apps by their digests;
        `audit` is told who commanded and who was refused."""
        self._audit = audit or AuditTrail(None)
        self.app, self._operators, self._runtime, self._clock = app, operators, runtime, clock
        self._enrolled = EnrolledKeys(EnrolmentFolder(enrolled))
        self._apps = {} if apps is None else apps
        self._max_signed = max_signed
        self._began = clock()
        self._used: dict[str, float] = {}
        """The numbers of requests that were taken, each with the time until which it must be remembered."""
        self._forget_at = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, or pass it on to Flower."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] == HEALTH:
            await self.app(scope, receive, send)
        elif scope["path"].startswith(FLEET):
            keys = [value for name, value in scope["headers"] if name == NODE_KEY]
            if len(keys) == 1 and keys[0] in self._enrolled:  # of two, Flower might take the other
                await self.app(scope, receive, send)
                return
            self._audit.refused_device(keys)
            if scope["path"] == ACTIVATE:
                await _refuse(send, 412, "this device is not enrolled", code=NOT_ACTIVATED)
            else:
                await _refuse(send, 401, "this device is not enrolled")
        else:
            await self._signed(scope, receive, send)

    async def _signed(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on if it is signed by a key that may, and refuse it otherwise."""
        try:
            key, digest = self._signer(scope)
            body = await self._body(receive)
            if hashlib.sha256(body).hexdigest() != digest:
                raise OptionError("its content is not what was signed")
            self._keep_app_signature(key, scope)
            if key is not self._runtime:
                self._audit.commanded(key, scope["path"])
        except OptionError as error:
            why = "only operators of this deployment may ask this, with their key (./flwr.sh on the server)"
            self._audit.refused_command(scope["path"], str(error))
            await _refuse(send, 403, f"{why}: {error}")
            return
        events = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Any:
            return next(events, None) or await receive()

        await self.app(scope, receive_again, send)

    def _signer(self, scope: Any) -> tuple[PublicKey, str]:
        """The key that signed a request, and the digest of the content that it signed; `OptionError` where none did."""
        values = [value for name, value in scope["headers"] if name == SIGNATURE.encode()]
        words = values[0].decode("latin-1").split(" ") if len(values) == 1 else []
        if len(words) != 4:
            raise OptionError("the request is not signed")
        moment, nonce, digest, signature = words
        target = target_of(scope["path"], scope.get("query_string", b""))
        text = text_of(scope["method"], target, digest, moment, nonce)
        allowed = [self._runtime] if scope["path"].startswith(RUNTIME) else read_operators(self._operators)
        try:
            raw = base64.b64decode(signature, validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        key = next((key for key in allowed if is_signed(key, raw, text)), None)
        if key is None:
            raise OptionError("its signature is nobody's who may")
        # The server's own key is made anew at each start: what was signed with it before counts no more.
        begins = self._began + (0.0 if key is self._runtime else AHEAD_SECONDS)
        self._use_once(float(moment) / 1000, nonce, begins)
        return key, digest

    def _use_once(self, moment: float, nonce: str, begins: float) -> None:
        """Refuse a request that was signed at another time, or came before.

        Only signed requests get so far, so few numbers are to be remembered.
        """
        now = self._clock()
        if not abs(now - moment) <= WINDOW_SECONDS:
            raise OptionError(f"its time and the server's are {abs(now - moment):.0f} s apart; are the clocks right?")
        if moment > now + AHEAD_SECONDS:
            raise OptionError(f"it is dated {moment - now:.0f} s ahead of the server's clock; are the clocks right?")
        if moment < begins:  # else what an earlier server took could be sent again
            raise OptionError(TOO_EARLY)
        if now > self._forget_at:
            self._used = {used: until for used, until in self._used.items() if until > now}
            self._forget_at = now + WINDOW_SECONDS
        if nonce in self._used:
            raise OptionError("it came before")
        self._used[nonce] = moment + 2 * WINDOW_SECONDS

    def _keep_app_signature(self, key: PublicKey, scope: Any) -> None:
        """Keep the operator's signature of the app that a run is started with, for Flower to hand on to devices."""
        words = dict(scope["headers"]).get(APP_SIGNATURE.encode(), b"").decode("latin-1").split(" ")
        if scope["path"] == START_RUN and len(words) == 3 and words[1].isdigit():
            digest, moment, signature = words
            signed = json.dumps({"signature": signature, "signed_at": int(moment)})
            # Flower's SuperNodes ask for both: that apps can be signed here at all, and by whom this one is.
            self._apps[digest] = {"valid_license": "Valid", name_of(key): signed}

    async def _body(self, receive: Any) -> bytes:
        """The whole content of a request."""
        chunks: list[bytes] = []
        while True:
            event = await receive()
            if event["type"] != "http.request":
                raise OptionError("it broke off")
            chunks.append(event.get("body", b""))
            if sum(map(len, chunks)) > self._max_signed:
                raise OptionError(f"it has more than {self._max_signed} bytes")
            if not event.get("more_body", False):
                return b"".join(chunks)


class EnrolledKeys:
    """The public keys of the enrolled devices, as their requests carry them."""

    def __init__(self, folder: EnrolmentFolder) -> None:
        self._folder = folder
        self._devices: Mapping[int, Enrolled] | None = None
        self._keys = frozenset[bytes]()

    def __contains__(self, key: bytes) -> bool:
        """Whether a device is enrolled; where the folder cannot be read none is, because one may have been revoked."""
        try:
            devices = self._folder.read()
        except FedwidthError as error:
            print(f"error: no device is let in: {error}", flush=True)
            return False
        if devices is not self._devices:
            self._devices = devices
            self._keys = frozenset(base64.b64encode(pem_of(device.public_key)) for device in devices.values())
        return key in self._keys


def read_operators(path: Path) -> list[PublicKey]:
    """The operators' public keys, from a file with one OpenSSH line for each; read for every request that is signed."""
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
        keys = [load_ssh_public_key(line.encode()) for line in lines]
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise OptionError(f"{path} holds no operators' keys: {error}") from None
    if not keys or not all(isinstance(key, PublicKey) for key in keys):
        raise OptionError(f"{path} must hold Ed25519 public keys of operators, one a line")
    return [key for key in keys if isinstance(key, PublicKey)]


def sign_apps_with(apps: Mapping[str, dict[str, str]]) -> None:
    """Have Flower store operators' signatures with the apps of runs, as it does for apps from its own store."""
    from flwr.superlink.servicer.control import control_handlers

    plain = control_handlers.Fab

    def with_signature(hash_str: str, content: bytes, verifications: dict[str, str]) -> Any:
        return plain(hash_str, content, verifications or apps.get(hash_str, {}))

    control_handlers.Fab = with_signature


async def _refuse(send: Any, status: int, why: str, **more: int) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": why, **more}).encode()})
