"""Allocates memory at places of every kind, and prints the interpreter's own frames there.

Each place calls mark(). The last line is "ready". With the argument "wait" it waits for a line on stdin first. It ends when
stdin does.
"""

import functools
import re
import sys
import threading

sys.dont_write_bytecode = True
from marks import mark  # noqa: E402


def plain():
    mark()


class Class:
    def method(self):
        def inner(levels):
            if levels:
                inner(levels - 1)
            else:
                mark()

        inner(3)

    @staticmethod
    def static(value):
        mark()
        return value

    @functools.lru_cache(None)
    def cached(self):
        mark()

    @property
    def member(self):
        mark()

    def __getattr__(self, name):
        mark()
        raise AttributeError(name)

    def __lt__(self, other):
        if self not in seen:
            seen.append(self)
            getattr(self, "missing", None)
        return False

    def __enter__(self):
        return self

    def __exit__(self, *why):
        mark()

    def __del__(self):
        mark()


seen = []


def generator():
    mark()
    yield 1
    mark()
    yield 2


def delegating():
    yield from generator()


async def coroutine(levels):
    if levels:
        await coroutine(levels - 1)
    else:
        mark()


def raising():
    try:
        raise ValueError
    except ValueError:
        mark()
    finally:
        mark()


def several_lines(
    *values,
):
    return [
        value
        for value in values
        if not mark()
    ]


def recursive(levels):
    if levels:
        recursive(levels - 1)
    else:
        mark()


def through_c(levels):
    if levels:
        list(map(through_c, [levels - 1]))
    else:
        mark()


def made(number):
    # Each is gone before the next one, whose code may have the same address.
    scope = {"mark": mark}
    source = "\n" * number + "def made_%d():\n    mark()\n" % number
    exec(compile(source, "<made %d>" % number, "exec"), scope)
    scope["made_%d" % number]()


def main():
    plain()
    Class().method()
    Class.static(1)
    Class().cached()
    Class().member
    sorted([Class(), Class()])
    with Class():
        pass
    for _ in delegating():
        pass
    try:
        coroutine(3).send(None)
    except StopIteration:
        pass
    raising()
    several_lines(1)
    recursive(60)
    through_c(12)
    sorted([1], key=lambda value: mark() or value)
    re.sub("a", lambda match: mark() or "", "a")
    functools.reduce(lambda a, b: Class.static(a), [1, 2])
    {key: mark() for key in [1]}
    list(mark() for _ in [1])
    for number in range(20):
        made(number)
    thread = threading.Thread(target=lambda: Class().method())
    thread.start()
    thread.join()

    class Body:
        mark()


if sys.argv[1:] == ["wait"]:
    print("waits", flush=True)
    sys.stdin.readline()
main()
del Class.__del__
print("ready", flush=True)
sys.stdin.read()
