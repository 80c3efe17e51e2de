"""What a local rule may ask of an engine comes out the same on all of them, and what makes no sense gets one line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_runs import worst
from torch import nn

from fedwidth.core.selection import prefix, rolling
from fedwidth.errors import FedwidthError, OptionError, UpdateError
from fedwidth.experiment import Experiment
from fedwidth.methods import Local, Method, Need, fedavg, method, named, per_group
from fedwidth.run.lockstep import run_in_lockstep
from small_runs import contents, same, small

ENGINES = ["serial", "cuda", "vectorised"]


def with_rule(**parts):
    own = {name: parts.pop(name) for name in list(parts) if name not in Local.__dataclass_fields__}
    return Method("mine", "Mine", "-", "-", choose=fedavg.choose, shared=lambda _: True, local=Local(**parts), **own)


def outcome(chosen, engine, *changes, model=None):
    return Experiment(small(f"engine={engine}", "devices.capacities=a1", *changes), model=model, method=chosen).run()


def agree(chosen, *changes, model=None, tolerance=1e-5):
    plain = outcome(chosen, "serial", *changes, model=model).server
    for engine in ENGINES[1:]:
        found = outcome(chosen, engine, *changes, model=model).server
        assert worst(plain.state, found.state) <= tolerance, engine
        for name, tensor in plain.memory.items():
            torch.testing.assert_close(found.memory[name], tensor, rtol=1e-4, atol=1e-4)
    return plain


def test_a_term_that_is_not_0_where_all_is_0_leaves_the_gaps_between_tensors_alone():
    agree(with_rule(gradient=lambda g, w, start, sent, at: g + 0.1), "training.clip=1.0")
    sends = dict(sends=lambda memory, own, at: {"c": 0.1})
    agree(with_rule(gradient=lambda g, w, start, sent, at: g + sent["c"], **sends), "training.clip=1.0")


def test_a_gradient_over_all_data_is_gathered_without_a_trace_in_the_optimiser():
    rule = dict(reports=lambda w, start, sent, at: {"all": sent["full_gradient"]}, full_gradient=lambda options: True)
    kept = with_rule(**rule, adds=("all",), advance=lambda closing: named("all", closing.reported("all")))
    for optimiser in ("adam", "sgd"):
        changes = [f"training.optimiser={optimiser}", "training.lr=0.01"]
        probed = agree(kept, *changes, tolerance=1e-4)
        plain = outcome(with_rule(), "serial", *changes).server
        assert worst(probed.state, plain.state) <= 1e-6, "the pass changes no weight"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_report_that_nobody_sends_is_named(engine):
    rule = dict(reports=lambda w, start, sent, at: {"all": w}, adds=("all",))
    chosen = with_rule(**rule, advance=lambda closing: named("q", closing.reported("q")))
    with pytest.raises(OptionError, match="unknown report 'q'; allowed: all; a local rule names in `adds`"):
        outcome(chosen, engine)


def test_the_learning_rate_and_the_steps_are_those_of_the_client_in_every_step():
    chosen = with_rule(
        gradient=lambda g, w, start, sent, at: g + 0.001 * (w - start) / (at.rate * at.steps),
        reports=lambda w, start, sent, at: {"x": sent["full_gradient"]},
        adds=("x",),
        full_gradient=lambda options: True,
    )
    agree(chosen, "training.epochs=2")


def test_frozen_and_unused_parameters():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)
            self.idle = nn.Parameter(torch.ones(3))
            self.b.bias.requires_grad_(False)

        def forward(self, x):
            return self.b(self.a(x.flatten(1)).relu())

    chosen = with_rule(
        gradient=lambda g, w, start, sent, at: g + 0.1 * w,
        reports=lambda w, start, sent, at: {"sum": w + 1, "mine": w},
        adds=("sum",),
        own=("mine",),
        sends=lambda memory, own, at: {},
        advance=lambda closing: named("sum", closing.reported("sum")),
    )
    model = Odd()
    runs = {engine: outcome(chosen, engine, model=model).server for engine in ("serial", "cuda")}
    assert worst(runs["serial"].state, runs["cuda"].state) <= 1e-5
    for name, tensor in runs["serial"].memory.items():
        torch.testing.assert_close(runs["cuda"].memory[name], tensor, rtol=1e-4, atol=1e-4)
    trained = {f"mine.{name}" for name in model.state_dict()} - {"mine.b.bias"}
    for client, memory in runs["serial"].clients.items():
        assert memory.keys() == runs["cuda"].clients[client].keys() == trained


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (dict(gradient=lambda g, w, start, sent, at: g.sum()), "the gradient of Mine must have the shape"),
        (dict(gradient=lambda g, w, start, sent, at: 1.0), "the gradient of Mine must have the shape .* not float"),
        (dict(reports=lambda w, start, sent, at: {"y": w}, adds=("x",)), r"must report 'x', but reports \['y'\]"),
        (
            dict(reports=lambda w, start, sent, at: {"x": w.sum()}, adds=("x",)),
            "report 'x' of Mine must have",
        ),
        (dict(reports=lambda w, start, sent, at: {"x": w / 0}, adds=("x",)), "not finite"),
        (dict(reports=lambda w, start, sent, at: {"x": w / 0}, own=("x",)), "not finite"),
        (dict(sends=lambda memory, own, at: None), "must send numbers or tensors by name, not a NoneType"),
        (
            dict(sends=lambda memory, own, at: {"x": "y"}),
            "sends 'x' as a str: allowed are numbers",
        ),
        (dict(sends=lambda memory, own, at: {"x": {}}), "sends 'x', of which '.*' is missing"),
        (dict(init=lambda beginning: {"n": 3}), "init of mine must return tensors by name, not a int as 'n'"),
        (dict(advance=lambda closing: None), "advance of mine must return tensors by name, not a NoneType"),
        (dict(start=lambda beginning: {}), "start of mine: "),
        (dict(close=lambda closing: None), "close of mine must return a state, not a NoneType"),
    ],
)
def test_what_makes_no_sense_gets_one_clear_line(engine, rule, why):
    with pytest.raises(FedwidthError, match=why) as raised:
        outcome(with_rule(**rule), engine)
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, OptionError | UpdateError | FedwidthError)


def test_what_is_sent_must_not_change_from_client_to_client():
    chosen = with_rule(
        gradient=lambda g, w, start, sent, at: g + sum(sent.values()),
        sends=lambda memory, own, at: {"x": 1.0} if at.client % 2 else {"y": 1.0},
    )
    for engine in ("cuda", "vectorised"):
        with pytest.raises(OptionError, match="must send every client the same names in every round"):
            outcome(chosen, engine)


@pytest.mark.parametrize(
    "parts", [dict(adds=("x",)), dict(own=("x",)), dict(reports=lambda *_: {}), dict(widths=lambda *_: [1.0])]
)
def test_what_belongs_together_is_asked_for(parts):
    with pytest.raises(OptionError, match="a local rule"):
        Local(**parts)


@pytest.mark.parametrize("name", ["rounds", "nope.nothing", "training.nothing"])
def test_a_method_can_only_need_settings_there_are(name):
    chosen = with_rule(needs={name: Need(1, "it does")})
    with pytest.raises(OptionError, match="unknown setting that Mine needs"):
        outcome(chosen, "serial")


def test_packs_tell_methods_of_one_name_apart():
    def chosen(units):
        return Method("mine", "Mine", "-", "-", choose=per_group(units), shared=lambda _: True)

    both = [chosen(lambda size, kept, at: prefix(size, kept)), chosen(lambda size, kept, at: rolling(size, kept, 3))]
    settings = small("engine=cuda", "devices.capacities=c1")
    alone = [Experiment(settings, method=each).run().server.state for each in both]
    runs = [Experiment(settings, method=each) for each in both]
    runs[1].data = runs[1].trainer.data = runs[0].data
    for one, packed in zip(alone, run_in_lockstep(runs), strict=True):
        assert same(dict(one), dict(packed.server.state))


def test_options_set_after_combining_reach_worker_processes():
    chosen = method("heterofl", local="fedprox").with_options(mu=5.0)
    serial, workers = (
        Experiment(small(f"engine={engine}", "workers=1", "rounds=2"), method=chosen).run().server.state
        for engine in ("serial", "processes")
    )
    assert same(serial, workers)


def test_fjord_is_refused_where_narrow_windows_leave_wide_ones():
    assert method("fedrolex", local="fjord", step=2).nested(method("fedrolex").values)
    for options in (dict(stagger=True), dict(overlap=0.5), dict(step=0.5, step_of="window")):
        with pytest.raises(OptionError, match="do not lie inside wider ones"):
            method("fedrolex", local="fjord", **options)


class TestClientFiles:
    CHANGES = ("method.name=scaffold", "client_memory=disk", "rounds=6", "checkpoint_every=2")

    def stop(self, place, after, **more):
        def kill(line):
            if line["round"] == after:
                raise KeyboardInterrupt  # after which nothing is saved

        with pytest.raises(KeyboardInterrupt):
            Experiment(small(*self.CHANGES)).run(place, on_round=kill, **more)

    def test_a_run_that_is_killed_twice_between_checkpoints_goes_on(self, tmp_path):
        Experiment(small(*self.CHANGES)).run(tmp_path / "whole")
        self.stop(tmp_path / "run", 3)
        self.stop(tmp_path / "run", 3, resume=True)
        Experiment(small(*self.CHANGES)).run(tmp_path / "run", resume=True)
        assert contents(tmp_path / "whole")[1:] == contents(tmp_path / "run")[1:]

    def test_a_new_run_in_the_folder_starts_with_clients_that_remember_nothing(self, tmp_path):
        other = [*self.CHANGES, "training.lr=0.01"]
        Experiment(small(*other)).run(tmp_path / "whole")
        self.stop(tmp_path / "run", 3)
        Experiment(small(*other)).run(tmp_path / "run", overwrite=True)
        assert contents(tmp_path / "whole")[1:] == contents(tmp_path / "run")[1:]
        for path in (tmp_path / "whole" / "clients").iterdir():
            assert path.read_bytes() == (tmp_path / "run" / "clients" / path.name).read_bytes()

    @pytest.mark.parametrize("where", ["host", "disk"])
    @pytest.mark.parametrize("harm", ["gone", "short", "flipped"])
    def test_a_damaged_file_is_refused_in_one_line(self, tmp_path, where, harm):
        self.stop(tmp_path / "run", 4)
        path = next((tmp_path / "run" / "clients").glob("*.safetensors"))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink() if harm == "gone" else path.write_bytes(content[:-9] if harm == "short" else content)
        (tmp_path / "run" / "clients" / "notes.safetensors").write_text("somebody's own")
        with pytest.raises(FedwidthError, match="what a client remembers, in .*, (cannot be read|is damaged)"):
            Experiment(small(*self.CHANGES, f"client_memory={where}")).run(tmp_path / "run", resume=True)


def test_a_method_without_a_name_is_resumed_by_its_program_alone(tmp_path):
    def chosen():
        return with_rule(gradient=lambda g, w, start, sent, at: g + 0.1 * w)

    mine = chosen()
    settings = small("rounds=4", "checkpoint_every=1")
    whole = Experiment(settings, method=mine).run(tmp_path / "whole").server.state

    class Enough(Exception):
        pass

    def leave(line):
        if line["round"] == 2:
            raise Enough

    with pytest.raises(Enough):
        Experiment(settings, method=mine).run(tmp_path / "run", on_round=leave)
    assert same(whole, Experiment(settings, method=mine).run(tmp_path / "run", resume=True).server.state)
    from fedwidth.config.read import read_settings

    with pytest.raises(OptionError, match=r"the method \(mine\) of this run was given in Python"):
        read_settings(tmp_path / "run" / "config.toml")


def test_adam_of_single_clients_is_pytorchs_to_the_bit():
    from fedwidth.settings import TrainingSettings
    from fedwidth.training.rule import PLAIN
    from fedwidth.training.step import take_step
    from fedwidth.training.weights import Weights

    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        torch.manual_seed(0)
        own = [torch.randn(5, 3), torch.randn(7), torch.randn(4, dtype=torch.complex64)]
        theirs = [nn.Parameter(tensor.clone()) for tensor in own]
        settings = TrainingSettings(optimiser=name, weight_decay=0.01, clip=0.0)
        weights = Weights(own, [], rate=0.01)
        weights.make_moments(settings)
        optimiser = kind(theirs, lr=0.01, weight_decay=0.01)
        for _ in range(5):
            weights.gradients = [torch.randn_like(tensor) for tensor in own]
            for parameter, gradient in zip(theirs, weights.gradients, strict=True):
                parameter.grad = gradient.clone()
            optimiser.step()
            take_step(weights, PLAIN, settings, 1.0)
        for mine, parameter in zip(own, theirs, strict=True):
            assert torch.equal(mine, parameter.detach()), name


@pytest.mark.parametrize("text", ["import nothing_like_this", "1 / 0", "syntax error here", "raise RuntimeError('no')"])
def test_a_module_that_fails_when_it_is_imported(tmp_path, monkeypatch, text):
    (tmp_path / "fails_at_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=r"method 'fails_at_import:METHOD' must be package.module:METHOD \("):
        method("fails_at_import:METHOD")


def test_a_local_rule_is_no_option():
    with pytest.raises(OptionError, match="unknown option of method 'fedrolex' 'local'"):
        small("method.options.local=fedprox")


def test_rules_that_only_differ_in_their_options_are_one_rule_each():
    one, other = (replace(method("fedprox", mu=mu)) for mu in (0.1, 0.2))
    settings = small("engine=cuda", "devices.capacities=a1")
    runs = [Experiment(settings, method=each) for each in (one, other)]
    runs[1].data = runs[1].trainer.data = runs[0].data
    with pytest.raises(OptionError, match="their clients train by different local rules"):
        run_in_lockstep(runs)
