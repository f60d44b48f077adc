"""A program that means harm: it serves a file system, maps a file of it, and then answers no more.

Run as ``python fuse_server.py DIRECTORY NAME``: in a mount namespace of its own it mounts FUSE on
DIRECTORY, and one that never answers on /tmp; maps DIRECTORY/NAME as code; prints the addresses of
that mapping and of code without a file; and waits for a line. With a third argument it puts the
file in the place of its own command line and variables, too.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
PROT_READ_EXEC, MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED = 5, 2, 0x20, 0x10
# enum fuse_opcode of linux/fuse.h
LOOKUP, GETATTR, OPEN, RELEASE, FLUSH, INIT, ACCESS = 1, 3, 14, 18, 25, 26, 34
ROOT, FILE = 1, 2
SIZE = 1 << 16

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def check(result: int) -> int:
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def mount(directory: str) -> int:
    """Returns the server's end."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    check(libc.mount(b"server", directory.encode(), b"fuse", 0, options.encode()))
    return device


def attributes(node: int) -> bytes:
    mode = 0o40755 if node == ROOT else 0o100755
    return struct.pack("<6Q10I", node, SIZE, 128, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int) -> bytes | None:
    if opcode == INIT:
        return struct.pack("<4IHHIIHHI7I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
    if opcode == LOOKUP:
        return struct.pack("<4Q2I", FILE, 0, 1000, 0, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if opcode == OPEN:
        return struct.pack("<QII", 1, 0, 0)
    return b"" if opcode in {ACCESS, FLUSH, RELEASE} else None


def serve(device: int, silent: threading.Event) -> None:
    while True:
        request = os.read(device, 1 << 17)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        reply = None if silent.is_set() else answer(opcode, node)
        if reply is not None:
            os.write(device, struct.pack("<IiQ", 16 + len(reply), 0, unique) + reply)


def hide(fd: int) -> None:
    """Map the file over the strings that /proc/PID/cmdline and environ show."""
    with open("/proc/self/stat") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    first = int(fields[45]) & ~4095  # arg_start
    last = int(fields[48]) & ~4095  # env_end
    flags = MAP_PRIVATE | MAP_FIXED
    place, size = ctypes.c_void_p(first), ctypes.c_size_t(last - first + 4096)
    libc.mmap(place, size, PROT_READ_EXEC, flags, fd, ctypes.c_long(0))


def main(directory: str, name: str, hidden: str = "") -> None:
    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    silent = threading.Event()
    threading.Thread(target=serve, args=(mount(directory), silent), daemon=True).start()
    fd = os.open(f"{directory}/{name}", os.O_RDONLY)
    mapped = libc.mmap(None, SIZE, PROT_READ_EXEC, MAP_PRIVATE, fd, ctypes.c_long(0))
    if hidden:
        hide(fd)
    os.close(fd)  # which asks the server: at the end of the process it could not answer
    flags = MAP_PRIVATE | MAP_ANONYMOUS
    made = libc.mmap(None, SIZE, PROT_READ_EXEC, flags, -1, ctypes.c_long(0))
    mount("/tmp")
    silent.set()
    print(mapped, made, flush=True)
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
