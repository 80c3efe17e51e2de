"""A method defined outside the package, with every part a method may have, gives one result on every engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_runs import TURNS, worst
from engine_runs import experiment as catalogue_experiment

import own_method
from fedwidth.config.read import read_settings
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Method, Reference, combine, method, methods
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.settings import MethodSettings
from small_runs import contents, same, small

PATH = "own_method:METHOD"
MORE_THAN_A_CHOICE = [name for name, each in sorted(methods().items()) if each.local or each.close or each.advance]
"""Methods that change how clients train or how a round is closed, or remember."""

MODELS = ["zoo mlp", "cnn", "zoo resnet-bn", "transformer"]
"""With and without norms, with running statistics (which stacks leave to one client at a time), with attention."""


def run_of(model, engine, chosen=own_method.METHOD, rounds=4, **changes):
    base = catalogue_experiment(model, optimiser="sgd", momentum=0.0, clip=0.0, lr=0.01)
    settings = replace(base.settings, engine=engine, rounds=rounds, workers=2, **changes)
    parts = {"model": base.model, "data": base.data, "partition": base.partition}
    return Experiment(settings, **parts, method=chosen.with_options())


@pytest.mark.filterwarnings("ignore:the .* engine falls back")
@pytest.mark.parametrize("chosen", [own_method.METHOD, own_method.MEDIAN], ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("engine", ["processes", "cuda", "vectorised"])
@pytest.mark.parametrize("model", MODELS)
def test_every_engine_agrees_with_the_plain_loop(model, engine, chosen):
    if engine == "processes" and model != "cnn":
        pytest.skip("workers take seconds to start: one model is enough")
    expected, found = (run_of(model, e, chosen).run().server for e in ("serial", engine))
    tolerance = 0.0 if engine == "processes" else 1e-10
    assert worst(expected.state, run_of(model, "serial", chosen).first_state) > 1e-3, "nothing was trained"
    assert worst(expected.state, found.state) <= tolerance
    assert expected.memory.keys() == found.memory.keys()
    for name, tensor in expected.memory.items():
        torch.testing.assert_close(found.memory[name], tensor, rtol=0, atol=1e-8)
    assert set(expected.clients) == set(found.clients)
    for client, memory in expected.clients.items():
        for name, tensor in memory.items():
            torch.testing.assert_close(found.clients[client][name], tensor, rtol=0, atol=1e-8)


def test_packed_runs_in_slots_agree_with_runs_alone():
    alone = [run_of("cnn", "cuda", chosen).run().server for chosen in (own_method.METHOD,) * 2]
    first = run_of("cnn", "cuda")
    others = [run_of("cnn", "cuda")]
    for other in others:
        other.data = other.trainer.data = first.data
    for one, packed in zip(alone, run_in_lockstep([first, *others]), strict=True):
        assert same(dict(one.state), dict(packed.server.state))
        assert same(one.memory, packed.server.memory)


def test_stacked_packs_say_why_they_cannot():
    runs = [run_of("zoo mlp", "vectorised") for _ in range(2)]
    runs[1].data = runs[1].trainer.data = runs[0].data
    with pytest.raises(OptionError, match="clients of Everything are sent or report more than a sub-model"):
        run_in_lockstep(runs)


def test_a_recipe_names_it_by_its_path(tmp_path):
    text = """
    rounds = 3
    method.name = "own_method:METHOD"
    model.name = "mlp"
    model.options = { hidden = [8] }
    data.clients = 6
    devices.per_round = 3
    training = { momentum = 0.0, clip = 0.0, batch_size = 64 }
    evaluation.every = 3
    """
    results = {}
    for engine in ("serial", "processes"):
        settings = read_settings(text, [f"engine={engine}", "workers=2"]).main
        results[engine] = Experiment(settings).run(tmp_path / engine)
    assert same(results["serial"].server.state, results["processes"].server.state)
    assert results["serial"].summary["method"] == PATH
    assert 'name = "own_method:METHOD"' in (tmp_path / "serial" / "config.toml").read_text()


@pytest.mark.parametrize("where", ["host", "disk"])
def test_it_resumes_to_the_same_bits(tmp_path, where):
    run_of("cnn", "serial").run(tmp_path / "whole")

    class Enough(Exception):
        pass

    def leave(line):
        if line["round"] == 2:
            raise Enough

    changes = {"client_memory": where, "checkpoint_every": 1}
    with pytest.raises(Enough):
        run_of("cnn", "serial", **changes).run(tmp_path / "parts", on_round=leave)
    assert list((tmp_path / "parts" / "clients").glob("*.safetensors"))
    run_of("cnn", "serial", **changes).run(tmp_path / "parts", resume=True)
    assert contents(tmp_path / "whole")[1:] == contents(tmp_path / "parts")[1:]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "not_there:METHOD",
            r"^method 'not_there:METHOD': there is no module 'not_there' in the current folder or among inst",
        ),
        (
            "fedwidth.not_there:METHOD",
            r"^method '.*': there is no module 'fedwidth.not_there' in the current folder or",
        ),
        ("needs_another:METHOD", r"must be package.module:METHOD \(No module named 'another_not_there'\)$"),
        ("own_method:NOTHING", "has no attribute 'NOTHING'"),
        ("own_method:units", "must be a fedwidth.Method, not a function"),
        ("fedrolx", r"unknown method 'fedrolx' \(did you mean 'fedrolex'\?\)"),
    ],
)
def test_a_path_that_leads_nowhere_gets_one_clear_line(name, why, tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("import another_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=why):
        method(name)


def test_a_method_without_a_name_cannot_go_to_workers():
    hidden = replace(own_method.METHOD, choose=lambda plan, counts, at: own_method.METHOD.choose(plan, counts, at))
    with pytest.raises(OptionError, match="method 'everything' has no name in any module"):
        Reference.of(hidden.with_options())
    assert run_of("zoo mlp", "serial", hidden).run(), "where it is not sent, it needs none"
    with pytest.raises(OptionError, match="has no name in any module.*use engine = 'serial'"):
        run_of("zoo mlp", "processes", hidden).run()


def test_a_reference_carries_options_and_the_local_rule():
    both = method("fedrolex", local="fedprox", step=3, mu=0.5)
    found = Reference.of(both)
    assert (found.name, found.local, found.options) == ("fedrolex", "fedprox", {"step": 3, "mu": 0.5})
    assert found.find().values == both.values
    assert isinstance(found.find(), Method)


class TestCombinations:
    def test_settings_name_both(self):
        settings = read_settings("method.name='fedrolex'\nlocal = { name = 'fedprox', options = { mu = 0.5 } }").main
        run = Experiment(replace(settings, rounds=1))
        assert run.method.title == "FedRolex with FedProx"
        assert run.method.values["mu"] == 0.5

    @pytest.mark.parametrize(
        ("choice", "rule", "why"),
        [
            (
                "fedrolex",
                "heterofl",
                "'heterofl' has no local rule.*; local rules: .*fedprox",
            ),
            ("feddropout", "fjord", "its narrower sub-models do not lie inside wider ones"),
            ("fedimportance", "fjord", "depend on the global state, which clients do not hold"),
            ("fedprox", "scaffold", "'fedprox' has a local rule of its own"),
            ("fedbrb", "scaffold", "both close the round in their own way"),
            ("fedminoccurances", "scaffold", "both remember in their own way"),
            ("fedecover", "scaffold", "both remember in their own way"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, choice, rule, why):
        with pytest.raises(OptionError, match=why):
            method(choice, local=rule)

    def test_options_of_both_that_clash_are_refused(self):
        rolex = method("fedrolex")
        odd = replace(rolex, options={**rolex.options, "mu": rolex.options["step"]})
        with pytest.raises(OptionError, match="both have an option 'mu'"):
            combine(odd, method("fedprox"))

    def test_the_widths_of_fjord_in_the_windows_of_fedrolex(self):
        settings = read_settings("rounds=2\nlocal.name='fjord'\nengine='serial'", ["data.clients=20"]).main
        run = Experiment(replace(settings, method=MethodSettings("fedrolex")))
        assert run.method.values["widths"] == (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
        assert run.run().summary["rounds"] == 2

    @pytest.mark.parametrize("distil", ["false", "true"])
    @pytest.mark.parametrize("names", [["method.name=fjord"], ["method.name=fedrolex", "local.name=fjord"]])
    def test_drawn_widths_in_slots(self, names, distil, recwarn):
        """Windows roll, so a narrower model lies elsewhere in the client's every round."""
        where = "local" if len(names) > 1 else "method"
        changes = [*names, f"{where}.options={{distil={distil}}}", "rounds=2", "devices.capacities=a1-b1-c1", "slots=2"]
        changes += ["model.options={hidden=[16,8]}", "training.epochs=3"]
        serial, slots = (Experiment(small(f"engine={engine}", *changes)).run() for engine in ("serial", "cuda"))
        assert worst(serial.server.state, slots.server.state) <= 1e-5
        assert [line["train_loss"] for line in slots.metrics] == pytest.approx(
            [line["train_loss"] for line in serial.metrics], abs=1e-5
        )
        assert not [each for each in recwarn if "falls back" in str(each.message)]


def test_what_a_method_needs_is_used_where_a_recipe_is_silent():
    settings = read_settings("method.name='scaffold'").main
    assert (settings.training.momentum, settings.training.clip) == (0.0, 0.0)
    with pytest.raises(OptionError, match=r"SCAFFOLD needs training.momentum = 0.0, not 0.9: its control variates"):
        read_settings("method.name='scaffold'\ntraining.momentum=0.9")
    combined = read_settings("method.name='heterofl'\nlocal.name='scaffold'").main
    assert combined.training.momentum == 0.0


def test_the_package_of_methods_can_be_called():
    import fedwidth

    assert fedwidth.methods() == fedwidth.methods.methods()
    for module in ("fedwidth", "fedwidth.methods"):
        with pytest.raises(ImportError, match=r"fedwidth.History is gone since 0.2"):
            exec(f"from {module} import History")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ["cuda", "vectorised"])
@pytest.mark.filterwarnings("ignore:the .* engine falls back")
@pytest.mark.parametrize("name", ["everything", "median", *MORE_THAN_A_CHOICE])
def test_on_a_gpu_captured_steps_do_what_the_plain_loop_does(name, engine):
    own = {"everything": own_method.METHOD, "median": own_method.MEDIAN}
    base = catalogue_experiment("zoo mlp", device="cuda", optimiser="sgd", momentum=0.0, clip=0.0, lr=0.01)
    parts = {"model": base.model, "data": base.data, "partition": base.partition, "public": base.data}
    chosen = own.get(name) or method(name)
    servers = [
        Experiment(replace(base.settings, engine=each, rounds=4), **parts, method=chosen).run().server
        for each in ("serial", engine)
    ]
    assert worst(*(server.state for server in servers)) <= TURNS.get(name, 1e-9)
    for client, memory in servers[0].clients.items():
        for tensor, value in memory.items():
            torch.testing.assert_close(servers[1].clients[client][tensor], value, rtol=0, atol=1e-8)


def test_a_part_that_is_no_slice():
    """Factors of different rank, averaged as products, on every engine."""
    changes = ["model.options={hidden=[8]}", "rounds=6", "workers=2", "data.partition_options={per_client=10}"]
    runs = {
        engine: Experiment(small(f"engine={engine}", *changes), method=own_method.FACTORS).run()
        for engine in ("serial", "processes")
    }
    assert same(runs["serial"].server.state, runs["processes"].server.state)
    losses = [line["train_loss"] for line in runs["serial"].metrics]
    assert losses[-1] < losses[0] - 0.05, "it learns"
    for engine in ("vectorised", "cuda"):
        found = Experiment(small(f"engine={engine}", *changes), method=own_method.FACTORS).run()
        assert worst(found.server.state, runs["serial"].server.state) <= 1e-5
