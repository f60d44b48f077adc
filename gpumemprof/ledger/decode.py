"""From hooked calls to what the ledger is told: the meaning of each row, and which device.

Contexts tell the device: ``cuDevicePrimaryCtxRetain`` and ``cuCtxCreate`` name both, and the
kernel side keeps each thread's current context. For a process that had its contexts before the
recording began nothing tells, and the device is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from gpumemprof.ledger import events as ledger
from gpumemprof.ledger.events import UNKNOWN_DEVICE, AddressSpace, LedgerEvent, MemoryKind
from gpumemprof.probe.calls import CALLS, Action, Call, Memory, Pointer
from gpumemprof.probe.events import CallEvent, EventType
from gpumemprof.probe.sizes import size_of
from gpumemprof.process.identity import ProcessId

NO_STACK = 0
"""The stack id of events that have none."""

_KINDS = {
    Memory.DEVICE: (MemoryKind.DEVICE, AddressSpace.DEVICE),
    Memory.MANAGED: (MemoryKind.MANAGED, AddressSpace.DEVICE),
    Memory.ARRAY: (MemoryKind.ARRAY, AddressSpace.ARRAY),
    Memory.HOST: (MemoryKind.PINNED_HOST, AddressSpace.HOST),
    Memory.HANDLE: (MemoryKind.DEVICE, AddressSpace.DEVICE),
}
_OUT1_READ, _IN_READ, _OUT2_READ = 2, 1, 4
_LOCATION_DEVICE = 1
"""CU_MEM_LOCATION_TYPE_DEVICE; the other types are host memory."""
_UINT32 = 0xFFFFFFFF


class _Contexts:
    """The contexts of one process."""

    def __init__(self) -> None:
        self.device_of: dict[int, int] = {}
        self.primary: dict[int, int] = {}
        """Device → its primary context."""
        self.retained: Counter[int] = Counter()
        """Device → references to its primary context, as far as seen."""
        self.began_late = False


class Decoder:
    """Decodes the calls of all processes; keeps which context belongs to which device."""

    def __init__(self, only_device: int = UNKNOWN_DEVICE) -> None:
        """``only_device``: the device of contexts that are not known, where the machine has just
        one."""
        self._only_device = only_device
        self._contexts: dict[ProcessId, _Contexts] = {}
        self.unreadable = 0
        """Successful calls whose pointer or size could not be read, and so were not counted."""
        self._actions: dict[
            Action, Callable[[Call, CallEvent, ProcessId, int], Iterator[LedgerEvent]]
        ]
        self._actions = {
            Action.ALLOCATE: self._allocate,
            Action.FREE: self._free,
            Action.VMM_CREATE: self._vmm_create,
            Action.VMM_RETAIN: self._vmm_retain,
            Action.VMM_MAP: self._vmm_map,
            Action.VMM_UNMAP: self._vmm_unmap,
            Action.VMM_RELEASE: self._vmm_release,
            Action.IMPORT: self._import,
            Action.MEMORY_INFO: self._memory_info,
            Action.CONTEXT_CREATE: self._context_create,
            Action.CONTEXT_DESTROY: self._context_destroy,
            Action.PRIMARY_RETAIN: self._primary_retain,
            Action.PRIMARY_RELEASE: self._primary_release,
            Action.PRIMARY_RESET: self._primary_reset,
            Action.DEVICE_RESET: self._device_reset,
        }

    def decode(self, event: CallEvent, process: ProcessId, stack: int) -> Iterator[LedgerEvent]:
        """What the ledger is to be told of ``event``; ``stack`` is the id of its stack."""
        call = CALLS[event.call]
        if event.type == EventType.FREE_FAILED:
            yield ledger.FreeFailed(process, event.tid, event.time_ns, call.name, event.error)
            return
        action = self._actions.get(call.action)
        if action is not None:
            yield from action(call, event, process, stack)

    def began_late(self, process: ProcessId) -> None:
        """The process ran already when its recording began: it may hold references to primary
        contexts that were not seen, so that giving back those that were ends nothing."""
        self._of(process).began_late = True

    def forget(self, process: ProcessId) -> None:
        """The process ended."""
        self._contexts.pop(process, None)

    def devices(self, process: ProcessId) -> frozenset[int]:
        """The devices on which the process was seen to have a context."""
        contexts = self._contexts.get(process)
        return frozenset(contexts.device_of.values()) if contexts else frozenset()

    def _of(self, process: ProcessId) -> _Contexts:
        return self._contexts.setdefault(process, _Contexts())

    def _device(self, process: ProcessId, context: int) -> int:
        contexts = self._contexts.get(process)
        return contexts.device_of.get(context, self._only_device) if contexts else self._only_device

    def _allocate(
        self, call: Call, event: CallEvent, process: ProcessId, stack: int
    ) -> Iterator[LedgerEvent]:
        kind, space = _KINDS[call.memory]
        size = size_of(call, event)
        device = self._device(process, event.context)
        if event.error:
            yield ledger.AllocationFailed(
                process, event.time_ns, call.name, kind, device, size or 0, event.error, stack
            )
            return
        address = self._pointer(call, event)
        if size is None or address is None:
            self.unreadable += 1
        elif size and address:  # cudaMalloc of 0 bytes succeeds and gives nothing
            yield ledger.Allocated(
                process, event.time_ns, call.name, kind, space, device,
                0 if call.pooled else event.context, address, size, stack,
            )  # fmt: skip

    def _free(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        address = event.args[call.pointer_arg - 1]
        if call.narrow:
            address &= _UINT32
        yield ledger.FreeEntered(
            process, event.tid, event.time_ns, call.name, _KINDS[call.memory][1], address
        )

    def _vmm_create(
        self, call: Call, event: CallEvent, process: ProcessId, stack: int
    ) -> Iterator[LedgerEvent]:
        kind, device = MemoryKind.DEVICE, UNKNOWN_DEVICE
        if event.readable & _IN_READ:
            # CUmemAllocationProp: type, requestedHandleTypes, location.type, location.id
            location_type, location = event.in_words[1] & _UINT32, event.in_words[1] >> 32
            if location_type == _LOCATION_DEVICE:
                device = location
            else:
                kind = MemoryKind.PINNED_HOST
        size = event.args[call.size_arg - 1]
        if event.error:
            yield ledger.AllocationFailed(
                process, event.time_ns, call.name, kind, device, size, event.error, stack
            )
        elif (handle := self._pointer(call, event)) is None:
            self.unreadable += 1
        else:
            yield ledger.PhysicalCreated(
                process, event.time_ns, call.name, kind, device, handle, size, stack
            )

    def _vmm_retain(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        handle = self._pointer(call, event)
        if not event.error and handle is not None:
            address = event.args[call.pointer_arg - 1]
            yield ledger.HandleRetained(process, event.time_ns, handle, address)

    def _vmm_map(
        self, _call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        address, size, _offset, handle = event.args[:4]
        if not event.error:
            yield ledger.Mapped(process, event.time_ns, handle, address, size)

    def _vmm_unmap(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        address, size = event.args[:2]
        yield ledger.UnmapEntered(process, event.tid, event.time_ns, call.name, address, size)

    def _vmm_release(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        yield ledger.ReleaseEntered(process, event.tid, event.time_ns, call.name, event.args[0])

    def _import(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        number = self._pointer(call, event)
        if not event.error and number:
            space = None if call.memory is Memory.HANDLE else _KINDS[call.memory][1]
            yield ledger.Imported(process, event.time_ns, call.name, space, number)

    def _memory_info(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        both = _OUT1_READ | _OUT2_READ
        if not event.error and event.readable & both == both:
            device = self._device(process, event.context)
            yield ledger.MemoryInfo(process, event.time_ns, device, event.out1[0], event.out2)

    def _context_create(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        if not event.error and event.readable & _OUT1_READ:
            device = event.args[call.device_arg - 1] & _UINT32
            self._of(process).device_of[event.out1[0]] = device
        yield from ()

    def _context_destroy(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        if not event.error:
            context = event.args[call.pointer_arg - 1]
            yield ledger.ContextEnded(process, event.time_ns, call.name, context)
            self._of(process).device_of.pop(context, None)

    def _primary_retain(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        if not event.error and event.readable & _OUT1_READ:
            contexts, device = self._of(process), event.args[call.device_arg - 1] & _UINT32
            contexts.device_of[event.out1[0]] = device
            contexts.primary[device] = event.out1[0]
            contexts.retained[device] += 1
        yield from ()

    def _primary_release(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        contexts, device = self._of(process), event.args[call.device_arg - 1] & _UINT32
        if event.error or contexts.began_late or not contexts.retained[device]:
            return
        contexts.retained[device] -= 1
        if not contexts.retained[device]:
            yield from self._end_primary(call, event, process, device)

    def _primary_reset(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        if not event.error:
            device = event.args[call.device_arg - 1] & _UINT32
            yield from self._end_primary(call, event, process, device)

    def _device_reset(
        self, call: Call, event: CallEvent, process: ProcessId, _: int
    ) -> Iterator[LedgerEvent]:
        known = self._of(process).device_of
        context = event.context
        if not context and len(known) == 1:
            # The thread made it current before the recording began, or never: there is no other.
            context = next(iter(known))
        if not event.error and context:
            yield ledger.ContextEnded(process, event.time_ns, call.name, context)

    def _end_primary(
        self, call: Call, event: CallEvent, process: ProcessId, device: int
    ) -> Iterator[LedgerEvent]:
        context = self._of(process).primary.get(device)
        if context is not None:
            yield ledger.ContextEnded(process, event.time_ns, call.name, context)

    @staticmethod
    def _pointer(call: Call, event: CallEvent) -> int | None:
        if call.pointer is Pointer.ARGUMENT:
            return event.args[call.pointer_arg - 1]
        return event.out1[0] if event.readable & _OUT1_READ else None
