"""Which pods are profiled, as the ConfigMap says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.kube.model import Pod, Workload
from gpumemprof.kube.selector import MAX_LENGTH, Requirement, Selector, SelectorError
from gpumemprof.kube.switch import MAX_KEYS, OFF, Switch
from tests.unit.kube_selector_examples import NOT_SELECTORS, SELECTS


def pod(namespace: str, **labels: str) -> Pod:
    return Pod("u", namespace, "p", Workload("Pod", "p"), labels)


def good(data: dict[str, str]) -> Switch:
    switch, problems = Switch.parse(data)
    assert not problems
    return switch


def test_nothing_is_on_unless_it_is_switched_on() -> None:
    assert not OFF.allows(pod("ml"))
    assert not OFF.allows(None)
    assert good({}) == OFF


def test_one_namespace_is_on_and_others_are_not() -> None:
    switch = good({"ml": "on"})
    assert switch.allows(pod("ml"))
    assert not switch.allows(pod("web"))
    assert not switch.allows(None)


def test_the_default_is_for_all_that_are_not_named() -> None:
    switch = good({"_default": "on", "web": "off"})
    assert switch.allows(pod("ml"))
    assert not switch.allows(pod("web"))


def test_processes_of_no_pod_are_as_the_default_unless_set() -> None:
    assert good({"_default": "on"}).allows(None)
    assert not good({"_default": "on", "_host": "off"}).allows(None)
    assert good({"_host": "on"}).allows(None)
    assert not good({"_default": "app=trainer"}).allows(None), "they have no labels"
    assert not good({"_default": "!app"}).allows(None)


def test_a_selector_switches_on_what_it_selects() -> None:
    switch = good({"ml": "app in (trainer)", "_default": "gpu-profile=on"})
    assert switch.allows(pod("ml", app="trainer"))
    assert not switch.allows(pod("ml", app="web"))
    assert switch.allows(pod("web", **{"gpu-profile": "on"}))


@pytest.mark.parametrize("word", ["on", "On", "ON", " on\n", "true", "True"])
def test_words_for_on(word: str) -> None:
    assert good({"ml": word}).allows(pod("ml"))


@pytest.mark.parametrize("word", ["off", "OFF", " off ", "false"])
def test_words_for_off(word: str) -> None:
    assert not good({"_default": "on", "ml": word}).allows(pod("ml"))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("ml", "", "say on, off"),
        ("ml", "yes", "say on, off"),
        ("ml", "enabled", "say on, off"),
        ("ml", "on,,off", "a label is expected"),
        ("ml", "app in trainer", "'(' is expected"),
        ("ml", "app = a b", "a comma is expected"),
        ("ml", "app in (a", "',' or ')' is expected"),
        ("ml", "a b c", "'b' is not an operator"),
        ("ml", "app=" + "x" * 64, "cannot be the value of a label"),
        ("ml", "x/y/z", "cannot be the name of a label"),
        ("ml", "Upper.Case/x", "cannot be the name of a label"),
        ("ml", "n > many", "not a whole number"),
        ("ml", "a" * (MAX_LENGTH + 1), "longer than"),
        ("ml", ",".join(["a"] * 65), "more than 64 conditions"),
        ("_host", "app=a", "processes of no pod have no labels"),
        ("ML", "on", "not a namespace"),
        ("_defualt", "on", "not a namespace"),
        ("ml.team", "on", "not a namespace"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_reason(key: str, value: str, reason: str) -> None:
    switch, problems = Switch.parse({key: value, "web": "on"})
    assert switch.allows(pod("web")), "the other settings hold"
    assert not switch.allows(pod("ml"))
    (problem,) = problems
    assert problem.key == key
    assert reason in problem.reason
    assert len(str(problem)) < 400


@pytest.mark.parametrize("before", ["on", "off", "app=a"])
def test_an_invalid_value_leaves_its_namespace_as_it_was(before: str) -> None:
    first = good({"ml": before, "_default": "off"})
    second, problems = Switch.parse({"ml": "onn onn", "_default": "off"}, first)
    assert problems
    assert second == first
    third, _ = Switch.parse({"ml": "still not"}, second)
    assert third.settings["ml"] == first.settings["ml"]


def test_an_invalid_value_of_a_new_key_leaves_the_default() -> None:
    first = good({"_default": "on"})
    second, _ = Switch.parse({"_default": "on", "ml": "a b"}, first)
    assert second.allows(pod("ml"))


def test_an_invalid_value_at_the_start_is_off_even_where_the_default_is_on() -> None:
    switch, _ = Switch.parse({"_default": "on", "ml": "of f"})
    assert not switch.allows(pod("ml"))
    assert switch.allows(pod("web"))


def test_a_key_that_is_removed_follows_the_default_again() -> None:
    switch, _ = Switch.parse({}, good({"ml": "on"}))
    assert not switch.allows(pod("ml"))


def test_too_many_settings_change_nothing() -> None:
    first = good({"ml": "on"})
    switch, problems = Switch.parse({f"n{i}": "on" for i in range(MAX_KEYS + 1)}, first)
    assert switch == first
    assert "more than" in problems[0].reason


@pytest.mark.parametrize("text", SELECTS)
def test_selectors_select_as_kubernetes_does(text: str) -> None:
    selector = Selector.parse(text)
    selected, not_selected = SELECTS[text]
    assert selector.matches(selected)
    assert not selector.matches(not_selected)


@pytest.mark.parametrize("text", NOT_SELECTORS)
def test_what_kubernetes_refuses_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        Selector.parse(text)


names = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,10}[A-Za-z0-9])?", fullmatch=True)
requirements = st.one_of(
    st.builds(Requirement, names, st.sampled_from(["exists", "!"]), st.just(frozenset())),
    st.builds(
        Requirement, names, st.sampled_from(["in", "notin"]), st.frozensets(names, min_size=1)
    ),
)


def written(requirement: Requirement) -> str:
    key, operator, values = requirement
    if operator == "exists":
        return key
    return f"!{key}" if operator == "!" else f"{key} {operator} ({','.join(values)})"


@given(st.lists(requirements, min_size=1, max_size=8))
def test_a_selector_that_is_written_out_is_read_back(parts: list[Requirement]) -> None:
    assert Selector.parse(",".join(map(written, parts))).requirements == tuple(parts)


@given(st.text(max_size=40) | st.text(alphabet="ab in(),!=<>/ ", max_size=40))
def test_any_text_is_a_selector_or_an_error(text: str) -> None:
    try:
        selector = Selector.parse(text)
    except SelectorError as error:
        assert str(error)
    else:
        assert selector.requirements
