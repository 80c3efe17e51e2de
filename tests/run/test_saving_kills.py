"""Runs that are saved by time and end too soon, by a kill or an error of their own, go on to the same bits."""

import errno
import os
from dataclasses import replace

import pytest
import torch
from saving_runs import Killed, due_after, experiment, kill_run, pack, raising

from fedwidth.engines.serial import SerialEngine
from fedwidth.errors import StateError
from fedwidth.experiment import Stopped
from fedwidth.run import checkpoint, folder, recorder
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.saving import Saver
from small_runs import contents, same


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Contents of the uninterrupted run."""
    place = tmp_path_factory.mktemp("whole") / "run"
    experiment().run(place)
    return contents(place)


class TestKilled:
    """By SIGKILL, after the fourth round of five; what was saved before it is on disk."""

    @pytest.mark.parametrize(("saves", "done"), [((9,), 0), ((2,), 2), ((1, 3), 3)])
    def test_between_saves(self, saves, done, whole, tmp_path):
        kill_run(tmp_path, "", saves)
        assert checkpoint.rounds_done(tmp_path) == done
        experiment().run(tmp_path, resume=True)
        assert contents(tmp_path) == whole

    @pytest.mark.parametrize("moment", ["fsync metrics", "fsync checkpoint", "replace checkpoint"])
    @pytest.mark.parametrize(("saves", "done"), [((3,), 0), ((1, 3), 1)])
    def test_while_a_save_is_under_way(self, moment, saves, done, whole, tmp_path):
        kill_run(tmp_path, moment, saves)
        assert checkpoint.rounds_done(tmp_path) == done
        assert (tmp_path / f"{checkpoint.NAME}.partial").exists() == moment.endswith("checkpoint")
        experiment().run(tmp_path, resume=True)
        assert contents(tmp_path) == whole
        assert not list(tmp_path.glob("*.partial"))


class TestFailingRuns:
    """Those whose training or caller fails: what they had done is saved, unless they were killed or cannot save."""

    def test_keep_their_last_round(self, whole, tmp_path):
        with pytest.raises(RuntimeError, match="mine"):
            experiment().run(tmp_path, on_round=raising(RuntimeError("mine"), 3))
        assert checkpoint.rounds_done(tmp_path) == 3
        experiment().run(tmp_path, resume=True)
        assert contents(tmp_path) == whole

    def test_a_line_that_cannot_be_made_is_no_round(self, whole, tmp_path):
        """An engine that says of one client too few what it saw: the round's state is there, but no line of it."""

        class Forgetful(SerialEngine):
            def run(self, state, tasks, round, **options):
                sums, report = super().run(state, tasks, round, **options)
                return sums, replace(report, passes=report.passes[1:]) if round == 2 else report

        made = experiment()
        with pytest.raises(ValueError, match="shorter"):
            made.run(tmp_path, engine=Forgetful(made.trainer))
        assert checkpoint.rounds_done(tmp_path) == 2
        experiment().run(tmp_path, resume=True)
        assert contents(tmp_path) == whole

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_what_is_to_end_at_once_is_not_saved(self, kind, tmp_path):
        with pytest.raises(kind):
            experiment().run(tmp_path, on_round=raising(kind(), 3))
        assert checkpoint.rounds_done(tmp_path) == 0

    def test_metrics_that_cannot_be_written_are_not_tried_again(self, tmp_path):
        """They may end in half a line, and a checkpoint would then be ahead of them."""
        metrics, kept = tmp_path / "metrics.jsonl", tmp_path / "kept.jsonl"

        def hide(line):
            if line["round"] == 2:
                metrics.rename(kept)
                metrics.mkdir()

        with pytest.raises(StateError, match=r"cannot write .*metrics\.jsonl: Is a directory"):
            experiment().run(tmp_path, on_round=hide)
        assert checkpoint.rounds_done(tmp_path) == 0

    def test_a_save_that_fails_too_is_a_warning(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "replace", real_until(os.replace, 2, OSError(errno.ENOSPC, "No space left on device")))
        with (
            pytest.raises(RuntimeError, match="mine"),
            pytest.warns(UserWarning, match="the last rounds are not saved: cannot write .*No space left on device"),
        ):
            experiment().run(tmp_path, on_round=raising(RuntimeError("mine"), 3))


def real_until(function, calls, error):
    """The function, which fails after so many calls."""
    made = []

    def call(*given):
        made.append(given)
        if len(made) > calls:
            raise error
        return function(*given)

    return call


class TestPacks:
    def test_stopped_and_resumed(self, tmp_path):
        whole = run_in_lockstep(pack())
        places = [tmp_path / "one", tmp_path / "two"]
        with pytest.raises(Stopped):
            run_in_lockstep(pack(), places, on_round=lambda *_: None, stop=lambda: True)
        assert [checkpoint.rounds_done(place) for place in places] == [1, 1]
        again = run_in_lockstep(pack(), places, resume=True)
        assert all(same(dict(a.server.state), dict(b.server.state)) for a, b in zip(whole, again, strict=True))

    def test_killed_with_one_run_saved_later_than_the_other(self, tmp_path, monkeypatch):
        whole = run_in_lockstep(pack())
        places = [tmp_path / "one", tmp_path / "two"]
        with monkeypatch.context() as patch:
            rounds = {places[0]: (1, 3), places[1]: (1,)}
            patch.setattr(Saver, "is_due", lambda self, round: round in rounds[self.folder])
            with pytest.raises(Killed):
                run_in_lockstep(pack(), places, on_round=lambda _, line: raising(Killed, 4)(line))
        assert [checkpoint.rounds_done(place) for place in places] == [3, 1]
        again = run_in_lockstep(pack(), places, resume=True)
        for one, other in zip(whole, again, strict=True):
            for name, tensor in one.server.state.items():
                torch.testing.assert_close(other.server.state[name], tensor)
            assert [line["clients"] for line in one.metrics] == [line["clients"] for line in other.metrics]

    def test_their_lines_can_be_read_between_saves(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recorder, "PACK_WRITES_AFTER", 0.0)
        seen = []
        places = [tmp_path / "one", tmp_path / "two"]
        run_in_lockstep(
            pack(), places, on_round=lambda number, _: seen.append(len(folder.read_metrics(places[number])))
        )
        assert seen == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]

    def test_a_save_that_fails_ends_the_pack_and_the_others_are_saved(self, tmp_path, monkeypatch):
        folders, real = [tmp_path / "one", tmp_path / "two"], os.replace

        def replace(source, target):
            if target == folders[0] / checkpoint.NAME:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(source, target)

        due_after(monkeypatch, 2)
        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(StateError, match="cannot write .*one.*No space left on device"):
            run_in_lockstep(pack(), folders)
        assert checkpoint.rounds_done(folders[0]) == 0
        assert checkpoint.rounds_done(folders[1]) >= 2
