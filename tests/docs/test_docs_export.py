"""The commands of the documentation that need ONNX or ExecuTorch, in the environment of `make test-export`."""

from __future__ import annotations

import pytest
from doc_pages import page_name
from doc_runs import commands_in, made_small, pages_in

from fedwidth.cli.entry import run_command

pytest.importorskip("onnxscript", reason="make test-export runs the commands that need it")
pytest.importorskip("executorch.exir", reason="make test-export runs the commands that need it")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", pages_in("test-export", "fedwidth"), ids=page_name)
def test_commands_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mine = [command for where, _, command in commands_in("test-export", "fedwidth") if where == page]
    for run in {command.words[2] for command in mine}:
        assert run_command(made_small(["run", "--only", "fedrolex", "--out", run])) == 0, capsys.readouterr().err
    for command in mine:
        assert run_command(list(command.words[1:])) == 0, f"{command}\n{capsys.readouterr().err}"
        out = command.words[command.words.index("--out") + 1]
        assert (tmp_path / out).stat().st_size > 0
        assert "FedRolex" in (tmp_path / f"{out}.md").read_text()
