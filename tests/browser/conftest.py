"""A real Chromium, offline and without WebGL, that opens reports from disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpumemprof.profile.model import Profile
from gpumemprof.report import html
from tests.browser.opened import Opened

sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install -e .[dev]")

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _chromium() -> str:
    given = os.environ.get("CHROMIUM")
    found = given or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium, or set CHROMIUM to one")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-3d-apis"],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: sync_api.Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens HTML from disk, offline. At the end nothing may have gone wrong in any of the pages."""
    opened: list[Opened] = []

    def open_(text: str, *, scheme: str = "light", width: int = 1400, height: int = 900) -> Opened:
        path = tmp_path / f"report{len(opened)}.html"
        path.write_text(text, "utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        page = Opened(context.new_page(), SCREENSHOTS)
        opened.append(page)
        page.page.goto(path.as_uri())
        return page

    yield open_
    for page in opened:
        page.page.context.close()
        assert page.trouble == []
        assert [url for url in page.requested if not url.startswith("file:///")] == []


@pytest.fixture
def open_report(open_page: Callable[..., Opened]) -> Callable[..., Opened]:
    def open_(profile: Profile, title: str = "", **options: object) -> Opened:
        return open_page(html.page(profile, title), **options)

    return open_
