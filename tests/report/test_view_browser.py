"""The live page in a real browser, while lines are appended to its run."""

import json
import shutil
import threading
from contextlib import contextmanager

import pytest
from browser import MISSING, browsing, has_text, opened, photograph
from run_folders import lines, write_run

from fedwidth.report.serve import make_server

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def chromium():
    with browsing() as browser:
        yield browser


@contextmanager
def served(folder):
    server = make_server(folder, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def grow(rounds):
    return lines(rounds, accuracy=lambda round: 0.5 + 0.01 * round)


def append(folder, upto, *, half=False):
    """Write the run's lines up to this round, as a run does; `half` leaves the next line half-written."""
    with open(folder / "metrics.jsonl", "a") as file:
        done = len((folder / "metrics.jsonl").read_text().splitlines())
        for line in grow(upto + 1)[done:upto]:
            file.write(json.dumps(line) + "\n")
        if half:
            file.write('{"round": ' + str(upto + 1) + ', "train_lo')


def test_it_follows_a_run_and_keeps_what_the_reader_chose(chromium, tmp_path):
    main = write_run(tmp_path / "main", "Going on", finished=False, done=6, method="fedrolex", rounds=40)
    write_run(tmp_path / "other", "Other", method="heterofl", metrics=grow(40), rounds=40)
    with served(tmp_path) as server, opened(chromium, server.url, height=700) as page:
        chip = page.locator("#live")
        has_text(chip, "live, round 6 of 40")
        page.click(".legend button >> nth=1")
        page.check("#curves input[value=bytes]")
        page.check("#coverage input[value=share]")
        page.select_option("#coverage select", index=2)
        page.focus("#coverage input[type=range]")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.click("#runs th:nth-child(6) button")
        page.click("#runs th:nth-child(6) button")
        page.click("#repeat summary >> nth=0")
        page.focus(".legend button >> nth=1")
        page.evaluate("document.querySelector('#runs .scroll').scrollLeft = 40")
        page.evaluate("document.querySelector('#coverage').scrollIntoView({behavior: 'instant'})")
        place = page.evaluate("[window.scrollY, document.querySelector('#coverage').getBoundingClientRect().top]")

        append(main, 11, half=True)
        has_text(chip, "live, round 11 of 40")
        assert page.get_attribute(".legend button >> nth=1", "aria-pressed") == "false"
        assert page.locator("#curves .pair > div:first-child path.curve").count() == 1
        assert page.is_checked("#curves input[value=bytes]")
        assert page.is_checked("#coverage input[value=share]")
        assert page.evaluate("document.querySelector('#coverage select').selectedIndex") == 2
        assert page.text_content("#coverage output") == "after round 2"
        assert page.get_attribute("#runs th:nth-child(6)", "aria-sort") == "ascending"
        assert "11 of 40" in page.text_content("#runs tbody")
        assert page.locator("#repeat details[open]").count() == 1
        assert page.evaluate("document.querySelector('#runs .scroll').scrollLeft") == 40
        assert page.evaluate("document.activeElement.title") == "Other"
        now = page.evaluate("[window.scrollY, document.querySelector('#coverage').getBoundingClientRect().top]")
        assert now == pytest.approx(place, abs=1)
        photograph(page, "live-1440-light")

        (main / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in grow(40)))
        (main / "summary.json").write_text('{"global_accuracy": 0.5, "seconds": 3.0, "version": "0.1.0"}')
        has_text(chip, "2 runs finished")
        assert page.text_content("#coverage output") == "after round 2"
        assert page.complaints == []


def test_the_slider_at_its_end_follows_and_hovering_goes_on(chromium, tmp_path):
    main = write_run(tmp_path / "main", finished=False, done=4, rounds=40)
    with served(tmp_path) as server, opened(chromium, server.url) as page:
        assert page.text_content("#coverage output") == "after round 4"
        page.hover("#curves svg[role=img]")
        append(main, 10)
        has_text(page.locator("#live"), "live, round 10 of 40")
        assert page.locator("#curves .tip:not([hidden])").count() == 1
        has_text(page.locator("#coverage output"), "after round 10")
        assert page.complaints == []


def test_nothing_moves_under_the_reader_s_hand(chromium, tmp_path):
    main = write_run(tmp_path / "main", finished=False, done=4, rounds=40)
    with served(tmp_path) as server, opened(chromium, server.url) as page:
        page.hover("#coverage input[type=range]")
        page.mouse.down()
        page.evaluate("document.querySelector('#coverage input[type=range]').dataset.mine = 1")
        append(main, 10)
        page.wait_for_timeout(4500)
        assert page.locator("#coverage input[data-mine]").count() == 1
        assert page.text_content("#live") == "live, round 4 of 40"
        page.mouse.up()
        has_text(page.locator("#live"), "live, round 10 of 40")


def test_a_folder_that_appears_is_cleared_and_goes_away(chromium, tmp_path):
    folder = tmp_path / "later"
    with served(folder) as server, opened(chromium, server.url, width=390) as page:
        assert "Waiting for a run in" in page.text_content("#waiting")
        assert not page.is_visible("main")
        photograph(page, "live-waiting-390")
        write_run(folder, finished=False, metrics=[])
        has_text(page.locator("#live"), "live, round 0 of 12")
        write_run(folder, "<img src=x onerror=alert(1)>", finished=False, done=2)
        has_text(page.locator("#live"), "live, round 2 of 12")
        assert page.is_visible("#curves svg[role=img]")
        assert page.locator("img").count() == 0
        shutil.rmtree(folder)
        has_text(page.locator("#live"), "live, waiting")
        assert not page.is_visible("main")
        write_run(folder, "again", done=12)
        has_text(page.locator("#live"), "1 run finished")
        assert page.complaints == []
    # one more page, whose server goes away
    with served(folder) as server, opened(chromium, server.url) as page:
        server.shutdown()
        server.socket.close()
        has_text(page.locator("#live"), "no answer from fedwidth view; trying again")


def test_a_second_run_appears_without_changing_the_first_one_s_colour(chromium, tmp_path):
    write_run(tmp_path / "compare" / "b", "Second by name", finished=False, done=4)
    with served(tmp_path) as server, opened(chromium, server.url) as page:
        write_run(tmp_path / "compare" / "a", "First by name", finished=False, done=4, method="heterofl")
        has_text(page.locator("#live"), "live, 2 of 2 runs unfinished")
        assert page.evaluate("[...document.querySelectorAll('.legend button')].map((b) => b.title)") == [
            "Second by name",
            "First by name",
        ]
