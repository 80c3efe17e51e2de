"""Rows of methods of one's own beside the benchmark's, and records that only look like the benchmark's."""

from dataclasses import replace

import pytest
from reproduction.__main__ import main as write
from reproduction.benchmark.asked import as_asked, differences
from reproduction.benchmark.mine import main, show_rows
from reproduction.benchmark.page import method_titles

from fedwidth.config.read import read_settings
from fedwidth.errors import OptionError
from fedwidth.reproduce.records import append_record
from recorded_runs import record


def made(recipe, label, *, seed=1, accuracy=0.5, **changes):
    """A run of a recipe of the benchmark with some settings changed, which was five times as accurate as this."""
    settings = next(run.settings for run in read_settings(recipe).runs if run.label == label)
    for section, values in changes.items():
        settings = replace(settings, **{section: replace(getattr(settings, section), **values)})
    rows = [[round, accuracy, None, None] for round in (420, 440, 460, 480, 500)]
    run = record(replace(settings, seed=seed), label=label, final=accuracy)
    return replace(run, recipe=recipe, evaluations=rows)


OWN = {"method": {"name": "fedtile"}, "training": {"optimiser": "sgd", "lr": 1.0}}


def test_a_record_with_other_settings_is_no_run_of_the_benchmark():
    good = made("benchmark/cifar10", "fedrolex/five-sizes")
    elsewhere = replace(good, settings=good.settings | {"device": "cpu", "precision": "float32", "seed": 7})
    other = made("benchmark/cifar10", "fedrolex/five-sizes", **OWN)
    small = made("benchmark/cifar10", "fedrolex/five-sizes", data={"clients": 20})
    unknown = replace(good, label="fedrolex/six-sizes")
    not_ours = replace(small, recipe="fedrolex/table3-cifar10-low")
    assert as_asked([good, elsewhere, other, small, unknown, not_ours]) == [good, elsewhere, not_ours]
    assert differences(small) == ["data.clients"]
    assert differences(other) == ["method.name", "training.lr"]


def test_such_records_do_not_reach_the_pages(tmp_path, capsys):
    (tmp_path / "docs" / "benchmark").mkdir(parents=True)
    page = tmp_path / "docs" / "benchmark.md"
    page.write_text("<!-- made by `make results`: accuracies of cifar10 -->\n<!-- end -->\n")
    append_record(tmp_path / "results", made("benchmark/cifar10", "fedrolex/five-sizes", accuracy=0.7))
    append_record(tmp_path / "results", made("benchmark/cifar10", "fedrolex/five-sizes", accuracy=0.9, **OWN))
    arguments = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs" / "results.md"), "--no-figures"]
    assert write(arguments) == 0
    assert "| FedRolex | 70.0 |" in page.read_text()
    assert "1 records of the benchmark's recipes have other settings" in capsys.readouterr().out


def test_the_row_of_a_method_of_ones_own_stands_beside_the_others():
    columns = ("adam-3e-4", "adam-1e-3", "sgd-0.03", "sgd-0.1", "sgd-0.3", "sgd-1")
    own = {"method": {"name": "fedtile"}}
    trials = [
        made("benchmark/cifar10-tuning", f"fedrolex/{column}", accuracy=0.4 + 0.01 * place, **own)
        for place, column in enumerate(columns)
    ]
    mine = [made("benchmark/cifar10", "fedrolex/five-sizes", seed=s, accuracy=0.6 + s / 1000, **OWN) for s in (1, 2)]
    others = [made("benchmark/cifar10", "fedrolex/five-sizes", seed=s, accuracy=0.56) for s in (1, 2)]
    for label in ("exclude/five-sizes", "smallest"):
        others += [made("benchmark/cifar10-yardsticks", label, seed=s, accuracy=0.55) for s in (1, 2)]
    _, tried, _, gained = show_rows([*trials, *mine], others)
    assert tried.splitlines()[2] == "| FedTile (mine) | 40.0 | 41.0 | 42.0 | 43.0 | 44.0 | **45.0** |"
    rows = [line.strip("| ").split(" | ") for line in gained.splitlines()[2:]]
    assert rows == [["FedTile (mine)", "**+5.1** (+4.5 to +5.8)"], ["FedRolex", "**+1.0** (+1.0 to +1.0)"]]


def test_a_row_that_cannot_be_compared_is_refused():
    small = made("benchmark/cifar10", "fedrolex/five-sizes", data={"name": "digits", "clients": 20}, **OWN)
    with pytest.raises(OptionError, match=r"differs from the recipe in data\.clients, data\.name; a row may differ in"):
        list(show_rows([small], []))


def test_what_the_command_needs_is_said(tmp_path):
    for arguments in ((), ("a", "b", "c")):
        with pytest.raises(OptionError, match="name the folder of your records"):
            main(*arguments)
    with pytest.raises(OptionError, match="there is no folder"):
        main(str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "results").mkdir()
    with pytest.raises(OptionError, match="no record of the benchmark's recipes"):
        main(str(tmp_path / "mine"), str(tmp_path / "results"))


def test_rows_are_called_by_the_titles_of_their_methods():
    assert method_titles()["fedrolex"] == "FedRolex"
    assert method_titles()["exclude"] == "*exclude*"
