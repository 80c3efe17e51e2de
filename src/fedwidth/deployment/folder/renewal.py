"""Makes a new certificate for a deployment's server, signed by the authority that its devices know."""

from __future__ import annotations

import os
import tempfile
from datetime import datetime
from pathlib import Path

from cryptography import x509

from fedwidth.deployment.access.keys import make_server_certificate, read_authority
from fedwidth.deployment.folder.setup import Setup
from fedwidth.errors import OptionError


def renew_server(folder: Path, setup: Setup, authority: Path, *, days: int) -> datetime:
    """Replace server.key and server.pem; returns until when the new certificate is valid."""
    signer, certificate = read_authority(authority)
    certificates = folder / "certificates"
    if (certificates / "ca.pem").read_bytes() != (authority / "ca.pem").read_bytes():
        raise OptionError(f"{authority} is another authority than the one that this deployment's devices know")
    with tempfile.TemporaryDirectory(dir=certificates) as made:
        make_server_certificate(Path(made), (signer, certificate), setup.hosts, days=days)
        new = x509.load_pem_x509_certificate(Path(made, "server.pem").read_bytes())
        if new.not_valid_after_utc > certificate.not_valid_after_utc:
            raise OptionError(
                f"the authority is valid until {certificate.not_valid_after_utc:%Y-%m-%d} only: give fewer --days"
            )
        for name in ("server.key", "server.pem"):  # a server that is started between the two refuses the pair
            os.replace(Path(made, name), certificates / name)
    return new.not_valid_after_utc
