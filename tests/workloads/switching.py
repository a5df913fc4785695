"""Like frames.py, where more than one list of frames belongs to a thread: for the kinds that the arguments name, each of which
may need its package. Prints "ready", before that "without KIND: why" for each that is missing."""

import asyncio
import sys
import threading

sys.dont_write_bytecode = True
from marks import kept, mark  # noqa: E402


def through_c(levels, then):
    if levels:
        list(map(lambda n: through_c(n, then), [levels - 1]))
    else:
        then()


def greenlets():
    import greenlet

    def inner(name):
        mark()
        other.switch(name)
        through_c(3, mark)
        mark()

    def outer(name):
        through_c(2, mark)
        first.switch()
        mark()

    def nested():
        greenlet.greenlet(lambda: through_c(2, mark)).switch()
        mark()

    first, other = greenlet.greenlet(inner), greenlet.greenlet(outer)
    through_c(4, lambda: first.switch("a"))
    mark()
    through_c(2, lambda: greenlet.greenlet(nested).switch())

    def back_and_forth():
        for _ in range(3):
            through_c(1, mark)
            main.switch()

    main = greenlet.getcurrent()
    one, two = greenlet.greenlet(back_and_forth), greenlet.greenlet(back_and_forth)
    for _ in range(3):
        one.switch()
        through_c(2, two.switch)
        mark()

    thread = threading.Thread(target=lambda: greenlet.greenlet(lambda: through_c(1, mark)).switch())
    thread.start()
    thread.join()


def gevents():
    import gevent
    import gevent.event
    import gevent.pool

    done = gevent.event.Event()

    def waiting(name):
        mark()
        done.wait()
        through_c(2, mark)

    def working(name):
        for _ in range(2):
            gevent.sleep(0)
            mark()
        done.set()

    jobs = [gevent.spawn(waiting, "a"), gevent.spawn(waiting, "b"), gevent.spawn(working, "c")]
    gevent.joinall(jobs, raise_error=True)
    gevent.pool.Pool(2).map(lambda n: mark(), range(3))
    mark()


async def level(levels):
    await asyncio.sleep(0)
    if levels:
        await level(levels - 1)
    else:
        mark()


async def tasks():
    await asyncio.gather(*(level(n) for n in range(3)))
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, mark)
    called = loop.create_future()
    loop.call_soon(lambda: (through_c(1, mark), called.set_result(None)))
    await called

    async def numbers():
        for n in range(2):
            await asyncio.sleep(0)
            mark()
            yield n

    [n async for n in numbers()]
    async with asyncio.Lock():
        mark()
    reader, writer = await asyncio.open_connection(sock=pair()[0])
    writer.close()


def pair():
    import socket

    return socket.socketpair()


def asyncios():
    asyncio.run(tasks())


def uvloops():
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(tasks())
    loop.close()


SUBINTERPRETER = """
import sys
sys.dont_write_bytecode = True
sys.path[:] = {path!r}
import marks
marks.kept.extend([None] * {kept})

def inner(levels):
    if levels:
        list(map(inner, [levels - 1]))
    else:
        marks.mark()

marks.mark()
inner(3)
"""


def subinterpreters(in_thread=False):
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters

    number = interpreters.create()
    kept.append(number)  # Before 3.13 it ends with its last reference.

    def run(kept):
        # No size is repeated.
        interpreters.run_string(number, SUBINTERPRETER.format(path=sys.path, kept=kept))

    mark()
    if in_thread:
        thread = threading.Thread(target=run, args=(100,))
        thread.start()
        thread.join()
    else:
        through_c(2, lambda: run(100))
    mark()


KINDS = {"greenlet": greenlets, "gevent": gevents, "asyncio": asyncios, "uvloop": uvloops,
         "subinterpreter": subinterpreters, "subinterpreter in a thread": lambda: subinterpreters(True)}

for kind in sys.argv[1:]:
    try:
        KINDS[kind]()
    except ImportError as error:
        print("without %s: %s" % (kind, error), flush=True)
print("ready", flush=True)
sys.stdin.read()
