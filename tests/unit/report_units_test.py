"""Sizes, shares and times as people read them; CUDA's errors by name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.report import cuda_errors, units

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * MIB, "1.50 GiB"),
        (24 * MIB, "24.0 MiB"),
        (1000 * MIB, "1000 MiB"),
        (GIB - 1, "1.00 GiB"),
        (int(9.996 * GIB), "10.0 GiB"),
        (int(99.96 * GIB), "100 GiB"),
        (2**63, "8.00 EiB"),
        (2**74, "16384 EiB"),
        (-2 * MIB, "-2.00 MiB"),
    ],
)
def test_sizes_have_three_digits_in_binary_units(count, text):
    assert units.size(count) == text


@given(st.integers(0, 2**62))
def test_a_size_is_never_more_than_half_a_percent_off(count):
    number, unit = units.size(count).split()
    scale = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].index(unit)
    assert abs(float(number) * scale - count) <= count / 200
    assert len(re.sub(r"\D", "", number)) <= 4


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ms"),
        (85_000_000, "85 ms"),
        (8_450_000_000, "8.4 s"),
        (59_999_999_999, "59.9 s"),
        (83 * 10**9, "1 min 23 s"),
        (7500 * 10**9, "2 h 5 min"),
        (100 * 3600 * 10**9, "4 d 4 h"),
        (-(10**9), "-1.0 s"),
    ],
)
def test_durations_have_two_units(nanoseconds, text):
    assert units.duration(nanoseconds) == text


def test_times_are_utc_and_impossible_ones_are_no_error():
    assert units.moment(1_767_225_600 * 10**9) == "2026-01-01 00:00:00 UTC"
    assert units.moment(2**63 - 1).startswith("2262")
    assert units.moment(2**80) == "at an unknown time"


def test_exact_numbers_have_separators():
    assert units.exact(1_610_612_736) == "1,610,612,736 bytes"
    assert units.number(1, "call") == "1 call"


def test_a_share_of_nothing_is_no_number():
    assert units.share(1, 4) == "25.0%"
    assert units.share(0, 0) == "-"


def test_an_error_is_named_as_the_library_of_the_call_names_it():
    assert cuda_errors.name(2, "cudaMallocAsync") == "cudaErrorMemoryAllocation"
    assert cuda_errors.name(2, "cuMemAllocAsync") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert cuda_errors.meaning(2) == "out of memory"
    assert cuda_errors.name(12345, "cudaMalloc") == cuda_errors.meaning(12345) == ""
