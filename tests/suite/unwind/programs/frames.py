# For gdb: runs the program, stops in each function whose name ends in _leaf, and prints its callers as
# gdb unwinds them: file, and offset in it of the call or of the interrupted instruction.
#
# FOLLOW names a function after whose begin a new process is the one to look at.
import os

import gdb


class Follow(gdb.Breakpoint):
    def stop(self):
        gdb.execute("set follow-fork-mode child")
        return False


def mappings():
    with open("/proc/%d/maps" % gdb.selected_inferior().pid) as maps:
        for line in maps:
            words = line.split()
            start, end = (int(w, 16) for w in words[0].split("-"))
            if len(words) > 5:
                yield start, end, int(words[2], 16), os.path.basename(words[5])


def show():
    known = list(mappings())
    frame = gdb.newest_frame()
    print("LEAF", frame.name())
    trampoline = False
    while frame.older() is not None:
        # What a signal interrupted is not a call, and none precedes the trampoline to which its handler returns.
        interrupted, frame = trampoline, frame.older()
        trampoline = frame.type() == gdb.SIGTRAMP_FRAME
        as_it_is = interrupted or trampoline
        # Inlined functions, and those that ended in a jump: debug information has them, the stack not.
        if frame.type() in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            continue
        pc = frame.pc() - (0 if as_it_is else 1)
        found = [(n, pc - s + o) for s, e, o, n in known if s <= pc < e]
        name, offset = found[0] if found else ("?", pc)
        print("CALLER %s %x" % (name, offset & (1 << 64) - 1))
    print("END", frame.unwind_stop_reason(), flush=True)


for setting in [
    "pagination off",
    "confirm off",
    "backtrace past-main on",
    "backtrace past-entry on",
    "backtrace limit unlimited",
    "breakpoint pending on",
]:
    gdb.execute("set " + setting)
gdb.execute("handle SIGUSR1 SIGSEGV nostop noprint pass")
gdb.execute(r"rbreak _leaf\b", to_string=True)
if "FOLLOW" in os.environ:
    Follow(os.environ["FOLLOW"])
gdb.execute("run")
while gdb.selected_inferior().pid:
    show()
    gdb.execute("continue")
