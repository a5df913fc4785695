#!/usr/bin/env python3
"""Runs the same programs under `memprof --heap` and under other heap profilers, one after the other.

    sudo scripts/compare-heap-profilers.py [--rounds N] [--memray PATH] [--bytehound PATH] [--memprof PATH] [WORKLOAD]...

In each round a program runs alone, and then with each profiler that is installed: heaptrack, massif (valgrind), the
profilers of jemalloc (MALLOC_CONF=prof:true) and tcmalloc (HEAPPROFILE), memray for Python, and bytehound (its
libbytehound.so; what reads its files is not run). The rows "jemalloc" and "tcmalloc" are these allocators without
their profilers. Printed are medians: the time until the program has ended, as a ratio to the run alone; the CPU time
of everything that ran, likewise; the memory of the largest process; the bytes that were written; and the time from
the program's end until a text with the stacks is there.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from heap_workloads import PYTHON, ROOT, SQL, malloc_loop

LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")


class Profiler:
    """How a command is run with a profiler, and how its answer is then read.

    Both are given the directory for files: `run` also the command, and returns the command and what is added to the
    environment; `read` returns a command, or None if the answer was printed already.
    """

    def __init__(self, run, read=lambda directory, command: None, only=None, answers=True):
        self.run, self.read, self.only, self.answers = run, read, only, answers


def preload(library, **more):
    path = LIBRARIES / library
    return lambda directory, command: (
        command,
        {"LD_PRELOAD": str(path), **{key: value.format(directory=directory) for key, value in more.items()}},
    )


def newest(directory, pattern):
    return str(max(directory.glob(pattern), key=lambda path: path.stat().st_size))


def profilers(options):
    memprof = [options.memprof, "--heap", "--no-server", "--kind", "inuse_space", "-o"]
    found = {
        "memprof --heap": Profiler(
            lambda directory, command: ([*memprof, f"{directory}/out.pb.gz", "--", *command], {})
        ),
        # What counting resident pages, without the heap, costs.
        "memprof": Profiler(
            lambda directory, command: (
                [options.memprof, "--no-server", "-o", f"{directory}/out.pb.gz", "--", *command],
                {},
            )
        ),
    }
    if shutil.which("heaptrack"):
        found["heaptrack"] = Profiler(
            lambda directory, command: (["heaptrack", "-o", f"{directory}/out", *command], {}),
            lambda directory, command: ["heaptrack_print", "-f", newest(directory, "out*")],
        )
    if shutil.which("valgrind"):
        found["massif"] = Profiler(
            lambda directory, command: (
                ["valgrind", "-q", "--tool=massif", f"--massif-out-file={directory}/out", *command],
                {},
            ),
            lambda directory, command: ["ms_print", f"{directory}/out"],
        )
    if (LIBRARIES / "libjemalloc.so.2").exists():
        found["jemalloc"] = Profiler(preload("libjemalloc.so.2"))
        conf = "prof:true,prof_final:true,lg_prof_sample:19,prof_prefix:{directory}/out"
        found["jemalloc, prof:true"] = Profiler(
            preload("libjemalloc.so.2", MALLOC_CONF=conf),
            lambda directory, command: ["jeprof", "--text", command[0], newest(directory, "*.heap")],
        )
    if (LIBRARIES / "libtcmalloc.so.4").exists():
        found["tcmalloc"] = Profiler(preload("libtcmalloc.so.4"))
        found["tcmalloc, HEAPPROFILE"] = Profiler(
            preload("libtcmalloc.so.4", HEAPPROFILE="{directory}/out"),
            lambda directory, command: ["google-pprof", "--text", command[0], newest(directory, "*.heap")],
        )
    if options.memray:
        found["memray --native"] = Profiler(
            lambda directory, command: (
                [options.memray, "run", "-q", "--native", "-o", f"{directory}/out", *command[1:]],
                {},
            ),
            lambda directory, command: [options.memray, "summary", f"{directory}/out"],
            only="python3",
        )
    if options.bytehound:
        output = {"LD_PRELOAD": options.bytehound, "MEMORY_PROFILER_LOG": "error"}
        found["bytehound"] = Profiler(
            lambda directory, command: (command, {**output, "MEMORY_PROFILER_OUTPUT": f"{directory}/out"}),
            answers=False,
        )
    return found


def run(command, stdin, env, directory):
    """Seconds, CPU seconds of all processes, and KiB of the largest one."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(directory / "said", "w", encoding="utf8") as said, open(stdin, encoding="utf8") as given:
        child = subprocess.Popen(
            command, stdin=given, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **env}
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - began
    if child.returncode:
        sys.exit(f"{' '.join(command)}: status {child.returncode}\n{(directory / 'said').read_text()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu, used.ru_maxrss


def profiled(profiler, command, stdin, directory):
    """The figures of a run, the bytes that it wrote, and the seconds until its answer."""
    line, env = profiler.run(directory, command)
    figures = run(line, stdin, env, directory)
    written = sum(path.stat().st_size for path in directory.iterdir() if path.name not in ("said", "in"))
    read, began = profiler.read(directory, command), time.monotonic()
    if read:
        with open(directory / "answer", "w", encoding="utf8") as answer:
            subprocess.run(read, stdout=answer, stderr=subprocess.DEVNULL, check=True)
        if not (directory / "answer").stat().st_size:
            sys.exit(f"{' '.join(read)} printed nothing")
    return *figures, written, time.monotonic() - began


def workloads(directory):
    loop = malloc_loop(directory)
    script = directory / "work.py"
    script.write_text(PYTHON)
    return {
        "CPython": (["/usr/bin/python3", str(script)], ""),
        "sqlite3": ([shutil.which("sqlite3") or "sqlite3", ":memory:"], SQL),
        "10,000 live, 16 to 512 bytes": ([str(loop), "mixed", "20000000"], ""),
    }


def measure(name, command, given, found, options):
    with tempfile.TemporaryDirectory() as own:
        stdin = pathlib.Path(own) / "in"
        stdin.write_text(given)
        alone, rows = [], {key: [] for key in found if (found[key].only or "") in command[0]}
        for _ in range(options.rounds):
            for key in [None, *rows]:
                with tempfile.TemporaryDirectory() as files:
                    directory = pathlib.Path(files)
                    if key is None:
                        alone.append(run(command, stdin, {}, directory))
                    else:
                        rows[key].append(profiled(found[key], command, stdin, directory))
    base = [statistics.median(figures) for figures in zip(*alone)]
    print(f"\n{name}: {base[0]:.2f} s, {base[2] / 1024:.0f} MiB alone\n")
    print("| | time | CPU time | largest process | written | answer after |")
    print("|---|---|---|---|---|---|")
    for key, runs in rows.items():
        took, cpu, largest, written, answer = (statistics.median(figures) for figures in zip(*runs))
        print(
            f"| {key} | {took / base[0]:.2f} | {cpu / base[1]:.2f} | {largest / 1024:.0f} MiB "
            f"| {written / 1024:,.0f} KiB | {f'{answer:.2f} s' if found[key].answers else 'not run'} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memprof", default=str(ROOT / "target/release/memprof"), metavar="PATH")
    parser.add_argument("--memray", default=shutil.which("memray"), metavar="PATH")
    parser.add_argument("--bytehound", metavar="PATH")
    parser.add_argument("workload", nargs="*", help="all whose name contains one of these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for workload, (command, given) in workloads(pathlib.Path(name)).items():
            if not options.workload or any(part in workload for part in options.workload):
                measure(workload, command, given, profilers(options), options)


if __name__ == "__main__":
    main()
