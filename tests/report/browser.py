"""A real Chromium for the tests, driven by Playwright. Where there is none, MISSING says why."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    expect = sync_playwright = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = (
    "needs playwright: run `make test-browser`"
    if sync_playwright is None
    else "needs a Chromium on the PATH"
    if CHROMIUM is None
    else ""
)
SHOTS = Path(__file__).parents[2] / "build" / "browser"
"""Where screenshots and measurements are kept; git ignores it."""


@contextmanager
def browsing():
    """The browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def opened(browser, url, *, width=1440, height=900, dark=False):
    """A page of its own. `page.complaints` collects what the console and the page complain about, `page.asked` what it
    fetched."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.complaints, page.asked = [], []
    page.on("console", lambda said: page.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(url)
    yield page
    context.close()


def has_text(locator, text):
    """Wait until an element says this. (The page's policy forbids Playwright's own `wait_for_function`.)"""
    expect(locator).to_have_text(text, timeout=15_000)


def photograph(page, name):
    """Keep a picture of the whole page."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def note(**measured):
    """Keep measurements beside the pictures."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / "measured.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | measured, indent=2) + "\n")
