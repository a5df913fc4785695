"""Runs Python of many kinds in several threads until stdin ends, to be interrupted anywhere (see stops.c)."""

import asyncio
import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import os
import pickle
import re
import sys
import threading
import traceback


@functools.total_ordering
class Ordered:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    def __lt__(self, other):
        return self.value < other.value

    def __hash__(self):
        return hash(self.value)

    def __getattr__(self, name):
        raise AttributeError(name)


@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int = 0
    tags: list = dataclasses.field(default_factory=list, compare=False)


def sorts():
    values = [Ordered(n * 7919 % 101) for n in range(60)]
    values.sort()
    sorted(values, key=lambda value: -value.value)
    max(values), {value: getattr(value, "missing", None) for value in values}
    return sorted([Point(n % 7, n) for n in range(30)])


def generators():
    def walk(depth):
        yield depth
        if depth:
            yield from walk(depth - 1)

    list(itertools.chain(*(walk(n) for n in range(12))))
    sum(n for n in map(lambda n: n * n, filter(lambda n: n % 3, range(100))))
    return functools.reduce(lambda a, b: a + b, walk(10))


async def add(depth):
    if depth % 3 == 0:
        await asyncio.sleep(0)
    return 1 + await add(depth - 1) if depth else 0


async def gather():
    await asyncio.gather(*(add(n) for n in range(8)))

    async def numbers():
        for n in range(5):
            yield n

    return [n async for n in numbers()]


def texts():
    text = json.dumps({"a": [1.5, "x" * 20, None], "b": {str(n): n for n in range(40)}}, indent=1)
    json.loads(text, object_hook=lambda found: dict(found))
    json.dumps([Point(1)], default=dataclasses.asdict)
    return re.sub(r"\d+", lambda match: match.group() * 2, text)


def raising(depth):
    try:
        if not depth:
            raise ValueError("bottom")
        raising(depth - 1)
    except ValueError as error:
        if depth % 5 == 0:
            traceback.format_exc()
        if depth < 12:
            raise KeyError(depth) from error
    finally:
        len("x")


def raises():
    with contextlib.suppress(KeyError, ValueError):
        raising(14)


def deep(levels):
    return 1 + deep(levels - 1) if levels else 0


def deep_through_c(levels):
    return list(map(deep_through_c, [levels - 1])) if levels else []


def objects():
    class Made(metaclass=type):
        __slots__ = ("a",)

        def __init__(self):
            self.a = 1

        def __del__(self):
            deep(2)

    for _ in range(10):
        Made()
    point = copy.deepcopy(Point(1, 2, [[Point(3)]]))
    pickle.loads(pickle.dumps([point] * 5))
    collections.Counter("abracadabra").most_common(2)
    exec(compile("def made():\n    return [n for n in range(9)]\nmade()", "<made>", "exec"), {})
    return functools.lru_cache(None)(deep)(5)


def steps():
    return [sorts, generators, lambda: asyncio.run(gather()), texts, raises, lambda: deep(90),
            lambda: deep_through_c(12), objects]


def work(first):
    for step in itertools.cycle(steps()[first:] + steps()[:first]):
        step()


for number in range(3):
    threading.Thread(target=work, args=(2 * number,), daemon=True).start()
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
work(0)
