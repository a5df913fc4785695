"""Threads that allocate, as allocating_threads.c has them: they fill objects, and check and drop each other's.

A line on stdin is answered by how many objects had the wrong contents, and how many each thread has had.
"""

import random
import sys
import threading

COUNT = int(sys.argv[1])
slots = [None] * 1024
wrong = 0
rounds = [0] * COUNT


def allocates(number):
    global wrong
    own = random.Random(number)
    while True:
        size = own.randrange(20_000 if own.random() < 0.01 else 300)
        made = (size, bytes([size % 251]) * size, [str(size)] * (size % 50))
        at = own.randrange(len(slots))
        made, slots[at] = slots[at], made
        if made:
            size, contents, items = made
            is_right = contents == bytes([size % 251]) * size and items == [str(size)] * (size % 50)
            wrong += not is_right
        rounds[number] += 1


for number in range(COUNT):
    threading.Thread(target=allocates, args=(number,), daemon=True).start()
for _ in sys.stdin:
    print(wrong, *rounds, flush=True)
