"""What Pyroscope's two APIs accept, and what they lose without saying so, as values.

Measured on servers 2.0.0 and 2.2.1. ``Refused`` carries the status that the server would answer.
What a server takes with 200 and then loses, cuts or files wrongly is a violation: text that tests
assert to be absent.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from gpumemprof.profile import pprof_pb2

MAX_PROFILE = 4 << 20
MAX_SAMPLES = 16_000
MAX_LABELS = 30
MAX_NAME, MAX_VALUE = 1024, 2048
MAX_DEPTH = 1000
MAX_STRING = 65_535
MAX_LINE = 64 << 10
OLDEST_NS, NEWEST_NS = 3600 * 10**9, 600 * 10**9
BURST_BYTES, BYTES_PER_SECOND = 2 << 20, 4 << 20

FOLDED_UNITS = {
    "alloc_objects": "count",
    "alloc_space": "bytes",
    "inuse_objects": "count",
    "inuse_space": "bytes",
}
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_APPLICATION = re.compile(r"[A-Za-z0-9_./-]+")
_FOLDED_LABEL = re.compile(r"[A-Za-z0-9_.]+")


class Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Stored:
    """One sample type of one series at one time: what a query gets."""

    labels: tuple[tuple[str, str], ...]
    type_id: str
    time_ns: int
    total: int
    stacks: dict[tuple[str, ...], int]
    """Function names from the root, as flame graphs merge them."""

    @property
    def key(self) -> tuple[tuple[tuple[str, str], ...], str, int]:
        return self.labels, self.type_id, self.time_ns


@dataclass
class Accepted:
    size: int
    """Bytes that count against the tenant's rate."""
    stored: list[Stored] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def push(body: bytes, now_ns: int) -> Accepted:
    """A JSON body of /push.v1.PusherService/Push."""
    try:
        series = json.loads(body)["series"]
        parsed = [
            (
                [(pair["name"], pair["value"]) for pair in one["labels"]],
                [
                    base64.b64decode(sample["rawProfile"], validate=True)
                    for sample in one["samples"]
                ],
            )
            for one in series
        ]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise Refused(400, f"not a push request: {error!r}") from error
    accepted = Accepted(0)
    if len(parsed) != 1 or len(parsed[0][1]) != 1:
        accepted.violations.append("not one profile of one series in a request")
    if not any(samples for _, samples in parsed):
        raise Refused(400, "no profiles received")
    for labels, samples in parsed:
        for raw in samples:
            data = _unpack(raw)
            accepted.size += len(data) + sum(len(n) + len(v) for n, v in labels)
            _check_labels(labels, accepted.violations)
            _store(data, labels, now_ns, accepted)
    return accepted


def _unpack(raw: bytes) -> bytes:
    data = b""
    try:
        while raw:
            member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            data += member.decompress(raw, MAX_PROFILE + 1 - len(data))
            if len(data) > MAX_PROFILE:
                raise Refused(400, "uncompressed profile payload size exceeds limit of 4.2 MB")
            if not member.eof:
                raise Refused(500, "unexpected EOF")
            raw = member.unused_data
    except zlib.error as error:
        raise Refused(500, f"gzip: {error}") from error
    return data


def _check_labels(labels: list[tuple[str, str]], violations: list[str]) -> None:
    names = Counter(name for name, _ in labels)
    if not labels:
        raise Refused(400, "error at least one label pair is required per profile")
    for name, value in labels:
        if names[name] > 1:
            raise Refused(400, f"duplicate label name {name!r}")
        if len(name.encode()) > MAX_NAME or len(value.encode()) > MAX_VALUE:
            raise Refused(400, f"label {name[:40]!r} is too long")
        if not _LABEL.fullmatch(name.replace(".", "_")):
            raise Refused(400, f"invalid label name {name!r}")
        if "." in name:
            violations.append(f"label {name!r} is hidden by default")
        if not value:
            violations.append(f"label {name!r} is empty")
        if '"' in value or "," in value:
            violations.append(f"label {name!r} has {value!r}, which the folded API cannot hold")
    told = dict(labels)
    if not told.get("__name__"):
        raise Refused(400, "invalid metric name")
    if told.get("__delta__") != "false":
        violations.append("__delta__ is not false: v1 subtracts successive allocations")
    if not told.get("service_name"):
        violations.append("no service_name: it becomes unknown_service")


def _store(data: bytes, labels: list[tuple[str, str]], now_ns: int, accepted: Accepted) -> None:
    profile = pprof_pb2.Profile()
    try:
        profile.ParseFromString(data)
    except DecodeError as error:
        raise Refused(500, "proto: cannot parse invalid wire-format data") from error
    _check_profile(profile, now_ns)
    violations = accepted.violations
    strings = profile.string_table
    if any(len(text.encode()) > MAX_STRING for text in strings):
        violations.append("a string is cut to its last 65,535 bytes")
    names = dict(labels)
    metric = names.pop("__name__")
    names.pop("__delta__", None)
    period = f"{strings[profile.period_type.type]}:{strings[profile.period_type.unit]}"
    types = [f"{metric}:{strings[t.type]}:{strings[t.unit]}:{period}" for t in profile.sample_type]
    found: dict[tuple[tuple[str, str], ...], list[Counter[tuple[str, ...]]]] = {}
    locations = _locations(profile)
    for sample in profile.sample:
        if min(sample.value) < 0:
            violations.append("a sample with a negative value is dropped")
            continue
        if not any(sample.value):
            violations.append("a sample of zeros is dropped")
            continue
        if any(label.num or not label.str for label in sample.label):
            violations.append("a numeric sample label is dropped")
        if len(sample.location_id) > MAX_DEPTH:
            violations.append("the leaf side of a stack is cut")
        told = {strings[label.key]: strings[label.str] for label in sample.label if label.str}
        if len(labels) + len(told) > MAX_LABELS:
            raise Refused(400, f"{len(labels) + len(told)} label names; limit {MAX_LABELS}")
        _check_sample_labels(told, violations)
        counters = found.setdefault(
            tuple(sorted({**names, **told}.items())), [Counter() for _ in types]
        )
        stack = tuple(_functions(locations, sample))
        for counter, value in zip(counters, sample.value, strict=True):
            counter[stack] += value
    if not found:
        violations.append("an all-zero profile is dropped")
    for key, counters in found.items():
        for type_id, counter in zip(types, counters, strict=True):
            accepted.stored.append(
                Stored(key, type_id, profile.time_nanos, counter.total(), dict(+counter))
            )


def _check_sample_labels(told: dict[str, str], violations: list[str]) -> None:
    for name in told:
        if not _LABEL.fullmatch(name):
            raise Refused(400, f"invalid label name {name!r}")
    many = told.keys() & {"pid", "tid", "comm", "call", "device"}
    if many:
        violations.append(f"sample labels {sorted(many)} make a series of each of their values")


def _check_profile(profile: pprof_pb2.Profile, now_ns: int) -> None:
    size = len(profile.string_table)
    if not profile.sample_type:
        raise Refused(400, "empty profile")
    if not now_ns - OLDEST_NS < profile.time_nanos < now_ns + NEWEST_NS:
        raise Refused(400, "is outside of ingestion window")
    if len(profile.sample) > MAX_SAMPLES:
        raise Refused(400, "exceeds the samples count limit")
    if not size or profile.string_table[0]:
        raise Refused(400, "string 0 should be empty string")
    used = [t.type for t in profile.sample_type] + [t.unit for t in profile.sample_type]
    used += [i for s in profile.sample for label in s.label for i in (label.key, label.str)]
    used += [i for f in profile.function for i in (f.name, f.system_name, f.filename)]
    used += [i for m in profile.mapping for i in (m.filename, m.build_id)]
    if any(not 0 <= index < size for index in used):
        raise Refused(400, "string index out of range")
    if any("-" in profile.string_table[t.type] for t in profile.sample_type):
        raise Refused(400, "sample type contains -")
    if any(len(sample.value) != len(profile.sample_type) for sample in profile.sample):
        raise Refused(400, "sample value length mismatch")
    if not all(thing.id for things in (profile.location, profile.function) for thing in things):
        raise Refused(400, "id is 0")


def _locations(profile: pprof_pb2.Profile) -> dict[int, list[str]]:
    """Location id -> function names from the root."""
    names = {function.id: profile.string_table[function.name] for function in profile.function}
    try:
        return {
            location.id: [names[line.function_id] for line in reversed(location.line)]
            for location in profile.location
        }
    except KeyError as error:
        raise Refused(500, f"there is no function {error}") from error


def _functions(locations: dict[int, list[str]], sample: pprof_pb2.Sample) -> Iterator[str]:
    """From the root."""
    try:
        for location_id in reversed(sample.location_id):
            yield from locations[location_id]
    except KeyError as error:
        raise Refused(500, f"there is no location {error}") from error


def opened(body: bytes) -> bytes:
    """All that a request's body holds, unpacked as far as it can be."""
    try:
        series = json.loads(body)["series"]
        raw = [
            base64.b64decode(sample["rawProfile"]) for one in series for sample in one["samples"]
        ]
        return b"\n".join(map(_unpack, raw))
    except (ValueError, KeyError, TypeError, Refused):
        return body


def ingest(query: dict[str, str], body: bytes, now_ns: int) -> Accepted:
    """A folded body of /ingest."""
    accepted = Accepted(len(body) + len(query.get("name", "")))
    if query.get("format") != "folded":
        raise Refused(400, "only folded stacks are known here")
    labels, metric_type, time_ns = _name(query, accepted.violations)
    if not now_ns - OLDEST_NS < time_ns < now_ns + NEWEST_NS:
        raise Refused(400, "is outside of ingestion window")
    if body[:2] == b"\x1f\x8b":
        accepted.violations.append("a gzipped body is lost")
        return accepted
    counter: Counter[tuple[str, ...]] = Counter()
    for line in body.decode().splitlines():
        if len(line.encode()) > MAX_LINE:
            accepted.violations.append("a line is too long: it and the rest are lost")
            break
        stack, space, value = line.rpartition(" ")
        if not space:
            accepted.violations.append("a line without a value is lost")
            continue
        if not re.fullmatch(r"[+-]?\d+", value):
            raise Refused(422, f"strconv.Atoi: parsing {value!r}: invalid syntax")
        if int(value) < 0:
            raise Refused(500, "runtime error")
        counter[tuple(stack.split(";"))] += int(value)
    if not counter.total():
        accepted.violations.append("an all-zero profile is dropped")
        return accepted
    unit = FOLDED_UNITS[metric_type]
    accepted.stored.append(
        Stored(labels, f"memory:{metric_type}:{unit}::", time_ns, counter.total(), dict(counter))
    )
    return accepted


def _name(
    query: dict[str, str], violations: list[str]
) -> tuple[tuple[tuple[str, str], ...], str, int]:
    """``app.type{k=v,k=v}``."""
    application, brace, rest = query.get("name", "").partition("{")
    if not _APPLICATION.fullmatch(application):
        raise Refused(400, f"invalid service name {application!r}")
    service, _, metric_type = application.rpartition(".")
    if metric_type not in FOLDED_UNITS:
        raise Refused(400, f"unknown profile type: {metric_type}")
    labels = {"service_name": service}
    for pair in filter(None, rest.removesuffix("}").split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not _FOLDED_LABEL.fullmatch(name):
            raise Refused(400, f"invalid label {pair!r}")
        if '"' in value or "'" in value:
            violations.append(f"the quotes of {name} are kept")
        labels[name] = value
    if brace and not rest.endswith("}"):
        violations.append("the labels have no end")
    if len(labels) > MAX_LABELS - 3:
        raise Refused(400, "too many label names")
    if not re.fullmatch(r"\d{19}", query.get("from", "")):
        violations.append("from is not in nanoseconds")
    return tuple(sorted(labels.items())), metric_type, int(query["from"])
