"""The queue: what waits is run in order, in time, once, and never taken for a recipe's own cell."""

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.errors import FellBack, OptionError
from fedwidth.reproduce.queue import find_progress, work_through
from fedwidth.reproduce.queue_file import read_queue
from fedwidth.reproduce.records import read_all, read_records
from fedwidth.reproduce.running import reproduce
from fedwidth.run.cache import Cache
from small_runs import write_recipe
from two_runs import write_queue

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queue(tmp_path):
    return write_queue(tmp_path)


@pytest.fixture
def go(queue, tmp_path):
    said = []

    def call(**more):
        given = {"results": tmp_path / "results", "work": tmp_path / "work", "say": said.append, "commit": "c0ffee"}
        return work_through(read_queue(queue, more.pop("only", ())), **{**given, **more})

    call.said = said
    return call


def names(worked):
    return [(record.recipe, record.label, record.seed) for record in worked.done]


def test_jobs_run_in_order_and_what_is_no_cell_of_its_recipe_is_kept_apart(go, tmp_path):
    first = go()
    assert names(first) == [
        ("small", "fedrolex", 1),
        ("queue/steps", "fedrolex", 1),
        ("queue/steps", "fedrolex", 2),
        ("small", "heterofl", 1),
    ]
    assert (first.left, first.failed) == ((), ())
    assert go().done == (), "all of it is recorded"
    mine = read_records(tmp_path / "results", "queue/steps")
    assert [record.changes for record in mine] == [["method.options.step=2"]] * 2
    cells = {record.key for record in read_records(tmp_path / "results", "small")}
    assert not cells & {record.key for record in mine}
    assert go.said[0] == "as-it-is (20 s expected): Why?"
    assert go.said[-1] == "queue: 0 runs finished, 0 jobs left"


def test_records_say_which_source_engine_and_hardware(go):
    for record in go(only=["as-it-is"]).done:
        assert (record.commit, record.engine, record.fell_back) == ("c0ffee", "serial", "")
        assert record.hardware
        assert record.torch


def test_what_does_not_fit_is_left_and_what_is_behind_it_is_taken(go):
    now = [0.0]

    def say(text):
        if text.startswith("small fedrolex, seed 1: round 3 of 3"):
            now[0] += 15  # the first job takes 15 of 45 seconds: 30 are left, too few for the second
        go.said.append(text)

    worked = go(max_minutes=0.75, say=say, clock=lambda: now[0])
    assert names(worked) == [("small", "fedrolex", 1), ("small", "heterofl", 1)]
    assert worked.left == ("steps",)
    assert "steps: not begun, 40 s are expected and 30 s are left" in go.said


def test_a_job_longer_than_a_whole_call_is_begun_and_goes_on_the_next_time(go, queue, tmp_path):
    left = [3]  # the queue asks before a job, the runs before a pack and after each round

    def stop():
        left[0] -= 1
        return left[0] < 0

    stopped = go(only=["steps"], max_minutes=0.1, stop=stop)
    assert (stopped.done, stopped.left) == ((), ("steps",))
    (job,) = read_queue(queue, ["steps"])
    progress = find_progress(job, read_all(tmp_path / "results"), work=tmp_path / "work")
    assert progress.state == "2 rounds of a run are saved"
    assert progress.seconds_left == pytest.approx(40 * (1 - 2 / 6))
    assert names(go(only=["steps"])) == [("queue/steps", "fedrolex", 1), ("queue/steps", "fedrolex", 2)]
    whole = go(only=["steps"], results=tmp_path / "others", work=tmp_path / "elsewhere")
    assert [r.evaluations for r in whole.done] == [r.evaluations for r in read_all(tmp_path / "results")]


def test_a_job_that_cannot_be_run_does_not_keep_the_others_from_running(go, tmp_path):
    worked = go(changes=["data.name=mnist", f"data.root={tmp_path / 'nowhere'}"], only=["as-it-is"])
    assert (worked.left, worked.failed) == (("as-it-is",), ("as-it-is",))
    assert go.said[-2].startswith("as-it-is: cannot be run: ")


def test_runs_of_a_job_train_as_one_batch_where_it_says_so(go, queue):
    queue.write_text(queue.read_text().replace("seeds = [1, 2]", "seeds = [1, 2]\npacked = true"))
    done = go(changes=["engine=auto"], only=["steps"]).done
    assert [(record.packed, record.engine) for record in done] == [(2, "vectorised")] * 2


def test_the_seeds_of_each_row_train_as_one_batch_where_a_job_says_so(go, queue):
    rows = 'only = ["fedrolex", "heterofl"]\nseeds = [1, 2]\npacked = "seeds"'
    text = queue.read_text()
    begin = text.index("[[job]]")
    job = f'[[job]]\nname = "rows"\nasks = "Why?"\nrecipe = "{queue.parent / "small.toml"}"\nseconds = 20\n{rows}\n'
    queue.write_text(text[:begin] + job)
    done = go(changes=["engine=auto"]).done
    assert [(record.label, record.seed, record.packed) for record in done] == [
        ("fedrolex", 1, 2),
        ("fedrolex", 2, 2),
        ("heterofl", 1, 2),
        ("heterofl", 2, 2),
    ]


def test_seeds_that_cannot_train_as_one_batch_train_one_by_one(go, queue):
    queue.write_text(queue.read_text().replace("seeds = [1, 2]", 'seeds = [1, 2]\npacked = "seeds"'))
    done = go(changes=["engine=auto", "server.robust=median"], only=["steps"]).done
    assert [(record.seed, record.packed) for record in done] == [(1, 1), (2, 1)]
    assert any("one by one instead, as " in line and "which a pack does not keep" in line for line in go.said)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_seeds_train_one_by_one_with_an_engine_that_has_no_packs(go, queue, engine):
    queue.write_text(queue.read_text().replace("seeds = [1, 2]", 'seeds = [1, 2]\npacked = "seeds"'))
    done = go(changes=[f"engine={engine}"], only=["steps"]).done
    assert [(record.seed, record.packed, record.engine) for record in done] == [(1, 1, engine), (2, 1, engine)]


def test_one_run_at_a_time_is_in_memory(go, monkeypatch):
    alive, made = weakref.WeakSet(), []
    build = Cache.experiment

    def watched(self, settings):
        gc.collect()
        made.append(len(alive))
        found = build(self, settings)
        alive.add(found)
        return found

    monkeypatch.setattr(Cache, "experiment", watched)
    go()
    assert made == [0] * 4


def test_the_command_runs_and_lists(queue, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "--queue", str(queue)]
    assert run_command([*command, "--only", "st*", "--max-minutes", "9", "--commit", "abc"]) == 0
    assert [record.commit for record in read_all(tmp_path / "results")] == ["abc"] * 2
    capsys.readouterr()
    assert run_command([*command, "--list"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines()[2:5]] == [
        ["as-it-is", "│"],
        ["steps", "│"],
        ["both", "│"],
    ]
    assert printed.count("done") == 1
    assert printed.endswith("2 jobs left, about 50 s\n")
    assert (
        run_command([*command, "--set", "data.name=mnist", "--data", str(tmp_path / "nowhere"), "--only", "both"]) == 1
    )
    for wrong in (["--seeds", "1"], ["small.toml"], ["--start", "2"]):
        assert run_command([*command, *wrong]) == 2
    assert run_command(["reproduce"]) == 2
    assert "name the recipes to run, or a --queue" in capsys.readouterr().err
    assert run_command(["reproduce", "small.toml", "--list"]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[job]]\nname = 3", "needs a name of small letters"),
        ('[[job]]\nname = "A b"', "needs a name of small letters"),
        ('[[job]]\nname = "a"', "must say in a sentence what it asks"),
        ('[[job]]\nname = "a"\nasks = "Why?"', "seconds must be a number above 0"),
        ('[[job]]\nname = "a"\nasks = "Why?"\nseconds = inf', "seconds must be a number above 0, not inf"),
        ('[[job]]\nname = "a"\nasks = "Why?"\nseconds = 1', "needs a recipe"),
        ('[[job]]\nname = "a"\nasks = "Why?"\nseconds = 1\nrecipe = "r"\nset = "x=1"', "set must be a list of texts"),
        ('[[job]]\nname = "a"\nasks = "Why?"\nseconds = 1\nrecipe = "r"\npacked = 1', "packed must be true, false or"),
        ('[[job]]\nname = "a"\nasks = "Why?"\nseconds = 1\nrecipe = "r"\nseeds = 1', "seeds must be a list"),
        ('[[job]]\nnam = "a"', "unknown key of job 1 of the queue 'nam' (did you mean 'name'?)"),
        ('[[job]]\nname = "a"\nasks = "Why?"\nseconds = 1\nrecipe = "r"\n' * 2, "'a' occurs twice"),
        ("title = 1", "`set` and a list of [[job]] tables, and nothing else"),
        ("set = 1", "set must be a list of texts"),
        ("=", "not valid TOML"),
    ],
)
def test_a_queue_that_is_wrong_is_refused(tmp_path, text, said):
    path = tmp_path / "queue.toml"
    path.write_text(text)
    with pytest.raises(OptionError) as refused:
        read_queue(path)
    assert said in str(refused.value)


def test_the_queue_of_the_project_can_be_built(tmp_path):
    """Every job names runs of recipes with settings that pass all checks, and no two ask for the same run."""
    jobs = read_queue(ROOT / "results" / "queue.toml")
    assert len(jobs) > 5
    seen = set()
    for job in jobs:
        runs = job.runs([], tmp_path)
        assert runs, job.name
        assert {run.settings.device for run in runs} == {"cuda"}, "its seconds are a GPU's"
        differs = [change for change in job.changes if not change.startswith(("device=", "precision=", "engine="))]
        for run in runs:
            assert (run.key, run.settings.seed) not in seen, f"{job.name} asks for what is asked above"
            seen.add((run.key, run.settings.seed))
            assert (run.table == f"queue/{job.name}") == bool(differs), run.title


def test_what_a_queue_sets_holds_for_every_job_unless_it_says_otherwise(tmp_path):
    path, job = tmp_path / "queue.toml", '[[job]]\nname = "{}"\nasks = "Why?"\nseconds = 1\nrecipe = "quickstart"\n'
    path.write_text("set = ['rounds=7', 'seed=9']\n" + job.format("a") + job.format("b") + "set = ['rounds=8']")
    found = [job.runs([], tmp_path)[0].settings for job in read_queue(path)]
    assert [(settings.rounds, settings.seed) for settings in found] == [(7, 9), (8, 9)]
    assert read_queue(path)[0].runs(["rounds=5"], tmp_path)[0].settings.rounds == 5


def test_a_change_need_not_make_sense_for_the_other_runs(tmp_path):
    """`method.options.step` is refused for FedAvg, which is another row of the same table."""
    with pytest.raises(OptionError, match="unknown option of method"):
        read_settings("thesis/table3-1", ["method.options.step=0.05"])
    (job,) = read_queue(ROOT / "results" / "queue.toml", ["thesis-step-of-window"])
    (run,) = job.runs([], tmp_path)
    assert run.settings.method.options == {"stagger": True, "step": 0.05}


def test_a_record_names_the_engine_that_trained_not_the_one_that_was_asked_for(tmp_path):
    recipe, changes = write_recipe(tmp_path), ["engine=vectorised", "method.name=fjord"]
    with pytest.warns(FellBack, match="falls back"):
        (record,) = reproduce([recipe], changes=changes, results=tmp_path / "r", work=tmp_path / "w").done
    assert record.engine == "serial"
    assert record.fell_back.startswith("the vectorised engine falls back to one client at a time: clients of FjORD")
    (line,) = (tmp_path / "r" / "small.jsonl").read_text().splitlines()
    assert json.loads(line)["settings"]["engine"] == "vectorised"


def test_the_package_alone_runs_tables(tmp_path):
    """As a command that is not installed, far from the repository, whose `reproduction` it does not need."""
    recipe = write_recipe(tmp_path)
    command = [sys.executable, "-m", "fedwidth", "reproduce", recipe, "--start", "1"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("small fedrolex, seed 1: engine: serial")
    assert (tmp_path / "results" / "started.json").exists()
