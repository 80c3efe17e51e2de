"""The packaged recipes: all of them can be run, and they hold the numbers the papers printed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedwidth.config.read import read_settings, recipe_names
from fedwidth.devices.capacity import Capacities
from fedwidth.methods import method

NAMES = recipe_names()


def numbers(name):
    return {run.label: run.paper.number for run in read_settings(name).runs}


@pytest.mark.parametrize("name", NAMES)
def test_every_run_is_valid_and_says_what_it_answers_to(name):
    recipe = read_settings(name)
    assert recipe.title
    for run in recipe.runs:
        method(run.settings.method.name, **run.settings.method.options)
        Capacities.parse(run.settings.devices.capacities)
        assert run.settings.rounds > max([0, *run.settings.training.milestones])
        assert recipe.only(run.label).labels == (run.label,), "a label must not be mistaken for a pattern"
        if name.startswith("benchmark/"):  # these answer to no paper
            continue
        assert run.paper.number is not None or run.paper.note, run.label
        assert name == "quickstart" or run.paper.table in run.settings.answers
        assert run.paper.number is None or 0 < run.paper.number <= 100


def test_the_documentation_lists_every_recipe_with_its_runs():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\S+)` \|.*\| (\d+ \| \d+) \|$", page, flags=re.MULTILINE))
    found = {}
    for name in NAMES:
        published = [number for number in numbers(name).values() if number is not None]
        found[name] = f"{len(read_settings(name).runs)} | {len(published)}"
    assert listed == found
    example, *others = re.findall(r"```toml[^\n]*\n(.*?)```", page, flags=re.DOTALL)
    for other in others:
        read_settings(other)
    assert read_settings(example).labels == ("fedrolex", "heterofl")


def test_the_quick_start_compares_six_ways_to_train():
    recipe = read_settings("quickstart")
    assert [run.settings.method.name for run in recipe.runs] == [
        "fedrolex",
        "heterofl",
        "feddropout",
        "fedbrb",
        "fedavg",
        "fedavg",
    ]
    assert [run.settings.model.width for run in recipe.runs[-2:]] == [1.0, 0.0625]
    assert recipe.main.data.name == "digits"
    assert Capacities.parse(recipe.main.devices.capacities).values == (1.0, 0.5, 0.25, 0.125, 0.0625)


@pytest.mark.parametrize(
    ("name", "label", "number", "spread"),
    [
        ("fedrolex/table3-cifar10-high", "fedrolex", 69.44, 1.50),
        ("fedrolex/table3-cifar10-high", "heterofl", 63.90, 2.74),
        ("fedrolex/table3-cifar10-high", "feddropout", 46.64, 3.05),
        ("fedrolex/table3-cifar10-high", "smallest", 38.82, 0.88),
        ("fedrolex/table3-cifar10-high", "largest", 75.74, 0.42),
        ("fedrolex/table3-cifar10-low", "fedrolex", 84.45, 0.36),
        ("fedrolex/table3-cifar10-low-as-stated", "feddropout", 76.20, 2.53),
        ("fedrolex/table3-cifar100-high", "heterofl", 52.38, 0.80),
        ("fedrolex/table3-cifar100-low", "smallest", 19.70, 0.34),
        ("fedrolex/table3-stackoverflow", "fedrolex", 29.22, 0.24),
        ("fedrolex/table4-cifar10-high", "fedrolex", 63.17, 1.45),
        ("fedrolex/table4-stackoverflow", "fedrolex", 29.55, 0.41),
        ("fedrolex/table5-cifar100", "model-size", 56.99, 0.27),
        ("fedrolex/table6-cifar10", "heterofl/5-percent", 48.43, 1.78),
        ("fedrolex/table6-cifar10", "fedrolex/20-percent", 71.85, 1.22),
        ("fedbrb/table3-cifar10-dynamic", "a0-e1/non-iid-2/heterofl", 19.38, None),
        ("fedbrb/table3-cifar10-dynamic", "a0-e1/non-iid-2/fedrolex", 38.05, None),
        ("fedbrb/table3-cifar10-dynamic", "a0-e1/non-iid-2/fedbrb", 53.51, None),
        ("fedbrb/table3-cifar10-dynamic", "a0-b1-c1-d1-e1/iid/fedbrb", 83.69, None),
        ("fedbrb/table4-cifar10-fixed", "a0-b1-d1/non-iid-5/fedrolex", 79.06, None),
        ("fedbrb/table5-cifar10-ablation", "a0-e1/non-iid-2/without-broadcast", 51.95, None),
        ("fedbrb/table5-cifar10-ablation", "a0-b1-c1/iid/fedbrb", 85.87, None),
        ("fedbrb/table8-cifar100-dynamic", "a0-b1/non-iid-20/fedbrb", 57.20, None),
        ("fedbrb/table9-cifar100-fixed", "a0-c1-d1-e1/non-iid-50/fedrolex", 30.42, None),
        ("fedbrb/table10-mnist-dynamic", "a0-e1/non-iid-2/fedbrb", 79.62, None),
        ("fedbrb/table11-mnist-fixed", "a0-b1-c1-d1-e1/iid/heterofl", 97.81, None),
        ("thesis/table3-1", "2-classes/fedavg/1.00", 75.11, None),
        ("thesis/table3-1", "10-classes/fedavg/1.00", 91.37, None),
        ("thesis/table3-1", "6-classes/fedrolex-0.2/0.25", 50.01, None),
        ("thesis/table3-2", "8-classes/fedcover/0.50", 85.11, None),
        ("thesis/table3-2", "8-classes/fedcover/0.25", None, None),
        ("thesis/table3-2", "4-classes/fedstack/0.75", 81.04, None),
    ],
)
def test_numbers_are_the_papers(name, label, number, spread):
    paper = read_settings(name).only(label).paper
    assert (paper.number, paper.spread) == (number, spread)


def test_local_accuracies_are_the_papers():
    paper = read_settings("fedrolex/table4-cifar100-low").only("smallest").paper
    assert (paper.local, paper.local_spread) == (33.22, 0.10)
    assert read_settings("fedrolex/table5-cifar10").paper.local == 95.95


WEIGHTS = "fedbrb/table3-cifar10-broadcast"


def test_the_weights_of_fedbrbs_broadcast_are_tried_on_cells_of_its_table():
    for run in read_settings(WEIGHTS).runs:
        data, weight = run.label.split("/")
        cell = read_settings("fedbrb/table3-cifar10-dynamic").only(f"a0-e1/{data}/fedbrb")
        assert run.settings.method.options == {"broadcast": float(weight)}
        assert replace(run.settings, method=cell.main.method, name=cell.main.name) == cell.main
        assert run.paper.number == cell.paper.number


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("fedbrb/table") and name != WEIGHTS])
def test_fedbrb_tables_are_whole(name):
    runs = read_settings(name).runs
    assert len({run.settings.devices.capacities for run in runs}) == 12
    assert len(runs) == (72 if "ablation" in name else 108)
    for run in runs:
        mix, data = run.label.split("/")[:2]
        assert run.settings.devices.capacities == mix
        assert run.settings.devices.dynamic == ("fixed" not in name)
        assert (run.settings.data.partition == "iid") == (data == "iid")
        assert data == "iid" or data == f"non-iid-{run.settings.data.partition_options['per_client']}"


def test_with_clients_of_one_size_fixed_and_dynamic_are_the_same_experiment():
    for dynamic, fixed in (
        ("table3-cifar10-dynamic", "table4-cifar10-fixed"),
        ("table8-cifar100-dynamic", "table9-cifar100-fixed"),
        ("table10-mnist-dynamic", "table11-mnist-fixed"),
    ):
        one, other = numbers(f"fedbrb/{dynamic}"), numbers(f"fedbrb/{fixed}")
        single = [label for label in one if label.split("/")[0].count("-") == 1]
        assert len(single) == 4 * 9
        assert [one[label] for label in single] == [other[label] for label in single]


def test_the_ablation_repeats_the_main_table():
    main, ablation = numbers("fedbrb/table3-cifar10-dynamic"), numbers("fedbrb/table5-cifar10-ablation")
    whole = {label: number for label, number in ablation.items() if label.endswith("/fedbrb")}
    assert len(whole) == 36
    assert whole == {label: main[label] for label in whole}


@pytest.mark.parametrize("name", ["thesis/table3-1", "thesis/table3-2"])
def test_at_full_proportion_every_method_of_the_thesis_is_fedavg(name):
    runs = read_settings(name).runs
    assert len(runs) == 5 * (6 * 4 + 1)
    for classes in (2, 4, 6, 8, 10):
        whole = {r.paper.number for r in runs if r.label.startswith(f"{classes}-") and r.label.endswith("/1.00")}
        assert len(whole) == 1
    for run in runs:
        assert run.settings.data.partition_options["per_client"] == int(run.label.split("-")[0])
        assert Capacities.parse(run.settings.devices.capacities).values == (float(run.label.split("/")[-1]),)
        assert run.paper.best


@pytest.mark.parametrize("name", ["thesis/table3-1", "thesis/table3-2"])
def test_the_two_readings_of_the_thesis_differ_in_what_a_step_is_a_share_of(name):
    layer = {run.label: run for run in read_settings(name).runs}
    window = read_settings(f"{name}-window").runs
    assert {run.label for run in window} == {label for label in layer if not label.endswith("/1.00")}
    for run in window:
        other = layer[run.label]
        options = dict(run.settings.method.options)
        assert options.pop("step_of", None) == ("window" if "/fedrolex-" in run.label else None)
        there = replace(run.settings, method=replace(run.settings.method, options=options))
        assert there == other.settings
        assert run.paper == other.paper


def test_settings_of_table_3_are_the_workers_and_the_papers():
    real = read_settings("fedrolex/table3-cifar10-high").main
    stated = read_settings("fedrolex/table3-cifar10-high-as-stated").main
    assert (real.training.optimiser, real.training.batch_size, real.training.decay) == ("adam", 128, 0.25)
    assert (stated.training.optimiser, stated.training.batch_size, stated.training.decay) == ("sgd", 10, 0.1)
    assert real.training.milestones == stated.training.milestones == [800, 1500]
    assert real.rounds == stated.rounds == 2500
    assert real.devices.dynamic


def test_figure_3_goes_from_all_small_to_all_large():
    runs = read_settings("fedrolex/figure3-cifar10").runs
    shares = [Capacities.parse(run.settings.devices.capacities).shares(100)[0] for run in runs if "high" in run.label]
    assert shares == list(range(0, 101, 10))


class TestNames:
    """What tables call a run whose method was changed from outside."""

    RECIPE = """
name = "FedRolex"
label = "main"
[[compare]]
label = "other"
name = "Federated Dropout"
method.name = "feddropout"
[[compare]]
label = "third"
method.name = "heterofl"
"""

    def names(self, *changes, **options):
        return [run.settings.name for run in read_settings(self.RECIPE, changes, **options).runs]

    def test_they_are_the_recipes_where_the_method_is(self):
        assert self.names("rounds=3") == ["FedRolex", "Federated Dropout", "third"]
        assert self.names("method.options.rounding=ceil") == ["FedRolex", "Federated Dropout", "third"]

    def test_another_method_is_called_by_its_own_name(self):
        assert self.names("method.name=fedgkt", only="main") == ["FedGKT"]
        assert self.names("method.name=feddropout", only="other") == ["Federated Dropout"]

    def test_a_local_rule_is_part_of_the_name(self):
        assert self.names("local.name=fedprox", only="main") == [method("fedrolex", local="fedprox").title]

    def test_names_that_become_the_same_are_told_apart_by_labels(self):
        changed = self.names("method.name=fedcover")
        assert changed == ["FedCover (main)", "FedCover (other)", "FedCover (third)"]

    def test_a_name_that_was_given_too_stays(self):
        assert self.names("method.name=fedcover", "name=mine", only="main") == ["mine"]
