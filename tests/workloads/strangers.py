"""Starts a thread that the interpreter does not know, from the library in its argument, prints "waits", and waits for a line.

Then its only thread of Python touches memory in a function of the library, which releases the GIL. Prints "ready", and ends with
stdin.
"""

import ctypes
import sys

PAGES = 16

library = ctypes.CDLL(sys.argv[1])
touch = library.touch


def calls_library():
    touch(PAGES)


library.start_stranger()
print("waits", flush=True)
sys.stdin.readline()
calls_library()
print("ready", flush=True)
sys.stdin.readline()
