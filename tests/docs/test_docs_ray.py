"""The commands of the documentation that need Ray, in the environment of `make test-ray`: on a cluster of this machine.

The address of a cluster is replaced by that of one with two emulated nodes; the runs are made as small as in
test_docs.py.
"""

from __future__ import annotations

import json

import pytest
from doc_pages import page_name
from doc_runs import commands_in, made_small, pages_in

from fedwidth.cli.entry import run_command

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray runs the commands that need it")
pytestmark = pytest.mark.slow


@pytest.fixture
def address():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made.address
    ray.shutdown()
    made.shutdown()


@pytest.mark.parametrize("page", pages_in("test-ray", "fedwidth"), ids=page_name)
def test_commands_run(page, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    mine = [command for where, _, command in commands_in("test-ray", "fedwidth") if where == page]
    for command in sorted(mine, key=lambda command: "--ray-address" in command.words):  # a Ray of its own comes first
        words = made_small(list(command.words[1:]))
        if "--ray-address" in words:
            words[words.index("--ray-address") + 1] = request.getfixturevalue("address")
        assert run_command(words) == 0, f"{command}\n{capsys.readouterr().err}"
        ray.shutdown()
        assert "report: " in capsys.readouterr().out
    folders = [path.parent for path in (tmp_path / "runs").glob("*/config.toml")]
    assert len(folders) == len(mine)
    assert all('engine = "ray"' in (folder / "config.toml").read_text() for folder in folders)
    assert all(json.loads((folder / "summary.json").read_text())["rounds"] == 1 for folder in folders)
