"""Allocates Python objects of known sizes, again and again, and prints what a sampler in the process estimates.

Arguments: the kind of objects, the number of runs, and the bytes that debug hooks add to each block. A line for each run: bytes
and number allocated, bytes and number live, each with the estimate and its variance.
"""

import ctypes
import gc
import random
import sys

kind, runs, hooks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here = ctypes.CDLL(None)
here.python_print_run.argtypes = [ctypes.c_double] * 4
gc.disable()
random.seed(11)
COUNT = 2000
# On both sides of 512 bytes, up to which pymalloc has a block.
PLACES = [(index, random.randrange(40, 700)) for index in range(COUNT)]
FREED = range(0, COUNT, 2)
keep = [None] * COUNT


# The loops allocate nothing but the objects: numbers and pairs exist before.
def malloc():
    for index, size in PLACES:
        keep[index] = b"x" * size


def calloc():
    for index, size in PLACES:
        keep[index] = bytes(size)


def realloc():
    for index, size in PLACES:
        grown = []
        for _, _ in PLACES[: size // 8]:
            grown.append(None)
        keep[index] = grown


def free(places):
    for index, _ in places:
        keep[index] = None


def bytes_live():
    """The bytes of the live objects. A list has a second block, for its items."""
    blocks = 2 if kind == "realloc" else 1
    return sum(sys.getsizeof(one) + hooks * blocks for one in keep if one is not None)


allocate = {"malloc": malloc, "calloc": calloc, "realloc": realloc}[kind]
# Also fills the free lists that the interpreter keeps.
allocate()
allocated = bytes_live()
free(PLACES[::2])
live = bytes_live()
free(PLACES)
half = PLACES[::2]
for _ in range(runs):
    here.python_reset()
    allocate()
    free(half)
    here.python_print_run(allocated, COUNT, live, COUNT - len(half))
    free(PLACES)
