"""Which sub-model stands for a width: one that a client of the run trained, with everything its choice depended on."""

import json

import pytest
import torch

from fedwidth.core.narrow import narrow
from fedwidth.engines.serial import SerialEngine
from fedwidth.errors import OptionError
from fedwidth.evaluation.representative import LastRound, by_capacity, drawn_indexes, representative_index
from fedwidth.experiment import Experiment
from fedwidth.methods import method, methods
from hand_plans import mlp_plan
from small_runs import small

PLAN = mlp_plan(first=8)
COHORT = [(7, 1.0), (3, 0.25), (9, 0.25)]


class Noting(SerialEngine):
    """Keeps the tasks of every round, to see what clients trained."""

    def run(self, state, tasks, round, **_):
        self.tasks = {**getattr(self, "tasks", {}), round: list(tasks)}
        return super().run(state, tasks, round)


def accuracy_by_hand(experiment, model, index):
    inputs, targets = experiment.data.batch(experiment.data.test, torch.arange(len(experiment.data.test)))
    answers = narrow(model, experiment.plan, index)(inputs).argmax(1)
    return (answers == targets).double().mean().item()


@pytest.mark.parametrize("name", sorted(n for n, method in methods().items() if method.slices and not method.serves))
def test_the_accuracy_of_a_width_is_that_of_a_sub_model_a_client_trained(name):
    wide = ["model.options={hidden=[16]}", "devices.per_round=6", "seed=3", "rounds=4"]
    experiment = Experiment(small(f"method.name={name}", "evaluation.capacities=[1, 0.5, 0.25]", *wide))
    engine = Noting(experiment.trainer)
    result = experiment.run(engine=engine)
    line, cohort = result.metrics[-1], experiment.cohort(3)
    for capacity in (1.0,) if experiment.method.holds_all else (1.0, 0.5, 0.25):
        place = [own for _, own in cohort].index(capacity)
        expected = accuracy_by_hand(experiment, result.model, engine.tasks[3][place].index)
        assert line["capacity_accuracy"][f"{capacity:g}"] == pytest.approx(expected), capacity
    differ = not methods()[name].shared(methods()[name].values)
    assert ("capacity_accuracy_mean" in line) == ("capacity_accuracy_spread" in line) == differ
    assert ("capacity_accuracy_spread" in result.summary) == differ


WIDTH_MODELS = ["feddf", "fedet", "flanc"]
"""Methods that keep a model for each width in the server's memory."""
FEW = ["data.public=0.2", "method.options.steps=2"]


@pytest.mark.parametrize("name", WIDTH_MODELS)
def test_of_models_that_the_server_keeps_those_after_the_round_are_measured(name):
    changes = [f"method.name={name}", *([] if name == "flanc" else FEW), "training.lr=0.3", "evaluation.every=1"]
    experiment = Experiment(small(*changes, "rounds=2", "evaluation.capacities=[0.5, 0.25]"))
    result = experiment.run()
    inputs, targets = experiment.data.batch(experiment.data.test, torch.arange(len(experiment.data.test)))
    for capacity in (0.5, 0.25):
        part = experiment.method.select(
            experiment.plan, capacity=capacity, memory=result.server.memory, state=result.server.state
        )
        own = part.module(experiment.model, experiment.plan)
        own.load_state_dict(part.cut(result.server.state, experiment.plan))
        expected = (own.eval()(inputs).argmax(1) == targets).double().mean().item()
        assert result.metrics[-1]["capacity_accuracy"][f"{capacity:g}"] == pytest.approx(expected)
    assert result.metrics[0]["capacity_accuracy"] != result.metrics[1]["capacity_accuracy"]


@pytest.mark.parametrize("name", [*WIDTH_MODELS, "dsfl", "fedgkt"])
def test_a_width_that_the_method_has_no_model_of_is_refused_before_anything_is_trained(name):
    with pytest.raises(
        OptionError, match=r"^evaluation.capacities: .*each enrolled width( \(1, 0.5, 0.25\))?, and .*none of 0.125$"
    ):
        Experiment(small(f"method.name={name}", "evaluation.capacities=[0.5, 0.125]"))


def test_a_capacity_is_the_float_that_clients_have():
    # 0.29 of 100 units are 29; taken as the exact fraction that the float is, it would be 28.
    index = representative_index(method("heterofl"), mlp_plan(first=100), 0.29, LastRound(0, [(0, 0.29)], seed=1))
    assert index.counts["a"] == 29


def units(index):
    return index.units["a"].tolist()


def test_the_first_client_of_the_capacity_stands_for_it():
    # FedStack at 1/4 of 8 units: a window of 2 at 2 (round + place); the first client of 1/4 has place 1.
    stack, last = method("fedstack"), LastRound(1, COHORT, seed=5)
    assert units(representative_index(stack, PLAN, 0.25, last)) == [4, 5]
    # Nobody has 1/2, so the first place counts: a window of 4 at 4 (1 + 0).
    assert units(representative_index(stack, PLAN, 0.5, last)) == [4, 5, 6, 7]
    # FedCover's steps are K / clients: 8 / 3 (1 + 1) is 5 and a third, alone 8 (1 + 0) is the beginning again.
    assert units(representative_index(method("fedcover"), PLAN, 0.25, last)) == [5, 6]
    assert units(representative_index(method("fedcover"), PLAN, 0.25, LastRound(1, [], seed=5))) == [0, 1]


def test_seed_and_memory_are_those_of_the_run():
    chosen = method("fedminoccurances")
    seen = {"seen.a": torch.tensor([9] * 4 + [0] * 4), "seen.b": torch.zeros(6, dtype=torch.long)}
    for memory in ({}, seen | {"clients": torch.tensor(9)}):
        last = LastRound(6, COHORT, seed=5, memory=memory)
        task = chosen.assign(PLAN, COHORT, 6, memory, 5)[1]
        assert representative_index(chosen, PLAN, 0.25, last) == task.index
    found = {representative_index(chosen, PLAN, 0.5, LastRound(6, COHORT, seed=seed)).key for seed in range(5)}
    assert len(found) > 1


def test_draws_are_the_places_of_the_last_rounds():
    # Three places of round 3, then those of rounds 2 and 1 and one of round 0; FedStack starts at 2 (round + place).
    starts = [units(index)[0] for index in drawn_indexes(method("fedstack"), PLAN, 0.25, LastRound(3, COHORT, seed=1))]
    assert starts == [2 * moves % 8 for moves in (3, 4, 5, 2, 3, 4, 1, 2, 3, 0)]
    many = [(client, 0.25) for client in range(12)]
    assert len(drawn_indexes(method("feddropout"), PLAN, 0.25, LastRound(0, many, seed=1))) == 10
    assert len(drawn_indexes(method("feddropout"), PLAN, 0.25, LastRound(0, many, seed=1), draws=3)) == 3
    assert len(drawn_indexes(method("feddropout"), PLAN, 0.25, LastRound(1, COHORT, seed=1))) == 6, "2 rounds of 3"


def test_mean_and_spread_over_draws_by_hand():
    measured = []

    def accuracy(index, capacity):
        measured.append(units(index))
        return {"accuracy": units(index)[0] / 10}

    last = LastRound(1, COHORT, seed=1)
    found = by_capacity(method("fedstack"), PLAN, [0.25, 1.0], last=last, measure=accuracy)
    # Windows at 2, 4, 6 and then, a round earlier, 0, 2, 4: mean 3, squares 1 + 1 + 9 + 9 + 1 + 1 = 22 over 5.
    assert found["capacity_accuracy"] == {"0.25": 0.4, "1": 0.0}
    assert found["capacity_accuracy_mean"] == pytest.approx({"0.25": 0.3, "1": 0.0})
    assert found["capacity_accuracy_spread"] == pytest.approx({"0.25": 4.4**0.5 / 10, "1": 0.0})
    assert sorted(measured) == [[0, 1], list(range(8)), [2, 3], [4, 5], [6, 7]], "each sub-model once"
    first = LastRound(0, COHORT[:1], seed=1)
    alone = by_capacity(method("fedstack"), PLAN, [0.25], last=first, measure=accuracy)
    assert alone["capacity_accuracy_spread"] == {"0.25": None}
    rolex, staggered = method("fedrolex"), method("fedrolex", stagger=True)
    shared = {"capacity_accuracy": {"0.25": 0.1}}
    assert by_capacity(rolex, PLAN, [0.25], last=last, measure=accuracy) == shared
    assert set(by_capacity(staggered, PLAN, [0.25], last=last, measure=accuracy)) == set(found)
    assert set(by_capacity(staggered, PLAN, [0.25], last=last, measure=accuracy, draws=1)) == set(shared)


def test_a_resumed_run_measures_the_same_sub_models(tmp_path):
    changes = ["method.name=fedminoccurances", "evaluation.capacities=[0.5]", "evaluation.every=1", "rounds=4"]
    whole = Experiment(small(*changes)).run(tmp_path / "whole").metrics
    place, rounds = tmp_path / "parts", []
    with pytest.raises(Exception, match="stopped after round 2"):
        Experiment(small(*changes)).run(place, on_round=rounds.append, stop=lambda: len(rounds) == 1)
    Experiment(small(*changes)).run(place, resume=True)
    parts = [json.loads(text) for text in (place / "metrics.jsonl").read_text().splitlines()]
    for key in ("capacity_accuracy", "capacity_accuracy_mean", "capacity_accuracy_spread"):
        assert [line.get(key) for line in parts] == [line.get(key) for line in whole]
    assert ["capacity_accuracy_mean" in line for line in whole] == [False, False, False, True]
