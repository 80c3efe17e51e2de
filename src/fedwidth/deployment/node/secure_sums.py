"""A device's part in secure sums, in the memory of its resident trainer.

introduce   a key pair is made for the run, and its public half signed with the device's own key
secure      what was asked for of two things: the opening of a round (`open`), and the shares for another (`share`)
train       the sub-model is trained, and only masked words of its change leave the device

What a device trusts comes with the app, which the operator has signed: the recipe, and the roster of the devices'
public keys. The server says who takes part, and nothing that it says makes a device send anything else. The last round
that a device has opened stands in a file beside its key, by recipe: neither a new run nor a new trainer opens it again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedwidth.config.read import read_settings
from fedwidth.core.cohort import CohortSum
from fedwidth.core.updates import PUBLIC_WEIGHTS, weigh
from fedwidth.deployment.node.training import train_task
from fedwidth.deployment.node.wire import Raw
from fedwidth.errors import FedwidthError, OptionError, SecureError
from fedwidth.files import write_whole
from fedwidth.methods.lookup.secure_sums import SHELLS, segments_of
from fedwidth.secure.device import Device
from fedwidth.secure.facts import Facts
from fedwidth.secure.messages import RUN_BYTES, decode_clients, decode_invitation, decode_letters
from fedwidth.training.server.device_noise import DeviceNoise
from fedwidth.training.server.layout import digest_plan, layout_of_device
from fedwidth.training.server.words import Wording, check_whole_numbers, classes_of, summed_tensors

LEVELS, LETTERS = "secure/levels", "secure/letters"
"""What a device is sent beside its sub-model: the shells of its units, and the letters of the others."""
OPENED = "opened.json"
"""The file, beside the device's key, of the last round that was opened of each recipe."""


@dataclass
class SecureSums:
    """The secure sums of one device."""

    key: Path
    """The file of the device's private key."""
    _device: Device | None = field(default=None, repr=False)

    def introduce(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The device's public key in a run, and its signature; the key pair is made where there is none yet."""
        run = bytes.fromhex(str(facts["run"]))
        if len(run) != RUN_BYTES:
            raise SecureError(f"the name of a run has {RUN_BYTES} bytes, not {len(run)}")
        if self._device is None or self._device.run != run:
            self._device = self._made(run, facts)
        key, signature = self._device.introduce()
        return {"key": key.hex(), "signature": signature.hex()}

    def answer(self, facts: Mapping[str, Any], tensors: Mapping[str, Raw]) -> tuple[dict[str, Any], dict[str, Raw]]:
        """What opens a round, and shares for another one: each where it is asked for, or why not."""
        answer: dict[str, Any] = {}
        found: dict[str, Raw] = {}
        device = self._of_run(facts)
        if "open" in tensors:
            try:
                alive = decode_clients(tensors["open"][2])
                opened = device.open(int(facts["round"]), int(facts["attempt"]), alive)
                found["answer"] = raw(opened.encode())
            except FedwidthError as error:
                answer["open_error"] = str(error)
        if "share" in tensors:
            try:
                found["bundle"] = raw(device.share(decode_invitation(tensors["share"][2])).encode())
            except FedwidthError as error:
                answer["share_error"] = str(error)
        return answer, found

    def train(self, facts: Mapping[str, Any], tensors: Mapping[str, Raw]) -> tuple[dict[str, Any], dict[str, Raw]]:
        """Train a task; the masked words of what that changed."""
        device, at = self._of_run(facts), (int(facts["round"]), int(facts["attempt"]))
        session = device.session(*at)
        own = {name: tensor for name, tensor in tensors.items() if name not in (LEVELS, LETTERS)}
        trainer, task, start, trained = train_task(facts, own)
        server, plan = trainer.settings.server, trainer.plan
        total = CohortSum(task.index)
        total.add(trained.update, copy=False)
        if session.plan != digest_plan(plan):
            raise SecureError("the session is about another model than this device trains")
        noise = DeviceNoise.of(trainer.settings)
        names = summed_tensors(plan, start, trainer.trained)
        names = names if noise is None else [name for name in names if name in trainer.trained]
        by_shells = segments_of(trainer.method) == SHELLS
        levels = np.frombuffer(tensors[LEVELS][2], np.uint8) if by_shells else None
        layout = layout_of_device(task.index, names, session.held[device.client], levels)
        received = layout.flatten(start)
        if noise is None:
            check_whole_numbers(task.client, total, start, names)
            private = server.weighting not in PUBLIC_WEIGHTS
            wording = Wording(session.fixed_point, classes_of(plan) if server.label_rows else 0, private)
            known = weigh("equal" if private else server.weighting, samples=1, index=task.part, updates=1)
            words, clipped = wording.words(total, start, layout, known)
            about = Facts(clipped, trained.passes, trained.loss)
        else:  # nothing is said of this device beside what has noise
            if session.fixed_point != noise.point:
                raise SecureError("the session has other words than this device's noise is made for")
            drawn = draw_noise(at[0], device.client)
            noisy, _ = noise.words(layout.flatten(total.mean), received, client=device.client, round=at[0], drawn=drawn)
            words, about = dict(layout.words.split(noisy)), Facts()
        first = layout.words.segments[0]
        words[first] = np.concatenate([words[first], about.encode(session.fixed_point.clients)])
        letters = decode_letters(tensors[LETTERS][2])
        masked = device.mask(*at, words, layout.words.split(received), letters)
        answer = {name: facts[name] for name in ("token", "round", "client", "attempt")}
        return answer, {"masked": ("uint32", masked.shape, masked.astype("<u4").tobytes())}

    def _of_run(self, facts: Mapping[str, Any]) -> Device:
        if self._device is None or self._device.run.hex() != facts.get("run"):
            raise SecureError("this device has no key for the run: it must introduce itself first")
        return self._device

    def _made(self, run: bytes, facts: Mapping[str, Any]) -> Device:
        settings, recipe = read_settings(facts["recipe"]).main, digest_of(facts)
        opened = read_opened(self.key.with_name(OPENED))
        private = settings.server.weighting not in PUBLIC_WEIGHTS

        def note(round: int) -> None:
            path = self.key.with_name(OPENED)
            write_whole(path, json.dumps(read_opened(path) | {recipe: round}, indent=2) + "\n")

        return Device(
            int(facts["client"]),
            run,
            signing=read_signing_key(self.key),
            roster=read_roster(str(facts["roster"])),
            min_clients=max(settings.secure.min_clients, int(facts.get("min_clients", 0))),
            every_class=settings.server.label_rows or private,
            opened=opened.get(recipe, -1),
            note=note,
        )


def draw_noise(round: int, client: int) -> np.random.Generator:
    """What the noise of a device is drawn from: a seed of the operating system, whatever the round and the client.

    The generator is PCG64, which is not made for secrets; its seed of 128 bits is never shown.
    """
    del round, client
    return np.random.default_rng(secrets.randbits(128))


def digest_of(facts: Mapping[str, Any]) -> str:
    """A digest of what decides how this device trains in a round."""
    return hashlib.sha256(f"{facts['recipe']}\0{facts.get('load', '')}".encode()).hexdigest()


def read_opened(path: Path) -> dict[str, int]:
    """The last round that was opened of each recipe, by its digest; a file that cannot be read is an error."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not all(type(round) is int for round in found.values()):
            raise ValueError("it must hold a round for each recipe")
        return found
    except (OSError, ValueError) as error:
        raise SecureError(
            f"{path.name} says which rounds this device has opened, and cannot be read: {error}"
        ) from None


def read_signing_key(path: Path) -> EllipticCurvePrivateKey:
    """The device's own private key."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        raise SecureError(f"secure sums need this device's own key, and {path.name} cannot be read") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise SecureError(f"{path.name} must be an ECDSA key")
    return key


def read_roster(text: str) -> dict[int, EllipticCurvePublicKey]:
    """The public keys of all devices by client, of a roster: `client-3 = "ecdsa-sha2-nistp384 AAAA…"` in each line."""
    try:
        found = {int(name.removeprefix("client-")): load_ssh_public_key(key.encode()) for name, key in lines_of(text)}
    except ValueError as error:
        raise OptionError(f"the roster of the app cannot be read: {error}") from None
    if not found:
        raise OptionError("the app has no roster of its devices, which secure sums need: start the run by run.sh")
    return {client: key for client, key in found.items() if isinstance(key, EllipticCurvePublicKey)}


def lines_of(text: str) -> list[tuple[str, str]]:
    """The lines of a roster."""
    return [(name, str(key)) for name, key in tomllib.loads(text).items()]


def raw(data: bytes) -> Raw:
    """Bytes as a tensor."""
    return "uint8", (len(data),), data
