"""What the agent tells Prometheus of its view."""

from __future__ import annotations

import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from gpumemprof.errors import GpumemprofError
from gpumemprof.export.metric_labels import MAX_VALUE_BYTES
from gpumemprof.export.metrics import MEMORY_METRICS, METRICS
from gpumemprof.export.model import (
    AgentView,
    FailureKey,
    MemoryKey,
    MemoryUse,
    Owner,
    PushStatus,
)
from gpumemprof.export.prometheus import PROCESS_METRICS, AgentCollector, Exposition
from gpumemprof.profile.completeness import LOST, NORMAL
from scripts import generate_metrics
from tests.unit.prometheus_examples import (
    GIB,
    NODE,
    SERVER,
    SERVER_MEMORY,
    TRAINER,
    TRAINER_MEMORY,
    usual_push,
    usual_view,
)

Key = tuple[str, frozenset[tuple[str, str]]]


def told(collector: AgentCollector) -> dict[Key, float]:
    """The samples of one scrape, as a parser of the text format reads them."""
    body, _ = Exposition(collector)()
    samples: dict[Key, float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"Prometheus refuses a scrape with {key} twice"
            samples[key] = sample.value
    return samples


def of(view: AgentView, push: PushStatus | None = None) -> AgentCollector:
    return AgentCollector(lambda: view, lambda: push)


def value(samples: dict[Key, float], name: str, **labels: str) -> float:
    """The one sample of that name whose labels include ``labels``."""
    found = [
        n
        for (its, has), n in samples.items()
        if its == name and labels.items() <= dict(has).items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def names(samples: dict[Key, float], name: str, label: str) -> set[str]:
    return {dict(labels)[label] for its, labels in samples if its == name}


def memory_keys(samples: dict[Key, float]) -> set[str]:
    return names(samples, "gpumemprof_memory_in_use_bytes", "pod")


# Memory


def test_memory_of_each_container_kind_and_gpu() -> None:
    samples = told(of(usual_view()))
    trainer = {
        "namespace": "ml",
        "pod": TRAINER.pod,
        "container": "main",
        "workload": "trainer",
        "node": NODE,
        "kind": "device",
        "gpu": "0",
        "gpu_uuid": TRAINER_MEMORY.gpu_uuid,
    }
    assert samples["gpumemprof_memory_in_use_bytes", frozenset(trainer.items())] == 20 * GIB
    assert value(samples, "gpumemprof_memory_peak_bytes", **trainer) == 24 * GIB
    assert value(samples, "gpumemprof_memory_allocated_bytes_total", **trainer) == 90 * GIB
    assert value(samples, "gpumemprof_memory_freed_bytes_total", **trainer) == 70 * GIB
    assert value(samples, "gpumemprof_allocations_total", **trainer) == 4_000
    assert value(samples, "gpumemprof_frees_total", **trainer) == 3_500


def test_pinned_host_memory_is_a_series_of_its_own_without_a_gpu() -> None:
    samples = told(of(usual_view()))
    name = "gpumemprof_memory_in_use_bytes"
    assert value(samples, name, pod=SERVER.pod, kind="device", gpu="1") == 6 * GIB
    assert value(samples, name, pod=SERVER.pod, kind="pinned_host", gpu="", gpu_uuid="") == GIB


def test_a_program_outside_of_pods_has_empty_labels_rather_than_the_agents() -> None:
    body, _ = Exposition(of(usual_view()))()
    assert b'namespace="",node="' + NODE.encode() + b'",pod="",workload="nvidia-smi"' in body


def test_no_label_grows_with_processes_or_stacks() -> None:
    labels = {label for _, has in told(of(usual_view(), usual_push())) for label, _ in has}
    assert not labels & {"pid", "comm", "call", "stack", "function", "device", "pod_uid"}


def test_failures_have_the_name_and_the_number_of_the_error() -> None:
    samples = told(of(usual_view()))
    name = "gpumemprof_allocation_failures_total"
    assert value(samples, name, pod=TRAINER.pod, error="out_of_memory", code="2") == 3
    assert value(samples, name, pod=SERVER.pod, error="illegal_address", code="700") == 1


def test_running_out_of_memory_is_told_as_0_before_it_happens_so_that_once_is_an_increase() -> None:
    name = "gpumemprof_allocation_failures_total"
    quiet = told(of(replace(usual_view(), failures={})))
    assert value(quiet, name, pod=TRAINER.pod, code="2") == 0


def test_a_runtime_error_without_a_name_of_the_drivers_has_the_runtimes() -> None:
    view = replace(usual_view(), failures={FailureKey(SERVER_MEMORY, 35): 1})
    name = "gpumemprof_allocation_failures_total"
    assert value(told(of(view)), name, error="insufficient_driver", code="35") == 1


def test_series_end_with_their_pod() -> None:
    view = usual_view()
    memory = {key: use for key, use in view.memory.items() if key.owner != TRAINER}
    failures = {key: n for key, n in view.failures.items() if key.memory.owner != TRAINER}
    views = [view, replace(view, memory=memory, failures=failures)]
    collector = AgentCollector(lambda: views.pop(0))
    assert any(("pod", TRAINER.pod) in labels for _, labels in told(collector))
    assert not any(("pod", TRAINER.pod) in labels for _, labels in told(collector))


def test_two_pods_of_one_name_are_one_series_with_the_higher_peak() -> None:
    again = TRAINER_MEMORY._replace(owner=TRAINER._replace(pod_uid="uid-of-its-successor"))
    view = replace(
        usual_view(),
        memory={
            TRAINER_MEMORY: MemoryUse(0, 24 * GIB, 90 * GIB, 90 * GIB, 10, 10),
            again: MemoryUse(5 * GIB, 6 * GIB, 7 * GIB, 2 * GIB, 4, 1),
        },
        failures={FailureKey(TRAINER_MEMORY, 2): 1, FailureKey(again, 2): 2},
    )
    samples = told(of(view))
    assert value(samples, "gpumemprof_memory_in_use_bytes", pod=TRAINER.pod) == 5 * GIB
    assert value(samples, "gpumemprof_memory_peak_bytes", pod=TRAINER.pod) == 24 * GIB
    assert value(samples, "gpumemprof_memory_allocated_bytes_total", pod=TRAINER.pod) == 97 * GIB
    assert value(samples, "gpumemprof_allocation_failures_total", pod=TRAINER.pod) == 3


# Hostile text


@pytest.mark.parametrize(
    "workload",
    [
        'a"b\\c\nd\re',
        'x"} 1\ngpumemprof_memory_in_use_bytes{pod="forged"} 99\n#',
        "\u202egpj.exe\u2028",
        "\x00\x07\x1b[31m",
        "naïve-模型-🔥",
        "\udcff\udc80 not utf-8",
        "x" * 1_000_000,
        "é" * 10_000,
        "",
    ],
    ids=[
        "quotes",
        "forged",
        "directions",
        "control",
        "words",
        "surrogates",
        "long",
        "wide",
        "none",
    ],
)
def test_whatever_a_program_calls_itself_the_scrape_stays_whole(workload: str) -> None:
    key = TRAINER_MEMORY._replace(owner=Owner("", "", "", workload, NODE))
    view = replace(usual_view(), memory={key: MemoryUse(in_use=77)}, failures={})
    samples = told(of(view))
    assert value(samples, "gpumemprof_memory_in_use_bytes") == 77
    (shown,) = names(samples, "gpumemprof_memory_in_use_bytes", "workload")
    assert len(shown.encode()) <= MAX_VALUE_BYTES
    assert shown.isprintable()


anything = st.text(st.characters(), max_size=400)


@given(
    st.lists(
        st.tuples(anything, anything, anything, anything, anything, st.integers(0, 1 << 50)),
        max_size=8,
    )
)
def test_no_text_of_others_breaks_a_scrape_or_loses_a_byte(
    rows: list[tuple[str, str, str, str, str, int]],
) -> None:
    memory = {
        MemoryKey(Owner(namespace, pod, container, workload, NODE), "device", gpu, gpu): MemoryUse(
            in_use=size
        )
        for namespace, pod, container, workload, gpu, size in rows
    }
    samples = told(of(replace(usual_view(), memory=memory, failures={})))
    total = sum(n for (name, _), n in samples.items() if name == "gpumemprof_memory_in_use_bytes")
    assert total == sum(use.in_use for use in memory.values())


def test_readable_names_stay_as_they_are() -> None:
    key = TRAINER_MEMORY._replace(owner=Owner("ml", "naïve-模型-🔥", "c", "w", NODE))
    view = replace(usual_view(), memory={key: MemoryUse()}, failures={})
    assert memory_keys(told(of(view))) == {"naïve-模型-🔥"}


def test_long_names_that_begin_alike_stay_apart() -> None:
    first, second = ("n" * 5_000 + end for end in ("a", "b"))
    view = replace(
        usual_view(),
        memory={
            TRAINER_MEMORY._replace(owner=TRAINER._replace(pod=first)): MemoryUse(in_use=1),
            TRAINER_MEMORY._replace(owner=TRAINER._replace(pod=second)): MemoryUse(in_use=2),
        },
    )
    samples = told(of(view))
    assert len(memory_keys(samples)) == 2


def test_error_codes_that_cuda_does_not_have_are_one_series() -> None:
    failures = {FailureKey(TRAINER_MEMORY, 10**6 + code): 1 for code in range(5_000)}
    samples = told(of(replace(usual_view(), failures=failures)))
    name = "gpumemprof_allocation_failures_total"
    assert value(samples, name, pod=TRAINER.pod, error="other", code="other") == 5_000
    assert names(samples, name, "code") == {"2", "other"}


def test_kinds_and_counters_nobody_knows_are_bounded() -> None:
    odd = TRAINER_MEMORY._replace(kind="made-up")
    counters = {f"invented_{number}": 1 for number in range(10_000)}
    samples = told(of(replace(usual_view(), memory={odd: MemoryUse()}, counters=counters)))
    assert names(samples, "gpumemprof_memory_in_use_bytes", "kind") == {"other"}
    lost = [n for (name, _), n in samples.items() if name == "gpumemprof_agent_lost_total"]
    assert len(lost) < 200
    assert sum(lost) == 10_000


def test_labels_are_within_what_azures_collector_takes() -> None:
    for name, labels in told(of(usual_view(), usual_push())):
        assert len(labels) + len({"job", "instance", "cluster", "__name__"}) <= 63
        assert all(len(label) <= 511 and len(text.encode()) <= 1023 for label, text in labels)
        assert len(name) <= 255


# The limit of series


def crowd(count: int, first: int = 0) -> dict[MemoryKey, MemoryUse]:
    return {
        MemoryKey(Owner("ml", f"pod-{number:05}", "c", "w", NODE), "device", "0", ""): MemoryUse(
            in_use=number
        )
        for number in range(first, first + count)
    }


def limited(*views: AgentView, label_sets: int) -> AgentCollector:
    waiting = list(views)
    return AgentCollector(lambda: waiting.pop(0), max_series=label_sets * len(MEMORY_METRICS))


def test_beyond_the_limit_the_largest_are_told_and_the_rest_is_counted() -> None:
    samples = told(limited(replace(usual_view(), memory=crowd(1_000), failures={}), label_sets=10))
    assert memory_keys(samples) == {f"pod-{number:05}" for number in range(990, 1_000)}
    assert value(samples, "gpumemprof_agent_series_omitted", family="memory") == 990
    assert value(samples, "gpumemprof_agent_memory_omitted_bytes") == sum(range(990))
    of_memory = [name for name, _ in samples if name in {m.name for m in MEMORY_METRICS}]
    assert len(of_memory) == 10 * len(MEMORY_METRICS)


def test_who_is_told_stays_told_while_it_lives_and_makes_room_when_it_ends() -> None:
    view = replace(usual_view(), failures={})
    small, large = crowd(3), crowd(3, first=500)
    collector = limited(
        replace(view, memory=small),
        replace(view, memory=small | large),
        replace(view, memory=dict(list(small.items())[1:]) | large),
        label_sets=3,
    )
    assert memory_keys(told(collector)) == {"pod-00000", "pod-00001", "pod-00002"}
    assert memory_keys(told(collector)) == {"pod-00000", "pod-00001", "pod-00002"}
    assert memory_keys(told(collector)) == {"pod-00001", "pod-00002", "pod-00502"}


def test_the_choice_does_not_depend_on_the_order_of_the_view() -> None:
    view = replace(usual_view(), failures={})
    equal = {key: MemoryUse(in_use=1) for key in crowd(50)}
    backwards = dict(reversed(list(equal.items())))
    one = memory_keys(told(limited(replace(view, memory=equal), label_sets=5)))
    other = memory_keys(told(limited(replace(view, memory=backwards), label_sets=5)))
    assert one == other == {f"pod-{number:05}" for number in range(5)}


def test_failures_have_a_limit_too() -> None:
    failures = {FailureKey(key, 2): 1 + number for number, key in enumerate(crowd(100))}
    samples = told(limited(replace(usual_view(), memory={}, failures=failures), label_sets=10))
    name = "gpumemprof_allocation_failures_total"
    assert names(samples, name, "pod") == {f"pod-{number:05}" for number in range(90, 100)}
    assert value(samples, "gpumemprof_agent_series_omitted", family="failures") == 90


# The agent itself


def test_every_loss_has_a_cause_and_shows_before_it_happens() -> None:
    samples = told(of(usual_view()))
    causes = names(samples, "gpumemprof_agent_lost_total", "cause")
    noted = names(samples, "gpumemprof_agent_noted_total", "what")
    apart = {"push_failed", "libraries_not_probed", "owners_overflowed"}
    assert causes == LOST.keys() - apart
    assert noted == NORMAL.keys() - {"events", "stacks", "frames_without_symbol"}
    assert value(samples, "gpumemprof_agent_lost_total", cause="events_lost") == 7
    assert value(samples, "gpumemprof_agent_lost_total", cause="stacks_truncated") == 11
    assert value(samples, "gpumemprof_agent_lost_total", cause="stacks_lost") == 0
    assert value(samples, "gpumemprof_agent_frames_unsymbolised_total") == 13
    assert value(samples, "gpumemprof_agent_noted_total", what="unknown_frees") == 17
    assert value(samples, "gpumemprof_agent_events_received_total") == 8_000
    assert value(samples, "gpumemprof_agent_stacks_received_total") == 4_100


def test_a_counter_that_no_table_knows_is_a_loss() -> None:
    samples = told(of(replace(usual_view(), counters={"invented": 3})))
    assert value(samples, "gpumemprof_agent_lost_total", cause="invented") == 3


def test_health_of_the_agent() -> None:
    samples = told(of(usual_view(), usual_push()))
    prefix = "gpumemprof_agent_"
    assert value(samples, prefix + "info", kernel="6.8.0-azure", loader="libbpf 1.1") == 1
    assert value(samples, prefix + "snapshot_timestamp_seconds") == 1_800_000_000.5
    assert value(samples, prefix + "processes", state="held") == 1
    assert value(samples, prefix + "attached_libraries", library="libcudart") == 2
    assert value(samples, prefix + "libraries_not_probed") == 1
    assert value(samples, prefix + "container_overflows_total") == 5
    assert value(samples, prefix + "api_up", watch="pods") == 1
    assert value(samples, prefix + "api_up", watch="switch") == 0
    assert value(samples, prefix + "api_errors_total", watch="switch") == 9
    assert value(samples, prefix + "api_errors_total", watch="pods") == 0
    assert value(samples, prefix + "switch_rejected_total") == 2
    assert value(samples, prefix + "pushes_total", result="delivered") == 500
    assert value(samples, prefix + "pushes_total", result="rejected") == 1
    assert value(samples, prefix + "push_attempts_total", result="throttled") == 6
    assert value(samples, prefix + "push_queue_length") == 3
    assert value(samples, prefix + "push_last_success_timestamp_seconds") == 1_799_999_990


def test_each_series_of_the_agent_names_its_node() -> None:
    for name, labels in told(of(usual_view(), usual_push())):
        assert ("node", NODE) in labels, name


def test_an_agent_without_time_tells_its_old_health_and_no_memory() -> None:
    """A namespace may have been switched off since the last view."""
    views = [usual_view()]

    def view() -> AgentView:
        if not views:
            raise GpumemprofError("the agent is busy; try again")
        return views.pop()

    collector = AgentCollector(view, usual_push)
    told(collector)
    samples = told(collector)
    assert value(samples, "gpumemprof_agent_snapshot_timestamp_seconds") == 1_800_000_000.5
    assert value(samples, "gpumemprof_agent_pushes_total", result="delivered") == 500
    assert not any(TRAINER.pod in dict(labels).values() for _, labels in samples)
    with pytest.raises(GpumemprofError):
        told(AgentCollector(view))


def test_its_own_processor_time_and_memory_are_told() -> None:
    samples = told(of(usual_view()))
    assert {name for name, _ in samples} >= set(PROCESS_METRICS)
    assert value(samples, "gpumemprof_agent_process_resident_memory_bytes") > 1 << 20


def test_without_pyroscope_nothing_is_told_of_pushes() -> None:
    assert not [name for name, _ in told(of(usual_view())) if "push" in name]


def test_pyroscope_that_never_answered_is_told_from_the_start() -> None:
    samples = told(of(usual_view(), PushStatus()))
    assert value(samples, "gpumemprof_agent_pushes_total", result="delivered") == 0
    assert value(samples, "gpumemprof_agent_pushes_total", result="too_old") == 0
    assert value(samples, "gpumemprof_agent_push_attempts_total", result="unreachable") == 0
    assert value(samples, "gpumemprof_agent_push_last_success_timestamp_seconds") == 0


# The formats


def test_every_metric_of_the_table_is_told_and_none_besides() -> None:
    table = {metric.name for metric in METRICS} | set(PROCESS_METRICS)
    assert {name for name, _ in told(of(usual_view(), usual_push()))} == table
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_openmetrics_where_it_is_asked_for() -> None:
    exposition = Exposition(of(usual_view(), usual_push()))
    body, content_type = exposition("application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1")
    assert content_type.startswith("application/openmetrics-text")
    families = list(openmetrics_parser.text_string_to_metric_families(body.decode()))
    samples = {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}
    plain = told(of(usual_view(), usual_push()))
    for process in PROCESS_METRICS:  # these move on
        for key in [key for key in plain if key[0] == process]:
            del plain[key], samples[key]
    assert samples == plain


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4", "nonsense;;q=;,", "\n"])
def test_plain_text_for_everyone_else(accept: str) -> None:
    body, content_type = Exposition(of(usual_view()))(accept)
    assert content_type.startswith("text/plain")
    assert list(text_string_to_metric_families(body.decode()))


def test_an_agent_that_has_seen_nothing_yet() -> None:
    samples = told(of(AgentView(time_ns=0, node=NODE)))
    assert value(samples, "gpumemprof_agent_events_received_total") == 0
    assert not memory_keys(samples)


def test_scrapes_at_the_same_time_agree() -> None:
    collector = AgentCollector(
        lambda: replace(usual_view(), memory=crowd(300), failures={}),
        max_series=100 * len(MEMORY_METRICS),
    )
    answers: list[set[str]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(memory_keys(told(collector))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(answer == answers[0] for answer in answers)


def test_promtool_finds_no_fault_in_names_types_and_help() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    body, _ = Exposition(of(usual_view(), usual_push()))()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_sum_over_all_series_is_what_the_node_holds() -> None:
    samples = told(of(usual_view()))
    name = "gpumemprof_memory_in_use_bytes"
    total = sum(n for (its, _), n in samples.items() if its == name)
    assert total == sum(use.in_use for use in usual_view().memory.values())


def test_the_documentation_has_every_metric_and_every_cause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert generate_metrics.current(page) == page, "run scripts/generate_metrics.py"
