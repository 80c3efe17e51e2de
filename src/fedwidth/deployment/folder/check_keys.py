"""Checks a deployment's certificates and keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from fedwidth.deployment.access.authorisation import read_operators
from fedwidth.deployment.access.enrolment import read_enrolled
from fedwidth.deployment.access.keys import hosts_of
from fedwidth.deployment.access.signing import read_key
from fedwidth.deployment.folder.app_folder import ENROLLED, OPERATORS
from fedwidth.deployment.folder.findings import Finding, note, ok, wrong
from fedwidth.deployment.folder.registration import operator_key
from fedwidth.deployment.folder.setup import Setup
from fedwidth.errors import OptionError

SOON = timedelta(days=30)
"""How long before its end a certificate gets a note."""
REMEDIES = {
    "server.pem": "make a new one with deploy renew",
    "ca.pem": "devices know no other, so make a new deployment with deploy init --overwrite",
}
CURVES = ("secp256r1", "secp384r1", "secp521r1")


def check_certificates(folder: Path, setup: Setup) -> Iterator[Finding]:
    """Check who signed the certificates, for which hosts, and until when they are valid."""
    certificates = folder / "certificates"
    loaded: dict[str, x509.Certificate] = {}
    for name in ("ca.pem", "server.pem"):
        try:
            loaded[name] = x509.load_pem_x509_certificate((certificates / name).read_bytes())
        except (OSError, ValueError) as error:
            yield wrong(f"certificates/{name} cannot be read: {error}")
    now = datetime.now(UTC)
    for name, certificate in loaded.items():
        end = certificate.not_valid_after_utc
        if now > end:
            yield wrong(f"certificates/{name} expired on {end:%Y-%m-%d}; {REMEDIES[name]}")
        elif now < certificate.not_valid_before_utc:
            yield wrong(f"certificates/{name} is not valid yet: is this machine's clock right ({now:%Y-%m-%d %H:%M})?")
        elif end - now < SOON:
            yield note(f"certificates/{name} expires in {(end - now).days} days, on {end:%Y-%m-%d}")
        else:
            yield ok(f"certificates/{name} is valid until {end:%Y-%m-%d}")
    if len(loaded) < 2:
        return
    server = loaded["server.pem"]
    hosts = hosts_of(server)
    for host in dict.fromkeys([setup.address, setup.local_address]):
        if host not in hosts:
            yield wrong(f"the server's certificate is for {', '.join(sorted(hosts)) or 'no host'}, not for {host}")
    try:
        server.verify_directly_issued_by(loaded["ca.pem"])
    except (InvalidSignature, ValueError, TypeError):
        yield wrong("certificates/server.pem was not signed by certificates/ca.pem")
    try:
        key = load_pem_private_key((certificates / "server.key").read_bytes(), None)
        if _public(key) != server.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
            yield wrong("certificates/server.key does not belong to certificates/server.pem")
    except (OSError, ValueError, TypeError) as error:
        yield wrong(f"certificates/server.key cannot be read: {error}")
    if (certificates / "ca.key").exists():
        yield wrong(
            "certificates/ca.key is beside the server's key: move it to where deploy renew --authority finds it"
        )
    for copy in sorted((folder / "nodes").glob("client-*/ca.pem")):
        if copy.read_bytes() != (certificates / "ca.pem").read_bytes():
            yield wrong(f"{copy} is not the deployment's: that node will refuse the server")


def check_operators(folder: Path) -> Iterator[Finding]:
    """Check who may command the server, and whether the key of one of them is on this machine."""
    try:
        keys = read_operators(folder / OPERATORS)
    except OptionError as error:
        yield wrong(str(error))
        return
    path = operator_key(folder)
    if not path.exists():
        yield note(f"the operator's key is not here ({path}): commands come from where it is")
        return
    try:
        mine = read_key(path).public_key()
    except ValueError as error:
        yield wrong(str(error))
        return
    yield ok(f"{path} may command the server") if mine in keys else wrong(f"{path} is not one of {OPERATORS}")


def check_devices(folder: Path, setup: Setup) -> Iterator[Finding]:
    """Check which devices are enrolled, and whether the keys in the deployment are of a kind that Flower takes."""
    try:
        enrolled = {own.public_key: client for client, own in read_enrolled(folder / ENROLLED).items()}
    except OptionError as error:
        yield wrong(str(error))
        return
    seen: dict[str, str] = {}
    for device in sorted((folder / "nodes").glob("client-*")):
        path = device / "key"
        if not path.exists():
            continue
        try:
            key = load_ssh_private_key(path.read_bytes(), None)
        except (ValueError, TypeError, OSError) as error:
            yield wrong(f"{path} is no OpenSSH private key: {error}")
            continue
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in CURVES:
            yield wrong(f"{path} must be an ECDSA key; make it with ssh-keygen -t ecdsa -b 384")
            continue
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        written = path.with_name("key.pub")
        if not written.exists() or written.read_text().split()[:2] != public.split():
            yield wrong(f"{written} is missing or does not belong to {path}")
        if public in seen:
            yield wrong(f"{seen[public]} and {device.name} have the same key: only one of them can be connected")
        elif f"client-{enrolled.get(public)}" not in (device.name, "client-None"):
            yield wrong(f"the key of {device.name} is enrolled as client {enrolled[public]}")
        seen[public] = device.name
    told = f"{len(enrolled)} devices are enrolled, {setup.nodes} were planned"
    yield ok(told) if len(enrolled) >= setup.nodes else note(f"{told}; deploy add lets them in, once they have keys")


def _public(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is no ECDSA key")
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
