#!/usr/bin/env python3
"""Measures what the preloaded library of crates/memprof-heap/src/sampler costs programs.

    scripts/bench-sampler.py [--pairs N] [--library NAME=PATH]... [WORKLOAD]...

Each workload runs alternately without a library and with each of these: one that only forwards the calls
(tests/workloads/forward.c), the library while nobody listens, and, as root, the library while the kernel takes both
probes' samples (into the trace buffer, without stacks). --library adds others. Printed are the medians of the pairs'
ratios, the spread of the middle half, and the ratio of the fastest runs, which other load of the machine disturbs
least. The time is the CPU time, in user space and in the kernel; of Redis and PostgreSQL, that of the server.
"""

import argparse
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from heap_workloads import PYTHON, ROOT, SQL, Postgres, compile_c, malloc_loop, rustc

TRACING = pathlib.Path("/sys/kernel/tracing")


def libraries(directory):
    flags = (ROOT / "crates/memprof-heap/src/sampler/flags").read_text().split()
    own = compile_c(directory / "own.so", *flags, *sorted((ROOT / "crates/memprof-heap/src/sampler").glob("*.c")))
    forward = compile_c(directory / "forward.so", "-fPIC", "-shared", ROOT / "tests/workloads/forward.c")
    # A file of its own, as probes are those of a file.
    listened = directory / "listened.so"
    shutil.copy(own, listened)
    return {"forward": forward, "not listened": own}, listened


class Listener:
    """The kernel's own uprobes at both probes, with their semaphores."""

    def __init__(self, library):
        self.group = f"memprof_bench_{os.getpid()}"
        headers = subprocess.run(
            ["readelf", "-lnW", library], capture_output=True, text=True, check=True
        ).stdout
        loads = re.findall(r"LOAD\s+(\S+) (\S+) \S+ (\S+)", headers)
        loads = [[int(word, 16) for word in load] for load in loads]

        def offset(address):
            return next(a - v + o for a in [int(address, 16)] for o, v, s in loads if v <= a < v + s)

        pattern = r"Name: (\w+)\s+Location: (\S+), Base: \S+, Semaphore: (\S+)"
        self.events = []
        for name, place, semaphore in re.findall(pattern, headers):
            self.define(f"p:{self.group}/{name} {library}:{offset(place):#x}({offset(semaphore):#x})")
            self.events.append(name)
        (TRACING / "events" / self.group / "enable").write_text("1")

    @staticmethod
    def define(text):
        # (Python's own append mode seeks, which this file does not permit.)
        events = os.open(TRACING / "uprobe_events", os.O_WRONLY | os.O_APPEND)
        os.write(events, f"{text}\n".encode())
        os.close(events)

    def close(self):
        (TRACING / "events" / self.group / "enable").write_text("0")
        for name in self.events:
            self.define(f"-:{self.group}/{name}")


def environment(library):
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    if library:
        env["LD_PRELOAD"] = str(library)
    return env


def command(*args, stdin="", env=()):
    def run(library):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            args,
            input=stdin,
            text=True,
            stdout=subprocess.DEVNULL,
            env={**environment(library), **dict(env)},
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


def redis(library):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    args = ["redis-server", "--port", port, "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(args, stdout=subprocess.DEVNULL, env=environment(library))
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                    break
            time.sleep(0.02)
        load = ["redis-benchmark", "-p", port, "-q", "-P", "16", "-n", "400000", "-r", "100000", "-d", "200"]
        subprocess.run([*load, "-t", "set,get,lpush,sadd"], stdout=subprocess.DEVNULL, check=True)
        fields = pathlib.Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def postgres(library):
    server = Postgres(environment(library))
    try:
        server.run("pgbench", "-i", "-q", "-s", "2")
        server.run("pgbench", "-n", "-c", "1", "-t", "3000")
        server.run("pgbench", "-n", "-S", "-c", "1", "-t", "20000")
        # Those of the clients are this process's children, those of the server's processes its own.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        server.end()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def workloads(directory):
    loop = malloc_loop(directory)
    compiler = rustc(directory)
    return {
        "tight loop, 64 bytes": command(loop, "64", "20000000"),
        "tight loop, 1 KiB": command(loop, "1024", "20000000"),
        "10,000 live, 16 to 512 bytes": command(loop, "mixed", "20000000"),
        "CPython": command("python3", "-c", PYTHON),
        "CPython, PYTHONMALLOC=malloc": command("python3", "-c", PYTHON, env=[("PYTHONMALLOC", "malloc")]),
        "sqlite3": command("sqlite3", ":memory:", stdin=SQL),
        "Redis (jemalloc)": redis,
        **({"rustc": command(*compiler)} if compiler else {}),
        "PostgreSQL": postgres,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--library", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("workload", nargs="*", help="all whose name contains one of these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        preloads, listened = libraries(directory)
        preloads |= dict(library.split("=", 1) for library in options.library)
        listener = None
        if os.geteuid() == 0 and (TRACING / "uprobe_events").exists():
            listener = Listener(listened)
            preloads["listened"] = listened
        else:
            print("nothing is measured with a listener: that needs root, and tracefs at /sys/kernel/tracing", file=sys.stderr)
        try:
            measure(workloads(directory), preloads, options)
        finally:
            if listener:
                listener.close()


def measure(all_workloads, preloads, options):
    for workload, run in all_workloads.items():
        if options.workload and not any(part in workload for part in options.workload):
            continue
        times = {name: [] for name in preloads}
        base = {name: [] for name in preloads}
        run(None)
        for _ in range(options.pairs):
            for name, library in preloads.items():
                base[name].append(run(None))
                times[name].append(run(library))
        fastest = min(min(values) for values in base.values())
        print(f"{workload}: {fastest:.3f} s")
        for name, values in times.items():
            ratios = [value / without for value, without in zip(values, base[name])]
            low, middle, high = statistics.quantiles(ratios, n=4)
            text = f"{middle:.3f}  ({low:.3f} to {high:.3f}), of the fastest runs {min(values) / fastest:.3f}"
            print(f"    {name:14} {text}", flush=True)


if __name__ == "__main__":
    main()
