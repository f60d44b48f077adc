"""What is made of a container's profile for Pyroscope."""

from __future__ import annotations

import gzip
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from profile_examples import (
    GIB,
    KV_CACHE,
    STAGING,
    START,
    TRAINING,
    WEIGHTS,
    labels,
    native,
    profiles,
    python,
)
from pyroscope_examples import (
    HOST,
    INTERVAL,
    SERVER,
    TRAINER,
    container,
    idle,
    only,
    settings,
    total,
)

from gpumemprof.export.pyroscope import series, timeless
from gpumemprof.export.pyroscope.encode import FOLDED_TYPES, Encoded, Encoder
from gpumemprof.export.pyroscope.push import INGEST_PATH, Request
from gpumemprof.profile import gzipped, pprof
from gpumemprof.profile.merge import LEFT_OUT
from gpumemprof.profile.model import TYPE_NAMES, Profile, Sample, Values
from tests.fakes import pyroscope_rules as rules

URL = "http://pyroscope:4040"


def encoder(**options) -> Encoder:
    return Encoder(settings(URL, **options))


def accept(encoded: Encoded, time_ns: int) -> rules.Accepted:
    """As a strict server does it."""
    request = encoded.push.request(time_ns)
    if request.target.startswith(INGEST_PATH):
        query = {k: v[0] for k, v in parse_qs(urlsplit(request.target).query).items()}
        accepted = rules.ingest(query, request.body, time_ns)
    else:
        accepted = rules.push(request.body, time_ns)
    assert accepted.violations == []
    return accepted


def stored(profile: Profile, owner=TRAINER, **options) -> list[rules.Stored]:
    made = container(profile, owner)
    return [
        one
        for encoded in encoder(**options).encode(made)
        for one in accept(encoded, made.time_ns).stored
    ]


def bytes_of(found: list[rules.Stored], type_id: str, **told: str) -> int:
    return sum(
        one.total
        for one in found
        if one.type_id == type_id and told.items() <= dict(one.labels).items()
    )


def opened(request: Request) -> bytes:
    return rules.opened(request.body)


def test_gpu_memory_and_pinned_memory_are_two_services_and_every_byte_is_in_one() -> None:
    found = stored(TRAINING)
    for name in TYPE_NAMES:
        type_id = f"memory:{name}:{'bytes' if 'space' in name else 'count'}:space:bytes"
        gpu = bytes_of(found, type_id, service_name="gpu/ml/trainer")
        pinned = bytes_of(found, type_id, service_name="pinned_host/ml/trainer")
        assert (gpu, pinned) == (
            total(TRAINING, name, pinned=False),
            total(TRAINING, name, pinned=True),
        )


def test_a_series_is_told_by_pod_kind_and_gpu_and_by_nothing_that_grows() -> None:
    profile = only(
        Sample(
            WEIGHTS, (*labels(pid=1), ("gpu", "3"), ("gpu_uuid", "GPU-1")), Values(1, 2, 1, 2, 2)
        ),
        Sample(
            WEIGHTS, (*labels(pid=2), ("gpu", "3"), ("gpu_uuid", "GPU-1")), Values(1, 3, 1, 3, 3)
        ),
    )
    found = stored(profile, labels={"cluster": "west"})
    assert {dict(one.labels)["gpu"] for one in found} == {"3"}
    assert dict(found[0].labels) == {
        "service_name": "gpu/ml/trainer",
        "namespace": "ml",
        "pod": "trainer-7d9f-x2x",
        "container": "main",
        "node": "node-1",
        "cluster": "west",
        "kind": "device",
        "gpu": "3",
    }
    assert len(found) == len(TYPE_NAMES)
    assert bytes_of(found, "memory:inuse_space:bytes:space:bytes") == 5


def test_a_process_of_no_pod_is_told_by_its_program() -> None:
    services = {dict(one.labels)["service_name"] for one in stored(TRAINING, HOST)}
    assert services == {"gpu/_host/VLLM__EngineCore", "pinned_host/_host/VLLM__EngineCore"}


def test_a_kind_that_is_not_known_is_gpu_memory() -> None:
    found = stored(only(Sample(WEIGHTS, (), Values(1, 2, 1, 2, 2))))
    assert {dict(one.labels)["service_name"] for one in found} == {"gpu/ml/trainer"}


def test_functions_files_and_lines_are_sent_and_no_command_line() -> None:
    (gpu, _) = encoder().encode(container())
    data = opened(gpu.push.request(START))
    read = pprof.decode(data)
    assert read.samples[0].stack == WEIGHTS
    assert b"train.py --epochs" not in data
    assert b"4242" not in data
    assert read.processes == () and read.failures == () and read.about == {}


def test_nothing_but_zeros_is_not_pushed() -> None:
    assert encoder().encode(container(only())) == ()
    assert encoder().encode(container(only(Sample(WEIGHTS, labels(), Values())))) == ()


def test_a_negative_value_does_not_cost_the_sample_and_is_counted() -> None:
    made = encoder()
    (one,) = made.encode(container(only(Sample(WEIGHTS, labels(), Values(-1, -5, 2, 9, 9)))))
    accepted = accept(one, container().time_ns)
    assert bytes_of(accepted.stored, "memory:inuse_space:bytes:space:bytes") == 9
    assert made.negative == 1
    assert one.undelivered == ()


def test_the_profile_has_the_time_of_the_interval_and_only_that_changes() -> None:
    (gpu, _) = encoder().encode(container())
    early, late = (opened(gpu.push.request(START + n * INTERVAL)) for n in (0, 1))
    assert pprof.decode(early).time_ns == START
    assert pprof.decode(late).time_ns == START + INTERVAL
    assert pprof.decode(late).duration_ns == INTERVAL
    assert replace(pprof.decode(late), time_ns=START) == pprof.decode(early)


@given(profiles())
def test_a_stamped_profile_is_one_sound_gzip_member(profile) -> None:
    packed = timeless.pack(profile)
    for time_ns in (0, 1, START, 2**63 - 1):
        data = packed.stamped(time_ns)
        unpacked = gzipped.decompress(data, 1 << 20)
        assert unpacked == gzip.decompress(data)
        assert abs(packed.size - len(unpacked)) <= 10
        assert pprof.decode(data).time_ns == time_ns


def test_what_did_not_change_is_not_encoded_again() -> None:
    made = encoder()
    first = made.encode(container(idle(), intervals_ago=2))
    second = made.encode(container(idle(), intervals_ago=1))
    made.encode(container(idle(), SERVER, intervals_ago=1))
    assert (made.encoded, made.unchanged) == (2, 1)
    assert second is first
    third = made.encode(container(TRAINING))
    assert (made.encoded, made.unchanged) == (3, 1)
    assert third is not first
    assert third[0].undelivered


def test_owners_that_are_gone_are_forgotten() -> None:
    made = encoder()
    made.encode(container(idle(), SERVER, intervals_ago=100))
    made.encode(container(idle(), TRAINER))
    assert set(made._known) == {TRAINER}


def test_what_is_lost_with_a_push_is_its_allocations() -> None:
    gpu, pinned = encoder().encode(container())
    assert [sample.values for sample in pinned.undelivered] == [Values(8, 2 * GIB, 0, 0, 0)]
    lost = [sample.values for sample in gpu.undelivered]
    assert sum(row.alloc_space for row in lost) == total(TRAINING, "alloc_space", pinned=False)
    assert not any(row.inuse_space or row.peak_space for row in lost)
    assert gpu.undelivered[0].labels == TRAINING.samples[0].labels
    assert all(not one.undelivered for one in encoder().encode(container(idle())))


# Limits


def many(count: int, gpus: int = 1) -> Profile:
    return only(
        *(
            Sample(
                (python(f"function_{i}", i, f"/app/module_{i % 50}.py"), *WEIGHTS),
                (*labels(), ("gpu", str(i % gpus))),
                Values(1, i + 1, 1, 2 * i + 1, 2 * i + 1),
            )
            for i in range(count)
        )
    )


@pytest.mark.parametrize("options", [{"max_samples": 100}, {"max_bytes": 16 << 10}])
@pytest.mark.parametrize("form", ["pprof", "folded"])
def test_a_large_profile_keeps_its_largest_stacks_and_all_its_bytes(form, options) -> None:
    profile = many(3000, gpus=3)
    made = encoder(format=form, **options)
    stamp = container(profile)
    found, largest = [], 0
    for encoded in made.encode(stamp):
        accepted = accept(encoded, stamp.time_ns)
        largest = max(largest, accepted.size)
        found += accepted.stored
    ending = ":space:bytes" if form == "pprof" else "::"
    for gpu in "012":
        (one,) = (
            one
            for one in found
            if one.type_id == f"memory:inuse_space:bytes{ending}" and dict(one.labels)["gpu"] == gpu
        )
        expected = sum(
            sample.values.inuse_space for sample in profile.samples if ("gpu", gpu) in sample.labels
        )
        assert one.total == expected
        assert any(LEFT_OUT.name in stack for stack in one.stacks)
        assert len(one.stacks) > 10
    assert largest <= made.settings.max_bytes + 1000
    assert made.pruned > 0


def test_a_stack_too_deep_for_the_server_keeps_its_leaf_and_its_root() -> None:
    stack = (*WEIGHTS, *(python("recursive", 1) for _ in range(5000)), python("<module>", 1))
    (one,) = encoder().encode(container(only(Sample(stack, labels(), Values(1, 2, 1, 2, 2)))))
    names = next(iter(accept(one, container().time_ns).stored[0].stacks))
    assert len(names) == series.MAX_DEPTH
    assert names[-1] == "cudaMalloc" and names[0] == "<module>"
    assert f"[{len(stack) - series.MAX_DEPTH + 1} frames left out]" in names


def test_names_and_labels_that_anyone_may_choose_are_bounded_and_clean() -> None:
    stack = (native("x" * 100_000, "/lib/" + "y" * 100_000),)
    hostile = TRAINER._replace(workload='a"b,c}d\n' + "w" * 5000, container="c\udcff é", node='n"1')
    profile = only(Sample(stack, (*labels(), ("gpu", '0,"')), Values(1, 2, 1, 2, 2)))
    for form in ("pprof", "folded"):
        found = stored(profile, hostile, format=form)
        assert found
        told = dict(found[0].labels)
        assert told["service_name"].startswith("gpu/ml/a_b_c_d_www")
        assert told["container"] == "c___"
        assert told["gpu"] == "0__"


def test_all_labels_together_stay_below_the_limit() -> None:
    extra = {f"label_{i}": "x" for i in range(16)}
    found = stored(TRAINING, labels=extra)
    assert extra.items() <= dict(found[0].labels).items()


@given(profiles())
def test_any_profile_is_accepted_in_both_formats(profile) -> None:
    for form in ("pprof", "folded"):
        stored(profile, format=form)


# Folded


def test_folded_stacks_are_a_series_of_each_type_kind_and_gpu() -> None:
    found = stored(TRAINING, format="folded")
    gpu = [one for one in found if dict(one.labels)["service_name"] == "gpu/ml/trainer"]
    assert {one.type_id.split(":")[1] for one in found} == set(FOLDED_TYPES)
    assert bytes_of(gpu, "memory:inuse_space:bytes::") == total(
        TRAINING, "inuse_space", pinned=False
    )
    assert {dict(one.labels)["kind"] for one in gpu} == {"device"}
    (pinned,) = (
        one
        for one in found
        if one.type_id == "memory:inuse_space:bytes::"
        and dict(one.labels)["service_name"] == "pinned_host/ml/trainer"
    )
    assert list(pinned.stacks.values()) == [2 * GIB]
    (names,) = pinned.stacks
    assert names[-1] == "cudaHostAlloc" and "batches (/app/train.py:25)" in names
    assert "[pinned host memory]" not in names


def test_what_is_lost_with_a_folded_push_is_its_own_type_only() -> None:
    made = encoder(format="folded").encode(container(only(
        Sample(KV_CACHE, labels(), Values(3, 30, 1, 10, 10)),
        Sample(STAGING, labels(kind="pinned_host"), Values(0, 0, 1, 10, 10)),
    )))  # fmt: skip
    lost = {one.push.name.partition("{")[0]: one.undelivered for one in made}
    assert {name: [s.values for s in samples] for name, samples in lost.items()} == {
        "gpu/ml/trainer.alloc_objects": [Values(3, 0, 0, 0, 0)],
        "gpu/ml/trainer.alloc_space": [Values(0, 30, 0, 0, 0)],
        "gpu/ml/trainer.inuse_objects": [],
        "gpu/ml/trainer.inuse_space": [],
        "pinned_host/ml/trainer.inuse_objects": [],
        "pinned_host/ml/trainer.inuse_space": [],
    }
