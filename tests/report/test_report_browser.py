"""The page in a real browser. Pictures go to $FEDWIDTH_SCREENSHOTS where that is set."""

import math
import os
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from run_folders import lines, write_run

from fedwidth.report import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        better = lines(12, accuracy=lambda round, s=seed: 0.6 + 0.02 * round + 0.01 * s)
        write_run(folder / f"seed-{seed}", "First", seed=seed, metrics=better)
    write_run(folder / "compare" / "b", "<script>alert(1)</script>", method="heterofl")
    write_run(folder / "compare" / "c", "Diverged", metrics=lines(12, accuracy=lambda round: math.nan))
    write_run(folder / "compare" / "d", "Running " + "x" * 80, finished=False, done=3, method="fedbrb")
    return write_report([folder], folder / "report.html")


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    folder = Path(os.environ.get("FEDWIDTH_SCREENSHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def browser(page):
    with Browser() as found:
        found.open(page)
        yield found


@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_errors_at_both_widths(page, shots, dark):
    with Browser(dark=dark) as browser:
        for width in (1440, 390):
            browser.resize(width)
            browser.open(page)
            assert browser.value("document.documentElement.scrollWidth") <= width
            empty = "[...document.querySelectorAll('main .body')].filter((b) => !b.textContent.trim()).length"
            assert browser.value(empty) == 0
            browser.screenshot(shots / f"report-{width}-{'dark' if dark else 'light'}.png")
        assert browser.errors == []
        assert browser.requests == [page.resolve().as_uri()] * 2
        ground = browser.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark


def test_every_figure_is_drawn(browser):
    count = "document.querySelectorAll('%s').length"
    assert browser.value(count % "#compared svg circle") == 3
    assert browser.value(count % "#curves svg path.curve") >= 4
    assert browser.value(count % "#coverage .grids canvas") == 4
    assert browser.value(count % "#coverage svg path.curve") == 4
    assert browser.value(count % "#gains .panels svg[role=img]") == 3
    assert browser.value(count % "#devices table tbody tr") >= 3
    assert browser.value(count % "#split svg path") == 2
    assert browser.value(count % "#runs tbody tr") == 5
    assert browser.value(count % "#repeat details") == 5


def test_names_are_text(browser):
    assert browser.value("[...document.querySelectorAll('#runs td')].some((c) => c.textContent.includes('<script>'))")
    assert browser.value("document.querySelectorAll('script').length") == 2


def test_hover_shows_values(browser):
    browser.hover("#curves svg[role=img]")
    text = browser.value("document.querySelector('#curves .tip:not([hidden])').textContent")
    assert "round 6" in text
    assert "73.50 % (73.0 %" in text  # seeds at 73 and 74


def test_arrow_keys_read_values_aloud(browser):
    browser.value("document.querySelector('#curves svg[role=img]').focus()")
    browser.press("Home")
    assert browser.value("document.querySelector('#said').textContent").startswith("round 2: First 65.50 %")
    browser.press("ArrowRight")  # one run ended before round 4: its last value is shown, and that is said
    said = browser.value("document.querySelector('#said').textContent")
    assert said.startswith("round 4, nearest measured: First 69.50 %")


def test_the_legend_hides_and_shows(browser):
    curves = "document.querySelectorAll('#curves .pair > div:first-child path.curve').length"
    before = browser.value(curves)
    browser.click(".legend button")
    assert browser.value(curves) == before - 1
    assert browser.value("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    browser.click(".legend button")
    assert browser.value(curves) == before


def test_the_axis_switches_to_bytes(browser):
    browser.click("#curves input[value=bytes]")
    assert browser.value("document.querySelector('#curves svg[role=img]').textContent.includes('KiB')")
    browser.click("#curves input[value=rounds]")


def test_the_slider_moves_all_grids(browser):
    pixels = "[...document.querySelectorAll('#coverage .grids canvas')].map((c) => c.toDataURL()).join()"
    last = browser.value(pixels)
    browser.value("document.querySelector('#coverage input[type=range]').focus()")
    browser.press("Home")
    assert browser.value("document.querySelector('#coverage output').textContent") == "after round 1"
    assert browser.value(pixels) != last


def test_the_table_sorts(browser):
    cells = "[...document.querySelectorAll('#runs tbody tr')].map((r) => r.cells[5].textContent)"
    browser.click("#runs th:nth-child(6) button")
    assert browser.value(cells) == ["86.00 %", "86.00 %", "85.00 %", "56.00 %", "–"]
    browser.click("#runs th:nth-child(6) button")
    assert browser.value(cells)[:2] == ["56.00 %", "85.00 %"]
    assert browser.value(cells)[-1] == "–"
    assert browser.value("document.querySelector('#runs th:nth-child(6)').getAttribute('aria-sort')") == "ascending"


def test_everything_is_reached_with_the_keyboard(browser):
    browser.value("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen = set()
    for _ in range(120):
        browser.press("Tab")
        seen.add(
            browser.value("(() => { const e = document.activeElement; return e.tagName + ' ' + (e.type || ''); })()")
        )
    assert {"svg ", "INPUT radio", "INPUT range", "SELECT select-one", "BUTTON button", "SUMMARY ", "A "} <= seen


def test_many_long_runs_open_quickly(tmp_path):
    for number in range(50):
        metrics = lines(2500, every=1, accuracy=lambda round: 1 - 1 / (round + 1))
        metrics[0].pop("clients")
        write_run(tmp_path / f"r{number}", f"run {number}", rounds=2500, metrics=metrics)
    path = write_report([tmp_path], tmp_path / "report.html")
    with Browser() as browser:
        assert browser.open(path) < 3
        assert browser.errors == []
