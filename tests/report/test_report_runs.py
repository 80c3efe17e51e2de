import json
import math

import pytest
from run_folders import lines, write_run

from fedwidth.errors import OptionError
from fedwidth.report import read_runs


def test_a_finished_run_is_read(tmp_path):
    (run,) = read_runs([write_run(tmp_path / "a", "mine", seed=7)])
    assert (run.method, run.seed, run.rounds, run.done, run.finished) == ("fedrolex", 7, 12, 12, True)
    assert run.final("global_accuracy") == pytest.approx(0.86)
    assert run.spent[-1] == (12 * 1500, 12 * 7000)
    assert run.notes == ()


def test_runs_are_found_at_any_depth_main_first_and_each_once(tmp_path):
    for place in ("compare/heterofl/seed-2", "compare/heterofl/seed-10", "seed-10", "seed-2"):
        write_run(tmp_path / place)
    runs = read_runs([tmp_path, tmp_path / "seed-2"])
    assert [str(run.folder.relative_to(tmp_path)) for run in runs] == [
        "seed-2",
        "seed-10",
        "compare/heterofl/seed-2",
        "compare/heterofl/seed-10",
    ]
    assert [run.short_path for run in runs] == ["", "", "heterofl", "heterofl"]


def test_a_half_written_last_line_is_left_out_in_silence(tmp_path):
    folder = write_run(tmp_path / "a", finished=False, done=5)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 6, "train_lo')
    (run,) = read_runs([folder])
    assert (run.done, run.finished, run.notes) == (5, False, ())
    assert run.final("global_accuracy") == pytest.approx(0.62)  # round 4


def test_a_broken_line_in_the_middle_is_said(tmp_path):
    folder = write_run(tmp_path / "a")
    good = [json.dumps(line) for line in lines(3)]
    (folder / "metrics.jsonl").write_text("\n".join([good[0], "{oops", '["no round"]', good[2]]) + "\n")
    (run,) = read_runs([folder])
    assert [line["round"] for line in run.metrics] == [1, 3]
    assert run.notes == ("2 lines of metrics.jsonl cannot be read",)


@pytest.mark.parametrize("name", ["summary.json", "clients.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b'"text"'])
def test_files_of_another_kind_are_said_and_left_out(tmp_path, name, content):
    folder = write_run(tmp_path / "a")
    (folder / name).write_bytes(content)
    (run,) = read_runs([folder])
    assert run.notes == (f"{name} cannot be read",)


def test_a_config_that_is_no_toml_still_shows_its_metrics(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "config.toml").write_text("= nonsense")
    (run,) = read_runs([folder])
    assert run.done == 12
    assert run.notes[0].startswith("config.toml cannot be read")


def test_missing_keys_and_odd_values_become_nan(tmp_path):
    odd = [{"round": 1, "global_accuracy": "high", "macs": 10**400}, {"round": 2, "global_loss": math.nan}]
    (run,) = read_runs([write_run(tmp_path / "a", finished=False, metrics=odd)])
    assert math.isnan(run.final("global_accuracy"))
    assert math.isnan(run.final("global_loss"))
    assert math.isnan(run.spent[-1][0])
    assert run.notes == ("metrics.jsonl does not say what round 1 sent and computed, so sums end before it",)


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "other program"])
def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path, kind):
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("")
    elif kind != "missing":
        place.mkdir()
    if kind == "other program":
        (place / "config.toml").write_text("[server]\nport = 80\n")
    with pytest.raises(OptionError, match="place") as caught:
        read_runs([place])
    assert "\n" not in str(caught.value)
