"""Whole private runs (numbers 40 and 43 of the notes): epsilon, budgets, resuming, draws, engines, refusals."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.devices.capacity import Capacities, sample_by_chance
from fedwidth.devices.cohorts import Cohorts
from fedwidth.engines import make_engine
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.privacy.renyi import renyi_epsilon, sampled_gaussian
from fedwidth.settings import DeviceSettings, PrivacySettings, Settings
from fedwidth.training.round import run_round
from small_runs import RECIPE, contents, same, small

PRIVATE = ("devices.sampling=poisson", "privacy.noise=2.0", "privacy.accountant=rdp", "rounds=6")
ZERO_OUT = ("privacy.noise=2.0", "privacy.adjacency=zero-out", "rounds=6")
SECURE = ("secure.enabled=true", "secure.min_clients=3", "devices.per_round=6")


def run_of(*changes: str) -> Experiment:
    return Experiment(small(*changes))


def test_40_every_round_says_what_was_spent_and_the_summary_says_it_all():
    experiment = run_of(*PRIVATE)
    result = experiment.run()
    spent = [line["privacy"]["epsilon"] for line in result.metrics]
    assert spent == [experiment.budget.accountant.epsilon(rounds) for rounds in range(1, 7)]
    assert spent == sorted(spent)
    bound = renyi_epsilon(sampled_gaussian(0.5, 2.0), 6, 1e-5)
    assert 0.9 * bound <= spent[-1] <= bound + 1e-9
    facts = result.summary["privacy"]
    assert facts["epsilon"] == spent[-1]
    expected = {"delta": 1e-5, "noise": 2.0, "clip": 1.0, "rounds": 6, "counted": 6, "rate": 0.5}
    expected |= {"sampling": "poisson", "adjacency": "add-or-remove", "amplified": True}
    expected |= {"budget": None, "stopped": None}
    assert {name: facts[name] for name in expected} == expected
    assert "divergences" in facts["accountant"]
    assert "the server, which adds the noise, is trusted" in facts["against"]
    assert any("seed" in sentence for sentence in facts["not_covered"])
    assert 0 < facts["signal_to_noise"] < 1
    assert all(line["privacy"]["signal_to_noise"] >= 0 for line in result.metrics)


def test_40_a_run_ends_whole_before_its_budget_is_exceeded_and_goes_on_with_more(tmp_path):
    accountant = run_of(*PRIVATE).budget.accountant
    budget = (accountant.epsilon(4) + accountant.epsilon(5)) / 2
    limited = run_of(*PRIVATE, f"privacy.epsilon={budget}", "evaluation.every=3")
    result = limited.run(tmp_path)
    assert [line["round"] for line in result.metrics] == [1, 2, 3, 4]
    assert [line["round"] for line in result.metrics if "global_accuracy" in line] == [3, 4]
    assert result.metrics[-1]["privacy"]["epsilon"] <= budget
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rounds"] == 4
    assert summary["privacy"]["stopped"] == f"the budget of epsilon = {budget:g} was spent after 4 of 6 rounds"
    assert summary["global_accuracy"] is not None
    again = run_of(*PRIVATE, f"privacy.epsilon={budget}", "evaluation.every=3").run(tmp_path, resume=True)
    assert again.server.round == 4
    assert again.summary["privacy"] == summary["privacy"]
    more = run_of(*PRIVATE, "privacy.epsilon=1000", "evaluation.every=3").run(tmp_path, resume=True)
    assert more.summary["rounds"] == 6
    assert more.summary["privacy"]["stopped"] is None
    assert "epsilon = 1000" in (tmp_path / "config.toml").read_text()
    assert same(more.server.state, run_of(*PRIVATE, "evaluation.every=3").run().server.state)


def test_40_a_budget_for_no_round_at_all_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"privacy.epsilon is 0.001, and the first round alone costs \d"):
        run_of(*PRIVATE, "privacy.epsilon=0.001")


def test_40_epsilon_survives_a_stop_and_a_kill_and_counts_repeated_rounds(tmp_path):
    stopped, killed, whole = tmp_path / "stopped", tmp_path / "killed", tmp_path / "whole"
    saving = (*PRIVATE, "checkpoint_every=2")
    expected = run_of(*saving).run(whole)
    with pytest.raises(Stopped):
        run_of(*saving).run(stopped, stop=lambda: (stopped / "metrics.jsonl").read_text().count("\n") == 3)
    run_of(*saving).run(stopped, resume=True)
    assert contents(stopped) == contents(whole)

    def kill(line):
        if line["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_of(*saving).run(killed, on_round=kill)
    assert json.loads((killed / "privacy.json").read_text())["rounds"] == 5
    result = run_of(*saving).run(killed, resume=True)
    assert same(result.server.state, expected.server.state)
    assert result.summary["privacy"]["rounds"] == 7  # the fifth was opened twice
    found = [line["privacy"]["epsilon"] for line in result.metrics]
    accountant = run_of(*saving).budget.accountant
    assert found == [accountant.epsilon(rounds) for rounds in (1, 2, 3, 4, 6, 7)]


def test_40_rounds_that_were_opened_before_the_first_checkpoint_count_too(tmp_path):
    def kill(line):
        raise KeyboardInterrupt

    accountant = run_of(*PRIVATE).budget.accountant
    budget = f"privacy.epsilon={accountant.epsilon(2) + 1e-9}"
    with pytest.raises(KeyboardInterrupt):
        run_of(*PRIVATE, budget).run(tmp_path, on_round=kill)
    assert run_of(*PRIVATE, budget).run(tmp_path, resume=True).server.round == 1
    (tmp_path / "privacy.json").write_text("{")
    with pytest.raises(StateError, match=r"privacy.json, which says what privacy was spent, cannot be read"):
        run_of(*PRIVATE, budget).run(tmp_path, resume=True)


def test_40_a_budget_that_repeated_rounds_have_spent_before_one_was_saved_ends_the_run_in_one_line(tmp_path):
    def kill(line):
        raise KeyboardInterrupt

    budget = f"privacy.epsilon={run_of(*PRIVATE).budget.accountant.epsilon(1) + 1e-9}"
    with pytest.raises(KeyboardInterrupt):
        run_of(*PRIVATE, budget, "rounds=2", "checkpoint_every=2").run(tmp_path, on_round=kill)
    (tmp_path / "checkpoint.safetensors").unlink(missing_ok=True)
    with pytest.raises(OptionError, match="the privacy budget was spent before a round could be saved"):
        run_of(*PRIVATE, budget, "rounds=2", "checkpoint_every=2").run(tmp_path, resume=True)


def test_40_without_amplification_the_rounds_of_the_client_drawn_most_often_count():
    experiment = run_of(*ZERO_OUT)
    result = experiment.run()
    drawn = [client for round in range(6) for client, _ in experiment.cohort(round)]
    most = max(np.bincount(drawn).tolist())
    facts = result.summary["privacy"]
    assert (facts["rounds"], facts["counted"], facts["amplified"]) == (6, most, False)
    assert facts["accountant"] == "the exact formula"
    assert facts["epsilon"] == experiment.budget.accountant.epsilon(most)
    allowed = most - 1
    budget = experiment.budget.accountant.epsilon(allowed)
    short = run_of(*ZERO_OUT, f"privacy.epsilon={budget}").run()
    counts = np.cumsum([[client in dict(experiment.cohort(round)) for client in range(6)] for round in range(6)], 0)
    assert short.server.round == int((counts.max(1) <= allowed).sum()) < 6


def test_40_where_nobody_knows_who_comes_the_budget_holds_for_whoever_comes_most_often(tmp_path):
    """Client 2 comes every time and the others in turn: after three rounds nobody may come again."""
    private = (*ZERO_OUT, *SECURE, "secure.min_clients=2", "devices.per_round=3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountant = run_of(*private).budget.accountant
        budget = f"privacy.epsilon={accountant.epsilon(3) + 1e-9}"

        def come(round):
            return [(2, 1.0), (3 + round % 3, 1.0), (round % 2, 1.0)]

        result = run_of(*private, budget).run(tmp_path, cohort=come)
        assert result.server.round == 3
        assert "global_accuracy" in result.metrics[-1]
        assert result.summary["privacy"]["counted"] == 3
        assert "was spent after 3 of 6 rounds" in result.summary["privacy"]["stopped"]
        assert run_of(*private, budget).run(tmp_path, cohort=come, resume=True).server.round == 3
        calm = run_of(*private, budget).run(cohort=lambda round: [(round % 6, 1.0), ((round + 3) % 6, 1.0)])
        assert calm.server.round == 6


def test_43_a_draw_by_chance_has_the_right_size_and_is_independent():
    """Each of 40 clients in a quarter of 4000 rounds: shares within four deviations, pairs uncorrelated."""
    drawn = np.zeros((4000, 40))
    for round in range(4000):
        drawn[round, sample_by_chance(40, 0.25, round=round, seed=5)] = 1
    deviation = np.sqrt(0.25 * 0.75 / 4000)
    assert np.abs(drawn.mean(0) - 0.25).max() < 4 * deviation
    sizes = drawn.sum(1)
    assert sizes.mean() == pytest.approx(10, abs=4 * np.sqrt(7.5 / 4000))
    assert sizes.var() == pytest.approx(7.5, rel=0.1)
    correlations = np.corrcoef(drawn.T)[~np.eye(40, dtype=bool)]
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)
    assert sample_by_chance(40, 0.25, round=3, seed=5) == sample_by_chance(40, 0.25, round=3, seed=5)


def test_43_removing_a_client_does_not_change_whether_others_come():
    """The last of so many: draws of the others are the same numbers."""
    for round in range(20):
        more, fewer = (sample_by_chance(clients, 0.3, round=round, seed=1) for clients in (11, 10))
        assert set(fewer) == set(more) - {10}


def test_43_expected_holders_follow_from_capacities():
    cohorts = Cohorts(Capacities.parse("1:1 1/4:3"), 40, DeviceSettings(per_round=8, sampling="poisson"), 1)
    assert cohorts.expected() == {1.0: 2.0, 0.25: 6.0}
    anew = DeviceSettings(per_round=8, sampling="poisson", dynamic=True, excluded=[1.0])
    assert Cohorts(Capacities.parse("1:1 1/4:3"), 40, anew, 1).expected() == {0.25: 6.0}


def test_43_a_round_for_which_nobody_was_drawn_is_noised_like_any_other():
    experiment = run_of(*PRIVATE, "devices.per_round=1", "data.clients=6", "rounds=12")
    empty = [round for round in range(12) if not experiment.cohort(round)]
    assert empty
    states = [experiment.first_state]
    server = experiment.first_server()
    engine = make_engine(experiment.trainer)
    for round in range(12):
        server, _, _ = run_round(experiment.rounds, server, experiment.cohort(round), engine)
        states.append(server.state)
    for round in empty:
        for name in experiment.rounds.trained:
            assert not torch.equal(states[round][name], states[round + 1][name])
    result = experiment.run()
    assert same(result.server.state, server.state)
    assert result.metrics[empty[0]]["clients"] == []


@pytest.mark.parametrize("private", [PRIVATE, ZERO_OUT, (*ZERO_OUT, *SECURE)], ids=["draws", "zero-out", "secure"])
def test_engines_agree(private):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        serial = run_of(*private, "rounds=3").run().server.state
        together = run_of(*private, "rounds=3", "engine=vectorised").run().server.state
    for name, tensor in serial.items():
        assert torch.allclose(tensor, together[name], rtol=1e-4, atol=1e-5), name


def test_of_adapters_only_what_a_round_trains_is_noised():
    """FFA-LoRA: A stays as it was drawn, and so does the model under the adapters."""
    experiment = run_of(*PRIVATE, "method.name=ffalora", "rounds=2")
    state, first = experiment.run().server.state, experiment.first_state
    resting = {adapter.down for adapter in experiment.plan.adapters}
    assert resting
    changed = {name for name in first if not torch.equal(first[name], state[name])}
    assert changed == experiment.rounds.trained - resting


def test_adaptive_clipping_in_a_run_survives_a_stop(tmp_path):
    more = (*PRIVATE, "privacy.quantile=0.5", "privacy.bits_noise=2", "privacy.clip=0.1")
    whole = run_of(*more).run(tmp_path / "whole")
    clips = [line["privacy"]["clip"] for line in whole.metrics]
    assert clips[0] == 0.1
    assert len(set(clips)) == 6
    there = tmp_path / "stopped"
    with pytest.raises(Stopped):
        run_of(*more).run(there, stop=lambda: (there / "metrics.jsonl").read_text().count("\n") == 3)
    run_of(*more).run(tmp_path / "stopped", resume=True)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_secure_and_private_the_server_is_not_trusted():
    result = run_of(*ZERO_OUT, *SECURE).run()
    facts = result.summary["privacy"]
    assert "and the server, where 3 clients" in facts["against"]
    assert facts["accountant"] == "Rényi divergences of whole orders for Skellam noise"
    assert facts["counted"] == 6
    bound = renyi_epsilon(sampled_gaussian(1.0, 2.0), 6, 1e-5)
    assert bound <= facts["epsilon"] <= 1.001 * bound
    plain = run_of("rounds=6", *SECURE).run()
    assert not same(plain.server.state, result.server.state)


def test_with_little_noise_and_a_wide_clip_it_is_the_plain_average():
    """Everybody comes, so that denominators are the real counts; what noise is left is a thousandth of the clip."""
    same_draw = ("devices.per_round=6", "rounds=1", "server.label_rows=false", "data.partition=iid")
    options = ("data.partition_options={}", "devices.sampling=poisson")
    plain = run_of(*same_draw, *options).run().server.state
    private = run_of(*same_draw, *options, "privacy.noise=0.05", "privacy.clip=3").run()
    assert private.metrics[0]["privacy"]["clipped"] == 0
    experiment = run_of(*same_draw, *options, "privacy.noise=0.05", "privacy.clip=3")
    least = 2.0  # of six clients of three widths two hold the outermost shell
    assert min(by for _, by in experiment.rounds.private_round(experiment.first_server()).denominators()) == least
    for name, tensor in plain.items():
        assert (tensor - private.server.state[name]).abs().max() < 6 * 0.05 * 3 / least


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["privacy.noise=1"], 'devices.sampling must be "poisson" with privacy.noise: a draw of a fixed size'),
        (["privacy.epsilon=2"], "privacy.epsilon and privacy.quantile need noise"),
        ([*PRIVATE, "privacy.noise=0.01"], "privacy.noise must be a number from 0.05 on"),
        ([*PRIVATE, "privacy.delta=1"], "privacy.delta must be a probability above 0 and below 1, not 1"),
        ([*PRIVATE, "privacy.clip=0"], "privacy.clip must be above 0"),
        ([*PRIVATE, "privacy.min_denominator=0"], "privacy.min_denominator must be above 0"),
        ([*PRIVATE, "privacy.quantile=1"], "privacy.quantile must be a share from 0 to below 1, not 1"),
        ([*PRIVATE, "privacy.accountant=prv"], "privacy.accountant must be one of pld, rdp"),
        ([*PRIVATE, "server.weighting=samples"], "server.weighting must be equal with privacy.noise, not samples"),
        ([*PRIVATE, "server.label_rows=true"], "server.label_rows must be false with privacy.noise"),
        ([*PRIVATE, "server.holders_exponent=0.5"], "server.holders_exponent must be 1 with privacy.noise"),
        ([*PRIVATE, "server.clip=2"], "server.clip must be 0 and server.screen false with privacy.noise"),
        ([*PRIVATE, "server.screen=true"], "server.clip must be 0 and server.screen false with privacy.noise"),
        ([*PRIVATE, "server.robust=median"], "server.robust must be none with privacy.noise"),
        ([*PRIVATE, "method.name=scaffold"], "SCAFFOLD has no private sums: its clients report more"),
        ([*PRIVATE, "method.name=fedcover"], "FedCover has no private sums: what a client holds depends on who else"),
        ([*PRIVATE, "method.name=fedbrb"], "FedBRB has no private sums: its server closes a round otherwise"),
        ([*PRIVATE, "method.name=fedecover"], "FedEcover has no private sums: its server remembers of clients"),
        ([*PRIVATE, "method.name=fedhm"], "FedHM has no private sums: its clients hold no slices"),
        ([*PRIVATE, *SECURE], 'privacy.adjacency must be "zero-out" with secure.enabled'),
        (
            [*ZERO_OUT, *SECURE, "secure.clip=0.05"],
            "privacy.noise times privacy.clip is 2, and may be at most 32 times",
        ),
        ([*PRIVATE, "adapter.rank=2", "adapter.average=svd"], "privacy.noise 0"),
        ([*ZERO_OUT, *SECURE, "privacy.quantile=0.5"], "privacy.quantile must be 0 with secure.enabled"),
    ],
)
def test_what_does_not_go_with_privacy_is_refused_in_one_line(changes, message):
    with pytest.raises(OptionError, match=message) as refused:
        read_settings(RECIPE, changes)
    assert "\n" not in str(refused.value)


def test_what_only_a_run_can_tell_is_refused_before_it_begins():
    with pytest.raises(OptionError, match=r"privacy.bits_noise is 0.15 and must be above half of privacy.noise"):
        run_of(*PRIVATE, "privacy.quantile=0.5")
    experiment = run_of(*PRIVATE)
    with pytest.raises(OptionError, match="privacy.noise is for simulated devices, and these are real"):
        experiment.run(cohort=experiment.cohort)
    assert "privacy.noise bounds single updates, which a pack does not keep" in why_not_pack([experiment.trainer] * 2)
    with pytest.raises(OptionError, match="server.label_rows must be false"):
        Experiment(Settings(privacy=PrivacySettings(noise=1.0), devices=DeviceSettings(sampling="poisson")))
