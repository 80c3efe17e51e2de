"""The folder of enrolled devices: what is read back, and what is refused."""

from __future__ import annotations

import json

import pytest

from fedwidth.errors import FedwidthError
from fedwidth.flower.access.enrolment import Enrolled, file_of, read_enrolled, remove_enrolled, write_enrolled

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
