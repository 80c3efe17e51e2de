from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest
from data_fixtures import Server

from fedwidth.data.sets import download
from fedwidth.data.sets.download import Remote, cache_folder, fetch, fetch_first, search_folders, unpack
from fedwidth.errors import DataError

CONTENT = bytes(range(256)) * 5000
REMOTE = Remote("set.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_good_file_arrives(server: Server, tmp_path: Path) -> None:
    server.files["/data/set.bin"] = CONTENT
    path = fetch(REMOTE, server.url + "data", tmp_path / "deep" / "down")
    assert path.read_bytes() == CONTENT
    assert left_in(tmp_path / "deep" / "down") == ["set.bin"]
    assert path.stat().st_mode & 0o600 == 0o600


@pytest.mark.parametrize(
    ("remote", "promised"),
    [(REMOTE, 1000), (REMOTE, len(CONTENT)), (Remote("set.bin"), len(CONTENT))],
    ids=["short file", "connection closed early", "closed early, size known from the server only"],
)
def test_truncated_file_is_refused(server: Server, tmp_path: Path, remote: Remote, promised: int) -> None:
    server.files["/set.bin"] = CONTENT[:1000]
    server.promised["/set.bin"] = promised
    with pytest.raises(DataError, match=rf"set.bin: expected {len(CONTENT)} bytes, found 1000$"):
        fetch(remote, server.url, tmp_path / "out")
    assert left_in(tmp_path / "out") == []


def test_corrupted_file_is_refused_and_an_old_one_survives(server: Server, tmp_path: Path) -> None:
    damaged = CONTENT[:-1] + b"\x00"
    server.files["/set.bin"] = damaged
    (tmp_path / "set.bin").write_bytes(b"old")
    with pytest.raises(DataError) as caught:
        fetch(REMOTE, server.url, tmp_path)
    assert f"expected SHA-256 {REMOTE.sha256}, found {hashlib.sha256(damaged).hexdigest()}" in str(caught.value)
    assert (tmp_path / "set.bin").read_bytes() == b"old"
    assert left_in(tmp_path) == ["set.bin"]


def test_md5_is_checked_too(server: Server, tmp_path: Path) -> None:
    server.files["/set.bin"] = CONTENT
    fetch(Remote("set.bin", md5=hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()), server.url, tmp_path)
    with pytest.raises(DataError, match="expected MD5 00"):
        fetch(Remote("set.bin", md5="0" * 32), server.url, tmp_path)


def test_next_server_is_tried(server: Server, tmp_path: Path) -> None:
    server.files["/good/set.bin"] = CONTENT
    fetch_first(REMOTE, (server.url + "bad/", server.url + "good/"), tmp_path)
    assert server.requests == ["/bad/set.bin", "/good/set.bin"]
    with pytest.raises(DataError, match="404.*404"):
        fetch_first(REMOTE, (server.url + "bad/", server.url + "worse/"), tmp_path)


def test_offline_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as free:  # a port nobody listens on
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        with pytest.raises(DataError, match=r"cannot download http://127.0.0.1:\d+/set.bin: ") as caught:
            fetch(REMOTE, url, tmp_path)
    assert "\n" not in str(caught.value)


def test_silent_server_runs_out_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DataError, match="timed out"):
        fetch(REMOTE, f"http://127.0.0.1:{silent.getsockname()[1]}/", tmp_path)


def test_only_web_addresses(tmp_path: Path) -> None:
    (tmp_path / "set.bin").write_bytes(CONTENT)
    with pytest.raises(DataError, match="only http and https"):
        fetch(REMOTE, tmp_path.as_uri(), tmp_path / "out")


def test_unwritable_folder(server: Server, tmp_path: Path) -> None:
    server.files["/set.bin"] = CONTENT
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to"):
        fetch(REMOTE, server.url, tmp_path / "file" / "folder")


def archive(path: Path, members: dict[str, bytes], link: str | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)
    return path


def test_unpack_takes_only_what_was_asked_for(tmp_path: Path) -> None:
    packed = archive(tmp_path / "a.tar.gz", {"../evil": b"x", "set/extra": b"y", "./set/one": b"1", "set/two": b"2"})
    out = tmp_path / "deep" / "out"
    unpack(packed, out, {"set/one": hashlib.sha256(b"1").hexdigest(), "set/two": None})
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["a.tar.gz", "deep/out/set/one", "deep/out/set/two"]


def test_unpack_refuses_what_is_missing_damaged_or_no_file(tmp_path: Path) -> None:
    packed = archive(tmp_path / "a.tar.gz", {"one": b"1"}, link="two")
    with pytest.raises(DataError, match="does not hold three"):
        unpack(packed, tmp_path / "out", {"one": None, "three": None})
    with pytest.raises(DataError, match="one: expected SHA-256 00"):
        unpack(packed, tmp_path / "other", {"one": "00"})
    assert left_in(tmp_path / "other") == []
    with pytest.raises(DataError, match="not a plain file"):
        unpack(packed, tmp_path / "other", {"two": None})
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(DataError, match=r"cannot unpack|does not hold"):
        unpack(packed, tmp_path / "other", {"one": None})


def test_folders_that_are_searched(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_folders() == (own_cache,)
    assert search_folders(tmp_path) == (tmp_path, own_cache)
    monkeypatch.setenv("FEDWIDTH_DATA", str(tmp_path / "env"))
    assert search_folders() == (tmp_path / "env", own_cache)
    assert search_folders("here") == (Path("here"), own_cache)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path(os.path.expanduser("~/.cache/fedwidth"))
