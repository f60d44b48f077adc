"""The page: template, style, script and data in one file that needs nothing else.

Nothing is fetched, and the page's own policy forbids it: only the one script and the one style
whose hashes it names run. The data stand in a script element of a type that is not run, with
every ``<`` written as an escape, so that no text can end the element.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib import resources
from typing import Any

from gpumemprof.profile.model import Profile
from gpumemprof.report.html.contents import data, diff_data

_SCRIPTS = (
    "units.js",
    "dom.js",
    "model.js",
    "tree.js",
    "functions.js",
    "colours.js",
    "tooltip.js",
    "layout.js",
    "painter.js",
    "flame.js",
    "table.js",
    "timeline.js",
    "growth.js",
    "failures.js",
    "controls.js",
    "sections.js",
    "show.js",
)
"""In the order in which they are put together: one function, no modules, no build step."""


def page(profile: Profile, title: str = "", view: str = "") -> str:
    """The report of ``profile`` as one HTML file.

    ``title``: by default the recorded command; ``view``: the sample type it opens with, by default
    what is held. Raises UsageError for negative values."""
    return _document(data(profile, title, view))


def diff_page(before: Profile, after: Profile, title: str = "") -> str:
    """What changed between two profiles as one HTML file."""
    return _document(diff_data(before, after, title))


@cache
def assets() -> dict[str, str]:
    """``viewer.js`` and ``viewer.css``, for pages that are served."""
    return {
        "viewer.js": "(function () {\n'use strict';\n"
        + "\n".join(_asset(name) for name in _SCRIPTS)
        + "\n})();\n",
        "viewer.css": _asset("viewer.css"),
    }


def _document(value: dict[str, Any]) -> str:
    script, style = assets()["viewer.js"], assets()["viewer.css"]
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(value["title"]),
        "style": style,
        "data": embedded(value),
        "script": script,
    }
    # In one pass, so that no part is looked for in another.
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], _asset("page.html"))


def embedded(value: object) -> str:
    """JSON that can stand in a script element: no text in it can end that element, or begin a
    comment."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")
