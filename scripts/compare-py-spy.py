#!/usr/bin/env python3
"""Compares the Python functions of memprof's stacks with those that py-spy sees, at random stops of a real program.

    sudo scripts/compare-py-spy.py [--stops N] [--memprof FILE] PYTHON ARGUMENTS…

Runs PYTHON with these arguments under memprof, preloads tests/workloads/stops.c, and at each stop, where a thread has just
written to a fresh page and the whole process stands still, asks py-spy (from PyPI) for that thread's functions. Then each of
these stacks must be among memprof's. Needs root, cc and py-spy. The program has to run longer than the stops take: about
0.2 s each.
"""
import argparse
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 60
# The interpreter's own entry frames, which py-spy shows for some versions.
SHIM = "<shim>"


def state(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def wait_stopped(pid):
    end = time.monotonic() + LIMIT
    while any(state(f"{pid}/task/{tid}") not in "Tt" for tid in os.listdir(f"/proc/{pid}/task")):
        if time.monotonic() > end:
            sys.exit("the program does not stop")
        time.sleep(0.001)


def py_spy(pid, thread):
    """The functions of a thread, innermost first; None if py-spy does not know the thread, or fails."""
    command = ["py-spy", "dump", "--json", "--nonblocking", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    for one in json.loads(done.stdout):
        if one["os_thread_id"] == thread:
            frames = [(plain(f["name"]), f["filename"], f["line"]) for f in one["frames"]]
            return tuple(frame for frame in frames if frame[0] != SHIM)
    return None


def plain(name):
    """Without the classes and functions around it: not every version of both knows these."""
    return name.rsplit(".", 1)[-1]


def memprof_stacks(profile):
    """For each stop its functions, innermost first."""
    frames, stops = profile["frames"], collections.Counter()
    for stack in profile["stacks"]:
        found = [frames[at] for at in stack["frames"]]
        if any(frame.get("function") == "stopped" for frame in found):
            functions = tuple((plain(f["function"]), f["file"], f.get("line", 0))
                              for f in found if f.get("language") == "python")
            stops[functions] += stack["bytes"]["anon"] // 4096
    return stops


def run(arguments, library):
    command = [arguments.memprof, "--listen", "127.0.0.1:0", "--stacks", "all", "--max-frames", "1024", "--", "env",
               f"LD_PRELOAD={library}", f"STOPS={arguments.stops}", "HOLD=1", arguments.python, *arguments.arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as m:
        address = next(line for line in m.stderr if "serving http://" in line).split("serving ")[1].strip()
        os.set_blocking(m.stderr.fileno(), False)
        pid = None
        seen, unknown = collections.Counter(), 0
        for line in m.stdout:
            if line.startswith("stopped "):
                break
            if not line.startswith("held "):
                continue
            pid = pid or int(urllib.request.urlopen(f"{address}v1/pid").read())
            wait_stopped(pid)
            functions = py_spy(pid, int(line.split()[1]))
            if functions is None:
                unknown += 1
            else:
                seen[functions] += 1
            os.kill(pid, signal.SIGCONT)
        profile = json.load(urllib.request.urlopen(f"{address}v2/export/profile"))
        os.kill(pid, signal.SIGKILL)
        m.stdin.close()
        m.send_signal(signal.SIGINT)
    return seen, unknown, profile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=200)
    parser.add_argument("--memprof", default=ROOT / "target/release/memprof")
    parser.add_argument("python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        library = f"{directory}/stops.so"
        source = ROOT / "tests/workloads/stops.c"
        subprocess.run(["cc", "-O1", "-g", "-shared", "-fPIC", "-pthread", source, "-o", library], check=True)
        seen, unknown, profile = run(arguments, library)
    stops = memprof_stacks(profile)
    same = sum((seen & stops).values())
    compared = sum(seen.values())
    print(f"{same} of {compared} stops are equal; py-spy did not know the thread at {unknown}")
    for functions, number in (seen - stops).most_common(5):
        print(f"{number} only in py-spy: {functions[:6]}")
    for functions, number in (stops - seen).most_common(5):
        print(f"{number} only in memprof: {functions[:6]}")
    sys.exit(same < compared * 0.99)


main()
