"""Names that a profiled program chose to do harm with: they are text, and nothing but text."""

from __future__ import annotations

import pytest

from gpumemprof.profile.model import Failure, History, ProcessInfo, Profile, Sample, Series, Values
from gpumemprof.report import html
from gpumemprof.report.html.columns import clean
from gpumemprof.stack.frames import Frame, FrameKind
from tests.unit.profile_examples import START

ATTACKS = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><img src=x onerror=alert(2)>",
    "javascript:alert(3)",
    "\"'><svg onload=alert(4)>",
    "${alert(5)}",
    "&lt;b&gt; &amp;",
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "\u202egnp.exe\u202c",
    "\u2066hidden\u2069",
    "\ud800 lone surrogate \udcff",
    "bell\x07 null\x00 escape\x1b[31m",
    "line\u2028separator\u2029\r\n\t",
    "x" * 10_000,
    "模块.方法 🔥 e\u0301",
    "@data@ @script@ @policy@",
    "",
    " ",
]


def hostile(name: str) -> Profile:
    """A profile in which everything that a program chooses is ``name``."""
    stack = (
        Frame(name, FrameKind.NATIVE, name, 1, name),
        Frame(name, FrameKind.PYTHON, name, 2),
        Frame(name, FrameKind.NOTE),
    )
    labels = tuple(
        (key, name)
        for key in ("call", "comm", "container", "device", "gpu", "kind", "namespace", "pid", "pod")
    )
    other = tuple((key, "other") for key, _ in labels)
    return Profile(
        samples=(
            Sample(stack, labels, Values(1, 10, 1, 10, 10)),
            Sample(stack, other, Values(1, 5, 1, 5, 5)),
        ),
        time_ns=START,
        duration_ns=10**9,
        processes=(ProcessInfo(1, name, name, START, START, name, 10, 10, 0, 0),),
        failures=(Failure(START, labels, 2, 5, 1, 2, 3, stack, ((0, 10),), 0),),
        completeness={name: 1},
        about={"command": name, name or "about": name},
        series=(Series(labels, ((START, 10),)),),
        histories=(History(0, tuple((START + n * 10**7, n << 20) for n in range(40))),),
    )


@pytest.mark.parametrize("name", ATTACKS, ids=range(len(ATTACKS)))
def test_a_name_is_only_text(open_report, name):
    report = open_report(hostile(name), name)
    assert report.page.evaluate("document.scripts.length") == 2
    assert report.page.locator("img, svg, iframe, object, link, style:not(head style)").count() == 0
    assert set(report.names()) <= {clean(name) or "[no name]", clean(name).strip()}
    report.point_at(1)
    report.click(1)
    report.search(name[:20])
    assert report.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    # Nothing turns the text of the page around, or is longer than can be read.
    text = report.page.evaluate("document.querySelector('main').textContent")
    assert not set(text) & set("\u202e\u2066\x07\x00\x1b\u2028\x08")
    assert "x" * 1001 not in text


def test_the_policy_keeps_foreign_scripts_from_running(open_page):
    page = open_page(html.page(hostile("f")))
    page.page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.ran = true';
        document.body.append(script);
        const image = document.createElement('img');
        image.setAttribute('onerror', 'window.ran = true');
        image.src = 'data:,';
        document.body.append(image);
    }""")
    page.page.wait_for_timeout(100)
    assert page.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in page.trouble)
    page.trouble.clear()


def test_and_anything_from_being_sent(open_page):
    page = open_page(html.page(hostile("f")))
    answer = page.page.evaluate("fetch('https://example.org/').catch((error) => String(error))")
    assert "TypeError" in answer
    assert any("Content Security Policy" in text for text in page.trouble)
    page.trouble.clear()
    page.requested.clear()
