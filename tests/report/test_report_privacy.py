"""What the report says of private runs: epsilon, against whom, under which conditions, and what is not covered."""

from __future__ import annotations

import json
import math

from run_folders import lines, write_run

from fedwidth.report.describe import describe
from fedwidth.report.entries import group_runs
from fedwidth.report.page import write_report
from fedwidth.report.privacy_words import epsilon_of, privacy_sentences
from fedwidth.report.runs import read_runs

FACTS = {
    "epsilon": 1.51537,
    "delta": 1e-5,
    "noise": 1.1,
    "clip": 0.5,
    "rounds": 1000,
    "rate": 0.01,
    "sampling": "poisson",
    "amplified": True,
    "adjacency": "add-or-remove",
    "accountant": "privacy loss distributions of dp-accounting",
    "accountant_version": "0.6.0",
    "against": "whoever reads the models; the server, which adds the noise, is trusted",
    "not_covered": ["metrics", "the seed"],
    "signal_to_noise": 0.0299,
    "stopped": "the budget of epsilon = 2 was spent after 4 of 9 rounds",
}


def private_run(folder, *, finished=True, facts=FACTS):
    metrics = [line | {"privacy": {"epsilon": 0.1 * line["round"]}} for line in lines(4)]
    write_run(folder, metrics=metrics, finished=finished)
    if finished:
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"privacy": facts}))
    (run,) = read_runs([folder])
    return run


def test_a_finished_run_says_it_all(tmp_path):
    run = private_run(tmp_path / "run")
    assert privacy_sentences(run) == [
        "ε = 1.515 at δ = 1e-05 against whoever reads the models; the server, which adds the noise, is trusted",
        "adjacency add-or-remove, sampling poisson at rate 0.01, with amplification by it; 1000 rounds opened with"
        " noise 1.1 at clip 0.5; added up by privacy loss distributions of dp-accounting 0.6.0",
        "clients that all agree are at best 0.0299 times as long as the noise",
        "the budget of epsilon = 2 was spent after 4 of 9 rounds",
        "not covered: metrics; the seed",
    ]
    assert epsilon_of(run) == 0.4
    found = describe(group_runs([run]))
    assert found["entries"][0]["privacy"] == privacy_sentences(run)
    assert found["runs"][0]["epsilon"] == 0.4


def test_a_run_under_way_says_what_was_spent_and_others_nothing(tmp_path):
    assert privacy_sentences(private_run(tmp_path / "going", finished=False)) == ["ε = 0.4 after 4 rounds so far"]
    write_run(tmp_path / "plain")
    (plain,) = read_runs([tmp_path / "plain"])
    assert privacy_sentences(plain) == []
    assert math.isnan(epsilon_of(plain))


def test_files_that_say_something_else_do_no_harm(tmp_path):
    for number, facts in enumerate(({}, {"epsilon": "x", "against": 3, "not_covered": "all"}, [1], None)):
        privacy_sentences(private_run(tmp_path / str(number), facts=facts))


def test_the_page_shows_it(tmp_path):
    private_run(tmp_path / "run")
    text = write_report([tmp_path / "run"], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "against whoever reads the models" in text
    assert 'id="privacy"' in text
