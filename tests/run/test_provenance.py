"""Where a run comes from: the commit of the source, and the engine that trained after all."""

import subprocess
import warnings

import pytest

from fedwidth.errors import FellBack
from fedwidth.run.provenance import COMMIT, find_commit, note_fallback


def test_the_commit_is_the_one_given_or_the_source_s_own(tmp_path, monkeypatch):
    monkeypatch.delenv(COMMIT, raising=False)
    source = tmp_path / "package" / "module.py"
    source.parent.mkdir()
    source.write_text("a = 1\n")
    assert find_commit(source=source) == "unknown"

    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    assert find_commit(source=source) == "unknown", "a repository that does not have the source"
    git("add", ".")
    git("commit", "--quiet", "--no-verify", "-m", "first")
    head = git("rev-parse", "--short=12", "HEAD")
    assert find_commit(source=source) == head
    source.write_text("a = 2\n")
    assert find_commit(source=source) == f"{head}+"
    monkeypatch.setenv(COMMIT, "from-outside")
    assert find_commit(source=source) == "from-outside"
    assert find_commit("given", source) == "given"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(COMMIT)
    assert find_commit(source=source) == "unknown", "no git on this machine"


def test_an_engine_that_falls_back_is_noted_each_time_and_still_said():
    def fall():
        warnings.warn("the cuda engine falls back", FellBack, stacklevel=1)

    for _ in range(2):
        noted = []
        with pytest.warns(FellBack), note_fallback(noted):
            fall()
        assert noted == ["the cuda engine falls back"]
    with pytest.warns(UserWarning, match="another"), note_fallback(noted := []):
        warnings.warn("another", stacklevel=1)
    assert noted == []
