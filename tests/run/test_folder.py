"""A run's folder: what --overwrite removes and leaves, and which checkpoints are refused before anything else."""

import json
import os
from pathlib import Path

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.config.write import settings_toml
from fedwidth.errors import OptionError, StateError
from fedwidth.run import checkpoint, folder
from fedwidth.training.client_memory import ClientMemory
from small_runs import contents, small, write_recipe

COMPARE = """
[[compare]]
label = "one"
method.name = "heterofl"

[[compare]]
label = "two"
method.name = "fedavg"
"""


def runs_below(place: Path) -> list[str]:
    """Where runs lie in a folder."""
    return sorted(str(path.parent.relative_to(place)) for path in place.rglob(folder.CONFIG))


def test_overwrite_leaves_no_run_that_is_not_part_of_the_new_one(tmp_path):
    out = tmp_path / "run"
    recipe = write_recipe(tmp_path, COMPARE)
    assert run_command(["run", recipe, "--out", str(out)]) == 0
    assert runs_below(out) == [".", "compare/one", "compare/two"]
    (out / "compare" / "two" / "notes.txt").write_text("mine")
    assert run_command(["run", recipe, "--out", str(out), "--overwrite", "--seeds", "1,2", "--only", "one"]) == 0
    assert runs_below(out) == ["seed-1", "seed-2"]
    assert not (out / "compare" / "one").exists()
    assert [path.name for path in (out / "compare" / "two").iterdir()] == ["notes.txt"]
    assert run_command(["run", recipe, "--out", str(out), "--overwrite", "--only", "one"]) == 0
    assert runs_below(out) == ["."]
    report = (out / "report.html").read_text()
    assert "seed-2" not in report


def test_overwrite_leaves_runs_alone_that_only_lie_below(tmp_path):
    kept = tmp_path / "all" / "mine"
    recipe = write_recipe(tmp_path)
    assert run_command(["run", recipe, "--out", str(kept)]) == 0
    before = contents(kept)
    assert run_command(["run", recipe, "--out", str(tmp_path / "all"), "--overwrite"]) == 0
    assert contents(kept) == before


def test_overwrite_follows_no_link(tmp_path):
    kept = tmp_path / "kept"
    recipe = write_recipe(tmp_path)
    assert run_command(["run", recipe, "--out", str(kept)]) == 0
    out = tmp_path / "run"
    (out / "compare").mkdir(parents=True)
    (out / "compare" / "link").symlink_to(kept)
    folder.clear_folder(out)
    assert (kept / folder.CONFIG).exists()


def test_overwrite_is_refused_while_a_part_is_being_written(tmp_path):
    place = tmp_path / "compare" / "one"
    with folder.locked(place):
        (place / folder.CONFIG).write_text("")
        with pytest.raises(OptionError, match="another run is writing"):
            folder.clear_folder(tmp_path)
    assert (place / folder.CONFIG).exists()


def test_what_has_no_influence_may_differ_on_resume(tmp_path):
    there = small("workers=3", "name=other", "ray.address=auto", "data.root=elsewhere")
    (tmp_path / folder.CONFIG).write_text(settings_toml(there))
    folder.check_same(tmp_path, small())
    with pytest.raises(StateError, match=r"holds a run with other settings: rounds is 3 there and 8 now$"):
        folder.check_same(tmp_path, small("rounds=8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run, and its command."""
    place = tmp_path_factory.mktemp("finished")
    command = ["run", write_recipe(place), "--out", str(place / "run")]
    assert run_command(command) == 0
    return place / "run", [*command, "--resume"]


def change_facts(path: Path, **changes: object) -> None:
    """Change what the head of a checkpoint says, and nothing else of it."""
    saved = path.read_bytes()
    size = int.from_bytes(saved[:8], "little")
    head = json.loads(saved[8 : 8 + size])
    facts = json.loads(head["__metadata__"]["fedwidth"]) | changes
    head["__metadata__"]["fedwidth"] = json.dumps({name: fact for name, fact in facts.items() if fact != "gone"})
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + saved[8 + size :])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 99}, "written by another version of fedwidth (format 99, this one reads 2)"),
        ({"round": 2}, "is damaged: its checksum does not fit its content"),
        ({"round": -5}, "is damaged: its checksum does not fit its content"),
        ({"round": "two"}, "is damaged: its checksum does not fit its content"),
        ({"round": "gone"}, "is damaged: its checksum does not fit its content"),
        ({"round": "gone", "facts_checksum": "gone"}, "is damaged: its checksum does not fit its content"),
        ({"seconds": "gone"}, "is damaged: its checksum does not fit its content"),
        ({"identity": "other"}, "is damaged: its checksum does not fit its content"),
    ],
)
def test_a_changed_head_is_refused_in_one_line_and_changes_nothing(changes, said, finished, capsys):
    place, command = finished
    path = place / checkpoint.NAME
    whole = path.read_bytes()
    files = {file.name: file.read_bytes() for file in place.iterdir() if file != path}
    change_facts(path, **changes)
    capsys.readouterr()
    assert run_command(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert {file.name: file.read_bytes() for file in place.iterdir() if file != path} == files
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda name, tensor: ({name: tensor[:3]}, {}),
            "has shape (3, 64), but the run's model expects (8, 64)",
        ),
        (lambda name, tensor: ({name: None}, {}), "the state lacks"),
        (lambda name, tensor: ({"state.more": tensor.clone()}, {}), "the state holds 'more'"),
        (lambda name, tensor: ({}, {"round": -1}), "its round is -1, which is no number of rounds"),
        (lambda name, tensor: ({}, {"round": "3"}), "its round is '3', which is no number of rounds"),
    ],
)
def test_a_checkpoint_with_right_checksums_must_still_fit_the_run(change, said, finished, capsys):
    place, command = finished
    path = place / checkpoint.NAME
    whole, files = path.read_bytes(), {file.name: file.read_bytes() for file in place.iterdir()}
    facts, tensors = checkpoint._read(path)
    name = next(name for name, tensor in tensors.items() if name.startswith("state.") and tensor.shape[1:] == (64,))
    new_tensors, new_facts = change(name, tensors[name])
    tensors = {key: value for key, value in {**tensors, **new_tensors}.items() if value is not None}
    facts = {**facts, **new_facts}
    del facts["checksum"], facts["facts_checksum"]
    checkpoint.write_copy(place, checkpoint.Copy(tensors, facts, ClientMemory()))
    files[path.name] = path.read_bytes()
    capsys.readouterr()
    assert run_command(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} is damaged: " in line
    assert said in line
    assert {file.name: file.read_bytes() for file in place.iterdir()} == files
    path.write_bytes(whole)


def test_checkpoints_from_before_the_head_had_a_checksum_are_read(finished):
    place, command = finished
    path = place / checkpoint.NAME
    whole, before = path.read_bytes(), contents(place)
    change_facts(path, facts_checksum="gone")
    assert run_command(command) == 0
    assert contents(place)[:2] == before[:2]
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"round": 1}\n', "does not hold the rounds 1 to 3 that the checkpoint has done"),
        (b"[1]\n", "holds a line that is no round: '[1]'"),
        (b"\xff\xfe\n", "cannot read"),
        ({1: {"bytes_down": None}}, "its line of round 1 has no bytes_down"),
        ({2: {"bytes_up": "x"}}, 'its line of round 2 has bytes_up "x", which is no number'),
        ({3: {"bytes_up": float("nan")}}, "its line of round 3 has bytes_up NaN, which is no number"),
        ({3: {"global_accuracy": "high"}}, 'its line of round 3 has global_accuracy "high", which is no number'),
    ],
)
def test_changed_metrics_are_refused_in_one_line(content, said, finished, capsys):
    place, command = finished
    path = place / "metrics.jsonl"
    whole = path.read_bytes()
    if isinstance(content, dict):  # what is changed of the lines of some rounds; None: taken out
        lines = [line | content.get(line["round"], {}) for line in map(json.loads, whole.splitlines())]
        kept = ({name: value for name, value in line.items() if value is not None} for line in lines)
        content = "".join(json.dumps(line) + "\n" for line in kept).encode()
    path.write_bytes(content)
    capsys.readouterr()
    assert run_command(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert path.read_bytes() == content
    path.write_bytes(whole)


def test_a_folder_that_is_being_written_to_is_refused_in_one_line(finished, capsys):
    place, command = finished
    capsys.readouterr()
    with folder.locked(place):
        assert run_command(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "another run is writing to" in line


def test_a_folder_in_place_of_a_checkpoint_is_refused(tmp_path):
    os.mkdir(tmp_path / checkpoint.NAME)
    with pytest.raises(StateError, match="is damaged"):
        checkpoint.rounds_done(tmp_path)
