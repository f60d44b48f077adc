"""The report for those who use it with keys, by ear, or without telling all colours apart."""

from __future__ import annotations

import itertools
import re

import pytest

from gpumemprof.report import html
from tests.browser.examples import CLUSTER
from tests.unit.profile_examples import TRAINING

CONTRAST = """() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const over = (top, below) => top.slice(0, 3).map((part, at) =>
        part * (top[3] ?? 1) + below[at] * (1 - (top[3] ?? 1)));
    const luminance = (rgb) => {
        const [r, g, b] = rgb.map((part) => part / 255).map((part) =>
            part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const background = (element) => {
        if (!element) return [255, 255, 255];
        const own = parse(getComputedStyle(element).backgroundColor);
        return over(own, background(element.parentElement));
    };
    const poor = [];
    for (const element of document.querySelectorAll('main *')) {
        const text = [...element.childNodes].some((node) =>
            node.nodeType === Node.TEXT_NODE && node.textContent.trim());
        if (!text || !element.checkVisibility()) continue;
        const below = background(element);
        const ink = over(parse(getComputedStyle(element).color), below);
        const [light, dark] = [luminance(ink), luminance(below)].sort((a, b) => b - a);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < 4.5) poor.push(`${element.textContent.slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_what_is_behind_it(open_report, scheme):
    report = open_report(TRAINING, scheme=scheme)
    report.click(4, 0.95)
    report.search("convert")
    report.page.get_by_role("button", name="KVCache.__init__").click()
    assert report.page.evaluate(CONTRAST) == []
    report.screenshot(f"search-{scheme}")


def test_the_graph_is_drawn_in_the_colours_that_are_chosen(open_report):
    report = open_report(TRAINING)
    report.search("convert")  # what does not match is mixed with the colour of the page
    before = report.flame.screenshot()
    report.page.get_by_role("button", name="Light or dark").click()
    report.page.wait_for_timeout(50)
    drawn = "document.querySelector('.flame canvas').toDataURL()"
    dark = report.page.evaluate(drawn)
    assert report.flame.screenshot() != before
    fresh = open_report(TRAINING, scheme="dark")
    fresh.search("convert")
    fresh.page.wait_for_timeout(50)
    assert fresh.page.evaluate(drawn) == dark


def test_light_and_dark_can_be_chosen(open_report):
    report = open_report(TRAINING)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = report.page.evaluate(paper)
    report.page.get_by_role("button", name="Light or dark").click()
    dark = report.page.evaluate(paper)
    assert light != dark
    report.page.get_by_role("button", name="Light or dark").click()
    assert report.page.evaluate(paper) == light


def test_whatever_can_be_used_has_a_name(open_report):
    report = open_report(CLUSTER)
    tree = report.page.locator("body").aria_snapshot()
    roles = "button|combobox|searchbox|checkbox|radio|img|application|link"
    unnamed = re.findall(rf"^\s*- (?:{roles})\b(?! \").*", tree, re.MULTILINE)
    assert unnamed == []
    for name in ("Process", "Pod", "Device", "Kind", "Group by"):
        assert f'combobox "{name}"' in tree
    assert 'application "Flame graph: the root at the top, width is memory"' in tree
    assert 'radio "In use 6.50 GiB" [checked]' in tree


def test_everything_is_reached_with_tab(open_report):
    report = open_report(TRAINING)
    reached = []
    for _ in range(40):
        report.press("Tab")
        reached.append(
            report.page.evaluate(
                "(document.activeElement.ariaLabel || document.activeElement.innerText"
                " || document.activeElement.value || '').trim()"
            )
        )
    wanted = [
        "1 allocation failed",
        "inuse_space",
        "Search functions, files and libraries",
        "Flame graph: the root at the top, width is memory",
        "Self ▾",
        "KVCache.__init__",
    ]
    places = [reached.index(name) for name in wanted]
    assert places == sorted(places)


def test_headings_tell_the_parts(open_report):
    report = open_report(TRAINING)
    assert report.page.get_by_role("heading", level=2).all_inner_texts() == [
        "Memory over time",
        "Flame graph",
        "Functions",
        "1 allocation failed",
        "Processes",
        "About this recording",
    ]


def test_origins_differ_in_lightness_or_pattern_too(open_page):
    """For those who see no colours: two origins that look alike in grey have other patterns."""
    page = open_page(html.page(TRAINING))
    styles = page.page.locator(".legend .swatch").evaluate_all(
        "all => all.map((one) => [getComputedStyle(one).backgroundColor, one.className])"
    )
    greys = {}
    for colour, pattern in styles:
        red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
        greys[colour] = (0.299 * red + 0.587 * green + 0.114 * blue, pattern)
    for (one, first), (other, second) in itertools.combinations(greys.values(), 2):
        assert abs(one - other) > 20 or first != second
