"""Clients of each capacity have normalisation layers of their own, and share everything else (NeFL)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import state_of
from fedwidth.core.updates import Update
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.errors import OptionError
from fedwidth.evaluation.scores import score
from fedwidth.experiment import Experiment, Stopped
from fedwidth.methods import methods
from fedwidth.methods.lookup.own_norms import why_not_by_capacity
from fedwidth.run import checkpoint
from fedwidth.settings import ServerSettings
from fedwidth.training.engine import Engine, Report
from fedwidth.training.round import run_round
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.norms import first_norms, norm_tensors
from fedwidth.training.server.state import Server
from small_runs import contents, same, small, write_recipe

OWN = "server.norms=by-capacity"
CNN = ("model.name=cnn", "model.options={widths = [8, 8]}", "training.batch_size=32", "evaluation.capacities=[1, 0.5]")


def run(*changes, model=None):
    return Experiment(small(*CNN, *changes), model=model).run()


class Adds(Engine):
    """Clients do not train: each adds its number to every parameter. What they were sent is kept."""

    def __init__(self, plan):
        self.plan, self.sent = plan, {}

    def train_round(self, request):
        sums: dict[str, CohortSum] = {}
        for task in request.tasks:
            sub = task.part.cut(request.state, self.plan)
            self.sent[task.client] = {name: tensor.clone() for name, tensor in sub.items()}
            trained = {name: tensor + task.client for name, tensor in sub.items()}
            sums.setdefault(task.cohort, CohortSum(task.part)).add(Update(trained, task.part, client=task.client))
        passes = tuple(task.client for task in request.tasks)
        return list(sums.values()), Report(passes, tuple(float(each) for each in passes))

    def close(self):
        pass


MODEL = nn.Sequential(nn.Linear(1, 4), nn.LayerNorm(4), nn.Linear(4, 1)).double()
PLAN = fedwidth.trace(MODEL, torch.randn(2, 1, dtype=torch.float64))
NORM = {"1.weight", "1.bias"}


def by_hand(enrolled=(1.0, 0.5), **server):
    """Rounds, the first server (the norm's weights are 1) and an engine that adds."""
    rounds = Rounds(fedwidth.method("heterofl"), PLAN, ServerSettings(**server), seed=1, enrolled=enrolled)
    state = state_of(MODEL)
    return rounds, Server(state, norms=first_norms(state, norm_tensors(MODEL), enrolled)), Adds(PLAN)


def test_worked_by_hand():
    rounds, server, engine = by_hand()
    assert set(server.norms) == {0.5}
    assert set(server.norms[0.5]) == NORM
    cohort = [(2, 0.5), (1, 1.0), (4, 0.5)]
    after, tasks, report = run_round(rounds, server, cohort, engine)
    # Client 1 has all four units, clients 2 and 4 the first two. Client 1 alone decides about the state's norm, and
    # clients 2 and 4 about the narrow one: 1 + (2 + 4) / 2, where they hold it.
    assert after.state["1.weight"].tolist() == [2, 2, 2, 2]
    assert after.norms[0.5]["1.weight"].tolist() == [4, 4, 1, 1]
    assert after.norms[0.5]["1.bias"].tolist() == [3, 3, 0, 0]
    # All three decide about other layers: (2 + 1 + 4) / 3 on the first units, 1 on the others.
    change = (after.state["0.weight"] - server.state["0.weight"]).flatten()
    assert change.tolist() == pytest.approx([7 / 3, 7 / 3, 1, 1])
    assert [task.client for task in tasks] == [2, 4, 1], "those of one capacity together"
    assert report.passes == (2, 4, 1)
    assert same(dict(server.norms[0.5]), {name: server.state[name] for name in NORM}), "the old server stays as it was"
    # In the next round each is sent the norms of its own capacity, and the rest of the state.
    last, _, _ = run_round(rounds, after, [(1, 1.0), (2, 0.5)], engine)
    assert engine.sent[1]["1.weight"].tolist() == [2, 2, 2, 2]
    assert engine.sent[2]["1.weight"].tolist() == [4, 4]
    assert torch.equal(engine.sent[2]["0.weight"], after.state["0.weight"][:2])
    assert last.norms[0.5]["1.weight"].tolist() == [6, 6, 1, 1]
    # Without a client of capacity 1 the state's norm keeps its bits, and so does the narrow one without one of 1/2.
    alone, _, _ = run_round(rounds, last, [(2, 0.5)], engine)
    assert torch.equal(alone.state["1.weight"], last.state["1.weight"])
    alone, _, _ = run_round(rounds, last, [(1, 1.0)], engine)
    assert same(dict(alone.norms[0.5]), dict(last.norms[0.5]))


def test_where_nobody_is_of_full_width_the_state_has_the_norms_of_all():
    rounds, server, engine = by_hand(enrolled=(0.5, 0.25))
    after, _, _ = run_round(rounds, server, [(2, 0.5), (4, 0.25)], engine)
    assert after.state["1.weight"].tolist() == [4, 3, 1, 1], "1 + (2 + 4) / 2, and 1 + 2"
    assert after.norms[0.5]["1.weight"].tolist() == [3, 3, 1, 1]
    assert after.norms[0.25]["1.weight"].tolist() == [5, 1, 1, 1]


def test_the_exponent_of_holders_counts_those_of_the_capacity():
    rounds, server, engine = by_hand(holders_exponent=0.0)
    after, _, _ = run_round(rounds, server, [(1, 1.0), (2, 0.5), (4, 0.5)], engine)
    assert after.norms[0.5]["1.weight"].tolist() == [4, 4, 1, 1], "both of its two clients hold them"


def test_the_server_optimiser_has_moments_for_each_capacity():
    rounds, server, engine = by_hand(optimiser="fedavgm", momentum=0.5)
    for _ in range(2):
        server, _, _ = run_round(rounds, server, [(1, 1.0), (2, 0.5)], engine)
    # Changes of 2, and then 2 + 0.5 * 2 in the second round; of 1, and then 1.5, at full width.
    assert server.norms[0.5]["1.weight"].tolist() == [6, 6, 1, 1]
    assert server.state["1.weight"].tolist() == [3.5] * 4


def test_a_norm_is_told_by_what_it_is_or_by_its_name():
    class TinyRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    class NormedBlock(nn.Sequential):
        """No norm itself: it has one."""

    norm = nn.BatchNorm1d(4)
    norm.bias.requires_grad_(False)
    model = nn.Sequential(nn.Linear(4, 4), TinyRMSNorm(), NormedBlock(nn.Linear(4, 4), norm))
    statistics = {"2.1.running_mean", "2.1.running_var", "2.1.num_batches_tracked"}
    assert norm_tensors(model) == {"1.weight", "2.1.weight", *statistics}, "what is frozen stays shared"


AVERAGED = ["heterofl", "fedrolex", "fedtile", "fedbrb"]


@pytest.mark.parametrize("name", AVERAGED)
def test_norms_are_what_the_clients_of_the_capacity_would_have_made_alone(name):
    experiment = Experiment(small(*CNN, OWN, f"method.name={name}"))
    cohort = [(0, 0.5), (1, 0.5), (2, 1.0)]
    engine = Adds(experiment.plan)
    server = experiment.first_server()
    alike = server.norms[0.5] | {name: server.state[name] for name in server.norms[0.5]}
    assert same(dict(server.norms[0.5]), alike), "the first norms are those of the model"
    together, _, _ = run_round(experiment.rounds, server, cohort, engine)
    alone, _, _ = run_round(experiment.rounds, replace(server, norms={}), cohort[:2], engine)
    for tensor, own in together.norms[0.5].items():
        torch.testing.assert_close(own, alone.state[tensor])
    other, _, _ = run_round(experiment.rounds, replace(server, norms={}), cohort[2:], engine)
    for tensor in together.norms[0.5]:
        torch.testing.assert_close(together.state[tensor], other.state[tensor])


def test_statistics_of_ordinary_batch_norms_are_kept_by_capacity_too():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    found = Experiment(small(OWN, "method.name=heterofl"), model=model).run().server
    for statistics in ("2.running_mean", "2.running_var"):
        assert not torch.equal(found.norms[0.5][statistics][:4], found.state[statistics][:4])


@pytest.mark.parametrize("engine", ["processes", "vectorised", "cuda"])
def test_engines_agree(engine):
    changes = (OWN, "method.name=fedrolex", "workers=2")
    one, other = (run(*changes, f"engine={each}").server for each in ("serial", engine))
    states = [(one.state, other.state), *((one.norms[c], other.norms[c]) for c in one.norms)]
    assert len(states) == 3
    for mine, theirs in states:
        if engine == "processes":
            assert same(dict(mine), dict(theirs))
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5)


def test_where_all_hold_everything_nothing_changes():
    wide = ("devices.capacities=a1", "engine=serial")
    assert same(dict(run(*wide).server.state), dict(run(*wide, OWN).server.state))
    fair = ("method.name=fedavg", "engine=serial")
    assert same(dict(run(*fair).server.state), dict(run(*fair, OWN, "devices.capacities=b1-c1").server.state))


@pytest.mark.parametrize("changes", [[], ["server.optimiser=fedadam", "server.lr=0.1"], ["engine=vectorised"]])
def test_a_resumed_run_ends_with_the_same_bits(changes, tmp_path):
    settings = small(*CNN, OWN, "rounds=4", "checkpoint_every=1", *changes)
    Experiment(settings).run(tmp_path / "whole")
    done = []
    with pytest.raises(Stopped):
        Experiment(settings).run(tmp_path / "stopped", on_round=done.append, stop=lambda: len(done) == 1)
    assert any(name.startswith("norm.0.5/") for name in load_file(tmp_path / "stopped" / checkpoint.NAME))
    Experiment(settings).run(tmp_path / "stopped", resume=True)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_a_loaded_model_has_the_norms_of_its_width_and_scores_what_was_reported(tmp_path):
    experiment = Experiment(small(*CNN, OWN, "method.name=heterofl", "rounds=4"))
    result = experiment.run(tmp_path / "run")
    reported = result.metrics[-1]["capacity_accuracy"]
    name = "features.1.weight"
    assert not torch.equal(result.server.norms[0.5][name], result.server.state[name])
    for attempt in ("stored", "collected"):
        narrow, wide = fedwidth.load(tmp_path / "run", capacity=0.5), fedwidth.load(tmp_path / "run")
        assert torch.equal(narrow.get_parameter(name), result.server.norms[0.5][name][:4])
        assert torch.equal(wide.get_parameter(name), result.server.state[name])
        for model, capacity in ((narrow, "0.5"), (wide, "1")):
            settings, device = experiment.settings.evaluation, torch.device("cpu")
            found, _ = score(model, experiment.data, experiment.data.test, settings, device)
            assert found.value == reported[capacity], attempt
        (tmp_path / "run" / "models.safetensors").unlink(missing_ok=True)


REFUSED = {
    "secure.enabled=true": "with secure.enabled: a sum is opened for all",
    "privacy.noise=1": "with privacy.noise: the noise is made for one sum",
    "server.clip=2": "server.clip, screen and robust: they compare updates of one state",
    "server.robust=median": "server.clip, screen and robust: they compare updates of one state",
    "method.name=fjord": "with FjORD: its clients train several widths in turn",
    "method.name=scaffold": "with SCAFFOLD: what its clients are sent",
    "method.name=fedhm": "with FedHM: its clients hold no slices",
    "method.name=feddf": "with FedDF: its clients hold no slices",
    "method.name=fedbe": "with FedBE: its server trains the whole model",
    "adapter.rank=2": "with adapter.rank: the model's norms are frozen",
    "model.name=mlp": "the model has no normalisation layers that are trained",
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(change):
    more = {
        "secure.enabled=true": ("devices.per_round=6", "secure.min_clients=2"),
        "privacy.noise=1": ("devices.sampling=poisson", "method.name=fedrolex"),
        "model.name=mlp": ("model.options={hidden = [8]}",),
    }.get(change, ())
    with pytest.raises(OptionError, match=REFUSED[change]) as error:
        Experiment(small(*CNN, OWN, change, *more))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", methods())
def test_every_method_trains_with_norms_by_capacity_or_says_why_not(name):
    reason = why_not_by_capacity(methods()[name])
    settings = small(*CNN, "rounds=1", f"method.name={name}")
    settings = replace(settings, server=replace(settings.server, norms="by-capacity"))
    if reason is None:
        assert 0.5 in Experiment(settings).run().server.norms
    else:
        with pytest.raises(OptionError, match=f"server.norms must be shared with .*: {reason}"):
            Experiment(settings)


def test_real_devices_and_packs_are_refused_with_the_reason(tmp_path, capsys):
    experiment = Experiment(small(*CNN, OWN))
    with pytest.raises(OptionError, match="server.norms must be shared on real devices"):
        experiment.run(cohort=experiment.cohort)
    packed = Experiment(small(*CNN, OWN, "engine=vectorised"))
    assert "server.norms has one for each capacity" in str(why_not_pack([packed.trainer]))
    recipe = write_recipe(tmp_path)
    changes = [item for change in (*CNN, OWN, "engine=vectorised") for item in ("--set", change)]
    code = run_command(["run", recipe, *changes, "--packed", "--seeds", "1,2", "--out", str(tmp_path / "packed")])
    assert code == 2
    assert "server.norms has one for each capacity" in " ".join(capsys.readouterr().err.split())
