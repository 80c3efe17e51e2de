"""Keys: agreed on by two clients (X25519), derived (HKDF), sealing what travels (ChaCha20-Poly1305), and signed."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedwidth.errors import SecureError
from fedwidth.secure.session import PROTOCOL, framed, number

_SIGNATURE = ec.ECDSA(hashes.SHA384())


def derive(secret: bytes, purpose: bytes, *parts: bytes, length: int = 16) -> bytes:
    """A key for one purpose, which depends on all parts."""
    key: bytes = HKDF(hashes.SHA256(), length, None, framed(PROTOCOL, purpose, *parts)).derive(secret)
    return key


def agree(own: X25519PrivateKey, other: bytes) -> bytes:
    """What two clients know that nobody else does; keys that make it known to all are refused."""
    try:
        found: bytes = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise SecureError("a public key is none: it is of another length, or of low order") from None
    return found


def seal(key: bytes, nonce: bytes, text: bytes, about: bytes = b"") -> bytes:
    """Encrypted and authenticated, together with what it is about."""
    sealed: bytes = ChaCha20Poly1305(key).encrypt(nonce, text, about)
    return sealed


def unseal(key: bytes, nonce: bytes, sealed: bytes, about: bytes = b"") -> bytes:
    """What was sealed; changed, swapped, replayed and truncated messages are refused."""
    try:
        text: bytes = ChaCha20Poly1305(key).decrypt(nonce, sealed, about)
    except InvalidTag:
        raise SecureError("a sealed message was changed, or is not for this round and these clients") from None
    return text


def sign_key(signing: ec.EllipticCurvePrivateKey, run: bytes, client: int, key: bytes) -> bytes:
    """A device's signature under the public key that it has in a run."""
    signature: bytes = signing.sign(framed(PROTOCOL, run, number(client), key), _SIGNATURE)
    return signature


def check_key(known: ec.EllipticCurvePublicKey, run: bytes, client: int, key: bytes, signature: bytes) -> None:
    """Refuse a public key that the client's device has not signed for this run."""
    try:
        known.verify(signature, framed(PROTOCOL, run, number(client), key), _SIGNATURE)
    except InvalidSignature:
        raise SecureError(f"the key of client {client} is not signed by its device for this run") from None
