"""Engines train the same clients to the same bits; a worker that dies is replaced."""

import os
import signal
import time
import traceback
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedwidth.cli.entry import main
from fedwidth.data import from_tensors
from fedwidth.engines import ProcessEngine, SerialEngine, choice, choose_engine, limits, make_engine
from fedwidth.engines.processes import engine as processes
from fedwidth.engines.processes import shared_memory, startup
from fedwidth.errors import ClientError, OptionError, UpdateError
from fedwidth.experiment import Experiment
from fedwidth.settings import DataSettings, DeviceSettings, Settings
from small_runs import contents, same, small, write_recipe

UNEQUAL = ("data.partition=dirichlet", "data.partition_options={alpha=0.1}", "data.clients=30")
CNN = ("model.name=cnn", "model.options={widths=[4, 4]}")


@pytest.mark.parametrize(
    "changes",
    [
        (*CNN, "server.weighting=samples", "server.optimiser=fedadam", "server.lr=0.1"),
        ("method.name=fedbrb", "evaluation.capacities=[0.5]"),  # an index per tensor, not per group
        ("method.name=fedminoccurances", "devices.dynamic=true"),
    ],
    ids=["fedrolex", "fedbrb", "fedminoccurances"],
)
def test_the_number_of_workers_changes_no_bit(tmp_path, changes):
    places = {"serial": ("engine=serial",)}
    places |= {f"workers-{n}": ("engine=processes", f"workers={n}") for n in (1, 2)}
    for name, engine in places.items():
        Experiment(small(*changes, *engine)).run(tmp_path / name)
    serial = contents(tmp_path / "serial")
    assert contents(tmp_path / "workers-1") == serial
    assert contents(tmp_path / "workers-2") == serial


@pytest.fixture
def pool():
    """An engine with two workers, and what it needs to run a round."""
    experiment = Experiment(small("engine=processes", "workers=2"))
    engine = make_engine(experiment.trainer)
    yield experiment, engine
    engine.close()


def sums_of(experiment, engine, round=0):
    tasks = experiment.method.assign(experiment.plan, experiment.cohort(round), round, None, 1)
    sums, report = engine.run(experiment.first_state, tasks, round)
    return [(cohort.index.key, cohort.mean, cohort.weight) for cohort in sums], report


def agree(one, other):
    return len(one) == len(other) and all(
        a[0] == b[0] and same(a[1], b[1]) and str(a[2]) == str(b[2]) for a, b in zip(one, other, strict=True)
    )


def test_sums_and_reports_are_in_task_order(pool):
    experiment, engine = pool
    assert isinstance(engine, ProcessEngine)
    found, report = sums_of(experiment, engine)
    expected, expected_report = sums_of(experiment, SerialEngine(experiment.trainer))
    assert agree(found, expected)
    assert report == expected_report


def test_more_clients_than_are_sent_at_once(monkeypatch):
    experiment = Experiment(small("method.name=feddropout", "devices.per_round=6", "engine=processes", "workers=2"))
    monkeypatch.setattr(processes, "TASKS_AHEAD", 1)  # stretches of two tasks
    engine = make_engine(experiment.trainer)
    try:
        found, report = sums_of(experiment, engine)
    finally:
        engine.close()
    expected, expected_report = sums_of(experiment, SerialEngine(experiment.trainer))
    assert agree(found, expected)
    assert report == expected_report


def test_a_worker_that_dies_is_replaced(pool):
    experiment, engine = pool
    before, _ = sums_of(experiment, engine)
    os.kill(next(iter(engine._pool._processes)), signal.SIGKILL)
    ends = time.monotonic() + 30
    while not engine._pool._broken and time.monotonic() < ends:  # or the other worker might do all of the round
        time.sleep(0.01)
    with pytest.warns(UserWarning, match="round 0, client .* a worker process died and is replaced"):
        again, _ = sums_of(experiment, engine)
    assert agree(before, again)


def test_a_worker_that_dies_in_the_middle_of_a_round_is_replaced(tmp_path):
    """The first client is counted already, the second kills its worker: neither may count twice or be missing."""
    mark, model = tmp_path / "died", Dies()
    expected = own(model, engine="serial").run()
    mark.touch()
    model.mark, model.step = str(mark), 2
    with pytest.warns(UserWarning, match="a worker process died"):
        found = own(model, engine="processes", workers=1).run()
    assert not mark.exists(), "nobody died"
    assert same(expected.server.state, found.server.state)
    assert expected.metrics[-1]["train_loss"] == found.metrics[-1]["train_loss"]


def test_workers_that_die_again_and_again_end_the_run():
    class Always:
        def submit(self, *arguments):
            future = Future()
            future.set_exception(BrokenProcessPool("gone"))
            return future

        def shutdown(self, **options):
            pass

    engine = ProcessEngine(own(Looks()).trainer, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_start_pool", lambda *_: Always())
        experiment = own(Looks())
        expected = r"round 0, client \d+, capacity 1, stage train .* died 3 times .* engine = 'serial'"
        with pytest.warns(UserWarning, match="died and is replaced"), pytest.raises(ClientError, match=expected):
            sums_of(experiment, engine)


def test_a_refused_update_is_one_sentence_also_from_a_worker():
    for engine in ("serial", "processes"):
        with pytest.raises(UpdateError, match=r"client \d+ .* not finite"):
            Experiment(small("training.lr=1e30", "training.clip=0", f"engine={engine}", "workers=2")).run()


class Fails(nn.Module):
    """Works while it is traced and evaluated, fails in training."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            raise RuntimeError("out of luck")
        return self.net(x)


class Dies(nn.Sequential):
    """Kills its process in one of its training steps, as long as there is a file."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        self.mark, self.step, self.taken = "", 0, 0

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.taken += 1
            if self.taken == self.step and os.path.exists(self.mark):
                os.unlink(self.mark)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class Looks(nn.Sequential):
    """Looks at its values in training, which a stack of models has not one of."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        y = super().forward(x)
        return y / 2 if self.training and torch.is_grad_enabled() and float(y.detach().sum()) > 1e9 else y


class Renorms(nn.Sequential):
    """Has an operator that vmap takes apart, client by client."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return super().forward(torch.renorm(x, 2, 0, 1.0))


class Holds(nn.Sequential):
    """Holds something no other process can be given."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        self.hook = lambda: None

    def __deepcopy__(self, memo):
        return Holds()


def own(model, **changes):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    data = from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    settings = Settings(rounds=1, devices=DeviceSettings("a1", per_round=2), data=DataSettings(clients=4))
    return Experiment(replace(settings, **changes), model=model, data=data)


ENGINES = ("serial", "processes", "cuda", "vectorised")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_failing_client_is_named(engine, monkeypatch):
    monkeypatch.setitem(limits.TRIALS, "vectorised", lambda _: None)  # which would notice
    where = r"^round 0, clients? \d(, \d)?, capacity 1, stage train"
    with pytest.raises(ClientError, match=where + r": RuntimeError: out of luck \(test_engines.py, line") as caught:
        own(Fails(), engine=engine, workers=1).run()
    assert "out of luck" in "".join(traceback.format_exception(caught.value.__cause__))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_update_that_is_refused_names_round_client_capacity_and_stage(engine):
    settings = small("training.lr=1e30", "training.clip=0", f"engine={engine}", "workers=1")
    expected = r"client (\d+) sent a value .* not finite.* \(round 0, client \1, capacity \S+, stage add\)"
    with pytest.raises(UpdateError, match=expected):
        Experiment(settings).run()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_that_fails_is_named(engine, monkeypatch):
    def fail(*_):
        raise RuntimeError("a broken index")

    monkeypatch.setattr("fedwidth.core.index.Index.cut", fail)
    monkeypatch.setattr("fedwidth.engines.flat.layout.SubLayout.positions", fail)
    with pytest.raises(
        ClientError, match=r"^round 0, client \d, capacity \S+, stage cut: RuntimeError: a broken index"
    ):
        Experiment(small(f"engine={engine}", "workers=1")).run()


def test_a_model_that_cannot_be_sent(monkeypatch):
    with pytest.raises(OptionError, match="cannot be sent to worker processes .* use engine = 'serial'"):
        own(Holds(), engine="processes").run()
    make_heavy(monkeypatch)
    assert own(Holds(), engine="auto", workers=2).run().summary["rounds"] == 1  # auto finds another way


def leave_free(monkeypatch, size):
    """So much shared memory is free."""
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))


def test_shared_memory_that_is_too_small(monkeypatch, tmp_path):
    # 40 inputs of 6 numbers and 40 labels, for training and for testing the same ones; the model; who has which sample.
    experiment = own(Looks(), engine="processes", workers=2)
    shares = (experiment.partition.train, experiment.partition.test)
    numbers = {t.untyped_storage().data_ptr(): t.numel() * 8 for s in shares for t in (s.samples, s.offsets)}
    least = 40 * 6 * 4 + 40 * 8 + (6 * 8 + 8 + 8 * 2 + 2) * 4
    needed = shared_memory.count_shared(startup.startup_arguments(experiment.trainer))
    assert least < needed <= least + 2 * sum(numbers.values()) + 2 * 40 * 8
    monkeypatch.setattr(startup, "SHARED_MEMORY", tmp_path)
    leave_free(monkeypatch, needed - 1)
    with pytest.raises(OptionError, match=rf"take 0.0 MiB .* {tmp_path} has 0.0 MiB free; use engine = 'serial'$"):
        experiment.run()
    make_heavy(monkeypatch)
    found = choose_engine(own(Looks(), engine="auto", workers=2).trainer)
    assert (found.name, "of shared memory" in found.reason) == ("serial", True)
    leave_free(monkeypatch, needed)
    assert experiment.run().summary["rounds"] == 1
    leave_free(monkeypatch, 0)  # everything is there already
    assert shared_memory.count_shared(startup.startup_arguments(experiment.trainer)) == 0
    assert startup.why_not_share(experiment.trainer) is None


def make_heavy(monkeypatch):
    """Every run is heavy, and no step small."""
    for name in ("HEAVY_ROUND", "HEAVY_RUN"):
        monkeypatch.setattr(choice, name, 0.0)
    monkeypatch.setitem(choice.SMALL_STEP, "cpu", 0.0)


def test_auto_takes_workers_for_heavy_rounds_only(monkeypatch):
    trainer = Experiment(small("engine=auto", "workers=2", "training.batch_size=100000")).trainer
    assert isinstance(make_engine(trainer), SerialEngine)
    make_heavy(monkeypatch)
    heavy = make_engine(trainer)
    assert isinstance(heavy, ProcessEngine)
    assert heavy.workers == 2


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ((), "vectorised", "a step of a client is small"),
        (("devices.per_round=1",), "serial", "one client a round"),
        (("training.batch_size=100000",), "serial", "large enough to train alone"),
        (("model.options={hidden=[20000]}", "training.batch_size=1", "devices.per_round=6"), "serial", "too many"),
        ((*UNEQUAL, "training.batch_size=5"), "serial", "twice as many steps"),
        (("method.name=fjord",), "serial", "something else at every step"),
        (("engine=serial",), "serial", "as set"),
    ],
)
def test_what_auto_takes_and_why(changes, name, reason):
    for workers in (1, 2, 16):  # the choice between engines that differ in rounding must not depend on the machine
        found = choose_engine(Experiment(small("engine=auto", f"workers={workers}", *changes)).trainer)
        assert found.name == name
        assert reason in found.reason


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        (("devices.per_round=6", "devices.capacities=a0-c1"), "vectorised", "a step of a client is small"),
        (("devices.per_round=5", "devices.capacities=a0-c1"), "cuda", "5 clients a round of 1 width are too few"),
        (("devices.per_round=6", "devices.capacities=a1-c1"), "cuda", "6 clients a round of 2 widths are too few"),
        (("devices.per_round=6", "training.batch_size=10000000"), "cuda", "side by side on the GPU; a step"),
    ],
)
def test_auto_on_a_gpu_stacks_where_there_are_enough_of_one_width(monkeypatch, changes, name, reason):
    monkeypatch.setitem(limits.TRIALS, "vectorised", lambda _: None)  # all the rest needs no GPU
    trainer = Experiment(small("engine=auto", *changes)).trainer
    found = choose_engine(replace(trainer, device=torch.device("cuda")))
    assert found.name == name
    assert reason in found.reason


def test_auto_stacks_no_batch_norm_of_unequal_clients_and_no_model_that_cannot_be_stacked():
    norm = choose_engine(Experiment(small("engine=auto", *CNN, *UNEQUAL)).trainer)
    assert (norm.name, "batch norm" in norm.reason) == ("serial", True)
    renorms = choose_engine(own(Renorms(), engine="auto").trainer)
    assert (renorms.name, "one after the other" in renorms.reason) == ("serial", True)
    looks = choose_engine(own(Looks(), engine="auto").trainer)
    assert (looks.name, "cannot be stacked" in looks.reason) == ("serial", True)
    assert own(Looks(), engine="auto").run().summary["rounds"] == 1


def test_the_command_line_says_what_auto_took(tmp_path, capsys):
    for engine, said in (("auto", "engine: vectorised (a step of a client is small"), ("serial", None)):
        with pytest.raises(SystemExit, match="^0$"):
            main(["run", write_recipe(tmp_path), "--set", f"engine={engine}", "--out", str(tmp_path / engine)])
        found = capsys.readouterr().err
        assert said in found if said else "engine:" not in found


def test_no_more_workers_than_clients():
    trainer = Experiment(small("engine=processes", "workers=64")).trainer
    assert make_engine(trainer).workers == 3


def test_where_every_client_has_its_own_index_the_sub_models_are_let_go(monkeypatch):
    """Otherwise a round of 200 clients would hold 200 sub-models besides their sums."""
    experiment = Experiment(small("method.name=feddropout", "devices.capacities=b1", "devices.per_round=6"))
    held = []
    real = experiment.trainer.train

    def train(sub, task, round, sent):
        import gc

        held.append(sum(type(o).__name__ == "SubState" for o in gc.get_objects()))
        return real(sub, task, round, sent)

    monkeypatch.setattr(experiment.trainer, "train", train)
    sums_of(experiment, SerialEngine(experiment.trainer))
    assert held == [held[0]] * 6


def failing(data_shape, classes):
    """A factory a recipe can name."""
    return nn.Sequential(nn.Flatten(), FailsOnDigits())


class FailsOnDigits(Fails):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.filterwarnings("default")
def test_the_command_line_says_what_happens_in_one_line_each(tmp_path, capsys):
    def run(*changes):
        options = [word for change in changes for word in ("--set", change)]
        with pytest.raises(SystemExit) as exit:
            main(["run", write_recipe(tmp_path), *options, "--overwrite", "--out", str(tmp_path / "run")])
        return exit.value.code, capsys.readouterr().err

    code, said = run("engine=vectorised", "method.name=fjord")
    assert code == 0
    assert (
        "warning: the vectorised engine falls back to one client at a time: the loss of FjORD may do something else"
        in said
    )
    code, said = run("model.name=test_engines:failing", "model.options={}")
    assert code == 1
    assert "Traceback" in said
    assert "error: round 0, client " in said.splitlines()[-1]
    assert "stage train: RuntimeError: out of luck (test_engines.py, line" in said.splitlines()[-1]
