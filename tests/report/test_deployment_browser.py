"""The live page of a deployment in a real browser: who is in, late, refused and why, while the run goes on."""

import json
import sys
from pathlib import Path

import pytest
from browser import MISSING, browsing, has_text, opened, photograph
from test_view_browser import served

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "watching"))
from deployment_folder import write_deployment

from fedwidth.watching.audit import AuditLog

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def chromium():
    with browsing() as browser:
        yield browser


def test_an_operator_sees_who_is_in_late_refused_and_why(chromium, tmp_path):
    folder = write_deployment(tmp_path / "fed")
    with served(folder) as server:
        server.watch.look()  # builds the model once, which takes a while on a busy machine
        see_and_follow(chromium, server, folder)


def see_and_follow(chromium, server, folder):
    with opened(chromium, server.url, height=900) as page:
        has_text(page.locator("#live"), "live, round 3 of 6")
        section = page.locator("#attendance")
        has_text(section.locator(".lead"), "1 in, 1 late, 1 gone, 1 quarantined, 1 not seen yet.")
        rows = section.locator("table").nth(0).locator("tbody tr")
        assert rows.count() == 5
        said = {row.locator("td").nth(0).inner_text(): row.inner_text() for row in rows.all()}
        assert "quarantined until round 13" in said["client 3"]
        assert "its change has norm 90, above the bound 8" in said["client 3"]
        assert "too slow or its trainer hangs" in said["client 2"]
        rounds = section.locator("table").nth(1)
        assert "client 1: no answer within 70 s: its connection was lost" in rounds.inner_text()
        assert "500 B" in rounds.inner_text()
        # What a device says is shown as it is, and runs nowhere.
        assert "holds a value that is not finite <script>" in rounds.inner_text()
        assert page.locator(".toc a[href='#attendance']").is_visible()
        section.scroll_into_view_if_needed()
        photograph(page, "deployment")
        with open(folder / "run" / "metrics.jsonl", "a") as file:
            file.write(
                json.dumps({"round": 4, "clients": [0, 1, 2], "capacities": [1.0, 0.25, 1.0], "seconds": 40}) + "\n"
            )
        has_text(section.locator(".lead"), "3 in, 1 quarantined, 1 not seen yet.")
        AuditLog(folder / "audit.jsonl").note("rolled back", round=2, by="SHA256:abc")
        has_text(section.locator("table").nth(2).locator("tbody tr").first.locator("td").nth(1), "rolled back")


def test_a_page_without_absentees_has_no_such_section(chromium, tmp_path):
    from run_folders import write_run

    with served(write_run(tmp_path / "plain")) as server:
        server.watch.look()
        with opened(chromium, server.url) as page:
            assert not page.locator("#attendance").is_visible()
            assert not page.locator(".toc a[href='#attendance']").is_visible()
