"""Holds Python objects on command. Each answer is `ok`, after it is done.

hold COUNT SIZE   bytes objects, below hold()
numbers COUNT     integers, each of 32 bytes at most, below numbers()
release           forgets all
child COUNT SIZE  a forked child holds bytes objects, below child_holds()
trace, untrace    tracemalloc
"""

import os
import sys
from itertools import islice

held = []
# No function below makes an index, which is an object.
indexes = list(range(100_000))
# A block of a bytes object has its size and this many bytes; 16 more in a free-threaded build.
assert sys.getsizeof(b"") == (49 if "t" in sys.abiflags else 33)


def hold(count, size):
    made = [None] * count
    for index in islice(indexes, count):
        made[index] = bytes(size)
    held.append(made)


def child_holds(count, size):
    hold(count, size)


def numbers(count):
    made = [None] * count
    for index in islice(indexes, count):
        made[index] = index + 10**9
    held.append(made)


def child(count, size):
    done, tell = os.pipe()
    if os.fork() == 0:
        child_holds(count, size)
        os.write(tell, b"x")
        os.read(0, 1)
        os._exit(0)
    os.read(done, 1)


def trace():
    import tracemalloc

    tracemalloc.start()


def untrace():
    import tracemalloc

    tracemalloc.stop()


def release():
    held.clear()


for line in sys.stdin:
    name, *numbers_of = line.split()
    globals()[name](*map(int, numbers_of))
    print("ok", flush=True)
