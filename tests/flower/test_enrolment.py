"""The folder of enrolled devices: what is read back, and what is refused."""

from __future__ import annotations

import json
import os

import pytest

from fedwidth.deployment.access.enrolment import (
    Enrolled,
    EnrolmentFolder,
    file_of,
    read_enrolled,
    remove_enrolled,
    write_enrolled,
)
from fedwidth.errors import FedwidthError

KEY = "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ="
OTHER = "ecdsa-sha2-nistp384 BBBBE2VjZHNhLXNoYTItbmlzdHAzODQ="


def test_what_was_written_is_read_back_in_order(tmp_path):
    devices = {2: Enrolled(2, OTHER, 0.25, 500), 10: Enrolled(10, KEY)}
    for device in reversed(devices.values()):
        write_enrolled(tmp_path, device)
    assert read_enrolled(tmp_path) == devices
    assert list(read_enrolled(tmp_path)) == [2, 10]
    assert (devices[10].max_capacity, devices[10].max_samples) == (1.0, 1_000_000)
    remove_enrolled(tmp_path, 2)
    remove_enrolled(tmp_path, 2)
    assert list(read_enrolled(tmp_path)) == [10]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"client": -1}, "client must be a whole number from 0 on"),
        ({"client": True}, "client must be a whole number"),
        ({"client": 4}, "its name must be client-4.json"),
        ({"public_key": "ssh-rsa AAAA"}, "public_key must be"),
        ({"public_key": KEY + "\n\x1b[31m"}, "public_key must be"),
        ({"public_key": 7}, "public_key must be"),
        ({"max_capacity": 0}, "max_capacity must be a number above 0"),
        ({"max_capacity": 1.5}, "max_capacity must be a number above 0"),
        ({"max_capacity": float("nan")}, "max_capacity must be a number above 0"),
        ({"max_capacity": "1"}, "max_capacity must be a number above 0"),
        ({"max_samples": 0}, "max_samples must be a whole number from 1 on"),
        ({"max_samples": 1.5}, "max_samples must be a whole number"),
        ({"max_capacities": 1}, "nothing but client, public_key, max_capacity, max_samples"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_named_in_one_line(tmp_path, facts, why):
    file_of(tmp_path, 3).write_text(json.dumps({"client": 3, "public_key": KEY} | facts))
    with pytest.raises(FedwidthError) as error:
        read_enrolled(tmp_path)
    assert why in str(error.value)
    assert "client-3.json" in str(error.value)
    assert str(error.value).isprintable()


def test_a_damaged_file_a_shared_key_and_no_folder_are_refused(tmp_path):
    with pytest.raises(FedwidthError, match="is no folder of enrolled devices"):
        read_enrolled(tmp_path / "none")
    for client in (0, 1):
        write_enrolled(tmp_path, Enrolled(client, KEY))
    with pytest.raises(FedwidthError, match="clients 0 and 1 are enrolled with the same key"):
        read_enrolled(tmp_path)
    file_of(tmp_path, 1).write_text('{"client": 1')
    with pytest.raises(FedwidthError, match=r"client-1\.json cannot be read"):
        read_enrolled(tmp_path)
    file_of(tmp_path, 1).write_text("[]")
    with pytest.raises(FedwidthError, match=r"client-1\.json must hold client and public_key"):
        read_enrolled(tmp_path)


def aged(folder, seconds: int) -> None:
    """Have the folder and its files look as if they were last changed so many seconds after 1970."""
    for path in (folder, *folder.iterdir()):
        os.utime(path, (seconds, seconds))


@pytest.mark.parametrize("each_file", [False, True])
def test_files_are_read_again_only_when_the_folder_has_changed(tmp_path, each_file):
    write_enrolled(tmp_path, Enrolled(0, KEY, 0.25))
    aged(tmp_path, 1000)
    folder = EnrolmentFolder(tmp_path, each_file=each_file)
    first = folder.read()
    assert first == {0: Enrolled(0, KEY, 0.25)}
    text = file_of(tmp_path, 0).read_text()
    file_of(tmp_path, 0).write_text(text.replace("0.25", "0.75"))  # as long as before
    aged(tmp_path, 1000)
    assert folder.read() is first, "nothing says that it has changed, so nothing is read"
    write_enrolled(tmp_path, Enrolled(1, OTHER))
    assert folder.read() == {0: Enrolled(0, KEY, 0.75), 1: Enrolled(1, OTHER)}
    aged(tmp_path, 2000)
    assert list(folder.read()) == [0, 1]
    remove_enrolled(tmp_path, 1)
    assert list(folder.read()) == [0]


def test_a_file_that_is_edited_in_place_is_noticed_where_each_is_looked_at(tmp_path):
    write_enrolled(tmp_path, Enrolled(0, KEY, 0.25))
    aged(tmp_path, 1000)
    folder, each = EnrolmentFolder(tmp_path), EnrolmentFolder(tmp_path, each_file=True)
    assert folder.read() == each.read()
    file_of(tmp_path, 0).write_text(file_of(tmp_path, 0).read_text().replace("0.25", "0.5"))
    os.utime(tmp_path, (1000, 1000))
    assert each.read()[0].max_capacity == 0.5
    assert folder.read()[0].max_capacity == 0.25


def test_what_changed_a_moment_ago_is_read_again_until_it_has_settled(tmp_path):
    now = [1000.0]
    write_enrolled(tmp_path, Enrolled(0, KEY, 0.25))
    aged(tmp_path, 1000)
    folder = EnrolmentFolder(tmp_path, clock=lambda: now[0])
    folder.read()
    file_of(tmp_path, 0).write_text(file_of(tmp_path, 0).read_text().replace("0.25", "0.5"))
    aged(tmp_path, 1000)
    now[0] += 0.9
    assert folder.read()[0].max_capacity == 0.5, "it changed within the same second"
    now[0] += 0.2
    assert folder.read() is folder.read()


def test_a_folder_that_cannot_be_read_is_an_error_until_it_is_mended(tmp_path):
    write_enrolled(tmp_path, Enrolled(0, KEY))
    aged(tmp_path, 1000)
    folder = EnrolmentFolder(tmp_path, each_file=True)
    folder.read()
    text = file_of(tmp_path, 0).read_text()
    file_of(tmp_path, 0).write_text("{")
    aged(tmp_path, 2000)
    for _ in range(2):
        with pytest.raises(FedwidthError, match=r"client-0\.json cannot be read"):
            folder.read()
    file_of(tmp_path, 0).write_text(text)
    aged(tmp_path, 2000)
    assert list(folder.read()) == [0]
