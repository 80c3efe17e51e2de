"""The audit log: appended to, chained, and for its owner's eyes alone."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from fedwidth.errors import OptionError
from fedwidth.watching.audit import AuditLog, fingerprint, operator_of
from fedwidth.watching.rounds import note_round

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEVsIdF1NhcoJoGNFoXDnJ2NgFxKc0gTmV8PMzJhMnLl me"


@pytest.fixture
def log(tmp_path):
    return AuditLog(tmp_path / "audit.jsonl", clock=lambda: datetime(2026, 11, 17, 3, 4, 5, tzinfo=UTC))


def test_lines_are_appended_and_follow_each_other(log):
    log.note("enrolled", client=3, key=fingerprint(KEY), why=None)
    log.note("refused", why="x\n\x1b[2J")
    found = list(log.lines())
    assert [line["event"] for line in found] == ["enrolled", "refused"]
    assert found[0]["time"] == "2026-11-17T03:04:05Z"
    assert "why" not in found[0]
    assert log.path.read_text().count("\n") == 2
    assert "\x1b" not in log.path.read_text()
    assert log.check() == 2
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("harm", ["changed", "taken out", "put in"])
def test_a_log_that_was_changed_is_found_out(log, harm):
    for client in range(4):
        log.note("enrolled", client=client)
    lines = log.path.read_text().splitlines()
    if harm == "changed":
        lines[1] = lines[1].replace('"client": 1', '"client": 7')
    elif harm == "taken out":
        del lines[1]
    else:
        lines.insert(1, json.dumps({"event": "enrolled", "previous": ""}))
    log.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(OptionError, match="line [23] does not follow the one before it"):
        log.check()


def test_many_at_once_keep_the_chain(log):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: log.note("refused", number=n), range(40)))
    assert log.check() == 40
    assert sorted(line["number"] for line in log.lines()) == list(range(40))


def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path):
    # ssh-keygen -lf key.pub of this key; base 64 of SHA-256 of the key's bytes, without padding.
    assert fingerprint(KEY).startswith("SHA256:")
    assert len(fingerprint(KEY)) == len("SHA256:") + 43
    assert fingerprint("nonsense") == "unknown"
    assert operator_of(tmp_path) == "unknown"


def test_a_round_notes_what_an_operator_may_be_asked_about(log):
    note_round(log, {"round": 1, "clients": [0, 1], "bytes_down": 300, "bytes_up": 200})
    note_round(
        log,
        {
            "round": 2,
            "clients": [],
            "absent": {"3": "'w' holds a value that is not finite", "4": "it is not connected"},
            "quarantined": {"3": 12},
            "alarm": 11.5,
        },
    )
    first, second, *_ = log.lines()
    assert {"round": 1, "clients": 2, "absent": 0, "bytes_down": 300, "bytes_up": 200}.items() <= first.items()
    assert (second["event"], second["clients"], second["absent"]) == ("round", 0, 2)
    assert [(line["event"], line.get("client")) for line in list(log.lines())[2:]] == [
        ("update refused", 3),
        ("quarantined", 3),
        ("alarm", None),
    ]


def test_a_log_that_cannot_be_written_is_said_and_keeps_nobody_out(tmp_path):
    said = []
    (tmp_path / "file").touch()
    AuditLog(tmp_path / "file" / "audit.jsonl").note_or_say(said.append, "joined", client=3)
    assert said[0].startswith("error: cannot write ")
