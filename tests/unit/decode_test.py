"""What the ledger is told of each call, and which device its memory is on."""

from __future__ import annotations

import struct

import pytest
from hooked_calls import (
    EVERYTHING,
    NOISE,
    OUT,
    READ_IN,
    READ_OUT1,
    READ_OUT2,
    entered,
    free_failed,
    returned,
    words,
)

from gpumemprof.ledger import events as ledger
from gpumemprof.ledger.decode import Decoder
from gpumemprof.ledger.events import UNKNOWN_DEVICE, AddressSpace, LedgerEvent, MemoryKind
from gpumemprof.probe.calls import CALLS, Action, Mode
from gpumemprof.probe.events import CallEvent
from gpumemprof.process.identity import ProcessId

PROCESS = ProcessId(7, 0)
STACK = 42
CONTEXT, OTHER = 0xC0DE, 0xC0FFEE
ADDRESS = 0x7F00_0000_0000
OUT_OF_MEMORY, INVALID_VALUE = 2, 1
DEVICE_LOCATION, HOST_LOCATION = 1, 2


def told(decoder: Decoder, *calls: CallEvent) -> list[LedgerEvent]:
    """All that the ledger is told of these calls."""
    return [change for call in calls for change in decoder.decode(call, PROCESS, STACK)]


def primary(device: int, context: int = CONTEXT) -> CallEvent:
    return returned("cuDevicePrimaryCtxRetain", OUT, NOISE | device, out=[context])


def release(device: int) -> CallEvent:
    return returned("cuDevicePrimaryCtxRelease_v2", NOISE | device)


def properties(location: int, number: int) -> bytes:
    """CUmemAllocationProp: type, handle types, location."""
    return struct.pack("<iiii", 1, 0, location, number)


# Allocations


KINDS = [
    ("cudaMalloc", MemoryKind.DEVICE, AddressSpace.DEVICE),
    ("cuMemAlloc_v2", MemoryKind.DEVICE, AddressSpace.DEVICE),
    ("cudaMallocManaged", MemoryKind.MANAGED, AddressSpace.DEVICE),
    ("cuMemHostAlloc", MemoryKind.PINNED_HOST, AddressSpace.HOST),
]


@pytest.mark.parametrize(("name", "kind", "space"), KINDS)
def test_an_allocation_is_told_with_its_kind_and_the_space_of_its_address(
    name: str, kind: MemoryKind, space: AddressSpace
) -> None:
    decoder = Decoder()
    call = returned(name, OUT, 4096, out=[ADDRESS], context=CONTEXT)
    assert told(decoder, call) == [
        ledger.Allocated(
            PROCESS, 1000, name, kind, space, UNKNOWN_DEVICE, CONTEXT, ADDRESS, 4096, STACK
        )
    ]


def test_an_array_is_named_by_its_handle() -> None:
    descriptor = struct.pack("<QQII", 64, 64, 0x20, 1)
    call = returned("cuArrayCreate_v2", OUT, OUT, out=[0xA88A7], read=descriptor)
    (change,) = told(Decoder(), call)
    assert isinstance(change, ledger.Allocated)
    assert (change.kind, change.space) == (MemoryKind.ARRAY, AddressSpace.ARRAY)
    assert (change.address, change.size) == (0xA88A7, 64 * 64 * 4)


def test_registered_host_memory_is_named_by_its_argument() -> None:
    (change,) = told(Decoder(), returned("cudaHostRegister", ADDRESS, 4096, 0))
    assert isinstance(change, ledger.Allocated)
    assert (change.space, change.address) == (AddressSpace.HOST, ADDRESS)


def test_a_failed_allocation_is_a_failure_with_its_error_and_size() -> None:
    call = returned("cudaMalloc", OUT, 1 << 45, error=OUT_OF_MEMORY)
    assert told(Decoder(), call) == [
        ledger.AllocationFailed(
            PROCESS, 1000, "cudaMalloc", MemoryKind.DEVICE, UNKNOWN_DEVICE, 1 << 45,
            OUT_OF_MEMORY, STACK,
        )
    ]  # fmt: skip


def test_an_error_is_an_int_whatever_the_upper_half_of_the_register_holds() -> None:
    ok = returned("cudaMalloc", OUT, 4096, out=[ADDRESS], error=0)._replace(result=NOISE)
    (change,) = told(Decoder(), ok)
    assert isinstance(change, ledger.Allocated)


def test_an_allocation_of_nothing_is_not_told() -> None:
    assert told(Decoder(), returned("cudaMalloc", OUT, 0, out=[0])) == []


def test_an_allocation_whose_pointer_could_not_be_read_is_counted_as_unreadable() -> None:
    decoder = Decoder()
    unread = EVERYTHING & ~READ_OUT1
    assert told(decoder, returned("cudaMalloc", OUT, 4096, readable=unread)) == []
    assert told(decoder, returned("cuMemCreate", OUT, 4096, OUT, readable=unread)) == []
    assert decoder.unreadable == 2


def test_an_allocation_whose_size_could_not_be_read_is_counted_as_unreadable() -> None:
    decoder = Decoder()
    call = returned("cuArrayCreate_v2", OUT, OUT, out=[1], readable=EVERYTHING & ~READ_IN)
    assert told(decoder, call) == []
    assert decoder.unreadable == 1


def test_a_failed_call_of_unknown_size_is_still_a_failure() -> None:
    (change,) = told(Decoder(), returned("cuArrayCreate_v2", OUT, OUT, error=2, readable=0))
    assert isinstance(change, ledger.AllocationFailed)
    assert change.requested == 0


# Frees


FREES = [
    ("cudaFree", AddressSpace.DEVICE),
    ("cudaFreeAsync", AddressSpace.DEVICE),
    ("cuIpcCloseMemHandle", AddressSpace.DEVICE),
    ("cudaFreeHost", AddressSpace.HOST),
    ("cuMemHostUnregister", AddressSpace.HOST),
    ("cuArrayDestroy", AddressSpace.ARRAY),
    ("cudaFreeMipmappedArray", AddressSpace.ARRAY),
]


@pytest.mark.parametrize(("name", "space"), FREES)
def test_a_free_is_told_when_it_is_entered(name: str, space: AddressSpace) -> None:
    assert told(Decoder(), entered(name, ADDRESS)) == [
        ledger.FreeEntered(PROCESS, 7, 1000, name, space, ADDRESS)
    ]


def test_a_free_of_the_first_interface_has_a_pointer_of_32_bits() -> None:
    (change,) = told(Decoder(), entered("cuMemFree", NOISE | 0x7000_0000))
    assert isinstance(change, ledger.FreeEntered)
    assert change.address == 0x7000_0000


@pytest.mark.parametrize("name", ["cudaFree", "cuMemUnmap", "cuMemRelease"])
def test_a_free_that_failed_is_told_with_its_thread(name: str) -> None:
    failed = free_failed(name, ADDRESS, error=INVALID_VALUE, tid=8)
    assert told(Decoder(), failed) == [ledger.FreeFailed(PROCESS, 8, 1000, name, INVALID_VALUE)]


# Virtual memory management


def test_physical_memory_names_its_device_and_handle() -> None:
    call = returned(
        "cuMemCreate", OUT, 2 << 20, OUT, out=[0xAB], read=properties(DEVICE_LOCATION, 3)
    )
    assert told(Decoder(), call) == [
        ledger.PhysicalCreated(
            PROCESS, 1000, "cuMemCreate", MemoryKind.DEVICE, 3, 0xAB, 2 << 20, STACK
        )
    ]


def test_physical_memory_of_the_host_is_pinned_host_memory() -> None:
    call = returned("cuMemCreate", OUT, 2 << 20, OUT, out=[0xAB], read=properties(HOST_LOCATION, 0))
    (change,) = told(Decoder(), call)
    assert isinstance(change, ledger.PhysicalCreated)
    assert (change.kind, change.device) == (MemoryKind.PINNED_HOST, UNKNOWN_DEVICE)


def test_physical_memory_that_the_driver_refused_is_a_failure_on_its_device() -> None:
    call = returned(
        "cuMemCreate", OUT, 1 << 45, OUT, read=properties(DEVICE_LOCATION, 1), error=OUT_OF_MEMORY
    )
    (change,) = told(Decoder(), call)
    assert isinstance(change, ledger.AllocationFailed)
    assert (change.device, change.requested) == (1, 1 << 45)


def test_mapping_and_unmapping_name_handle_and_range() -> None:
    mapped = returned("cuMemMap", ADDRESS, 2 << 20, 0, 0xAB, 0)
    unmapped = entered("cuMemUnmap", ADDRESS, 2 << 20)
    assert told(Decoder(), mapped, unmapped, entered("cuMemRelease", 0xAB)) == [
        ledger.Mapped(PROCESS, 1000, 0xAB, ADDRESS, 2 << 20),
        ledger.UnmapEntered(PROCESS, 7, 1000, "cuMemUnmap", ADDRESS, 2 << 20),
        ledger.ReleaseEntered(PROCESS, 7, 1000, "cuMemRelease", 0xAB),
    ]


def test_a_retained_handle_is_told_with_the_address_it_was_asked_for() -> None:
    call = returned("cuMemRetainAllocationHandle", OUT, ADDRESS, out=[0xAB])
    assert told(Decoder(), call) == [ledger.HandleRetained(PROCESS, 1000, 0xAB, ADDRESS)]


IMPORTS = [
    ("cudaIpcOpenMemHandle", AddressSpace.DEVICE),
    ("cuMemPoolImportPointer", AddressSpace.DEVICE),
    ("cuExternalMemoryGetMappedMipmappedArray", AddressSpace.ARRAY),
    ("cuMemImportFromShareableHandle", None),
    ("cuMulticastCreate", None),
]


@pytest.mark.parametrize(("name", "space"), IMPORTS)
def test_memory_of_another_owner_is_a_reference(name: str, space: AddressSpace | None) -> None:
    call = returned(name, OUT, out=[ADDRESS])
    assert told(Decoder(), call) == [ledger.Imported(PROCESS, 1000, name, space, ADDRESS)]


FAILING = [
    returned("cuMemMap", ADDRESS, 4096, 0, 1, error=INVALID_VALUE),
    returned("cuMemRetainAllocationHandle", OUT, ADDRESS, error=INVALID_VALUE),
    returned("cudaIpcOpenMemHandle", OUT, error=INVALID_VALUE),
    returned("cuMemGetInfo_v2", OUT, OUT, error=INVALID_VALUE),
    returned("cuCtxCreate_v2", OUT, 0, 0, error=INVALID_VALUE),
    returned("cuCtxDestroy_v2", CONTEXT, error=INVALID_VALUE),
    returned("cuDevicePrimaryCtxRetain", OUT, 0, error=INVALID_VALUE),
    returned("cuDevicePrimaryCtxRelease_v2", 0, error=INVALID_VALUE),
    returned("cuDevicePrimaryCtxReset_v2", 0, error=INVALID_VALUE),
    returned("cudaDeviceReset", context=CONTEXT, error=INVALID_VALUE),
]


@pytest.mark.parametrize("call", FAILING, ids=lambda call: CALLS[call.call].name)
def test_other_calls_that_failed_change_nothing(call: CallEvent) -> None:
    decoder = Decoder()
    told(decoder, primary(0))
    assert told(decoder, call) == []
    assert decoder.devices(PROCESS) == {0}
    assert told(decoder, release(0)) != []


# What the program asked the driver


def test_free_and_total_memory_are_told_as_the_program_saw_them() -> None:
    decoder = Decoder()
    call = returned("cudaMemGetInfo", OUT, OUT, out=[10], out2=80, context=CONTEXT)
    assert told(decoder, primary(1), call) == [ledger.MemoryInfo(PROCESS, 1000, 1, 10, 80)]


@pytest.mark.parametrize("missing", [READ_OUT1, READ_OUT2])
def test_half_of_an_answer_is_none(missing: int) -> None:
    call = returned("cuMemGetInfo_v2", OUT, OUT, out=[10], readable=EVERYTHING & ~missing)
    assert told(Decoder(), call) == []


# Contexts and devices


def device_of_malloc(decoder: Decoder, context: int) -> int:
    (change,) = told(decoder, returned("cuMemAlloc_v2", OUT, 64, out=[ADDRESS], context=context))
    assert isinstance(change, ledger.Allocated)
    return change.device


CREATIONS = [
    ("cuCtxCreate", (OUT, 0, NOISE | 3)),
    ("cuCtxCreate_v2", (OUT, 0, NOISE | 3)),
    # (context, affinity parameters, their number, flags, device)
    ("cuCtxCreate_v3", (OUT, 0, 0, 8, NOISE | 3)),
    # (context, parameters, flags, device)
    ("cuCtxCreate_v4", (OUT, 0, 8, NOISE | 3)),
]


@pytest.mark.parametrize(("name", "args"), CREATIONS)
def test_a_context_that_was_created_tells_its_device(name: str, args: tuple[int, ...]) -> None:
    decoder = Decoder()
    told(decoder, returned(name, *args, out=[CONTEXT]))
    assert device_of_malloc(decoder, CONTEXT) == 3
    assert device_of_malloc(decoder, OTHER) == UNKNOWN_DEVICE
    assert decoder.devices(PROCESS) == {3}


def test_a_primary_context_tells_its_device() -> None:
    decoder = Decoder()
    told(decoder, primary(0, CONTEXT), primary(1, OTHER))
    assert device_of_malloc(decoder, CONTEXT) == 0
    assert device_of_malloc(decoder, OTHER) == 1


def test_contexts_of_another_process_tell_nothing() -> None:
    decoder = Decoder()
    list(decoder.decode(primary(1), ProcessId(8, 0), STACK))
    assert device_of_malloc(decoder, CONTEXT) == UNKNOWN_DEVICE


def test_a_destroyed_context_ends_its_memory_and_its_handle_may_come_again() -> None:
    decoder = Decoder()
    told(decoder, returned("cuCtxCreate_v2", OUT, 0, 1, out=[CONTEXT]))
    assert told(decoder, returned("cuCtxDestroy_v2", CONTEXT)) == [
        ledger.ContextEnded(PROCESS, 1000, "cuCtxDestroy_v2", CONTEXT)
    ]
    assert device_of_malloc(decoder, CONTEXT) == UNKNOWN_DEVICE
    told(decoder, returned("cuCtxCreate_v2", OUT, 0, 2, out=[CONTEXT]))
    assert device_of_malloc(decoder, CONTEXT) == 2


@pytest.mark.parametrize(
    ("name", "ends_with_context"),
    [("cuMemAlloc_v2", True), ("cuMemAllocAsync", False), ("cudaMallocFromPoolAsync_ptsz", False)],
)
def test_memory_of_a_pool_belongs_to_no_context(name: str, ends_with_context: bool) -> None:
    call = returned(name, OUT, 4096, out=[ADDRESS], context=CONTEXT)
    (change,) = told(Decoder(), call)
    assert isinstance(change, ledger.Allocated)
    assert change.context == (CONTEXT if ends_with_context else 0)


def test_a_primary_context_ends_with_its_last_reference() -> None:
    decoder = Decoder()
    assert told(decoder, primary(0), primary(0), release(0)) == []
    assert told(decoder, release(0)) == [
        ledger.ContextEnded(PROCESS, 1000, "cuDevicePrimaryCtxRelease_v2", CONTEXT)
    ]
    assert told(decoder, release(0)) == []


def test_references_to_one_devices_primary_context_are_not_anothers() -> None:
    decoder = Decoder()
    assert told(decoder, primary(0), primary(1, OTHER), release(1)) == [
        ledger.ContextEnded(PROCESS, 1000, "cuDevicePrimaryCtxRelease_v2", OTHER)
    ]


def test_a_process_recorded_late_may_hold_references_that_were_not_seen() -> None:
    # A running PyTorch has its primary context; then a library takes a reference and gives it back.
    decoder = Decoder()
    decoder.began_late(PROCESS)
    assert told(decoder, primary(0), release(0)) == []
    assert device_of_malloc(decoder, CONTEXT) == 0


def test_a_reset_ends_a_primary_context_however_many_hold_it() -> None:
    decoder = Decoder()
    reset = returned("cuDevicePrimaryCtxReset_v2", NOISE | 0)
    assert told(decoder, primary(0), primary(0), reset) == [
        ledger.ContextEnded(PROCESS, 1000, "cuDevicePrimaryCtxReset_v2", CONTEXT)
    ]


def test_a_device_reset_ends_the_threads_current_context() -> None:
    assert told(Decoder(), returned("cudaDeviceReset", context=CONTEXT)) == [
        ledger.ContextEnded(PROCESS, 1000, "cudaDeviceReset", CONTEXT)
    ]
    assert told(Decoder(), returned("cudaDeviceReset")) == []


def test_a_device_reset_of_a_thread_without_known_context_ends_the_only_one() -> None:
    decoder = Decoder()
    assert told(decoder, primary(0), returned("cudaDeviceReset")) == [
        ledger.ContextEnded(PROCESS, 1000, "cudaDeviceReset", CONTEXT)
    ]
    assert told(decoder, primary(1, OTHER), returned("cudaDeviceReset")) == []


def test_nothing_is_known_of_a_process_after_its_end() -> None:
    decoder = Decoder()
    told(decoder, primary(1))
    decoder.forget(PROCESS)
    assert decoder.devices(PROCESS) == frozenset()
    assert device_of_malloc(decoder, CONTEXT) == UNKNOWN_DEVICE


def test_every_call_of_the_table_is_decoded() -> None:
    in_the_kernel = {Action.CONTEXT_CURRENT, Action.DRIVER_INIT, Action.LIBRARY_LOADED}
    for call in CALLS:
        decoder = Decoder()
        if call.action in {Action.PRIMARY_RELEASE, Action.PRIMARY_RESET}:
            told(decoder, primary(64))
        event = (entered if call.mode is Mode.FREE else returned)(call.name, *[64] * 6)
        structure = words(struct.pack("<16I", *[64] * 16))
        full = event._replace(
            context=CONTEXT, out1=(64,) * 4, out2=64, in_words=structure, stack_args=(64,) * 4
        )
        heard = told(decoder, full) or sorted(decoder.devices(PROCESS))
        assert bool(heard) == (call.action not in in_the_kernel), call.name
