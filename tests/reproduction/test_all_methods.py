"""What the results page says of all methods side by side."""

from dataclasses import replace

from reproduction.all_methods import RECIPE, all_methods_texts
from reproduction.yardsticks import Yardsticks

from fedwidth.analysis.yardsticks import yardsticks
from fedwidth.config.read import read_settings
from fedwidth.methods import methods
from recorded_runs import record


def test_the_recipe_has_every_method_once_and_teaches_at_most_100_batches():
    runs = read_settings(RECIPE).runs
    whole = [name for name, method in methods().items() if not method.adapters]
    assert sorted(run.settings.method.name for run in runs) == sorted(whole), "adapters have a table of their own"
    for run in runs:
        name, options = run.settings.method.name, run.settings.method.options
        if "steps" in methods()[name].options:
            assert options.get("steps", methods()[name].options["steps"].default) <= 100
        assert (run.settings.rounds, run.settings.data.public, run.settings.devices.dynamic) == (100, 0.1, False)


def test_without_runs_the_section_says_so():
    *_, last = all_methods_texts([], Yardsticks([]))
    assert last == f"None of its {len(read_settings(RECIPE).runs)} runs has been made yet."


def test_the_section_fills_itself_from_records():
    runs = {run.label: run.settings for run in read_settings(RECIPE).runs}
    known = [
        record(replace(runs[name], seed=1), label=name, final=end) for name, end in (("feddf", 0.4), ("fedavg", 0.6))
    ]
    known.append(record(replace(yardsticks(runs["feddf"])["exclude"], seed=1), final=0.5))
    title, _, table, left = all_methods_texts(known, Yardsticks(known))
    assert title == "## All methods"
    head, _, first, second = table.splitlines()
    assert head.startswith("| method | family | last round | clients' own data | seeds | exclude | gain |")
    assert first.startswith("| FedAvg | local training | 60.00 | 75.00 | 1 |")
    assert second.startswith(
        "| FedDF | distillation | 40.00 | 75.00 | 1 | 50.00 | at most −10.0 over exclude; smallest for all not run |"
    )
    assert "FedDF" not in left
    assert left.startswith("Not run yet: FedRolex, HeteroFL")
