"""Who is in and who is not, as report and view show it."""

import json
import sys
from pathlib import Path

from run_folders import lines, write_run

from fedwidth.report import write_report
from fedwidth.report.attendance import attendance_view
from fedwidth.report.runs import read_run
from fedwidth.report.watch import Watch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "watching"))
from deployment_folder import write_deployment


def test_a_deployment_shows_the_worst_first(tmp_path):
    folder = write_deployment(tmp_path / "fed")
    view = attendance_view(read_run(folder / "run", folder))
    assert view["deployment"]
    assert [device["state"] for device in view["devices"]] == ["not seen yet", "quarantined", "gone", "late", "in"]
    assert dict(view["states"])["quarantined"] == 1
    assert view["rounds"][0]["round"] == 3
    assert view["rounds"][0]["bytes"] == 500
    assert view["rounds"][0]["absent"][0] == ["1", "no answer within 70 s: its connection was lost"]
    assert [event for _, event, _ in view["events"]] == ["refused", "enrolled"]


def test_runs_in_which_all_were_there_have_no_such_section(tmp_path):
    run = write_run(tmp_path / "plain")
    assert attendance_view(read_run(run, tmp_path)) is None


def test_a_simulated_run_with_absentees_has_it_without_a_deployment(tmp_path):
    metrics = lines(2)
    metrics[1] |= {"absent": {"2": "it failed"}, "clients": [0, 1], "capacities": [1.0, 0.5]}
    run = write_run(tmp_path / "late", metrics=metrics)
    view = attendance_view(read_run(run, tmp_path))
    assert not view["deployment"]
    assert view["events"] == []
    page = write_report([run], tmp_path / "report.html").read_text()
    assert '"attendance":[{"entry":0' in page


def test_the_live_view_notices_a_device_that_was_let_in(tmp_path):
    folder = write_deployment(tmp_path / "fed")
    watch = Watch(folder)
    before, _, data = watch.look()
    assert len(data["attendance"][0]["devices"]) == 5
    (folder / "enrolled" / "client-7.json").write_text(json.dumps({"client": 7}))
    after, _, data = watch.look()
    assert after != before
    assert len(data["attendance"][0]["devices"]) == 6
