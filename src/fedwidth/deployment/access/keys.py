"""Makes and reads certificates for TLS and keys, as files; only their owner can read the private ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as PrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedwidth.deployment.node.device_key import make_node_key, write_private
from fedwidth.errors import OptionError

__all__ = [
    "hosts_of",
    "make_authority",
    "make_node_key",
    "make_operator_key",
    "make_server_certificate",
    "read_authority",
    "write_private",
]


def make_authority(folder: Path, *, days: int) -> tuple[PrivateKey, x509.Certificate]:
    """Make a certificate authority in a folder: ca.key and ca.pem."""
    key, name = _new_key(), _name("fedwidth deployment CA")
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", _pem(key))
    (folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    return key, certificate


def make_server_certificate(
    folder: Path, authority: tuple[PrivateKey, x509.Certificate], hosts: Sequence[str], *, days: int
) -> None:
    """Make server.key and server.pem in a folder, valid for these host names and addresses."""
    signer, issuer = authority
    key = _new_key()
    certificate = (
        _builder(_name(hosts[0]), issuer.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_private(folder / "server.key", _pem(key))
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def make_operator_key(path: Path, remark: str = "operator") -> str:
    """Make an operator's key pair as OpenSSH does (Ed25519): `path` and `path`.pub, whose line is returned."""
    key = Ed25519PrivateKey.generate()
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    line = f"{public} {remark}"
    path.with_name(path.name + ".pub").write_text(line + "\n")
    return line


def read_authority(folder: Path) -> tuple[PrivateKey, x509.Certificate]:
    """Read the certificate authority that was made in a folder."""
    try:
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise OptionError(f"{folder} holds no certificate authority (ca.key, ca.pem): {error}") from None
    if not isinstance(key, PrivateKey) or key.public_key() != certificate.public_key():
        raise OptionError(f"ca.key and ca.pem in {folder} do not belong together")
    return key, certificate


def hosts_of(certificate: x509.Certificate) -> set[str]:
    """The host names and addresses that a certificate is valid for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return addresses | set(names.get_values_for_type(x509.DNSName))


def _new_key() -> PrivateKey:
    return generate_private_key(SECP384R1())


def _pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: PublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Clocks differ; a certificate of this minute must hold on a device that is a little behind.
        .not_valid_before(min(now, now + timedelta(days=days)) - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
