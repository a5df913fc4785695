# For gdb, attached to a process: at each SIGSTOP prints the registers of the thread that it stopped and its frames as gdb
# unwinds them, then waits for a line of input. Addresses are as memprof's walk has them: those of calls are one less
# than the return address.
import sys

import gdb

LIMIT = 1000
MASK = (1 << 64) - 1


def frames(frame):
    exact = True
    for _ in range(LIMIT):
        # Inlined functions, and those that ended in a jump: debug information has them, the stack not.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            is_trampoline = frame.type() == gdb.SIGTRAMP_FRAME
            yield (frame.pc() - (0 if exact or is_trampoline else 1)) & MASK, frame.name()
            exact = is_trampoline
        older = frame.older()
        if older is None:
            return
        frame = older


def show():
    frame = gdb.newest_frame()
    registers = (int(frame.read_register(r)) & MASK for r in ("rip", "rsp", "rbp", "rbx"))
    print("STOP", *("%x" % r for r in registers))
    try:
        for pc, name in frames(frame):
            print("FRAME %x %s" % (pc, name))
    except gdb.error as error:
        print("ERROR", error)
    print("END", flush=True)


for setting in [
    "pagination off",
    "confirm off",
    "auto-load off",
    "debuginfod enabled off",
    "print thread-events off",
    "backtrace past-main on",
    "backtrace past-entry on",
    "backtrace limit unlimited",
]:
    gdb.execute("set " + setting)
# Some programs block SIGINT, and SBCL has SIGTRAPs of its own.
for what in ["all nostop noprint pass", "SIGINT SIGTRAP nostop noprint pass", "SIGSTOP stop print nopass"]:
    gdb.execute("handle " + what, to_string=True)
print("READY", flush=True)
while sys.stdin.readline():
    gdb.execute("continue", to_string=True)
    if not gdb.selected_inferior().pid:
        break
    show()
