"""The runs of one table, compared with the one that leads and with their yardsticks."""

from dataclasses import replace

from fedwidth.analysis.comparison import Comparison, Row
from fedwidth.analysis.yardsticks import CAPPED, EXCLUDE, FULL, PREFIX, SMALLEST, yardsticks
from fedwidth.evaluation.widths import CHOSEN
from small_runs import small


def row(title, *test, validation=(), settings=None):
    return Row(title, settings, dict(enumerate(test, 1)), dict(enumerate(validation, 1)))


def test_the_main_run_leads_and_is_compared_with_each_other():
    compared = Comparison((row("A", 81.0, 82.0, 83.0), row("B", 50.0, 51.0, 52.0), row("C", 81.0, 82.1, 82.9)))
    assert compared.lead == 0
    assert compared.sentences() == [
        "A is 31.0 points above B (95 %: 31.0 to 31.0, three seeds).",
        "A and C are equal within ±1 (difference 0.0, 95 %: −0.2 to +0.2, three seeds).",
    ]


def test_one_seed_says_so_once():
    compared = Comparison((row("A", 81.0), row("B", 50.0), row("C", 60.0)))
    assert compared.sentences() == [
        "One seed: differences have no interval, and decide nothing. --seeds 1,2,3 compares."
    ]
    assert Comparison((row("A", 81.0),)).sentences() == []


def test_the_best_of_a_sweep_is_chosen_by_validation_and_judged_on_the_test_set():
    rows = (
        row("A", 90.0, 91.0, validation=(70.0, 71.0)),
        row("B", 80.0, 81.0, validation=(75.0, 76.0)),
        row("yardstick: full for all", 99.0, 99.0, validation=(99.0, 99.0)),
    )
    compared = Comparison(rows, best_leads=True)
    assert (compared.lead, compared.chosen_by, compared.measure) == (1, "validation", "test")
    assert compared.leading_sentence() == (
        "Best by validation accuracy: B, 75.5 ± 0.7 % (two seeds). On the test set it has 80.5 ± 0.7 % (two seeds)."
    )
    assert compared.difference_sentences() == ["B is 10.0 points below A (two seeds differ by the same: no interval)."]


def test_runs_without_a_test_set_are_compared_by_validation():
    compared = Comparison((row("A", validation=(70.0, 72.0)), row("B", validation=(71.0, 74.0))), best_leads=True)
    assert compared.measure == "validation"
    assert compared.lead == 1
    assert compared.leading_sentence() == "Best by validation accuracy: B, 72.5 ± 2.1 % (two seeds)."
    assert "difference +1.5" in compared.difference_sentences()[0]


def test_a_sweep_that_looks_at_the_test_set_says_what_that_means():
    compared = Comparison((row("A", 90.0), row("B", 95.0)), best_leads=True)
    assert compared.leading_sentence().endswith(
        "Chosen on the test set it looks better there than it is: data.validation sets samples aside."
    )


def test_many_differences_are_counted():
    others = [row(f"run {n}", 80.0 - n, 80.5 - n, 79.5 - n) for n in range(12)]
    compared = Comparison((row("A", 80.0, 80.5, 79.5), *others))
    (said,) = compared.difference_sentences()
    # Against run 0 nothing differs, against the others n points in every seed.
    assert said == (
        "Of 12 others, A is equal within ±1 with 1 (run 0); above 11 (run 1, run 2, run 3, run 4 and 7 more)"
        " (95 %, Holm)."
    )


def test_gains_are_over_the_yardsticks_among_the_rows():
    mine = small("devices.capacities=a1-b1")
    found = yardsticks(mine)
    rows = (
        row("A", 80.0, 84.0, settings=mine),
        row("H", 70.0, 60.0, settings=small("devices.capacities=a1-b1", "method.name=heterofl")),
        row("E", 60.0, 62.0, settings=found[EXCLUDE]),
        row("F", 90.0, 92.0, settings=found[FULL]),
    )
    compared = Comparison(rows)
    assert compared.yardsticks == [{EXCLUDE: 2, FULL: 3}] * 2 + [{}, {}]
    assert [gain and gain.difference.values for gain in compared.gains] == [(20.0, 22.0), (10.0, -2.0), None, None]
    assert [gain.difference.of for gain in compared.gains if gain] == [2, 2]
    assert compared.yardstick_sentences() == [
        "Yardsticks of A, H: exclude 61.0 ± 1.4 % (two seeds), full for all 91.0 ± 1.4 % (two seeds)."
    ]


def test_widths_that_answer_together_are_compared_with_the_same_yardsticks_and_corrected_by_themselves():
    mine, more = small("devices.capacities=a1-b1"), small("devices.capacities=a1-b1", "method.name=heterofl")
    rows = (
        replace(row("A", 80.0, 84.0, settings=mine), together={1: 90.0, 2: 91.0}),
        replace(row("H", 70.0, 60.0, settings=more), together={1: 85.0, 2: 80.0}, which=CHOSEN),
        row("E", 60.0, 62.0, settings=yardsticks(mine)[EXCLUDE]),
    )
    compared = Comparison(rows)
    assert [gain and gain.difference.values for gain in compared.gains_together] == [(30.0, 29.0), (25.0, 18.0), None]
    assert [gain.difference.of for gain in compared.gains_together if gain] == [2, 2]
    # Errors 0.5 and 3.5, times 12.706. With one degree of freedom t = 59 has p = 0.011, doubled 0.022; 6.14 has 0.103.
    assert compared.together_sentences() == [
        "With all widths together: A's gain over exclude is decided (+29.5, 95 %: +23.1 to +35.9, two seeds).",
        "With the widths that validation samples choose, one or several: H's gain over exclude is not decided (+21.5,"
        " 95 %: −23.0 to +66.0, two seeds).",
    ]
    assert set(compared.together_sentences()) <= set(compared.sentences())


def test_the_gain_of_a_yardstick_is_no_question_asked():
    """Capped is above smallest for all, of which nothing is said; nor is it among what is corrected."""
    narrow = yardsticks(small("devices.capacities=b1-c1"))[CAPPED]
    mine = small("devices.capacities=b1-c1")
    rows = (
        replace(row("A", 80.0, 84.0, settings=mine), together={1: 90.0, 2: 91.0}),
        replace(row(f"{PREFIX}{CAPPED}", 70.0, 60.0, settings=narrow), together={1: 85.0, 2: 80.0}),
        row("S", 50.0, 52.0, settings=yardsticks(mine)[SMALLEST]),
    )
    compared = Comparison(rows)
    assert all([*compared.gains[:2], *compared.gains_together[:2]])
    assert [gain.difference.of for gain in (compared.gains[0], compared.gains_together[0]) if gain] == [1, 1]
    assert [len(said) for said in (compared.gain_sentences(), compared.together_sentences())] == [1, 1]
    untested = replace(rows[2], test={}, validation={1: 60.0})
    assert Comparison((replace(rows[0], validation={1: 80.0}), untested)).gains_together == [None, None]


def test_a_row_takes_the_widths_that_were_chosen_and_none_where_the_test_set_was_not_looked_at():
    scores = {"global_mse": {1: 3.0}, "validation_mse": {1: 4.0}, "together_mse": {1: 2.0}, "chosen_mse": {1: 1.0}}

    def made(*names):
        return Row.of("A", None, lambda name: scores[name] if name in names else {}, "mse")

    assert made(*scores) == Row("A", None, {1: 3.0}, {1: 4.0}, {1: 1.0}, CHOSEN)
    assert made("global_mse", "together_mse") == Row("A", None, {1: 3.0}, {}, {1: 2.0})
    assert made("validation_mse", "together_mse") == Row("A", None, {}, {1: 4.0})


def against_exclude(*gains):
    """A row for each gain (its values by seed), over one yardstick of them all."""
    mine = small("devices.capacities=a1-b1")
    rows = [row(f"run {n}", *(60.0 + value for value in gain), settings=mine) for n, gain in enumerate(gains)]
    return Comparison((*rows, row("E", *[60.0] * len(gains[0]), settings=yardsticks(mine)[EXCLUDE])))


def test_of_each_gain_it_is_said_whether_it_is_decided():
    assert against_exclude((14.0, 2.0, 27.5)).gain_sentences() == [
        "run 0's gain over exclude is not decided (+14.5, 95 %: −17.2 to +46.2, three seeds)."
    ]
    several = against_exclude((20.0, 20.1, 20.2), (-9.0, -9.1, -9.2), (0.0, 0.1, -0.1), (3.0, 2.2, 1.6))
    said = several.gain_sentences()
    assert said == [
        "run 0's gain over exclude is decided (+20.1, 95 %: +19.9 to +20.3, three seeds).",
        "run 1 loses against exclude: this is decided (−9.1, 95 %: −9.3 to −8.9, three seeds).",
        "run 2's gain over exclude is none: they are equal within ±1 (0.0, 95 %: −0.2 to +0.2, three seeds).",
        # Alone it would be decided: p = 0.03, and 0.06 by Holm.
        "run 3's gain over exclude is not decided among four comparisons (+2.3, 95 %: +0.5 to +4.0, three seeds).",
    ]
    assert set(said) <= set(several.sentences())


def test_gains_of_one_seed_decide_nothing_and_many_gains_are_counted():
    assert against_exclude((14.0,)).gain_sentences() == []
    many = against_exclude(*[(20.0 + n, 20.1 + n, 20.2 + n) for n in range(9)], (14.0, 2.0, 27.5))
    assert many.gain_sentences() == [
        "Of 10 gains, above zero are 9 (run 8, run 7, run 6, run 5 and 5 more); not decided 1 (run 9) (95 %, Holm)."
    ]


def test_beside_other_widths_of_the_model_all_that_the_devices_reach_without_a_method_is_to_be_beaten():
    wide, half = (small(f"model.width={width}", "devices.relative_to=model") for width in ("1", "1/2"))
    runs = {"width 1": (wide, 80.0), "width 1/2": (half, 90.0)}
    reached = {EXCLUDE: (50.0, 77.0), SMALLEST: (40.0, 40.0), FULL: (95.0, 93.0)}
    rows = [row(title, score, score + 1.0, settings=own) for title, (own, score) in runs.items()]
    for kind, scores in reached.items():
        for (title, (own, _)), score in zip(runs.items(), scores, strict=True):
            name = f"yardstick: {kind} of {title}"
            rows.append(row(name, score, score + 1.0, settings=yardsticks(own)[kind]))
    compared = Comparison(tuple(rows))
    assert compared.yardsticks[:2] == [
        {EXCLUDE: 2, SMALLEST: 4, FULL: 6, "exclude at width 1/2": 3},
        {EXCLUDE: 3, SMALLEST: 4, FULL: 7, "exclude at width 1": 2},
    ]
    first, second = compared.gains[:2]
    assert (first.kind, first.difference.mean) == ("exclude at width 1/2", 3.0)
    assert (second.kind, second.difference.mean) == (EXCLUDE, 13.0)
    assert "exclude at width 1/2 77.5" in compared.yardstick_sentences()[0]


def test_devices_that_shrink_with_the_server_are_not_the_same_and_have_yardsticks_of_their_own():
    wide, half = (small(f"model.width={width}") for width in ("1", "1/2"))
    rows = [row("1", 80.0, settings=wide), row("1/2", 90.0, settings=half)]
    rows += [row(f"yardstick: {EXCLUDE} of {own}", 50.0, settings=yardsticks(own)[EXCLUDE]) for own in (wide, half)]
    assert Comparison(tuple(rows)).yardsticks[:2] == [{EXCLUDE: 2}, {EXCLUDE: 3}]
