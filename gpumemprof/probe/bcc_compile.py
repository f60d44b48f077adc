"""Run as a program of its own, by path and without this package: compiles with bcc and ends.

So the compiler's memory (80 MB and more), its noise, its working directory and its crashes stay out
of the recorder. Reads a request from standard input (JSON: ``bcc`` the directory of the module,
``headers`` the tree of kernel headers, ``text``, ``flags``, ``functions`` the names to give out,
``types`` the program whose BTF to give out), writes the answer (JSON) to standard output.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import os
import struct
import sys
from typing import Any

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_BTF_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD = 19, 15
_BTF_ID = 128
"""Where the id of its BTF stands in struct bpf_prog_info."""
_UPROBE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def _import(directory: str) -> Any:
    """The module of that directory, and nothing else from around it."""
    spec = importlib.util.spec_from_file_location(
        "bcc", os.path.join(directory, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[directory],
    )  # fmt: skip
    if spec is None or spec.loader is None:
        raise ImportError(f"no module in {directory}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    spec.loader.exec_module(module)
    return module


def _bpf(command: int, attr: bytes) -> int:
    buffer = ctypes.create_string_buffer(attr.ljust(128, b"\0"), 128)
    result = _libc.syscall(_SYS_BPF[os.uname().machine], command, buffer, 128)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def _info(fd: int, info: ctypes.Array[ctypes.c_char]) -> None:
    _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))


def _types_of(program: int) -> bytes:
    """The BTF of a loaded program: bcc gives it to the kernel only."""
    about = ctypes.create_string_buffer(256)
    _info(program, about)
    (number,) = struct.unpack_from("<I", about, _BTF_ID)
    if not number:
        raise RuntimeError("bcc gave the kernel no types of the programs")
    fd = _bpf(_BTF_GET_FD_BY_ID, struct.pack("<I", number))
    size = ctypes.create_string_buffer(16)  # struct bpf_btf_info: btf, btf_size, id
    _info(fd, size)
    (length,) = struct.unpack_from("<I", size, 8)
    data = ctypes.create_string_buffer(length)
    struct.pack_into("<QI", size, 0, ctypes.addressof(data), length)
    _info(fd, size)
    return data.raw


def compiled(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request."""
    os.environ["BCC_KERNEL_SOURCE"] = request["headers"]
    bcc = _import(request["bcc"])
    module = bcc.BPF(text=request["text"].encode(), cflags=request["flags"])
    return {
        "functions": {
            name: base64.b64encode(module.dump_func(name.encode())).decode()
            for name in request["functions"]
        },
        "btf": base64.b64encode(
            _types_of(module.load_func(request["types"].encode(), _UPROBE).fd)
        ).decode(),
    }


def main() -> None:
    """Standard output is the answer's: what the compiler prints there goes to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    answer = json.dumps(compiled(json.load(sys.stdin))).encode()
    with os.fdopen(answers, "wb") as out:
        out.write(answer)


if __name__ == "__main__":
    main()
