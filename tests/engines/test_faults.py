"""Whatever goes wrong in a client is named by round, client, capacity and stage, with every engine."""

import gc
import traceback
from dataclasses import fields, replace

import pytest
import torch

from engine_models import Fails, own
from fedwidth.cli.entry import main
from fedwidth.core.index import Index
from fedwidth.engines import SerialEngine
from fedwidth.engines.memory import out_of_memory
from fedwidth.errors import ClientError, UpdateError
from fedwidth.experiment import Experiment
from fedwidth.methods import method
from fedwidth.training.client import Trainer
from small_runs import small, write_recipe

ENGINES = ("serial", "processes", "cuda", "vectorised")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_failing_client_is_named(engine):
    where = r"^round 0, clients? \d(, \d)?, capacity 1, stage train"
    with pytest.raises(ClientError, match=where + r": RuntimeError: out of luck \(engine_models.py, line") as caught:
        own(Fails(), engine=engine, workers=1).run()
    assert "out of luck" in "".join(traceback.format_exception(caught.value.__cause__))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_update_that_is_refused_names_round_client_capacity_and_stage(engine):
    settings = small("training.lr=1e30", "training.clip=0", f"engine={engine}", "workers=1")
    expected = r"client (\d+) sent a value .* not finite.* \(round 0, client \1, capacity \S+, stage add\)"
    with pytest.raises(UpdateError, match=expected):
        Experiment(settings).run()


class Broken(Index):
    """An index that nothing can be cut with."""

    def __getitem__(self, name):
        raise RuntimeError("a broken index")

    def cut(self, state, plan):
        raise RuntimeError("a broken index")


def choose_broken(plan, counts, at):
    chosen = method("heterofl").choose(plan, counts, at)
    return Broken(plan, dict(chosen), counts=chosen.counts, units=chosen.units)


BROKEN = replace(method("heterofl"), choose=choose_broken, nested=lambda _: False)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_that_fails_is_named(engine):
    with pytest.raises(
        ClientError, match=r"^round 0, client \d, capacity \S+, stage cut: RuntimeError: a broken index"
    ):
        Experiment(small(f"engine={engine}", "workers=1"), method=BROKEN).run()


class Counting(Trainer):
    """Counts the sub-models that are held whenever it trains."""

    held: list

    def train(self, *given):
        self.held.append(sum(type(each).__name__ == "SubState" for each in gc.get_objects()))
        return super().train(*given)


def test_where_every_client_has_its_own_index_the_sub_models_are_let_go():
    """Otherwise a round of 200 clients would hold 200 sub-models besides their sums."""
    run = Experiment(small("method.name=feddropout", "devices.capacities=b1", "devices.per_round=6"))
    trainer = Counting(**{each.name: getattr(run.trainer, each.name) for each in fields(Trainer) if each.init})
    trainer.held = []
    tasks = run.method.assign(run.plan, run.cohort(0), 0, None, 1)
    SerialEngine(trainer).run(run.first_state, tasks, 0)
    assert trainer.held == [trainer.held[0]] * 6


def test_an_error_after_one_of_memory_counts_as_one():
    def fail(*, hide):
        try:
            try:
                raise torch.OutOfMemoryError("no room")
            finally:
                raise ValueError("the capture ended early") from (KeyError() if hide else None)
        except ValueError as error:
            return error

    error = fail(hide=True)
    assert not out_of_memory(error)
    error.__cause__, error.__suppress_context__ = None, False
    assert out_of_memory(error)


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
        "warning: the vectorised engine falls back to one client at a time: clients of FjORD draw a width at every step"
        in said
    )
    code, said = run("model.name=engine_models:failing", "model.options={}")
    assert code == 1
    assert "Traceback" in said
    assert "error: round 0, client " in said.splitlines()[-1]
    assert "stage train: RuntimeError: out of luck (engine_models.py, line" in said.splitlines()[-1]
