"""Run by every interpreter from 3.8 on: says where each of its threads stands, then waits."""

import asyncio
import json
import sys
import threading
import time

said = []
lock = threading.Lock()


def account(frame):
    """A stack, innermost frame first, by the interpreter's own account."""
    stack = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        stack.append([name, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return stack


def stand():
    [said.append(account(sys._getframe())), time.sleep(1000)]  # on one line, which both tell


def generator():
    yield from (called_from_c(n) for n in [1])


def called_from_c(_):
    return sorted(
        [1],
        key=lambda n: Nested.Inner().method(n),
    )


class Nested:
    class Inner:
        def method(self, _):
            for _ in range(3000):  # long enough for the interpreter to specialise it
                self.quick()
            return функция_名前_𠀀()

        def quick(self):
            return 1


def функция_名前_𠀀():  # noqa: N802, PLC2401
    return asyncio.new_event_loop().run_until_complete(coroutine())


async def coroutine():
    await inner_coroutine()


async def inner_coroutine():
    exec(compile("stand()", "<made up>", "exec"), globals())


def thread():
    try:
        raise ValueError
    except ValueError:
        with lock:
            stand()


threading.Thread(target=thread, daemon=True).start()
while not said:
    time.sleep(0.01)


def speak():
    while len(said) < 2:
        time.sleep(0.01)
    time.sleep(0.2)
    print(json.dumps(said), flush=True)
    time.sleep(1000)


threading.Thread(target=speak, daemon=True).start()
list(generator())
