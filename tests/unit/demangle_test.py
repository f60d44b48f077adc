"""Linker names as their readers know them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumemprof.stack import demangle as module
from gpumemprof.stack import itanium, rust_names
from gpumemprof.stack.demangle import demangle, runtime_demangle
from gpumemprof.stack.demangled_text import shortened

LIBSTDCPP = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")

CPP: dict[str, str] = {
    "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator6mallocEmP11CUstream_st": (
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc"
    ),
    "_Z3fooi": "foo",
    "_ZN12_GLOBAL__N_13barEv": "(anonymous namespace)::bar",
    "_ZZ3foovENKUliE_clEi": "foo::{lambda#1}::operator()",
    "_ZZ3foovENKUliE0_clEi": "foo::{lambda#2}::operator()",
    "_ZZNK1A1fEvENKUlvE_clEv": "A::f::{lambda#1}::operator()",
    "_ZNK3FoocviEv": "Foo::operator int",
    "_ZNK1AcvPKcEv": "A::operator char const*",
    "_ZNK1XcvT_IiEEv": "X::operator T",
    "_ZNK3FooltERKS_": "Foo::operator<",
    "_ZNK3FoogtERKS_": "Foo::operator>",
    "_ZN1AssERKS_": "A::operator<=>",
    "_ZNK3FooclEv": "Foo::operator()",
    "_ZNK3FooixEi": "Foo::operator[]",
    "_ZNK3FooptEv": "Foo::operator->",
    "_ZN3FoolsIiEERS_T_": "Foo::operator<<",
    "_Znwm": "operator new",
    "_ZnwmPv": "operator new",
    "_Znam": "operator new[]",
    "_ZdlPv": "operator delete",
    "_ZdaPv": "operator delete[]",
    "_ZN1AdlEPv": "A::operator delete",
    "_Zli2_wPKc": 'operator"" _w',
    "_ZN3FooD1Ev": "Foo::~Foo",
    "_ZN3FooC2IiEET_": "Foo::Foo",
    "_ZNSsD1Ev": "std::basic_string::~basic_string",
    "_ZNSs6appendEPKc": "std::string::append",
    "_ZNSt6vectorIiSaIiEE9push_backERKi": "std::vector::push_back",
    "_ZNKSt5ctypeIcE8do_widenEc": "std::ctype::do_widen",
    "_ZSt4moveIRiEONSt16remove_referenceIT_E4typeEOS2_": "std::move",
    "_Z1fIiEDaT_": "f",
    "_Z1fIiEDcT_": "f",
    "_Z3fooPFvPFivEE": "foo",
    "_Z1fM1AKFivE": "f",
    "_Z1fDn": "f",
    "_Z1fRA10_i": "f",
    "_Z1fIXgtLi3ELi2EEEvv": "f",
    "_ZN1A1BIXadL_Z3foovEEE1gEv": "A::B::g",
    "_ZN1fILb1EE1gEv": "f::g",
    "_ZN3FooB5cxx113barEv": "Foo::bar",
    "_ZThn16_N3Foo3barEv": "Foo::bar",
    "_ZTv0_n24_N3Foo3barEv": "Foo::bar",
    "_ZNO3Foo3barEv": "Foo::bar",
    "_ZN3foo3barILi1EEUt_D1Ev": "foo::bar::{unnamed type#1}::~{unnamed type#1}",
    "_Z3fooi.isra.0": "foo",
    "_Z3fooi.constprop.0.cold": "foo",
    "_Z3fooi@@V1": "foo",
    # "sr" before a nested type, and a pack opened by I, as older compilers wrote them
    "_ZN8pybind114moveIN2at6TensorEEENSt9enable_ifIXntsrNS_6detail8negationISt17integral_constantIb"
    "XoosrNS4_11move_alwaysIT_vEE5valuesrNS4_20move_if_unreferencedIS8_vEE5valueEEEE5valueES8_E4type"
    "EONS_6objectE": "pybind11::move",
    "_ZNSt5dequeINSt10filesystem7__cxx114pathESaIS2_EE16_M_push_back_auxIIRKS2_EEEvDpOT_": (
        "std::deque::_M_push_back_aux"
    ),
}

RUST = {
    "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE": "core::fmt::Write::write_fmt",
    "_ZN63_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..clone..Clone$GT$5clone"
    "17h0123456789abcdefE": ("<alloc::vec::Vec<T> as core::clone::Clone>::clone"),
    "_ZN4core3ptr13drop_in_place17h0123456789abcdefE.llvm.123": "core::ptr::drop_in_place",
    "_RNvNtCs1234_7mycrate3foo3bar": "mycrate::foo::bar",
    "_RINvNtCsgEmfK2I1SDS_4core3ptr13drop_in_placeNtNtCslNYArtu3iFV_5alloc6string6StringECs_1a": (
        "core::ptr::drop_in_place"
    ),
    "_RNvMNtCs1_1a1bNtB2_1S3new": "a::b::S::new",
    "_RNvXCs1_1aNtB2_1SNtB2_1T1f": "<a::S as a::T>::f",
    "_RNCNvCs1_1a4main0": "a::main::{closure#0}",
    "_RNCNvCs1_1a4mains_0": "a::main::{closure#1}",
    "_RNvCs1_1au9bcher_kva": "a::bücher",
}


@pytest.mark.parametrize(("mangled", "expected"), CPP.items())
def test_cpp_names_are_cut_to_the_function(mangled: str, expected: str) -> None:
    assert demangle(mangled) == expected


@pytest.mark.parametrize(("mangled", "expected"), RUST.items())
def test_rust_names_are_cut_to_the_path(mangled: str, expected: str) -> None:
    assert demangle(mangled) == expected


@pytest.mark.parametrize(
    "name",
    ["malloc", "main", "_start", "__restore_rt", "PyObject_Call", "_Z", "_R", "", "_ZN", "a.b"],
)
def test_other_names_stay_as_they_are(name: str) -> None:
    assert demangle(name) == name


def test_parts_of_c_functions_count_as_the_function() -> None:
    assert demangle("msort_with_tmp.part.0") == "msort_with_tmp"
    assert demangle("work.constprop.3.cold", short=True) == "work"
    assert demangle("work.constprop.3.cold", short=False) == "work.constprop.3.cold"


@pytest.mark.skipif(not LIBSTDCPP.exists(), reason="needs libstdc++")
@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        ("_ZN3foo3barEi", "foo::bar(int)"),
        ("_ZNSt6vectorIiSaIiEE9push_backERKi",
         "std::vector<int, std::allocator<int> >::push_back(int const&)"),
        ("_ZNK1AcvPFvvEEv", "A::operator void (*)()() const"),
        ("_RINvNtCs1_4core3ptr13drop_in_placeNtNtCs2_5alloc6string6StringECs_1a",
         "core::ptr::drop_in_place::<alloc::string::String>"),
    ],
)  # fmt: skip
def test_full_names_keep_everything(mangled: str, expected: str) -> None:
    assert demangle(mangled, short=False) == expected


def test_a_name_longer_than_the_runtime_takes_is_cut_all_the_same() -> None:
    mangled = "_ZN2at6native4callI" + "St4pairIiiE" * 200 + "EEvv"
    assert runtime_demangle(mangled) is None
    assert demangle(mangled) == "at::native::call"
    assert demangle(mangled, short=False) == "at::native::call"


def test_without_a_cpp_runtime_names_are_cut_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_runtime", lambda: None)
    demangle.cache_clear()
    assert demangle("_ZN3foo3barEi") == "foo::bar"
    assert demangle("_ZN3foo3barEi", short=False) == "foo::bar"
    demangle.cache_clear()


@pytest.mark.skipif(
    not LIBSTDCPP.exists() or shutil.which("nm") is None, reason="needs libstdc++ and binutils"
)
def test_every_name_of_the_cpp_library_is_what_the_full_text_cut_down_says() -> None:
    """Two ways to one name: reading it, and cutting what the runtime writes out."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", LIBSTDCPP], capture_output=True, text=True, check=True
    ).stdout
    names = {
        line.split()[-1].split("@")[0] for line in text.splitlines() if line.split()[1] in "TWi"
    }
    compared = 0
    for name in names:
        full = runtime_demangle(name) if name.startswith("_Z") else None
        if full is not None and "(std::__exception_ptr::exception_ptr::*)" not in full:
            assert itanium.read(name).short == shortened(full), name
            compared += 1
    assert compared > 3000


# Hostile names


def test_a_name_that_stands_for_gigabytes_is_not_written_out() -> None:
    body = "St4pairIiiE"  # each type that follows holds the one before it twice
    for level in range(1, 60):
        body += f"St4pairIS{_base36(2 * level - 2)}_S{_base36(2 * level - 2)}_E"
    mangled = "_Z1f" + body
    assert itanium.read(mangled).cost > itanium.MAX_COST
    assert demangle(mangled, short=False) == "f"


def test_a_conversion_to_a_type_that_doubles_without_end_is_left_alone() -> None:
    # S_ is A; each parameter points to a member of, and of the type of, the parameter before it
    doubling = "MS_i" + "".join(f"MS{_base36(n)}_S{_base36(n)}_" for n in range(40))
    mangled = f"_ZN1AcvPFv{doubling}EEv"
    assert demangle(mangled) == mangled
    assert demangle(mangled, short=False) == mangled


def _base36(number: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return digits[number] if number < 36 else _base36(number // 36) + digits[number % 36]


def test_a_rust_name_that_stands_for_a_text_without_end_is_left_alone() -> None:
    body = "_RIC1aTu"
    for _ in range(60):
        body += "TB5_B5_"
    assert demangle(body + "EE") == body + "EE"


@pytest.mark.parametrize(
    "mangled",
    [
        "_ZN" + "N" * 5000,
        "_Z1f" + "P" * 5000 + "i",
        "_Z1fI" + "X" * 3000,
        "_Z1f" + "F" * 3000,
        "_Z" + "Z" * 5000,
        "_ZN" + "1a" * 7000 + "E",
        "_ZN99999999999999999999a",
        "_ZS" + "Z" * 500 + "_",
        "_R" + "N" * 5000,
        "_R" + "M" * 5000,
        "_RB_",
        "_RNvB_1a",
        "_Z" * 6000,
        "_ZNSt\u00e9E",
        "_Z1f\u0000i",
    ],
)
def test_a_name_that_is_nested_without_end_is_left_alone_or_read(mangled: str) -> None:
    for short in (True, False):
        assert isinstance(demangle(mangled, short=short), str)


ALPHABET = "NSTIEXLZKPRFOMACDtbvilsrcpf_0123456789aU"


@settings(max_examples=1500, deadline=None)
@given(
    st.text(alphabet=ALPHABET, max_size=60), st.sampled_from(["_Z", "_ZN", "_R", "_RNv", "_Z1f"])
)
def test_names_put_together_at_random_are_read_or_refused(tail: str, head: str) -> None:
    for short in (True, False):
        assert demangle.__wrapped__(head + tail, short=short)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([*CPP, *RUST]), st.integers(0, 200), st.text(alphabet=ALPHABET, max_size=4))
def test_real_names_with_an_error_in_them_are_read_or_refused(
    name: str, position: int, error: str
) -> None:
    damaged = name[:position] + error + name[position + 1 :]
    for short in (True, False):
        assert isinstance(demangle.__wrapped__(damaged, short=short), str)


def test_a_legacy_hash_is_told_from_a_cpp_name() -> None:
    assert rust_names.is_legacy("_ZN4core3fmt17h0123456789abcdefE")
    assert not rust_names.is_legacy("_ZN4core3fmt5writeEv")
    assert re.match("_ZN", "_ZN4core3fmt5writeEv")
