"""Shamir's secret sharing over the prime field of 2^130 - 5: any T of n shares give a secret back, T - 1 say nothing.

A secret of 16 bytes is the value at 0 of a polynomial of degree T - 1 whose other coefficients are drawn by the
operating system; the share of the i-th client is the value at i. A share has 17 bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from fedwidth.errors import SecureError

PRIME = 2**130 - 5
SECRET_BYTES, SHARE_BYTES = 16, 17


def split(secret: bytes, points: Sequence[int], needed: int) -> dict[int, bytes]:
    """A share for each point (from 1 on), any `needed` of which give the secret back."""
    _check_points(points)
    if not 1 <= needed <= len(points):
        raise SecureError(f"{needed} of {len(points)} shares cannot be needed")
    if len(secret) != SECRET_BYTES:
        raise SecureError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    coefficients = [secrets.randbelow(PRIME) for _ in range(needed - 1)]
    first, shares = int.from_bytes(secret, "little"), {}
    for point in points:
        value = 0
        for coefficient in coefficients:  # Horner's rule, the highest power first
            value = (value + coefficient) * point % PRIME
        shares[point] = ((value + first) % PRIME).to_bytes(SHARE_BYTES, "little")
    return shares


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """What each share counts for in the secret (Lagrange): the same for all secrets shared among these points."""
    _check_points(points)
    found = []
    for own in points:
        above = below = 1
        for other in points:
            if other != own:
                above = above * other % PRIME
                below = below * (other - own) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def combine(shares: Mapping[int, bytes], weights: Sequence[int] | None = None) -> bytes:
    """The secret of enough shares by their points; shares that belong to no secret of 16 bytes are refused.

    >>> shares = split(b"sixteen letters!", range(1, 6), needed=3)
    >>> combine({point: shares[point] for point in (5, 2, 4)})
    b'sixteen letters!'
    """
    weights = weights_at_zero(list(shares)) if weights is None else weights
    if any(len(share) != SHARE_BYTES for share in shares.values()):
        raise SecureError(f"a share has {SHARE_BYTES} bytes")
    value = sum(int.from_bytes(share, "little") * w for share, w in zip(shares.values(), weights, strict=True)) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise SecureError("the shares do not belong together: one of them is wrong")
    return value.to_bytes(SECRET_BYTES, "little")


def _check_points(points: Sequence[int]) -> None:
    if len(set(points)) != len(points) or any(not 0 < point < PRIME for point in points):
        raise SecureError("the points of shares must differ and begin at 1: at 0 stands the secret")
