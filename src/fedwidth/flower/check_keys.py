"""What is wrong with a deployment's certificates and keys."""

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

from fedwidth.flower.app_folder import Plan
from fedwidth.flower.findings import Finding, note, ok, wrong
from fedwidth.flower.keys import hosts_of

SOON = timedelta(days=30)
CURVES = ("secp256r1", "secp384r1", "secp521r1")


def check_certificates(folder: Path, plan: Plan) -> Iterator[Finding]:
    """Who signed them, for whom and until when."""
    place = folder / "certificates"
    loaded: dict[str, x509.Certificate] = {}
    for name in ("ca.pem", "server.pem"):
        try:
            loaded[name] = x509.load_pem_x509_certificate((place / name).read_bytes())
        except (OSError, ValueError) as error:
            yield wrong(f"certificates/{name} cannot be read: {error}")
    now = datetime.now(UTC)
    for name, certificate in loaded.items():
        end = certificate.not_valid_after_utc
        if now > end:
            yield wrong(f"certificates/{name} expired on {end:%Y-%m-%d}; make new ones with deploy init --overwrite")
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
    for host in dict.fromkeys([plan.address, "127.0.0.1"]):
        if host not in hosts:
            yield wrong(f"the server's certificate is for {', '.join(sorted(hosts)) or 'no host'}, not for {host}")
    try:
        server.verify_directly_issued_by(loaded["ca.pem"])
    except (InvalidSignature, ValueError, TypeError):
        yield wrong("certificates/server.pem was not signed by certificates/ca.pem")
    try:
        key = load_pem_private_key((place / "server.key").read_bytes(), None)
        if _public(key) != server.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
            yield wrong("certificates/server.key does not belong to certificates/server.pem")
    except (OSError, ValueError, TypeError) as error:
        yield wrong(f"certificates/server.key cannot be read: {error}")
    for node in range(plan.nodes):
        copy = folder / "nodes" / f"client-{node}" / "ca.pem"
        if copy.exists() and copy.read_bytes() != (place / "ca.pem").read_bytes():
            yield wrong(f"{copy} is not the deployment's: that node will refuse the server")


def check_node_keys(folder: Path, plan: Plan) -> Iterator[Finding]:
    """Each node's own, of a kind that Flower takes."""
    seen: dict[bytes, int] = {}
    here = 0
    for node in range(plan.nodes):
        path = folder / "nodes" / f"client-{node}" / "key"
        if not path.exists():
            continue
        here += 1
        try:
            key = load_ssh_private_key(path.read_bytes(), None)
        except (ValueError, TypeError, OSError) as error:
            yield wrong(f"{path} is no OpenSSH private key: {error}")
            continue
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in CURVES:
            yield wrong(f"{path} must be an ECDSA key; make it with ssh-keygen -t ecdsa -b 384")
            continue
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        written = path.with_name("key.pub")
        if not written.exists() or written.read_bytes().split()[:2] != public.split()[:2]:
            yield wrong(f"{written} is missing or does not belong to {path}")
        if public in seen:
            yield wrong(f"clients {seen[public]} and {node} have the same key: only one of them can be connected")
        seen[public] = node
    yield ok(f"{here} of {plan.nodes} nodes' keys are here (those of devices need not be)")


def _public(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is no ECDSA key")
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
