"""Allocates Python objects of known sizes, again and again, and prints what a sampler in the process estimates.

Arguments: the kind of objects, the number of runs, the bytes that debug hooks add to each block, and the size of a block from
which on pymalloc passes it to the raw domain, whose hooks add the same. A line for each run: bytes and number allocated, bytes
and number live, each with the estimate and its variance.
"""

import ctypes
import gc
import random
import sys

kind = sys.argv[1]
runs, hooks, large = map(int, sys.argv[2:])
here = ctypes.CDLL(None)
here.python_print_run.argtypes = [ctypes.c_double] * 4
gc.disable()
# In a free-threaded build, the items of a list have their number in front of them, which sys.getsizeof() leaves out.
IN_FRONT = 8 if "t" in sys.abiflags else 0
random.seed(11)
COUNT = 2000
# On both sides of 512 bytes, up to which pymalloc has a block.
PLACES = [(index, random.randrange(40, 700)) for index in range(COUNT)]
FREED = range(0, COUNT, 2)
keep = [None] * COUNT


# The loops allocate nothing but the objects: numbers and pairs exist before. (To unpack a pair, 3.13 makes an iterator in its
# free-threaded build.)
def malloc():
    for place in PLACES:
        keep[place[0]] = b"x" * place[1]


def calloc():
    for place in PLACES:
        keep[place[0]] = bytes(place[1])


def realloc():
    for place in PLACES:
        grown = []
        for _ in PLACES[: place[1] // 8]:
            grown.append(None)
        keep[place[0]] = grown


def free(places):
    for place in places:
        keep[place[0]] = None


def block(size):
    size += hooks
    return size + hooks if size >= large else size


def bytes_of(one):
    """The bytes of an object's blocks. A list has a second one, for its items."""
    if kind != "realloc":
        return block(sys.getsizeof(one))
    items = sys.getsizeof(one) - sys.getsizeof([])
    return block(sys.getsizeof([])) + block(items + IN_FRONT)


def bytes_live():
    return sum(bytes_of(one) for one in keep if one is not None)


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
