"""Makes the pictures in docs/images: the report and `gpumemprof top` of the demo, and the agent's
page, as a browser shows them.

Run by `make pictures`, as root: the demo is really recorded, on the stand-in CUDA libraries; the
containers on the agent's page are those of tests/unit/agent_examples.py."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from gpumemprof.demo import llm_server
from gpumemprof.profile import files
from gpumemprof.profile.model import Profile
from gpumemprof.report import html

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SERVER = Path(llm_server.__file__)
SIZE: ViewportSize = {"width": 1280, "height": 860}


def main() -> None:
    """Record, draw, take the picture."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        profile = record(Path(directory) / "demo.pb.gz")
        page = Path(directory) / "report.html"
        page.write_text(html.page(profile, "python llm_server.py"), "utf-8")
        take(page.as_uri(), IMAGES / "report.png", search="PrefixCache")
        screen = Path(directory) / "top.html"
        screen.write_text(top(Path(directory)), "utf-8")
        take(screen.as_uri(), IMAGES / "top.png", element="pre")
    with served() as url:
        take(url, IMAGES / "agent-page.png", size={"width": 1280, "height": 600})


def record(path: Path) -> Profile:
    """The demo's server with a leak that can be seen, recorded while it still holds its memory."""
    server = [sys.executable, str(SERVER), "--scale=0.5", "--requests=150", "--hold=4"]
    recorder = [sys.executable, "-m", "gpumemprof.cli.main", "record", "--duration=10"]
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


def top(directory: Path) -> str:
    """What a terminal shows of `gpumemprof top` while the demo runs, as a page."""
    tmux = ["tmux", "-S", str(directory / "tmux")]
    size = ["-x", "100", "-y", "20"]
    environment = [f"LD_LIBRARY_PATH={os.environ['LD_LIBRARY_PATH']}", "COLORTERM=truecolor"]
    given = [part for each in environment for part in ("-e", each)]
    home = Path("/srv/llm_server.py")
    shutil.copy(SERVER, home)
    server = None
    try:
        server = subprocess.Popen(
            ["sh", "-c", f"sleep 4; exec python3 {home} --requests=100000 --hold=60"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        program = [sys.executable, "-m", "gpumemprof", "top", "--pid", str(server.pid)]
        subprocess.run([*tmux, "new-session", "-d", *size, *given, *program], check=True)
        time.sleep(10)
        shown = subprocess.run(
            [*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True
        ).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
        if server is not None:
            server.kill()
            server.wait()
        home.unlink()
    console = Console(record=True, width=100, file=io.StringIO(), color_system="truecolor")
    # The colours of selected text are the terminal's own, swapped, which a page does not know.
    console.print(Text.from_ansi(re.sub(r"(\[[\d;]*\b7)m", r"\1;37m", shown)))
    page = console.export_html(theme=MONOKAI, inline_styles=True)
    style = (
        "<style>pre {display: inline-block; padding: 14px; background: #0c0c0c; margin: 0}</style>"
    )
    return page.replace("</head>", f"{style}</head>", 1)


@contextmanager
def served() -> Iterator[str]:
    """The agent's page, on containers that are made up."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.agent_examples", "0"],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def take(
    url: str, image: Path, *, size: ViewportSize = SIZE, search: str = "", element: str = ""
) -> None:
    """A picture of the upper part of a page, or of one element, perhaps with a function searched
    for."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport=size)
        tab.goto(url)
        tab.wait_for_timeout(1000)
        if search:
            tab.get_by_role("searchbox", name="Search").fill(search)
        (tab.locator(element) if element else tab).screenshot(path=image)
        browser.close()
    print(f"{image.relative_to(ROOT)}: {image.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
