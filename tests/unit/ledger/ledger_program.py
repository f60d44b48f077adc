"""A program as the ledger hears of it, told in the words of the CUDA calls it makes."""

from __future__ import annotations

from typing import Any

from gpumemprof.ledger import events as e
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import Aggregate, Count, Failure, ProcessSnapshot
from gpumemprof.process.identity import ProcessId

OUT_OF_MEMORY = 2
INVALID_VALUE = 1


class Program:
    """One process. Calls are told to ``ledger`` as the kernel side tells them: allocations when
    they have returned, frees when they are entered. The time goes on by 1 ns a call."""

    clock = 0

    def __init__(self, ledger: Ledger, pid: int = 1, start_ns: int = 1000, image: int = 0) -> None:
        self.ledger = ledger
        self.id = ProcessId(pid, start_ns, image)

    def tell(self, event: type[Any], **fields: Any) -> None:
        Program.clock += 1
        self.ledger.apply(event(process=self.id, time_ns=Program.clock, **fields))

    # Memory

    def malloc(
        self,
        address: int,
        size: int,
        stack: int = 1,
        call: str = "cudaMalloc",
        kind: e.MemoryKind = e.MemoryKind.DEVICE,
        device: int = 0,
        context: int = 0xC0,
        space: e.AddressSpace = e.AddressSpace.DEVICE,
    ) -> None:
        self.tell(
            e.Allocated,
            call=call,
            kind=kind,
            space=space,
            device=device,
            context=context,
            address=address,
            size=size,
            stack=stack,
        )

    def malloc_host(self, address: int, size: int, stack: int = 1) -> None:
        self.malloc(
            address,
            size,
            stack,
            call="cuMemHostAlloc",
            kind=e.MemoryKind.PINNED_HOST,
            space=e.AddressSpace.HOST,
        )

    def malloc_fails(
        self, requested: int, stack: int = 1, device: int = 0, time_ns: int | None = None
    ) -> None:
        if time_ns is not None:
            Program.clock = time_ns - 1
        self.tell(
            e.AllocationFailed,
            call="cudaMalloc",
            kind=e.MemoryKind.DEVICE,
            device=device,
            requested=requested,
            error=OUT_OF_MEMORY,
            stack=stack,
        )

    def free(
        self, address: int, thread: int = 1, space: e.AddressSpace = e.AddressSpace.DEVICE
    ) -> None:
        self.tell(e.FreeEntered, thread=thread, call="cudaFree", space=space, address=address)

    def last_free_fails(self, thread: int = 1) -> None:
        self.tell(e.FreeFailed, thread=thread, call="cudaFree", error=INVALID_VALUE)

    def open_ipc(self, address: int) -> None:
        self.tell(
            e.Imported,
            call="cudaIpcOpenMemHandle",
            space=e.AddressSpace.DEVICE,
            number=address,
        )

    def memory_info(self, free: int, total: int, device: int = 0) -> None:
        self.tell(e.MemoryInfo, device=device, free=free, total=total)

    # Virtual memory management

    def create(self, handle: int, size: int, stack: int = 1) -> None:
        self.tell(
            e.PhysicalCreated,
            call="cuMemCreate",
            kind=e.MemoryKind.DEVICE,
            device=0,
            handle=handle,
            size=size,
            stack=stack,
        )

    def map(self, handle: int, address: int, size: int) -> None:
        self.tell(e.Mapped, handle=handle, address=address, size=size)

    def unmap(self, address: int, size: int, thread: int = 1) -> None:
        self.tell(e.UnmapEntered, thread=thread, call="cuMemUnmap", address=address, size=size)

    def release(self, handle: int, thread: int = 1) -> None:
        self.tell(e.ReleaseEntered, thread=thread, call="cuMemRelease", handle=handle)

    def retain(self, handle: int, address: int) -> None:
        self.tell(e.HandleRetained, handle=handle, address=address)

    def import_handle(self, handle: int) -> None:
        self.tell(e.Imported, call="cuMemImportFromShareableHandle", space=None, number=handle)

    # Ends

    def reset(self, context: int = 0xC0) -> None:
        self.tell(e.ContextEnded, call="cudaDeviceReset", context=context)

    def ends(self, reason: str = "exit") -> None:
        self.tell(e.ProcessEnded, reason=reason)

    # What the ledger says of it

    @property
    def known(self) -> ProcessSnapshot:
        (known,) = [p for p in self.ledger.snapshot().processes if p.process == self.id]
        return known

    @property
    def in_use(self) -> int:
        return self.known.gpu.in_use

    @property
    def peak(self) -> int:
        return self.known.gpu.peak

    @property
    def failures(self) -> list[Failure]:
        return [f for f in self.ledger.snapshot().failures if f.process == self.id]

    def stack(self, stack: int) -> Aggregate:
        (found,) = [
            a
            for a in self.ledger.snapshot().aggregates
            if a.key.process == self.id and a.key.stack == stack
        ]
        return found

    @property
    def counted(self) -> dict[Count, int]:
        """The counters that are not zero."""
        return {count: n for count, n in self.known.counters.items() if n}
