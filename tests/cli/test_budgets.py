"""Commands and devices with budgets: what these come to is what is resumed, shown and measured against."""

from __future__ import annotations

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_config, read_settings
from fedwidth.experiment import Experiment, Stopped
from small_runs import contents

RECIPE = """
rounds = 3
model.name = "mlp"
model.options = { hidden = [8, 4] }
data.clients = 6
devices.per_round = 3
training.batch_size = 64
engine = "serial"
[devices.budgets]
phone = { upload = "1kB", weight = 2, profile = true }
tablet = { upload = "1MB" }
"""
MIX = "1:1 7/16:2"
"""What they come to: 4 (64 a + a + a b + b + 10 b + 10) bytes, of which 3 units and one make 876, and 4 and 2 1,200."""


def command(tmp_path, *words, name="runs", recipe=RECIPE):
    (tmp_path / "fleet.toml").write_text(recipe)
    first, *others = words
    return run_command([first, str(tmp_path / "fleet.toml"), *others, "--out", str(tmp_path / name)])


@pytest.mark.parametrize(
    "words",
    [["run"], ["run", "--seeds", "1,2"], ["run", "--yardsticks"], ["sweep", "--over", "training.lr=0.1,0.2"]],
)
def test_the_same_command_goes_on_with_a_finished_run(words, tmp_path, capsys):
    assert command(tmp_path, *words) == 0
    before = capsys.readouterr().out
    assert command(tmp_path, *words, "--resume") == 0
    after = capsys.readouterr().out
    assert [line for line in after.splitlines() if "Seeds" in line or "│" in line] == [
        line for line in before.splitlines() if "Seeds" in line or "│" in line
    ]
    assert run_command(["report", str(tmp_path / "runs")]) == 0


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    assert command(tmp_path, "run", name="whole") == 0
    with pytest.raises(Stopped):
        Experiment(read_settings(RECIPE).main).run(tmp_path / "stopped", stop=lambda: True)
    assert command(tmp_path, "run", "--resume", name="stopped") == 0
    assert contents(tmp_path / "whole") == contents(tmp_path / "stopped")


def test_classes_that_come_close_are_resolved_once_and_for_all(tmp_path):
    """What the first look finds is what the run finds: profiles of the first are no widths of the second."""
    three = RECIPE.replace("hidden = [8, 4]", "hidden = [32, 16]").replace(
        "weight = 2, profile = true }", 'profile = true }\nother = { upload = "4077B", profile = true }'
    )
    three = three.replace('"1kB"', '"3900B"')
    first = Experiment(read_settings(three).main).settings
    assert first.devices.profiles
    assert Experiment(first).settings == first
    assert command(tmp_path, "run", recipe=three) == 0
    assert command(tmp_path, "run", "--resume", recipe=three) == 0


def test_no_class_sends_more_than_it_said_because_another_of_its_capacity_has_a_profile(tmp_path):
    """Of 988 bytes, which the profile of 7/16 takes, the second class has 950."""
    both = RECIPE.replace("tablet", 'other = { upload = "950B" }\ntablet')
    devices = Experiment(read_settings(both).main).settings.devices
    alone = Experiment(read_settings(RECIPE).main).settings.devices
    assert (devices.capacities, devices.profiles) == ("1:1 7/16:3", {})
    assert alone.profiles


def test_other_budgets_are_another_run(tmp_path, capsys):
    assert command(tmp_path, "run") == 0
    assert command(tmp_path, "run", "--resume", recipe=RECIPE.replace("1kB", "500B")) == 2
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert f'devices.capacities is "{MIX}" there and "1:1 3/16:2" now' in said


def test_the_table_shows_what_budgets_come_to(tmp_path, capsys):
    assert command(tmp_path, "sweep", "--over", "model.width=1,1/2") == 0
    shown = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("width 1")]
    assert shown[0] == MIX
    assert shown[1].startswith("1/2:1 ")


def test_yardsticks_are_of_the_devices_that_budgets_come_to(tmp_path, capsys):
    assert command(tmp_path, "run", "--yardsticks", "--seeds", "1,2") == 0
    assert "Yardsticks of fedrolex: exclude " in capsys.readouterr().out
    found = {path.parent.name: read_config(path / "config.toml") for path in (tmp_path / "runs").rglob("seed-2")}
    mixes = {name: (each.model.width, each.devices.capacities, each.devices.excluded) for name, each in found.items()}
    assert mixes == {
        "runs": (1.0, MIX, []),
        "yardstick--exclude": (1.0, MIX, [7 / 16]),
        "yardstick--smallest-for-all": (7 / 16, "a1", []),
        "yardstick--full-for-all": (1.0, "a1", []),
    }
    assert not any(found[name].devices.budgets or found[name].devices.profiles for name in found if name != "runs")


def test_beside_other_widths_devices_with_the_same_budgets_are_the_same(tmp_path, capsys):
    assert command(tmp_path, "sweep", "--over", "model.width=1,1/2", "--yardsticks") == 0
    lines = capsys.readouterr().out.splitlines()
    (said,) = (line for line in lines if line.startswith("Yardsticks of width 1:"))
    assert "exclude at width 1/2 " in said


def test_a_budget_that_pays_for_no_width_is_said_of_its_run(tmp_path, capsys):
    words = ["sweep", "--over", "devices.budgets={phone={upload='1kB'}},{phone={upload='9B'}}"]
    assert command(tmp_path, *words, recipe=RECIPE[: RECIPE.index("[devices")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: run 'devices.budgets={phone={upload='9B'}}': no width fits device 'phone'")
    assert not (tmp_path / "runs").exists()


def test_a_scaler_with_nothing_to_scale_is_resumed_too(tmp_path):
    changes = ["method.name=heterofl", "adapter.rank=4", "training.scaler=true"]
    words = ["run", *(word for change in changes for word in ("--set", change))]
    recipe = RECIPE[: RECIPE.index("[devices")]
    assert command(tmp_path, *words, recipe=recipe) == 0
    assert command(tmp_path, *words, "--resume", recipe=recipe) == 0
