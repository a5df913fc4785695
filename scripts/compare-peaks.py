#!/usr/bin/env python3
"""Shows the peak of the same jobs as memprof, memray, heaptrack and massif see it: how high, and who holds it.

    sudo scripts/compare-peaks.py [--memprof PATH] [--memray PYTHON]

`--memray` is a Python that has memray (a virtual environment's). What is not installed is left out. The jobs are in
scripts/peak_jobs/: a Python job that frees what it made, and one in C whose highest heap and highest RSS are at
different moments. Printed are MiB.
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOBS = ROOT / "scripts/peak_jobs"
MIB = 1 << 20

# What reads memray's file, run by the Python that has it.
READ_MEMRAY = """
import json, sys, memray
reader = memray.FileReader(sys.argv[1])
rows = [(r.size, [f[0] for f in r.stack_trace()]) for r in reader.get_high_watermark_allocation_records(merge_threads=True)]
print(json.dumps({"peak": reader.metadata.peak_memory, "rows": rows}))
"""


def quiet(command, directory):
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def shares(rows, functions):
    """Bytes under each function, from rows of bytes and stack."""
    held = collections.Counter()
    for size, stack in rows:
        # Each byte counts once: the innermost of the functions holds it.
        owner = next((f for f in functions if f in stack), None)
        held[owner] += size
    return held


def folded(text):
    """Rows of lines `a;b;c bytes`."""
    for line in text.splitlines():
        stack, size = line.rsplit(" ", 1)
        yield int(size), [re.sub(r" \(.*|\(.*", "", frame) for frame in stack.split(";")]


def by_memprof(options, command, directory):
    # RSS is anonymous and shared memory, and mapped files.
    kinds = ["resident", "file"]
    outputs = [["--kind", kind, "--at", "peak", "-o", f"{kind}.folded"] for kind in kinds]
    quiet([options.memprof, "--no-server", "--stacks", "all", *sum(outputs, []), "--", *command], directory)
    rows = [row for kind in kinds for row in folded((directory / f"{kind}.folded").read_text())]
    return sum(size for size, _ in rows), rows


def by_memray(options, command, directory):
    if command[0] != sys.executable or not options.memray:
        return None
    quiet([options.memray, "-m", "memray", "run", "-q", "-o", "out.bin", *command[1:]], directory)
    read = json.loads(quiet([options.memray, "-c", READ_MEMRAY, "out.bin"], directory))
    return read["peak"], read["rows"]


def by_heaptrack(options, command, directory):
    if not shutil.which("heaptrack"):
        return None
    quiet(["heaptrack", "-o", "out", *command], directory)
    file = next(directory.glob("out.*"))
    quiet(["heaptrack_print", "-f", file, "-F", "out.folded", "--flamegraph-cost-type", "peak"], directory)
    rows = list(folded((directory / "out.folded").read_text()))
    return sum(size for size, _ in rows), rows


def by_massif(options, command, directory):
    if not shutil.which("valgrind"):
        return None
    quiet(["valgrind", "-q", "--tool=massif", "--massif-out-file=out", *command], directory)
    text = (directory / "out").read_text()
    peak = re.search(r"mem_heap_B=(\d+)\nmem_heap_extra_B=(\d+)\n.*\nheap_tree=peak\n((?: *n\d+: .*\n)*)", text)
    rows, stack = [], []
    lines = re.findall(r"( *)n(\d+): (\d+) (?:0x\w+: )?(\S+)", peak[3])
    for indent, callers, size, function in lines:
        del stack[len(indent) :]
        stack.append(function)
        if callers == "0":
            rows.append((int(size), list(stack)))
    return int(peak[1]) + int(peak[2]), rows


TOOLS = {"memprof": by_memprof, "memray": by_memray, "heaptrack": by_heaptrack, "massif": by_massif}


def highest_rss(command, directory):
    """The kernel's figure for the job alone, as `VmHWM`."""
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    return int(quiet([sys.executable, "-c", code, *command], directory)) * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memprof", default=str(ROOT / "target/release/memprof"))
    parser.add_argument("--memray", metavar="PYTHON")
    options = parser.parse_args()
    options.memprof = str(pathlib.Path(options.memprof).resolve())
    with tempfile.TemporaryDirectory() as temporary:
        base = pathlib.Path(temporary)
        stages = base / "stages"
        quiet(["gcc", "-O1", "-g", "-fno-omit-frame-pointer", "-o", stages, JOBS / "stages.c"], base)
        jobs = {
            "report.py": ([sys.executable, str(JOBS / "report.py")], ["read_records", "make_index", "main"]),
            "stages.c": ([str(stages)], ["reserve", "fill", "scan"]),
        }
        for name, (command, functions) in jobs.items():
            print(f"\n{name}: highest RSS alone {highest_rss(command, base) / MIB:.1f} MiB")
            print(f"| tool | peak | {' | '.join(functions)} | others |\n|{'---|' * (len(functions) + 3)}")
            for tool, run in TOOLS.items():
                directory = base / f"{tool}-{name}"
                directory.mkdir()
                found = run(options, command, directory)
                if found:
                    peak, rows = found
                    held = shares(rows, functions)
                    cells = [peak, *(held[f] for f in functions), held[None]]
                    print(f"| {tool} | {' | '.join(f'{cell / MIB:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
