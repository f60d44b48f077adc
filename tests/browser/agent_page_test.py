"""The agent's page in a browser, over a real server and a real store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpumemprof.export.model import ContainerProfile, PushStatus
from gpumemprof.export.server import AgentServer, Health
from gpumemprof.export.store import ProfileStore
from gpumemprof.export.store_files import owner_id
from gpumemprof.profile.model import Profile, Sample, Values
from tests.browser.conftest import SCREENSHOTS
from tests.browser.opened import Opened
from tests.unit.agent_examples import (
    HOSTILE,
    INTERVAL,
    JOB,
    ExampleAgent,
    failed,
    fill,
    llama,
    serve,
)
from tests.unit.profile_examples import GIB, MIB, SECOND, labels, native, python
from tests.unit.store_examples import HOST, SERVER, TRAINER, at, holding

NOW = 1_775_000_000 * SECOND


@dataclass
class Node:
    agent: ExampleAgent
    store: ProfileStore
    server: AgentServer

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.page_port}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    store = ProfileStore(tmp_path / "store", 64 * MIB, lambda: NOW)
    agent = ExampleAgent()
    server = serve(agent, store)
    yield Node(agent, store, server)
    server.close()
    store.close()


@pytest.fixture(scope="module")
def busy_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """With thirty hours behind it; nothing of it is changed by tests."""
    store = ProfileStore(tmp_path_factory.mktemp("busy") / "store", 64 * MIB)
    agent = ExampleAgent()
    fill(store, agent, time.time_ns())
    server = serve(agent, store)
    yield Node(agent, store, server)
    server.close()
    store.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens the page; at the end nothing may have gone wrong, or have been asked of others."""
    opened: list[tuple[Opened, str]] = []

    def visit_(node: Node, place: str = "", *, scheme: str = "light", width: int = 1280) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id="UTC"
        )
        page = Opened(context.new_page(), SCREENSHOTS)
        opened.append((page, node.address))
        page.page.goto(f"{node.address}/{place}")
        return page

    yield visit_
    for page, address in opened:
        page.page.context.close()
        assert page.trouble == []
        assert [url for url in page.requested if not url.startswith((address, "data:"))] == []


def rows(page: Opened, section: str = "workloads") -> list[list[str]]:
    """The cells of a table of workloads."""
    found = page.page.locator(f"[data-section={section}] tbody tr")
    found.first.wait_for()
    return [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in found.all()]


def open_first(page: Opened) -> None:
    page.page.locator("[data-section=workloads] a.workload").first.click()
    page.page.locator(".flame canvas").first.wait_for()


def shown(page: Opened) -> str:
    """In use, as the viewer says, once what was asked for is drawn."""
    page.page.locator(".viewer:not(.loading)").wait_for()
    return page.bytes_of("In use")


def slide(page: Opened, name: str, key: str, times: int = 1) -> None:
    slider = page.page.get_by_role("slider", name=name)
    for _ in range(times):
        slider.press(key)


# The list


def test_the_first_look_tells_who_holds_most_and_whose_allocations_failed(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    found = rows(page)
    assert [row[0].split("\n")[0] for row in found] == [
        "serving / llama",
        "ml-team / trainer",
        "python3",
    ]
    llama_row = found[0]
    assert "llama-0 / vllm" in llama_row[0]
    assert llama_row[1:3] == ["62.8 GiB", "63.0 GiB"]
    assert "+37.0 MiB in 55 min" in llama_row[3]
    assert llama_row[4] == "3"
    assert found[1][3:5] == ["steady", "-"]
    assert page.text("[data-section=workloads] header .quiet").startswith("69.8 GiB in use by 3")
    assert [row[0].split("\n")[0] for row in rows(page, "ended")] == ["ml-team / eval"]
    page.screenshot("agent-list")


def test_a_row_is_found_by_any_of_its_names(busy_node: Node, visit: Callable[..., Opened]) -> None:
    page = visit(busy_node)
    rows(page)
    box = page.page.get_by_role("searchbox")
    for text, name in (("VLLM", "serving / llama"), ("7d4b9c", "ml-team / trainer")):
        box.fill(text)
        assert [row[0].split("\n")[0] for row in rows(page)] == [name]
    box.fill("nobody")
    assert "No name matches" in page.text("[data-section=workloads]")


def test_without_anyone_it_says_how_to_switch_a_namespace_on(
    node: Node, visit: Callable[..., Opened]
) -> None:
    node.agent.state = replace(node.agent.state, api={"pods": True})
    page = visit(node)
    page.page.locator(".empty").wait_for()
    assert "kubectl patch configmap" in page.text(".empty")
    page.screenshot("agent-empty")


def test_without_kubernetes_the_page_speaks_of_programs(
    node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(node)
    page.page.locator(".empty").wait_for()
    assert page.text(".empty") == "No program holds GPU memory."
    node.agent.see(HOST, holding(GIB), NOW)
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    rows(page)
    assert page.text("[data-section=workloads] header .quiet") == "1.00 GiB in use by 1 program"


@pytest.mark.parametrize("place", ["", f"#/{owner_id(SERVER)}"])
def test_until_the_agent_has_answered_the_page_says_that_it_loads(
    node: Node, visit: Callable[..., Opened], place: str
) -> None:
    node.agent.see(SERVER, holding(GIB), NOW)
    answering = threading.Event()
    view = node.agent.view
    node.agent.view = lambda: answering.wait(30) and view()  # type: ignore[method-assign]
    page = visit(node, place)
    assert page.text("main .waiting") == "loading…"
    answering.set()
    page.page.locator("main .waiting").wait_for(state="detached")
    assert "llama" in page.text("main")


def test_what_is_wrong_with_the_agent_stands_on_top(
    node: Node, visit: Callable[..., Opened]
) -> None:
    node.agent.well = Health(not_ready="no pod list yet")
    node.agent.state = replace(
        node.agent.state, api={"pods": False}, counters={"events_lost": 12, "events": 5}
    )
    page = visit(node)
    page.page.locator(".problems li").first.wait_for()
    told = page.text(".problems")
    assert "no pod list yet" in told
    assert "Kubernetes API does not answer" in told
    assert "12 events were lost" in told


def test_what_cannot_be_pushed_is_told_on_top_and_in_the_header(
    node: Node, visit: Callable[..., Opened]
) -> None:
    node.agent.pushed = PushStatus(
        queued=3, attempts={"unreachable": 1}, last_error="connection refused"
    )
    page = visit(node)
    page.page.locator(".problems li").first.wait_for()
    assert "connection refused: 3 profiles wait" in page.text(".problems")
    assert "profiles wait to be pushed" in page.text(".bar-top")


def test_when_the_agent_goes_away_the_page_says_so(
    node: Node, visit: Callable[..., Opened]
) -> None:
    node.agent.see(SERVER, holding(GIB), NOW)
    page = visit(node)
    rows(page)
    node.server.close()
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.page.locator(".problems li").wait_for()
    assert "does not answer" in page.text(".problems")
    assert rows(page)  # what was known stays
    page.trouble.clear()  # the browser notes the failed request


def test_what_changes_is_shown_without_being_asked_for(
    node: Node, visit: Callable[..., Opened]
) -> None:
    node.agent.see(HOST, holding(GIB), NOW)
    page = visit(node)
    assert rows(page)[0][1] == "1.00 GiB"
    node.agent.see(SERVER, holding(3 * GIB), NOW)
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.page.locator("[data-section=workloads] tbody tr").nth(1).wait_for()
    assert [row[1] for row in rows(page)] == ["3.00 GiB", "1.00 GiB"]


# One container


def test_a_container_opens_with_the_flame_graph_of_now(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    open_first(page)
    assert page.text(".crumb h1") == "serving / llama"
    assert shown(page) == "62.8 GiB"
    assert page.names()[0] == "KVCache.__init__"
    facts = page.text(".crumb .facts")
    for part in ("62.8 GiB", "63.0 GiB", "2.00 GiB", "failed allocations\n3"):
        assert part in facts
    page.screenshot("agent-container")


def test_an_earlier_time_is_chosen_with_the_slider_and_on_the_chart(
    node: Node, visit: Callable[..., Opened]
) -> None:
    for tick in range(1, 6):
        node.store.put(at(tick, SERVER, holding(tick * GIB), start=NOW))
    page = visit(node, f"#/{owner_id(SERVER)}")
    page.page.locator(".flame canvas").first.wait_for()
    assert shown(page) == "5.00 GiB"  # it ended: the last that is known
    slide(page, "Shown: time of the profile", "ArrowLeft", 2)
    assert shown(page) == "3.00 GiB"
    box = page.page.locator(".chart svg").bounding_box()
    page.page.mouse.click(box["x"] + 80, box["y"] + 90)
    assert shown(page) == "1.00 GiB"
    page.page.get_by_role("button", name="Peak").click()
    page.page.locator(".types input[value=peak_space]:checked").wait_for(state="attached")
    assert page.bytes_of("Peak") == "5.00 GiB"


def test_two_times_are_compared_and_what_grew_comes_first(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    open_first(page)
    page.choose("Show", "everything")
    page.page.get_by_label("Compare two times").check()
    compared = page.page.locator(".viewer .bytes", has_text="→").first
    compared.wait_for()
    first = page.functions()[0]
    assert "PrefixCache.insert" in first
    assert "+1.17 GiB" in first[0]
    page.screenshot("agent-compare")
    page.page.get_by_label("Compare two times").uncheck()
    compared.wait_for(state="detached")


def test_what_grows_steadily_is_named_with_its_rate_and_stack(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    open_first(page)
    found = page.page.locator("[data-section=growth] tbody tr")
    found.first.wait_for()
    (row,) = found.all()
    cells = row.locator("td").all_inner_texts()
    number, unit = cells[0].split()
    assert (38 < float(number) < 42, unit) == (True, "MiB/h")
    assert "PrefixCache.insert" in cells[4]
    row.locator("summary").click()
    assert "cudaMalloc" in row.inner_text()
    page.choose("Show", "everything")
    page.page.get_by_text("+1.17 GiB").first.wait_for()
    page.screenshot("agent-growth")
    page.page.get_by_role("link", name="all workloads").click()
    page.page.get_by_role("link", name="trainer").first.click()
    page.page.get_by_text("No function's memory rises steadily").wait_for()


def test_a_failed_allocation_leads_to_what_was_held_then(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    open_first(page)
    table = page.text("[data-section=failed]")
    assert "20.0 GiB" in table
    assert "KVCache.grow" in table
    assert "out of memory" in table
    page.page.get_by_role("button", name="post-mortem").first.click()
    page.page.locator(".viewer #failures").wait_for()
    told = page.text(".viewer #failures")
    assert "512 MiB" in told
    assert "KVCache.__init__" in told
    page.screenshot("agent-post-mortem")


def test_the_profile_that_is_shown_can_be_taken_away(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    open_first(page)
    with page.page.expect_download() as download:
        page.page.get_by_role("link", name="pprof").click()
    assert download.value.suggested_filename == "gpumemprof.pb.gz"
    assert Path(download.value.path()).read_bytes()[:2] == b"\x1f\x8b"


def test_the_address_leads_back_to_what_one_looked_at(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    open_first(page)
    page.page.reload()
    page.page.locator(".flame canvas").first.wait_for()
    assert page.text(".crumb h1") == "serving / llama"
    page.page.get_by_role("button", name="post-mortem").first.click()
    page.page.locator("a.badge.bad[href='#failures']").click()  # a place on the page
    assert page.page.evaluate("location.hash") == f"#/{owner_id(SERVER)}"
    page.page.get_by_role("link", name="all workloads").click()
    assert len(rows(page)) == 3
    page.page.go_back()
    page.page.locator(".crumb h1").wait_for()


def test_a_container_that_is_gone_is_told(node: Node, visit: Callable[..., Opened]) -> None:
    page = visit(node, f"#/{owner_id(SERVER)}")
    page.page.locator(".problems li").wait_for()
    assert "not known" in page.text(".problems")
    page.trouble.clear()  # the browser notes the 404


def test_a_profile_that_cannot_be_had_is_told_in_its_place(
    node: Node, visit: Callable[..., Opened]
) -> None:
    node.store.put(at(1, SERVER, holding(GIB), start=NOW))
    node.agent.see(SERVER, holding(GIB), NOW)
    node.agent.busy = True
    page = visit(node, f"#/{owner_id(SERVER)}")
    page.page.locator(".viewer .banner").wait_for()
    assert "busy" in page.text(".viewer")
    page.trouble.clear()  # the browser notes the 503


# Names that programs and pods chose


def test_names_cannot_act_on_the_page(node: Node, visit: Callable[..., Opened]) -> None:
    evil = "</script><img src=x onerror=alert(1)><b>"
    stack = (native("cudaMalloc", "/x/libcuda.so.1"), python(evil * 200, 1, f"/app/{evil}.py"))
    profile = Profile((Sample(stack, labels(), Values(1, GIB, 1, GIB, GIB)),), NOW, 0)
    profile = replace(profile, failures=(replace(failed(NOW), stack=stack, live=()),))
    node.store.put(ContainerProfile(HOSTILE, NOW, INTERVAL, profile))
    node.agent.see(HOSTILE, profile, NOW, failures=1)
    page = visit(node, width=800)
    (row,) = rows(page)
    assert "<img src=x onerror=alert(1)>" in row[0]
    assert "\\u202ehostile" in row[0]
    page.screenshot("agent-hostile-list")
    open_first(page)
    assert shown(page) == "1.00 GiB"
    assert page.page.locator("img").count() == 0
    assert page.page.locator("b").count() == 0
    assert page.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot("agent-hostile")


@pytest.mark.parametrize(("scheme", "width"), [("light", 800), ("dark", 1280), ("dark", 800)])
def test_it_fits_every_window(
    busy_node: Node, visit: Callable[..., Opened], scheme: str, width: int
) -> None:
    page = visit(busy_node, scheme=scheme, width=width)
    rows(page)
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    assert page.page.evaluate(fits)
    page.screenshot(f"agent-list-{scheme}-{width}")
    open_first(page)
    shown(page)
    assert page.page.evaluate(fits)
    page.screenshot(f"agent-container-{scheme}-{width}")


def test_the_browser_itself_enforces_the_policy(
    busy_node: Node, visit: Callable[..., Opened]
) -> None:
    page = visit(busy_node)
    rows(page)
    ran = page.page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.ran = true';
          document.body.append(script);
          return Boolean(window.ran);
        }"""
    )
    assert ran is False
    assert page.trouble
    page.trouble.clear()


def test_many_containers_are_listed_and_the_ended_ones_on_request(
    node: Node, visit: Callable[..., Opened]
) -> None:
    for number in range(100):
        owner = JOB._replace(pod=f"eval-{number}", pod_uid=str(number))
        node.store.put(ContainerProfile(owner, NOW + number, INTERVAL, llama(1, number)))
    for number in range(60):
        owner = TRAINER._replace(pod=f"trainer-{number}", pod_uid=str(number))
        node.agent.see(owner, holding(number * GIB), NOW)
    page = visit(node)
    found = rows(page)
    assert len(found) == 60
    assert found[0][1] == "59.0 GiB"
    assert len(rows(page, "ended")) == 20
    page.page.get_by_role("button", name="show all 100").click()
    assert len(rows(page, "ended")) == 100
