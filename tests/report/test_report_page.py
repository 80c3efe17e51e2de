import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_folders import lines, write_run

from fedwidth.errors import FedwidthError, OptionError
from fedwidth.report import write_report
from fedwidth.report.page import embed

EVIL = '<script>alert(1)</script> & "quotes" \' </style> {{js}} ${1}'


class Outline(HTMLParser):
    """Tags, ids, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.scripts, self.title = [], [], [], [], ""
        self.inside = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[name] for name in ("href", "src") if name in found]
        assert not any(name.startswith("on") for name in found)

        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, text):
        if self.inside == "script":
            self.scripts.append(text)
        if self.inside == "title":
            self.title += text


def report(tmp_path, *folders):
    path = write_report(folders, tmp_path / "out" / "report.html")
    text = path.read_text(encoding="utf-8")
    outline = Outline(text)
    return text, outline, json.loads(outline.scripts[0])


@pytest.mark.parametrize("out", [".", "/"])
def test_a_report_has_a_name(out, tmp_path):
    with pytest.raises(FedwidthError, match=f"^cannot write {out}: it is a folder; give the name of a file in it$"):
        write_report([write_run(tmp_path / "a", "x")], Path(out))


def test_a_report_replaces_an_earlier_one_and_no_other_file_of_a_run(tmp_path):
    run = write_run(tmp_path / "a", "x")
    for _ in range(2):
        write_report([run], run / "report.html")
    with pytest.raises(OptionError, match="config.toml is a file of the run in that folder, which is never replaced"):
        write_report([run], run / "config.toml")


def test_one_file_that_fetches_nothing(tmp_path):
    text, outline, _ = report(tmp_path, write_run(tmp_path / "a", "x"))
    assert len(text) < 6_000_000
    assert all(link.startswith("#") for link in outline.links)
    assert {link[1:] for link in outline.links} <= set(outline.ids)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "innerHTML" not in text
    assert outline.tags.count("script") == 2
    assert outline.tags.count("h1") == 1
    assert len(set(outline.ids)) == len(outline.ids)


def test_names_that_look_like_markup_stay_names(tmp_path):
    folder = write_run(tmp_path / "<img src=x onerror=alert(1)>", EVIL)
    text, outline, data = report(tmp_path, folder)
    assert outline.tags.count("script") == 2
    assert "img" not in outline.tags
    assert data["entries"][0]["label"] == EVIL
    assert EVIL in outline.title
    assert "<script>alert" not in text
    assert "'<img src=x onerror=alert(1)>" not in text
    assert EVIL in json.loads(re.search(r"name = (.*)", data["runs"][0]["config"])[1])


def test_only_the_page_s_own_script_may_run(tmp_path):
    import base64
    import hashlib

    text, outline, _ = report(tmp_path, write_run(tmp_path / "a"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert outline.scripts[1] == script


def test_the_data_says_what_was_run(tmp_path):
    write_run(tmp_path / "runs" / "seed-1", "Mine", seed=1)
    write_run(tmp_path / "runs" / "seed-2", "Mine", seed=2)
    write_run(tmp_path / "runs" / "compare" / "other", "Other", method="heterofl")
    _, _, data = report(tmp_path, tmp_path / "runs")
    mine, other = data["entries"]
    assert (mine["label"], mine["seeds"], other["label"], other["title"]) == ("Mine", [1, 2], "Other", "HeteroFL")
    assert mine["accuracy"]["mean"] == pytest.approx(0.86)
    assert [run["entry"] for run in data["runs"]] == [0, 0, 1]
    assert data["runs"][0]["command"].startswith("fedwidth run ")
    assert "config.toml --out " in data["runs"][0]["command"]
    assert [view["entry"] for view in data["coverage"]["views"]] == [0, 1]
    assert data["coverage"]["skipped"] == []


def test_a_method_that_looks_at_the_weights_has_costs_and_says_why_it_has_no_coverage(tmp_path):
    metrics = lines(12)
    metrics[-1]["capacity_accuracy"] = {"0.5": 0.6, "1": 0.8}
    _, _, data = report(tmp_path, write_run(tmp_path / "a", method="fedimportance", metrics=metrics))
    why = "fedimportance looks at the trained weights, so its choices cannot be foreseen"
    assert data["coverage"] == {"views": [], "skipped": [{"entry": 0, "reason": why}]}
    assert [level["capacity"] for level in data["widths"]["views"][0]["levels"]] == [0.5, 1]
    shares = {level["capacity"]: level["share"] for level in data["devices"][0]["levels"]}
    assert shares[0.5] < shares[1] == 1


def test_paths_in_commands_are_quoted(tmp_path):
    _, _, data = report(tmp_path, write_run(tmp_path / "a; rm -rf x"))
    assert "a; rm -rf x/config.toml'" in data["runs"][0]["command"]


def test_values_that_are_not_finite_become_gaps(tmp_path):
    metrics = lines(6, every=1, accuracy=lambda round: [0.1, 0.2, math.nan, math.inf, -math.inf, 0.3][round - 1])
    _, _, data = report(tmp_path, write_run(tmp_path / "a", metrics=metrics))
    assert data["entries"][0]["curves"]["global_accuracy"]["mean"] == [0.1, 0.2, None, None, None, 0.3]


def test_a_running_run_is_shown_as_unfinished(tmp_path):
    _, _, data = report(tmp_path, write_run(tmp_path / "a", finished=False, done=5))
    assert data["entries"][0]["unfinished"] == [{"seed": 1, "done": 5, "rounds": 12}]
    assert data["runs"][0]["finished"] is False


def test_a_run_that_has_only_begun(tmp_path):
    folder = write_run(tmp_path / "a", finished=False, metrics=[])
    (folder / "metrics.jsonl").unlink()
    _, _, data = report(tmp_path, folder)
    assert data["entries"][0]["accuracy"]["mean"] is None
    assert data["coverage"]["skipped"] == [{"entry": 0, "reason": "its metrics do not say which clients trained"}]


def test_a_run_of_another_version_is_shown_without_its_model(tmp_path):
    folder = write_run(tmp_path / "a", "old", extra="flavour = 3")
    (folder / "summary.json").write_text('{"version": "9.0", "accuracy_of_everything": 1}')
    _, _, data = report(tmp_path, folder)
    assert data["runs"][0]["version"] == "9.0"
    assert data["runs"][0]["accuracy"] == pytest.approx(0.86)
    assert "flavour" in data["coverage"]["skipped"][0]["reason"]


def test_many_long_runs_stay_small_and_keep_their_extremes(tmp_path):
    for number in range(50):
        spike = 3 + 40 * number
        odd = {spike: 0.999, spike + 401: 0.001}
        metrics = lines(2500, every=1, accuracy=lambda round, odd=odd: odd.get(round, 0.5 + round * 1e-5))
        # one round without a cohort, so that this test is about lines and not about counting
        metrics[0].pop("clients")
        write_run(tmp_path / "runs" / f"r{number}", f"run {number}", rounds=2500, metrics=metrics)
    text, _, data = report(tmp_path, tmp_path / "runs")
    assert len(text) < 6_000_000
    assert len(data["entries"]) == 50
    for entry in data["entries"]:
        curve = entry["curves"]["global_accuracy"]
        assert len(curve["mean"]) <= data["points"] <= 400
        assert curve["measured"] == 2500
        assert (min(curve["mean"]), max(curve["mean"])) == (0.001, 0.999)


def test_bad_places_are_refused_in_one_line(tmp_path):
    folder = write_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(FedwidthError, match="file"):
        write_report([folder], tmp_path / "file" / "report.html")
    with pytest.raises(OptionError, match="at least one"):
        write_report([], tmp_path / "report.html")


def test_equal_runs_give_equal_pages(tmp_path):
    folder = write_run(tmp_path / "a")
    pages = [write_report([folder], tmp_path / name).read_bytes() for name in ("1.html", "2.html")]
    assert pages[0] == pages[1]
    assert not list(tmp_path.glob("*.partial"))


def test_embedded_json_has_no_markup():
    text = embed({"<a>": "&amp;\u2028", "n": [1.0, 0.5, math.inf]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"<a>": "&amp;\u2028", "n": [1, 0.5, None]}
