"""Where data sets are looked for, and downloading what is not there.

A file is written under a temporary name, checked, and only then given its own name: an interrupted or damaged
download never looks like data.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urljoin, urlsplit

from fedwidth.data.sets.progress import progress
from fedwidth.errors import DataError

VARIABLE = "FEDWIDTH_DATA"
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A file on its official server: name, and what is known of its content."""

    name: str
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None  # for archives that were published with an MD5 only; their members have SHA-256


def cache_folder() -> Path:
    """The folder for what fedwidth downloads or derives: $XDG_CACHE_HOME/fedwidth, else ~/.cache/fedwidth."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedwidth"


def search_folders(root: str | Path | None = None) -> tuple[Path, ...]:
    """The folders to look for data in: `root`, else $FEDWIDTH_DATA; then the cache. Downloads go to the first."""
    named = root if root is not None else os.environ.get(VARIABLE) or None
    return (cache_folder(),) if named is None else (Path(named).expanduser(), cache_folder())


def missing(name: str, folders: tuple[Path, ...], files: tuple[str, ...], why: str = "") -> DataError:
    """Say in one line which files of a data set are expected where."""
    where = " or ".join(str(folder) for folder in folders)
    reason = f" ({why})" if why else ""
    return DataError(
        f"data set '{name}' not found{reason}: expected {', '.join(files)} in {where} (set --data or {VARIABLE})"
    )


def fetch(remote: Remote, base_url: str, folder: Path) -> Path:
    """Download one file into `folder`, check its size and hash, and return its path."""
    url = urljoin(base_url if base_url.endswith("/") else base_url + "/", remote.name)
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"cannot download {url}: only http and https addresses are allowed")
    target = folder / remote.name
    with _temporary(folder, remote.name) as (temporary, stream), progress(remote.name, in_bytes=True) as advance:
        digest = hashlib.sha256()
        md5 = hashlib.md5(usedforsecurity=False)
        done, total = 0, remote.size
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
                length = response.headers.get("Content-Length")
                total = int(length) if total is None and length and length.isdigit() else total
                while chunk := response.read(CHUNK):
                    stream.write(chunk)
                    digest.update(chunk)
                    md5.update(chunk)
                    done += len(chunk)
                    advance(done, total)
        except urllib.error.HTTPError as error:
            error.close()
            raise DataError(f"cannot download {url}: the server answered {error.code} {error.reason}") from None
        except http.client.IncompleteRead as error:
            done += len(error.partial)
            raise DataError(f"{url}: expected {total or 'more'} bytes, found {done}") from None
        except urllib.error.URLError as error:
            raise DataError(f"cannot download {url}: {error.reason}") from None
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise DataError(f"cannot download {url}: {error or type(error).__name__}") from None
        except OSError as error:
            raise DataError(f"cannot write {temporary}: {error.strerror or error}") from None
        if total is not None and done != total:
            raise DataError(f"{url}: expected {total} bytes, found {done}")
        for kind, expected, found in (
            ("SHA-256", remote.sha256, digest.hexdigest()),
            ("MD5", remote.md5, md5.hexdigest()),
        ):
            if expected is not None and found != expected:
                raise DataError(f"{url}: expected {kind} {expected}, found {found} ({done} bytes)")
        stream.close()
        os.replace(temporary, target)
    return target


def fetch_first(remote: Remote, base_urls: tuple[str, ...], folder: Path) -> Path:
    """Download one file from the first of these servers that gives it intact."""
    reasons = []
    for base_url in base_urls:
        try:
            return fetch(remote, base_url, folder)
        except DataError as error:
            reasons.append(str(error))
    raise DataError("; ".join(reasons))


def unpack(archive: Path, folder: Path, members: Mapping[str, str | None]) -> None:
    """Take the named members (path in the archive -> SHA-256, or None) out of a tar archive, and nothing else."""
    wanted = dict(members)
    try:
        # One pass in the archive's own order: going back in a compressed archive means unpacking it again.
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name in wanted:
                    _unpack_one(tar, member, folder / name, wanted.pop(name))
                if not wanted:
                    return
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"cannot unpack {archive}: {error}") from None
    raise DataError(f"{archive} does not hold {', '.join(wanted)}")


def _unpack_one(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, sha256: str | None) -> None:
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise DataError(f"{member.name} in {tar.name!s} is not a plain file")
    digest = hashlib.sha256()
    with source, _temporary(target.parent, target.name) as (temporary, stream):
        while chunk := source.read(CHUNK):
            stream.write(chunk)
            digest.update(chunk)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise DataError(f"{member.name}: expected SHA-256 {sha256}, found {digest.hexdigest()}")
        stream.close()
        os.replace(temporary, target)


class _Stream(Protocol):
    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


@contextmanager
def _temporary(folder: Path, name: str) -> Iterator[tuple[Path, _Stream]]:
    """A new file beside where it will be; removed unless it was renamed."""
    path = folder / f".{name}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = path.open("wb")
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror or error}") from None
    try:
        with stream:
            yield path, stream
    finally:
        path.unlink(missing_ok=True)
