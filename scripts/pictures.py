"""Makes docs/images/report.png: the report of the demo, as a browser shows it.

Run by `make pictures`, as root: the demo is really recorded, on the stand-in CUDA libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

from gpumemprof.demo import llm_server
from gpumemprof.profile import files
from gpumemprof.profile.model import Profile
from gpumemprof.report import html

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SERVER = Path(llm_server.__file__)
SIZE = {"width": 1280, "height": 860}


def main() -> None:
    """Record, draw, take the picture."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        profile = record(Path(directory) / "demo.pb.gz")
        page = Path(directory) / "report.html"
        page.write_text(html.page(profile, "python llm_server.py"), "utf-8")
        take(page, IMAGES / "report.png")


def record(path: Path) -> Profile:
    """The demo's server with a leak that can be seen, recorded while it still holds its memory."""
    server = [sys.executable, str(SERVER), "--scale=0.5", "--requests=150", "--hold=4"]
    recorder = [sys.executable, "-m", "gpumemprof.cli.main", "record", "--duration=12"]
    subprocess.run([*recorder, "-o", str(path), "--", *server], check=True, cwd=ROOT)
    return at_home(files.load(path))


def at_home(profile: Profile) -> Profile:
    """Without this checkout's place on this machine."""

    def moved(stack):
        return tuple(replace(f, file=f.file.replace(str(SERVER.parent), "/srv")) for f in stack)

    about = {name: text for name, text in profile.about.items() if name != "command"}
    return replace(
        profile,
        about=about,
        samples=tuple(replace(one, stack=moved(one.stack)) for one in profile.samples),
        failures=tuple(replace(one, stack=moved(one.stack)) for one in profile.failures),
    )


def take(page: Path, image: Path) -> None:
    """A picture of the upper part of a page, with one function searched for."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport=SIZE)
        tab.goto(page.as_uri())
        tab.get_by_role("searchbox", name="Search").fill("PrefixCache")
        tab.screenshot(path=image)
        browser.close()
    print(f"{image.relative_to(ROOT)}: {image.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
