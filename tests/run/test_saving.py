"""Saving by time, beside the training: when, which bits, what happens to a save that fails; and the folder's lock."""

import errno
import os
import threading

import pytest
import torch
from safetensors.torch import load_file
from saving_runs import Killed, beside, due_after, experiment, held, pack, stop_after

from fedwidth.cli.entry import run_command
from fedwidth.errors import StateError
from fedwidth.experiment import Stopped
from fedwidth.run import checkpoint, folder, saving
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.saving import Saver
from fedwidth.training.server.state import Server
from small_runs import contents, same, small, write_recipe


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Contents of the uninterrupted run."""
    place = tmp_path_factory.mktemp("whole") / "run"
    experiment().run(place)
    return contents(place)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("engine", ["serial", "vectorised", "cuda"])
@pytest.mark.parametrize("changes", [["server.optimiser=fedadam"], ["method.name=fedminoccurances"]])
def test_what_is_written_late_are_the_bits_of_its_round(engine, changes, tmp_path, monkeypatch):
    with pytest.raises(Stopped):
        experiment(*changes, f"engine={engine}").run(tmp_path / "stopped", **stop_after(2))
    due_after(monkeypatch, 2)
    reached, free = held(monkeypatch, checkpoint, "write_copy")

    def after(line):
        if line["round"] == 4:
            assert reached.wait(120)
            free.set()
            raise Killed

    with pytest.raises(Killed):
        experiment(*changes, f"engine={engine}").run(tmp_path / "beside", on_round=after)
    one, other = (load_file(tmp_path / name / checkpoint.NAME) for name in ("stopped", "beside"))
    assert same(one, other)
    assert checkpoint.rounds_done(tmp_path / "beside") == 2


def test_a_copy_shares_nothing_with_what_trains():
    state = {"weight": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last), "steps": torch.tensor(3)}
    server = Server(state, 1, {"seen.group": torch.zeros(4)}, {"first.weight": torch.rand(2, 3)})
    copy = checkpoint.copy_server(server, identity="mine", extra={})
    before = {name: tensor.clone() for name, tensor in copy.tensors.items()}
    for tensors in (server.state, server.moments, server.memory):
        for tensor in tensors.values():
            tensor.add_(1)
    assert same(before, dict(copy.tensors))
    assert all(tensor.is_contiguous() for tensor in copy.tensors.values())


class TestWhen:
    def saver(self, patch, place, *changes):
        now = [1000.0]
        patch.setattr(saving.time, "monotonic", lambda: now[0])
        return Saver(place, small(*changes), rounds=0), now

    def test_a_minute_after_the_last_save(self, tmp_path, monkeypatch):
        made = experiment()
        copy = checkpoint.copy_server(made.first_server(), identity=made.identity, extra={"seconds": 0.0})
        saver, now = self.saver(monkeypatch, tmp_path)
        reached, free = held(monkeypatch, checkpoint, "write_copy")
        assert not saver.is_due(1)
        now[0] += 59
        assert not saver.is_due(2)
        now[0] += 1
        assert saver.is_due(3)
        saver.save(copy, wait=False)
        assert not saver.is_due(3)
        now[0] += 90  # one at a time
        assert not saver.is_due(4)
        assert reached.wait(120)
        saver.check(wait=False)
        free.set()
        saver.check(wait=True)
        assert saver.is_due(5)

    def test_after_so_many_seconds_or_rounds(self, tmp_path, monkeypatch):
        saver, now = self.saver(monkeypatch, tmp_path, "checkpoint_seconds=5")
        now[0] += 5
        assert saver.is_due(1)
        saver, now = self.saver(monkeypatch, tmp_path, "checkpoint_seconds=5", "checkpoint_every=3")
        now[0] += 5
        assert [round for round in range(1, 10) if saver.is_due(round)] == [3, 6, 9]

    def test_counted_rounds_are_waited_for(self, tmp_path, monkeypatch):
        monkeypatch.setattr(threading.Thread, "start", None)
        found = []
        experiment("checkpoint_every=2").run(
            tmp_path, on_round=lambda _: found.append(checkpoint.rounds_done(tmp_path))
        )
        assert found == [0, 2, 2, 4, 5]

    def test_a_short_run_is_saved_once(self, tmp_path):
        found = []
        experiment().run(tmp_path, on_round=lambda _: found.append(checkpoint.rounds_done(tmp_path)))
        assert found == [0, 0, 0, 0, 5]

    def test_a_folder_of_the_first_version_goes_on(self, whole, tmp_path):
        """Which saved every round, and knew nothing of seconds."""
        with pytest.raises(Stopped):
            experiment().run(tmp_path, **stop_after(2))
        path = tmp_path / folder.CONFIG
        lines = [line for line in path.read_text().splitlines() if not line.startswith("checkpoint_")]
        path.write_text("\n".join(["checkpoint_every = 1", *lines]) + "\n")
        experiment().run(tmp_path, resume=True)
        assert contents(tmp_path) == whole


def full(patch, *, call):
    """From its so many-th call on, a save beside the training finds the disk full: metrics, checkpoint, metrics, …"""
    real, calls = os.fsync, []

    def fsync(descriptor):
        if beside():
            calls.append(descriptor)
            if len(calls) >= call:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor)

    patch.setattr(os, "fsync", fsync)


class TestFailed:
    @pytest.mark.parametrize(("call", "name"), [(3, "metrics.jsonl"), (4, checkpoint.NAME)])
    @pytest.mark.parametrize("second", [3, 4])  # which the end finds, if not a round before it
    def test_is_said_in_one_line_and_the_checkpoint_before_is_unharmed(
        self, call, name, second, whole, tmp_path, monkeypatch, capsys
    ):
        place = tmp_path / "run"
        command = ["run", write_recipe(tmp_path), "--set", "rounds=5", "--out", str(place)]
        with monkeypatch.context() as patch:
            due_after(patch, 1, second)
            full(patch, call=call)
            assert run_command(command) == 2
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
        kept = "; the previous one is unharmed" if name == checkpoint.NAME else ""
        assert line == f"error: cannot write {place / name}: No space left on device{kept}"
        assert checkpoint.rounds_done(place) == 1
        assert not list(place.glob("*.partial"))
        assert not (place / "summary.json").exists()
        assert run_command([*command, "--resume"]) == 0
        assert contents(place) == whole

    def test_of_the_last_round_it_could_be_of_is_not_lost(self, tmp_path, monkeypatch):
        due_after(monkeypatch, 4)
        reached, free = held(monkeypatch, checkpoint, "write_whole")
        full(monkeypatch, call=2)
        with pytest.raises(StateError, match="No space left on device"):
            experiment().run(tmp_path, on_round=lambda line: line["round"] == 4 and reached.wait(120) and free.set())
        assert checkpoint.rounds_done(tmp_path) == 0

    def test_of_any_other_kind_too(self, tmp_path, monkeypatch):
        due_after(monkeypatch, 2)
        real = os.replace
        monkeypatch.setattr(os, "replace", lambda *names: 1 / 0 if beside() else real(*names))
        with pytest.raises(ZeroDivisionError):
            experiment().run(tmp_path)


def test_metrics_are_on_disk_before_the_checkpoint_that_needs_them(tmp_path, monkeypatch):
    """Also those of packed runs, which write several lines at a time."""
    synced, seen, fsync, replace = {}, [], os.fsync, os.replace

    def note_sync(descriptor):
        fsync(descriptor)
        for path in tmp_path.rglob("metrics.jsonl"):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                synced[path.parent] = len(folder.read_metrics(path.parent))

    def note_write(source, target):
        replace(source, target)
        if target.name == checkpoint.NAME:
            round = checkpoint.rounds_done(target.parent)
            seen.append((target.parent.name, round))
            assert synced[target.parent] >= round

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_write)
    due_after(monkeypatch, 1, 3)
    experiment().run(tmp_path / "alone")
    assert seen == [("alone", 1), ("alone", 3), ("alone", 5)]
    seen.clear()
    run_in_lockstep(pack(), [tmp_path / "one", tmp_path / "two"])
    assert sorted(seen) == [(name, round) for name in ("one", "two") for round in (1, 3, 5)]


def is_locked(place):
    try:
        with folder.locked(place):
            return False
    except folder.InUse:
        return True


def saving_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("save ")]


class TestTheLock:
    """While the folder is not locked, nobody writes to it."""

    @pytest.mark.parametrize(
        ("error", "done"), [(None, 5), (RuntimeError("mine"), 4), (KeyboardInterrupt(), 3), (Killed(), 3)]
    )
    def test_is_given_back_when_all_is_written(self, error, done, tmp_path, monkeypatch):
        written, free, replace = [], threading.Event(), os.replace

        def note(source, target):
            if beside():
                assert free.wait(120)
            replace(source, target)
            written.append((target.name, is_locked(tmp_path / "run")))

        due_after(monkeypatch, 3)
        monkeypatch.setattr(os, "replace", note)

        def after(line):
            if line["round"] == 4:  # the run ends, or goes on, while a save is under way
                assert saving_threads()
                threading.Timer(0.3, free.set).start()
                if error:
                    raise error

        if error is None:
            experiment().run(tmp_path / "run", on_round=after)
        else:
            with pytest.raises(type(error)):
                experiment().run(tmp_path / "run", on_round=after)
        assert not saving_threads()
        assert not is_locked(tmp_path / "run")
        assert checkpoint.NAME in [name for name, _ in written]
        assert all(locked for _, locked in written)
        assert checkpoint.rounds_done(tmp_path / "run") == done

    def test_waits_also_for_one_who_is_impatient(self, tmp_path, monkeypatch):
        made = experiment()
        saver = Saver(tmp_path, made.settings, rounds=0)
        reached, free = held(monkeypatch, os, "replace")
        saver.save(checkpoint.copy_server(made.first_server(), identity=made.identity, extra={}), wait=False)
        assert reached.wait(120)

        joins, real = [], threading.Thread.join

        def join(thread, timeout=None):
            joins.append(thread)
            if len(joins) < 3:
                raise KeyboardInterrupt
            free.set()
            real(thread, timeout)

        monkeypatch.setattr(threading.Thread, "join", join)
        with pytest.raises(KeyboardInterrupt):
            saver.check(wait=True)
        assert not saving_threads()
        assert (tmp_path / checkpoint.NAME).exists()
