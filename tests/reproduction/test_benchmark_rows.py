"""Rows of methods of one's own beside the benchmark's, and records that only look like the benchmark's."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from reproduction.__main__ import main as write
from reproduction.benchmark.asked import as_asked, differences
from reproduction.benchmark.mine import main, show_rows
from reproduction.benchmark.page import method_titles
from reproduction.benchmark.recipes import ROOT, find_training

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


def test_such_records_do_not_decide_how_a_row_is_trained(tmp_path):
    trials = Path("benchmark", "cifar10-tuning.jsonl")
    (tmp_path / trials.parent).mkdir()
    shutil.copy(ROOT / "results" / trials, tmp_path / trials)
    append_record(tmp_path, made("benchmark/cifar10-tuning", "fedrolex/sgd-1", accuracy=0.99, method=OWN["method"]))
    assert find_training("cifar10", tmp_path) == find_training("cifar10", ROOT / "results")


def test_the_row_of_a_method_of_ones_own_stands_beside_the_others():
    columns = ("adam-3e-4", "adam-1e-3", "sgd-0.03", "sgd-0.1", "sgd-0.3", "sgd-1")
    own = {"method": {"name": "fedtile"}}
    trials = [
        made("benchmark/cifar10-tuning", f"fedrolex/{column}", accuracy=0.4 + 0.01 * place, **own)
        for place, column in enumerate(columns)
    ]
    mine = [made("benchmark/cifar10", "fedrolex/five-sizes", seed=s, accuracy=0.6 + s / 1000, **OWN) for s in (1, 2, 3)]
    others = [made("benchmark/cifar10", "fedrolex/five-sizes", seed=s, accuracy=0.56) for s in (1, 2, 3)]
    for label in ("exclude/five-sizes", "smallest"):
        others += [made("benchmark/cifar10-yardsticks", label, seed=s, accuracy=0.55) for s in (1, 2, 3)]
    _, tried, _, gained = show_rows([*trials, *mine], others)
    assert tried.splitlines()[2] == "| FedTile (mine) | 40.0 | 41.0 | 42.0 | 43.0 | 44.0 | **45.0** |"
    rows = [line.strip("| ").split(" | ") for line in gained.splitlines()[2:]]
    assert rows == [["FedTile (mine)", "**+5.2** (+5.0 to +5.4)"], ["FedRolex", "**+1.0** (+1.0 to +1.0)"]]


CEIL = OWN | {"method": {"name": "fedtile", "options": {"rounding": "ceil"}}}
FIVE_SIZES, TRIALS = "benchmark/cifar10", "benchmark/cifar10-tuning"


def yardsticks(accuracy=0.55):
    labels = ("exclude/five-sizes", "smallest")
    return [made(f"{FIVE_SIZES}-yardsticks", label, seed=s, accuracy=accuracy) for label in labels for s in (1, 2, 3)]


def test_variants_of_a_method_have_rows_of_their_own():
    mine = [made(FIVE_SIZES, "fedrolex/five-sizes", seed=s, accuracy=0.6, **OWN) for s in (1, 2, 3)]
    mine += [made(FIVE_SIZES, "heterofl/five-sizes", seed=s, accuracy=0.9, **CEIL) for s in (1, 2, 3)]
    both = {"method": {"name": "fedtile", "options": {"tile": "1/2"}}, "local": {"name": "fedprox"}}
    mine += [made(TRIALS, "fedrolex/sgd-0.3", accuracy=0.3, method=OWN["method"])]
    mine += [made(TRIALS, "heterofl/sgd-0.3", accuracy=0.4, method=CEIL["method"])]
    mine += [made(TRIALS, "heterofl/sgd-0.1", accuracy=0.5, **both)]
    _, tried, _, gained = show_rows(mine, yardsticks())
    assert gained.splitlines()[2:] == [
        '| FedTile (mine, rounding="ceil") | **+35.0** (+35.0 to +35.0) |',
        "| FedTile (mine) | **+5.0** (+5.0 to +5.0) |",
    ]
    assert tried.splitlines()[2:] == [
        '| FedTile with FedProx (mine, tile="1/2") | – | – | – | 50.0 | – | – |',
        '| FedTile (mine, rounding="ceil") | – | – | – | – | 40.0 | – |',
        "| FedTile (mine) | – | – | – | – | 30.0 | – |",
    ]


def test_a_folder_with_yardsticks_alone_shows_the_gains_of_others_over_them():
    others = [made(FIVE_SIZES, "fedrolex/five-sizes", seed=s, accuracy=0.6) for s in (1, 2, 3)]
    _, gained = show_rows(yardsticks(), others)
    assert gained.splitlines()[2:] == ["| FedRolex | **+5.0** (+5.0 to +5.0) |"]


def test_two_seeds_with_one_gain_have_no_interval():
    others = [made(FIVE_SIZES, "fedrolex/five-sizes", seed=s, accuracy=0.6) for s in (1, 2)]
    _, gained = show_rows(yardsticks(), others)
    assert gained.splitlines()[2:] == ["| FedRolex | +5.0, two seeds alike |"]


def test_two_records_in_one_place_are_refused():
    one = made(FIVE_SIZES, "fedrolex/five-sizes", **OWN)
    other = made(FIVE_SIZES, "heterofl/five-sizes", **OWN | {"training": {"optimiser": "adam", "lr": 1e-3}})
    place = r"cifar10, FedTile \(mine\), five-sizes, seed 1: there are two records, which differ in "
    with pytest.raises(OptionError, match=rf"{place}training\.lr, training\.optimiser; keep each in a folder"):
        list(show_rows([one, other], []))
    assert len(list(show_rows([one, one], []))) == 2
    trials = [made(TRIALS, "fedrolex/sgd-0.3", seed=s, method=OWN["method"]) for s in (1, 2)]
    with pytest.raises(OptionError, match=r"sgd-0\.3, seed 2: there are two records, which differ in seed"):
        list(show_rows(trials, []))


def test_yardsticks_in_the_same_folder_stay_yardsticks():
    mine = [made(FIVE_SIZES, "fedrolex/five-sizes", seed=s, accuracy=0.6, **OWN) for s in (1, 2, 3)]
    trials = [made(TRIALS, f"{row}/sgd-0.3", accuracy=0.3) for row in ("exclude", "smallest", "quarter", "full")]
    _, tried, _, gained = show_rows([*mine, *yardsticks(), *trials], yardsticks(accuracy=0.1))
    assert gained.splitlines()[2:] == ["| FedTile (mine) | **+5.0** (+5.0 to +5.0) |"]
    titles = [line.split(" | ")[0] for line in tried.splitlines()[2:]]
    assert titles == ["| *exclude*", "| *smallest for all*, 1/16", "| *smallest for all*, 1/4", "| *full for all*"]
    with pytest.raises(OptionError, match=r"in training\.lr; a yardstick may differ in nothing"):
        list(show_rows([made(f"{FIVE_SIZES}-yardsticks", "full", training={"lr": 0.1})], []))


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
