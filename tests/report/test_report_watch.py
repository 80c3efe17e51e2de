import json
import shutil

from run_folders import lines, write_run

from fedwidth.report import watch
from fedwidth.report.watch import REST, Watch


class Clock:
    """Time that passes by itself only while coverage is counted."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def rounds(data):
    return [run["done"] for run in data["runs"]]


def write_lines(folder, count):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines(count)))


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    for name in "abc":
        write_run(tmp_path / name, name, finished=False, done=3)
    read = []
    genuine = watch.read_run
    monkeypatch.setattr(watch, "read_run", lambda place, asked: read.append(place.name) or genuine(place, asked))
    watching = Watch(tmp_path)
    state, text, data = watching.look()
    assert (read, rounds(data)) == (["a", "b", "c"], [3, 3, 3])
    assert watching.look() == (state, text, data)
    write_lines(tmp_path / "b", 5)
    assert rounds(watching.look()[2]) == [3, 5, 3]
    assert read == ["a", "b", "c", "b"]


def test_what_is_remembered_is_what_would_be_made(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, name, finished=False, done=3)
    watching = Watch(tmp_path, clock=Clock())
    watching.look()
    write_lines(tmp_path / "a", 7)
    write_run(tmp_path / "c", "c")
    assert watching.look()[2] == Watch(tmp_path).look()[2]


def test_a_folder_may_appear_be_cleared_and_go(tmp_path):
    folder = tmp_path / "later"
    watching = Watch(folder)
    assert watching.look()[2]["waiting"] == f"Waiting for a run in {folder}."
    write_run(folder, done=4, finished=False)
    assert rounds(watching.look()[2]) == [4]
    (folder / "metrics.jsonl").unlink()
    assert rounds(watching.look()[2]) == [0]
    write_lines(folder, 2)
    assert watching.look()[2]["coverage"]["views"][0]["rounds"][-1] == 2
    shutil.rmtree(folder)
    assert watching.look()[2]["entries"] == []


def test_coverage_rests_and_is_made_up_for(tmp_path, monkeypatch):
    clock = Clock()
    genuine = watch.describe

    def slow(entries, *, folders, workshop, recall):
        def spend(what, runs, make):
            def made():
                clock.now += 2.0 * (what == "coverage")
                return make()

            return recall(what, runs, made)

        return genuine(entries, workshop=workshop, recall=spend)

    monkeypatch.setattr(watch, "describe", slow)
    folder = write_run(tmp_path / "a", finished=False, done=3)
    watching = Watch(tmp_path, clock=clock)

    def counted():
        data = watching.look()[2]
        return rounds(data)[0], data["coverage"]["views"][0]["rounds"][-1]

    assert counted() == (3, 3)
    write_lines(folder, 5)
    assert counted() == (5, 3)
    clock.now += REST * 2.0
    assert counted() == (5, 5)  # although no file has changed
    write_lines(folder, 2)
    assert counted() == (2, 2)  # started anew: at once


def test_runs_keep_the_order_they_were_seen_in(tmp_path):
    write_run(tmp_path / "b", "b")
    watching = Watch(tmp_path)
    watching.look()
    write_run(tmp_path / "a", "a")
    assert [entry["label"] for entry in watching.look()[2]["entries"]] == ["b", "a"]
