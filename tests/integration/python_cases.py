# -*- coding: utf-8 -*-
"""Runs in every CPython from 3.8 on: allocates in all the ways a program can be in Python code.

Each case allocates a size of its own and writes down, at the same line, the stack that Python
itself shows then: [function, file, line] from the innermost outwards. Prints them as one line of
JSON and waits. Used by stacks_python_test.py; the machine's own tests are its only readers.
"""

import asyncio
import ctypes
import functools
import json
import os
import sys
import threading
import time

UNIT = 1 << 12
HELD = ctypes.PyDLL("libcudart.so.12")  # holds the GIL during a call
FREE = ctypes.CDLL("libcudart.so.12")  # releases it: what most libraries do
for _library in (HELD, FREE):
    _library.cudaMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

expected = {}
skipped = {}
_next = [0]


def frames(frame):
    found = []
    while frame is not None:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return found


def note(case, frame):
    """Remember the case's stack; returns the size by which it will be known."""
    _next[0] += 1
    size = _next[0] * UNIT
    expected[case] = {"size": size, "stack": frames(frame)}
    return size


def allocate(case, library=FREE):
    pointer = ctypes.c_void_p()
    library.cudaMalloc(ctypes.byref(pointer), note(case, sys._getframe()))


# --- the cases ---


def gil_released():
    allocate("GIL released")


def gil_held():
    allocate("GIL held", HELD)


class Model:
    def method(self):
        allocate("method")

    @classmethod
    def of_class(cls):
        allocate("class method")

    @property
    def attribute(self):
        allocate("property")
        return 1

    def __enter__(self):
        allocate("context manager")
        return self

    def __exit__(self, *_):
        pass


def closure():
    def inner():
        allocate("closure")

    inner()


def through_lambda():
    (lambda: allocate("lambda"))()


def comprehension():
    [allocate("comprehension") for _ in range(1)]


def generator():
    def numbers():
        allocate("generator")
        yield 1

    for _ in numbers():
        pass


def nested_generators():
    def inner():
        allocate("yield from")
        yield 1

    def outer():
        yield from inner()

    list(outer())


def coroutine():
    async def leaf():
        allocate("coroutine")

    async def root():
        await leaf()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(root())
    loop.close()


def through_c():
    def key(_):
        allocate("Python in C in Python")
        return 0

    sorted([1], key=key)


def twice_through_c():
    def inner(_):
        allocate("C twice")
        return 0

    def outer(_):
        return max([1], key=inner)

    sorted([1], key=outer)


def callback_from_c():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def compare(_a, _b):
        if "callback from C" not in expected:
            allocate("callback from C")
        return 0

    libc = ctypes.CDLL(None)
    array = (ctypes.c_int * 2)(2, 1)
    libc.qsort(array, 2, ctypes.sizeof(ctypes.c_int), kind(compare))


def partial():
    functools.partial(allocate, "partial")()


def decorated():
    def wrap(function):
        @functools.wraps(function)
        def wrapper():
            return function()

        return wrapper

    @wrap
    def work():
        allocate("decorator")

    work()


def recursion(depth=120):
    if depth:
        return recursion(depth - 1)
    return allocate("120 calls deep")


def multi_line_call():
    pointer = ctypes.c_void_p()
    FREE.cudaMalloc(
        ctypes.byref(
            pointer,
        ),
        note("call over several lines", sys._getframe()),
    )
    # Python tells the line where a call begins, which is four lines above the note.
    expected["call over several lines"]["stack"][0][2] -= 4


def in_except_block():
    try:
        raise ValueError
    except ValueError:
        allocate("except block")


kept = []


def run_source(source, file):
    """Run code whose code object stays: it is named after the call, when it may be gone."""
    code = compile(source, file, "exec")
    kept.append(code)
    exec(code, {"allocate": allocate})


def non_ascii():
    source = "def größe_计算_𠀀():\n    allocate('non-ASCII names')\ngröße_计算_𠀀()\n"
    run_source(source, "файл 模型.py")


def odd_file_name():
    run_source("\n\nallocate('odd file name')", "a b;c\nd.py")


def long_function():
    body = "".join("    x%d = %d\n" % (i, i) for i in range(3000))
    source = "def long():\n" + body + "    allocate('line 3002')\nlong()\n"
    run_source(source, "long.py")


def code_reused():
    # The code object of each round is freed before the next takes its place, and its address.
    for round_number in range(3):
        case = "code reused %d" % round_number
        source = "\n" * round_number + "allocate(%r)" % case
        exec(compile(source, "cell.py", "exec"), {"allocate": allocate})
        expected[case]["gone"] = "cell.py"


def call_sites_apart():
    for _ in range(1):
        allocate("first call site")
        allocate("second call site")


def threads():
    def work(case):
        allocate(case)

    running = [threading.Thread(target=work, args=("thread %d" % n,)) for n in range(1, 13)]
    started = threading.Barrier(len(running) + 1)

    def all_at_once(thread):
        inner = thread.run

        def run():
            started.wait()
            inner()

        thread.run = run

    for thread in running:
        all_at_once(thread)
        thread.start()
    started.wait()
    for thread in running:
        thread.join()


def thread_of_c():
    """A thread that C made, which calls into Python."""
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

    @kind
    def start(_):
        allocate("thread made by C")
        return None

    libc = ctypes.CDLL(None)
    handle = ctypes.c_ulong()
    try:
        create, join = libc.pthread_create, libc.pthread_join
    except AttributeError:  # before glibc 2.34
        threads_library = ctypes.CDLL("libpthread.so.0")
        create, join = threads_library.pthread_create, threads_library.pthread_join
    create(ctypes.byref(handle), None, start, None)
    join(handle, None)


def generator_throw():
    def numbers():
        try:
            yield 1
        finally:
            allocate("generator closed")

    iterator = numbers()
    next(iterator)
    iterator.close()


def greenlets():
    try:
        import greenlet
    except ImportError:
        skipped["greenlet"] = "greenlet is not installed for this version"
        return
    greenlet.greenlet(lambda: allocate("greenlet")).switch()


def subinterpreter():
    source = """
import ctypes, json, os, sys
library = ctypes.CDLL("libcudart.so.12")
library.cudaMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def inside():
    pointer = ctypes.c_void_p()
    library.cudaMalloc(ctypes.byref(pointer), %d)
inside()
"""
    size = 4095 * UNIT
    try:
        try:
            import _interpreters as module
        except ImportError:
            import _xxsubinterpreters as module
        number = module.create()
        run = getattr(module, "run_string", None) or module.exec
        # It stays: its code is named after the call.
        failed = run(number, source % size)
    except (ImportError, RuntimeError, AttributeError) as error:
        skipped["subinterpreter"] = str(error) or type(error).__name__
        return
    if failed:
        skipped["subinterpreter"] = "ctypes does not load there"
        return
    expected["subinterpreter"] = {
        "size": size,
        "stack": [["inside", "<string>", 7], ["<module>", "<string>", 8]],
        "prefix": True,
    }


def forked_worker():
    """The child's allocation is told by the parent: it is the same code, and the same size."""
    size = note("forked worker", sys._getframe())
    expected["forked worker"]["stack"][0][2] = sys._getframe().f_lineno + 5  # the line below
    child = os.fork()
    if not child:
        pointer = ctypes.c_void_p()
        # The driver of the stand-in refuses a forked process, as the real one does.
        FREE.cudaMalloc(ctypes.byref(pointer), size)
        os._exit(0)
    os.waitpid(child, 0)
    expected["forked worker"]["failed"] = True


CASES = [
    gil_released, gil_held, Model().method, Model.of_class, lambda: Model().attribute,
    lambda: Model().__enter__(), closure, through_lambda, comprehension, generator,
    nested_generators, coroutine, through_c, twice_through_c, callback_from_c, partial, decorated,
    recursion, multi_line_call, in_except_block, non_ascii, odd_file_name, long_function,
    code_reused, call_sites_apart, threads, thread_of_c, generator_throw, greenlets,
    forked_worker, subinterpreter,
]  # fmt: skip


def main():
    for case in CASES:
        case()
    print(json.dumps({"cases": expected, "skipped": skipped}), flush=True)
    time.sleep(0.5)


if __name__ == "__main__":
    main()
