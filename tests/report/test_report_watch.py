import json
import os
import shutil

from run_folders import lines, write_run

from fedwidth.report.watch import REST, Watch


class Clock:
    """One that goes on by a second whenever it is looked at, so that everything takes time."""

    now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def rounds(data):
    return [run["done"] for run in data["runs"]]


def write_lines(folder, count):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines(count)))


def spoil(path):
    """Other bytes in a file that looks as it did: what is shown of it from now on was read before."""
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_only_what_changed_is_read_again(tmp_path):
    for name in "abc":
        write_run(tmp_path / name, name, finished=False, done=3)
    watching = Watch(tmp_path)
    state, text, data = watching.look()
    assert rounds(data) == [3, 3, 3]
    assert watching.look() == (state, text, data)
    spoil(tmp_path / "a" / "metrics.jsonl")
    write_lines(tmp_path / "b", 5)
    assert rounds(watching.look()[2]) == [3, 5, 3]
    assert rounds(Watch(tmp_path).look()[2]) == [0, 5, 3], "who reads it for the first time finds it spoilt"


def test_what_is_remembered_is_what_would_be_made(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, name, finished=False, done=3)
    watching = Watch(tmp_path, clock=Clock())
    watching.look()
    write_lines(tmp_path / "a", 7)
    write_run(tmp_path / "c", "c")
    assert watching.look()[2] == Watch(tmp_path).look()[2]


def test_a_folder_may_appear_be_cleared_and_go(tmp_path):
    folder, clock = tmp_path / "later", Clock()
    watching = Watch(folder, clock=clock)
    assert watching.look()[2]["waiting"] == f"Waiting for a run in {folder}."
    write_run(folder, done=4, finished=False)
    assert rounds(watching.look()[2]) == [4]
    (folder / "metrics.jsonl").unlink()
    assert rounds(watching.look()[2]) == [0]
    write_lines(folder, 2)
    clock.now += 100 * REST  # coverage of no rounds took its time as well, and rested
    assert watching.look()[2]["coverage"]["views"][0]["rounds"][-1] == 2
    shutil.rmtree(folder)
    assert watching.look()[2]["entries"] == []


def test_coverage_rests_and_is_made_up_for(tmp_path):
    clock = Clock()
    folder = write_run(tmp_path / "a", finished=False, done=3)
    watching = Watch(tmp_path, clock=clock)

    def counted():
        data = watching.look()[2]
        return rounds(data)[0], data["coverage"]["views"][0]["rounds"][-1]

    assert counted() == (3, 3)
    write_lines(folder, 5)
    assert counted() == (5, 3)
    clock.now += 100 * REST
    assert counted() == (5, 5)  # although no file has changed
    write_lines(folder, 2)
    assert counted() == (2, 2)  # started anew: at once


def test_runs_keep_the_order_they_were_seen_in(tmp_path):
    write_run(tmp_path / "b", "b")
    watching = Watch(tmp_path)
    watching.look()
    write_run(tmp_path / "a", "a")
    assert [entry["label"] for entry in watching.look()[2]["entries"]] == ["b", "a"]
