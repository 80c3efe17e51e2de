"""The tables of docs/benchmark.md: by hand from a few made-up runs, and up to date in the repository."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from reproduction.benchmark.page import PAGES, SETS, YARDSTICK_TITLES, per_seed, write_benchmark
from reproduction.benchmark.recipes import KINDS, RECIPES, add_jobs, find_training, make_recipe
from reproduction.benchmark.standings import (
    ANY_WIDTH,
    CAP,
    MIXES,
    NARROWER_TITLES,
    YARDSTICKS,
    Standings,
    chosen_accuracy,
    late_accuracy,
    part_accuracy,
    together_accuracy,
)
from reproduction.benchmark.tables import (
    BYTES,
    accuracy_table,
    accuracy_within,
    device_table,
    gain_table,
    mean_ranks,
    mix_table,
    server_width_table,
    worst_share,
)
from reproduction.benchmark.tuning import find_best, find_trials, training_of, tuning_table, width_table

from fedwidth.analysis.yardsticks import CAPPED, EXCLUDE, SMALLEST
from fedwidth.config.read import read_settings, recipe_names
from fedwidth.errors import OptionError
from fedwidth.reproduce.queue_file import read_queue
from fedwidth.reproduce.records import read_all
from recorded_runs import record
from small_runs import small

ROOT = Path(__file__).resolve().parents[2]
RECORDS = read_all(ROOT / "results")
TITLES = {"one": "One", "two": "Two", **YARDSTICK_TITLES}


def run(label, *late, seed=1, recipe="benchmark/set", **fields):
    """A run that measured these accuracies in its last evaluations."""
    rows = [[20 * (place + 1), value, None, None] for place, value in enumerate([0.1, *late])]
    return replace(record(small(f"seed={seed}"), label=label), recipe=recipe, label=label, evaluations=rows, **fields)


def reached(label, *by_seed, **fields):
    """Runs with the seeds 1, 2, … that measured one accuracy five times."""
    return [run(label, *[value] * 5, seed=seed, **fields) for seed, value in enumerate(by_seed, start=1)]


def test_the_pages_in_the_repository_are_up_to_date():
    for name in PAGES:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert "<!-- made by `make results`: " in page
        assert page == write_benchmark(page, RECORDS), "run `make results`"
    for name in SETS:
        assert (ROOT / "results" / "benchmark" / f"{name}.csv").read_text() == per_seed(name, RECORDS)


def test_evaluations_that_lie_too_far_apart_are_not_averaged_within_a_budget():
    rows = [[round, 0.5, None, None] for round in (100, 200, 300, 420, 440)]
    spent = [[float(row[0]), 0.0] for row in rows]
    sparse = replace(run("one/five-sizes", 0.5), evaluations=rows, spent=spent)
    assert accuracy_within(sparse, BYTES, 350) is None
    assert accuracy_within(sparse, BYTES, 150) is None, "one evaluation, and the next is far behind the end"
    assert accuracy_within(sparse, BYTES, 430) is None
    assert accuracy_within(sparse, BYTES, 1000) is None, "the last five are not all of the end"
    dense = replace(sparse, evaluations=[[round, 0.5, None, None] for round in (20, 40, 60, 80, 100)])
    dense = replace(dense, spent=[[float(row[0]), 0.0] for row in dense.evaluations])
    assert accuracy_within(dense, BYTES, 30) == pytest.approx(50.0), "one evaluation near the end of the budget"


def test_widths_between_the_whole_model_and_the_smallest_are_told_apart():
    def trial(row, column, accuracy):
        return replace(run(f"{row}/{column}", accuracy), final_accuracy=accuracy)

    trials = {
        "one-width": {"half": trial("one-width", "half", 0.73), "quarter": trial("one-width", "quarter", 0.70)},
        "two": {"half": trial("two", "half", 0.71), "quarter": None},
    }
    tuned = {
        "exclude": {"sgd-1": trial("exclude", "sgd-1", 0.67)},
        "smallest": {"sgd-1": trial("smallest", "sgd-1", 0.58)},
        "two": {"sgd-1": trial("two", "sgd-1", 0.69)},
    }
    lines = width_table(trials, tuned, TITLES | {"one-width": "alone"}).splitlines()
    assert lines[0].split(" | ") == ["| server's width", "1", "1/2", "1/4", "1/16 |"]
    assert lines[2:] == ["| alone | 67.0 | **73.0** | 70.0 | 58.0 |", "| Two | 69.0 | **71.0** |  |  |"]


def test_the_last_five_evaluations_count():
    assert late_accuracy(run("one/five-sizes", 0.9, 0.5, 0.6, 0.7, 0.8, 0.4)) == pytest.approx(60.0)


def test_the_gain_is_over_the_best_yardstick_of_the_mix():
    standings = Standings.of(
        "set",
        [
            *reached("one/five-sizes", 0.50, 0.54),
            *reached("exclude/five-sizes", 0.48, 0.50, recipe="benchmark/set-yardsticks"),
            *reached("smallest", 0.30, 0.30, recipe="benchmark/set-yardsticks"),
            *reached("one/no-full-width", 0.45, 0.45),
            *reached("one/capped", 0.40, 0.44),
            *reached("one/all-quarter", 0.45, 0.45),
            *reached("two/five-sizes", 0.9, recipe="benchmark/other"),
        ],
    )
    gain = standings.gain("one", "five-sizes")
    assert gain.kind == EXCLUDE
    assert gain.difference.values == pytest.approx((2.0, 4.0))
    gain = standings.gain("one", "no-full-width")
    assert gain.kind == CAPPED
    assert gain.difference.values == pytest.approx((5.0, 1.0))
    assert set(standings.yardsticks("one", "no-full-width")) == {SMALLEST, CAPPED}
    assert standings.gain("one", "all-quarter") is None
    assert standings.methods("five-sizes") == ["one"]


def test_the_harder_bar_has_models_of_other_widths_that_only_devices_train_which_can_hold_them():
    runs = [
        *reached("one/five-sizes", 0.50, 0.54),
        *reached("exclude/five-sizes", 0.48, 0.50, recipe="benchmark/set-yardsticks"),
        *reached("smallest", 0.30, 0.30, recipe="benchmark/set-yardsticks"),
        *reached("one/no-full-width", 0.45, 0.47),
        *reached("one/capped", 0.40, 0.42),
        *reached("only-quarter/no-full-width", 0.35, 0.36, recipe="benchmark/set-yardsticks"),
    ]
    half = reached("only-half/five-sizes", 0.55, 0.55, recipe="benchmark/set-yardsticks")
    quarter = reached("only-quarter/five-sizes", 0.52, 0.52, recipe="benchmark/set-yardsticks")
    first, harder = (Standings.of("set", [*runs, *half, *quarter], bars=bars) for bars in (YARDSTICKS, ANY_WIDTH))
    assert first.gain("one", "five-sizes").difference.values == pytest.approx((2.0, 4.0))
    assert harder.gain("one", "five-sizes").difference.values == pytest.approx((-5.0, -1.0))
    assert harder.methods("five-sizes") == harder.methods("no-full-width") == ["one"], "a yardstick is no method"
    assert not harder.lacks("one", "five-sizes")
    assert Standings.of("set", [*runs, *half], bars=ANY_WIDTH).lacks("one", "five-sizes")
    # Without full width the model of 1/2 is the one that "exclude/capped" trains.
    assert harder.lacks("one", "no-full-width")
    assert harder.gain("one", "no-full-width").difference.values == pytest.approx((5.0, 5.0))
    alone = reached("exclude/capped", 0.44, 0.45, recipe="benchmark/set-yardsticks")
    complete = Standings.of("set", [*runs, *alone], bars=ANY_WIDTH)
    assert not complete.lacks("one", "no-full-width")
    assert complete.gain("one", "no-full-width").difference.values == pytest.approx((1.0, 2.0))


def test_what_was_reached_by_the_width_of_the_servers_model():
    alone = {"exclude/five-sizes": 0.70, "only-half/five-sizes": 0.79, "only-quarter/five-sizes": 0.78, "smallest": 0.6}
    runs = [
        *(each for label, value in alone.items() for each in reached(label, value, recipe="benchmark/set-yardsticks")),
        *reached("one/five-sizes", 0.75),
        *reached("one/five-sizes-half", 0.81),
        *reached("two/five-sizes", 0.74),  # has no run with a narrower model, but where nobody has full width
        *reached("two/capped", 0.5),
        *reached("one/capped", 0.6),
    ]
    lines = server_width_table(Standings.of("set", runs), TITLES).splitlines()
    assert lines[0] == "| devices | who trains | 1 | 1/2 | 1/4 | 1/16 |"
    assert lines[2:4] == [
        "| five sizes | only devices that can hold it | 70.0 | **79.0** | 78.0 | 60.0 |",
        "|  | One | 75.0 | **81.0** | – |  |",
    ]
    assert lines[6:] == [
        "| no full width | only devices that can hold it | – | – | – | **60.0** |",
        "|  | One | – | **60.0** | – |  |",
    ]
    # With a narrower model of the server's, too, a method has to beat one model of any width.
    titled = {column: column for column in ("five-sizes-half", "capped")}
    gains = gain_table(Standings.of("set", runs, bars=ANY_WIDTH), TITLES, titled, with_ranks=False)
    assert gains.splitlines()[2:] == [
        "| One | +2.0, one seed | ≤ 0.0, one seed |",
        "| Two | – | ≤ −10.0, one seed |",
    ]


def test_tables_put_the_best_first():
    runs = [*reached("one/five-sizes", 0.5), *reached("two/five-sizes", 0.6), *reached("one/all-quarter", 0.7)]
    runs += [*reached("two/all-quarter", 0.65), *reached("full", 0.8), *reached("smallest", 0.55)]
    standings = Standings.of("set", runs)
    assert mean_ranks(standings) == {"one": 1.5, "two": 1.5}
    assert [line.split(" | ")[:2] for line in mix_table(standings, "five-sizes", TITLES).splitlines()[2:]] == [
        ["| Two", "60.0"],
        ["| One", "50.0"],
        ["| *smallest for all*", "55.0"],
        ["| *full for all*", "80.0"],
    ]
    table = gain_table(standings, TITLES)
    assert table.splitlines()[2:] == ["| Two | ≤ +5.0, one seed | – | 1.5 |", "| One | ≤ −5.0, one seed | – | 1.5 |"]
    standings = Standings.of("set", [*runs, *reached("exclude/five-sizes", 0.4)])
    assert "| Two | +5.0, one seed |" in gain_table(standings, TITLES), "no yardstick is missing"


def test_gains_that_are_decided_or_equal_to_zero_are_marked():
    runs = [*reached("exclude/five-sizes", *[0.5] * 3), *reached("smallest", *[0.4] * 3)]
    runs += [*reached("one/five-sizes", 0.599, 0.6, 0.601), *reached("two/five-sizes", 0.502, 0.499, 0.501)]
    runs += reached("full/five-sizes", 0.7, 0.4, 0.6)
    assert [line.split(" | ")[1] for line in gain_table(Standings.of("set", runs), TITLES).splitlines()[2:]] == [
        "**+10.0** (+9.8 to +10.2) |",
        "+6.7 (−31.3 to +44.6) |",
        "+0.1 (−0.3 to +0.4) ≈ |",
    ]


def test_what_was_reached_in_every_mix():
    runs = [*reached("one/five-sizes", 0.5), *reached("two/five-sizes", 0.6), *reached("one/all-quarter", 0.7)]
    runs += [*reached("smallest", 0.55), *reached("quarter", 0.65), *reached("exclude/five-sizes", 0.4)]
    assert accuracy_table(Standings.of("set", runs), TITLES).splitlines() == [
        "|  | five sizes | all at 1/4 |",
        "| --- | ---: | ---: |",
        "| Two | 60.0 | – |",
        "| One | 50.0 | 70.0 |",
        "| *exclude* | 40.0 | – |",
        "| *smallest for all* | 55.0 | 65.0 |",
        "| *full for all* | – | – |",
    ]


def test_yardsticks_are_shown_before_any_method_was_run():
    page = "\n".join(
        f"<!-- made by `make results`: {kind} of set -->\n<!-- end -->" for kind in ("yardsticks", "gains")
    )
    assert write_benchmark(page, []).count("Nothing has been run yet.") == 2
    clients = [[0.5, 0]] * 9 + [[0.2, 0]]
    runs = [*reached("full", 0.8), *reached("exclude/five-sizes", 0.5, 0.6, clients=clients), *reached("quarter", 0.4)]
    made = write_benchmark(page, runs)
    assert made.count("Nothing has been run yet.") == 1
    assert [line for line in made.splitlines() if line.startswith("| *")] == [
        "| *exclude*, five sizes | 55.0 ± 7.1 | 20.0 ± 0.0 | 1, 2 |",
        "| *full for all* | 80.0 | – | 1 only |",
        "| *smallest for all*, 1/4 | 40.0 | – | 1 only |",
    ]


def test_every_seed_of_every_run_is_a_line_with_what_its_parts_answer():
    measured = {
        "final_accuracy": 0.6,
        "capacity_accuracy": {"1": 0.6, "0.25": 0.5},
        "capacity_validation": {"1": 0.4, "0.25": 0.45},
        "together_accuracy": 0.61,
        "chosen_accuracy": 0.625,
        "chosen_capacities": [1.0, 0.25],
    }
    one = replace(run("one/five-sizes", *[0.59] * 5, spent=[[7, 8]], clients=[[0.5, 0]]), **measured)
    head, line = per_seed("set", [one]).splitlines()
    found = dict(zip(head.split(","), line.split(","), strict=True))
    assert found | {"commit": ""} == {
        **{"run": "one/five-sizes", "seed": "1", "accuracy": "59.000", "worst_tenth": "50.000", "commit": ""},
        **{"bytes": "7", "multiply_adds": "8", "last_round": "60.000", "best_part": "50.000", "together": "61.000"},
        **{"part_1": "60.000", "part_0.5": "", "part_0.25": "50.000", "part_0.125": "", "part_0.0625": ""},
        **{"chosen": "62.500", "chosen_widths": "1.0 0.25"},
    }


def test_ranks_are_by_seeds_that_all_methods_have():
    runs = [*reached("one/five-sizes", 0.5, 0.9), *reached("two/five-sizes", 0.6)]
    assert mean_ranks(Standings.of("set", runs)) == {"one": 2, "two": 1}
    later = [run("one/five-sizes", *[0.7] * 5, seed=2), *reached("two/five-sizes", 0.6)]
    assert mean_ranks(Standings.of("set", later)) == {}


def test_a_method_without_a_rank_keeps_its_gain():
    runs = [run("one/five-sizes", *[0.7] * 5, seed=2), *reached("two/five-sizes", 0.6), *reached("smallest", 0.5)]
    assert gain_table(Standings.of("set", runs), TITLES).splitlines() == [
        "|  | five sizes |",
        "| --- | ---: |",
        "| Two | ≤ +10.0, one seed |",
        "| One | – |",
    ]
    both = [*runs, *reached("two/all-quarter", 0.6)]
    assert gain_table(Standings.of("set", both), TITLES).splitlines()[2:] == [
        "| Two | ≤ +10.0, one seed | – | 1.0 |",
        "| One | – | – | – |",
    ]


def test_sub_models_beside_the_smallest_model_for_all():
    first, *others = reached("one/five-sizes", 0.5, 0.6, 0.7)
    sizes = ({"1": 0.6, "0.0625": 0.2}, {"1": 0.7, "0.0625": 0.4})
    runs = [first, *(replace(each, capacity_accuracy=own) for each, own in zip(others, sizes, strict=True))]
    runs += [replace(run("smallest", 0.2, 0.3), final_accuracy=0.55), *reached("two/five-sizes", 0.3)]
    assert device_table(Standings.of("set", runs), "five-sizes", TITLES).splitlines() == [
        "| last round, sub-model of | 1 | 1/16 | seeds |",
        "| --- | ---: | ---: | ---: |",
        "| One | 65.0 ± 7.1 | 30.0 ± 14.1 | 2, 3 |",
        "| *smallest for all* | 55.0 | 55.0 | 1 only |",
    ]
    assert device_table(Standings.of("set", reached("two/five-sizes", 0.3)), "five-sizes", TITLES) is None


def test_the_sub_model_that_validation_likes_best_is_reported_on_the_test_set():
    # With seed 1 validation likes 1/4 best, with seed 2 the whole: 0.5 and 0.8 on the test set.
    tested = ({"1": 0.6, "0.25": 0.5}, {"1": 0.8, "0.25": 0.9})
    seen = ({"1": 0.1, "0.25": 0.2}, {"1": 0.4, "0.25": 0.3})
    runs = [
        replace(each, capacity_accuracy=own, capacity_validation=held, together_accuracy=0.75)
        for each, own, held in zip(reached("one/five-sizes", 0.6, 0.8), tested, seen, strict=True)
    ]
    runs += [replace(each, capacity_accuracy=tested[0]) for each in reached("two/five-sizes", 0.6)]
    runs += [replace(run("smallest", 0.2, 0.3), final_accuracy=0.55)]
    assert device_table(Standings.of("set", runs), "five-sizes", TITLES).splitlines() == [
        "| last round, sub-model of | 1 | 1/4 | best by validation | all together | seeds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| One | 70.0 ± 14.1 | 70.0 ± 28.3 | 65.0 ± 21.2 (1, 1/4) | 75.0 ± 0.0 | 1, 2 |",
        "| Two | 60.0 | 50.0 | – | – | 1 only |",
        "| *smallest for all* | 55.0 | 55.0 | 55.0 | 55.0 | 1 only |",
    ]


def test_the_gain_of_parts_that_answer_is_over_yardsticks_and_over_capped_that_answers_so_too():
    def parted(label, whole, half, together, chosen, best="1"):
        return replace(
            *reached(label, whole),
            capacity_accuracy={"1": whole, "0.5": half},
            capacity_validation={"1": 0.1, "0.5": 0.1} | {best: 0.2},
            together_accuracy=together,
            chosen_accuracy=chosen,
        )

    runs = [
        parted("one/no-full-width", 0.40, 0.60, 0.66, 0.68, best="0.5"),
        parted("one/capped", 0.55, 0.50, 0.62, 0.61),
        parted("one/five-sizes", 0.70, 0.71, 0.75, 0.76),
        replace(*reached("smallest", 0.90, recipe="benchmark/set-yardsticks"), final_accuracy=0.50),
        *reached("two/five-sizes", 0.9),
    ]
    # By hand: less capped, which has 55, 62 and 61, and less the smallest model, which has 50 in its last round.
    for accuracy, none, five in ((part_accuracy, 5, 20), (together_accuracy, 4, 25), (chosen_accuracy, 7, 26)):
        standings = Standings.of("set", runs, accuracy)
        assert standings.methods("five-sizes") == ["one"], "two was not asked"
        assert standings.gain("one", "no-full-width").difference.mean == pytest.approx(none)
        assert standings.gain("one", "five-sizes").difference.mean == pytest.approx(five)


def test_sub_models_that_some_runs_lack():
    sizes = ({"1": 0.6, "0.5": None}, {"1": 0.8, "0.25": 0.3})
    runs = [
        replace(each, capacity_accuracy=own)
        for each, own in zip(reached("one/five-sizes", 0.6, 0.8), sizes, strict=True)
    ]
    assert "| One | 70.0 ± 14.1 | – | – | 1, 2 |" in device_table(Standings.of("set", runs), "five-sizes", TITLES)


def test_the_budget_is_what_methods_spend_and_not_a_cheaper_yardstick():
    runs = reached("one/five-sizes", 0.5, spent=[[10e9 * place, 1e12] for place in range(6)])
    runs += reached("full", 0.8, spent=[[25e9 * place, 2e12 * place] for place in range(6)])
    runs += reached("smallest", 0.4, spent=[[1e9 * place, 1e12] for place in range(6)])
    table = mix_table(Standings.of("set", runs), "five-sizes", TITLES).splitlines()
    head = "|  | accuracy | worst tenth of the clients | within 50 GB | within 1 T multiply-adds"
    assert table[0] == f"{head} | GB | T multiply-adds | seeds |"
    assert table[2:] == [
        "| One | 50.0 | – | 50.0 | 50.0 | 50.0 | 1 | 1 only |",
        "| *smallest for all* | 40.0 | – | 40.0 | 40.0 | 5.0 | 1 | 1 only |",
        "| *full for all* | 80.0 | – | 56.7 † | 10.0 † | 125.0 | 10 | 1 only |",
    ]


def test_within_a_budget_only_what_was_measured_in_it_counts():
    made = run("one/five-sizes", 0.2, 0.3, spent=[[10, 1], [20, 2], [30, 3]])
    assert accuracy_within(made, BYTES, 20) == pytest.approx(15.0)
    assert accuracy_within(made, BYTES, 9) is None
    assert accuracy_within(replace(made, spent=None), BYTES, 20) is None


def test_the_worst_tenth_of_the_clients():
    clients = [[0.5, 0]] * 18 + [[0.1, 4], [0.2, 4], [None, 1]]
    assert worst_share(run("one/five-sizes", 0.5, clients=clients)) == pytest.approx(15.0)
    assert worst_share(run("one/five-sizes", 0.5, clients=None)) is None


def test_a_row_is_tuned_when_all_its_trials_are_there():
    trials = {"one": {"adam-1e-3": run("one/adam-1e-3"), "sgd-0.1": None}}
    assert find_best(trials) == {}
    assert tuning_table(trials, TITLES).splitlines()[2] == "| One | 50.0 | – |"
    trials["one"]["sgd-0.1"] = replace(run("one/sgd-0.1"), final_accuracy=0.75)
    assert find_best(trials) == {"one": "sgd-0.1"}
    assert tuning_table(trials, TITLES).splitlines()[2] == "| One | 50.0 | **75.0** |"


@pytest.mark.parametrize("name", [name for name in SETS if f"benchmark/{name}" in recipe_names()])
def test_reported_runs_are_trained_as_their_trials_chose(name):
    trials = find_trials(f"benchmark/{name}-tuning", RECORDS)
    chosen = {row: training_of(trials[row][column]) for row, column in find_best(trials).items()}
    chosen |= {"only-half": chosen["exclude"], "only-quarter": chosen["quarter"]}
    kinds = ("", "-yardsticks", "-group-norm", "-redrawn")
    for recipe in {f"benchmark/{name}{kind}" for kind in kinds} & set(recipe_names()):
        for each in read_settings(recipe).runs:
            training = {key: getattr(each.settings.training, key) for key in ("optimiser", "lr")}
            assert training == chosen[each.label.partition("/")[0]], each.label


def test_the_smallest_model_of_the_spot_check_has_no_sub_models():
    (smallest,) = (run for run in read_settings("benchmark/cifar10-group-norm").runs if "smallest" in run.label)
    assert smallest.settings.devices.capacities == "a1"
    assert smallest.settings.evaluation.capacities == []


def test_recipes_of_another_data_set_are_those_of_the_first_with_what_its_trials_chose():
    chosen = find_training("cifar10", ROOT / "results")
    for kind in KINDS:
        text = (RECIPES / f"cifar10{kind}.toml").read_text(encoding="utf-8")
        assert make_recipe(text, "cifar10", chosen) == text
        other = make_recipe(text, "cifar100", dict.fromkeys(chosen, 'training.optimiser = "adam", training.lr = 7e-5'))
        runs = read_settings(other).runs
        assert {each.settings.training.lr for each in runs} == {7e-5}
        assert {each.settings.data.name for each in runs} == {"cifar100"}
        assert {each.settings.data.partition_options["per_client"] for each in runs} == {20}
        assert {each.settings.data.validation for each in runs} == {0.08}
    with pytest.raises(OptionError, match="trials of .*fedrolex.* have not all been run"):
        find_training("cifar10", ROOT / "results" / "queue")


def test_recipes_do_not_wait_for_trials_of_rows_that_are_not_reported(tmp_path):
    lines = (ROOT / "results" / "benchmark" / "cifar10-tuning.jsonl").read_text(encoding="utf-8").splitlines()
    reported = [line for line in lines if not json.loads(line)["label"].startswith("fedladder/")]
    assert len(reported) == len(lines) - 6
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "cifar10-tuning.jsonl").write_text("\n".join(reported) + "\n", encoding="utf-8")
    everything = find_training("cifar10", ROOT / "results")
    del everything["fedladder"]
    assert find_training("cifar10", tmp_path) == everything


def test_the_jobs_of_another_data_set_stand_behind_its_trials(tmp_path):
    queue = (ROOT / "results" / "queue.toml").read_text(encoding="utf-8")
    answered = queue.replace('name = "cifar10-yardsticks"', 'name = "cifar10-yardsticks"\nanswer = "CIFAR-10: 70.8."')
    assert add_jobs(answered, "cifar100").count("70.8.") == 1
    with pytest.raises(OptionError, match="no job for the trials of cifar100"):
        add_jobs(queue.replace("cifar100-tuning", "other-tuning"), "cifar100")
    more = tmp_path / "queue.toml"
    more.write_text(add_jobs(queue, "cifar100"), encoding="utf-8")
    assert add_jobs(more.read_text(encoding="utf-8"), "cifar100") == more.read_text(encoding="utf-8")
    jobs = read_queue(more)
    places = {job.name: place for place, job in enumerate(jobs)}
    trials = max(place for name, place in places.items() if name.startswith("cifar100-tuning"))
    for mix in (*MIXES, CAP, "yardsticks"):
        assert trials < places[f"cifar100-{mix}"] <= trials + len(MIXES) + 4, (
            "FjORD has a job of its own, models of any width too"
        )
        first, other = jobs[places[f"cifar10-{mix}"]], jobs[places[f"cifar100-{mix}"]]
        assert (other.only, other.seeds, other.packed) == (first.only, first.seeds, first.packed)
        assert other.recipes == tuple(recipe.replace("cifar10", "cifar100") for recipe in first.recipes)
        assert "CIFAR-100" in other.asks


@pytest.mark.parametrize("name", [name for name in SETS if f"benchmark/{name}" in recipe_names()])
def test_the_recipes_have_the_runs_that_the_tables_look_for(name):
    methods = read_settings(f"benchmark/{name}").runs
    assert {each.label.partition("/")[2] for each in methods} == {*MIXES, *NARROWER_TITLES}
    yardsticks = {each.label for each in read_settings(f"benchmark/{name}-yardsticks").runs}
    assert yardsticks == {
        label for bars in (YARDSTICKS, ANY_WIDTH) for of_mix in bars.values() for label in of_mix.values()
    }
