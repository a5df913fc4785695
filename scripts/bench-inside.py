#!/usr/bin/env python3
"""Measures what memprof --heap costs programs whose allocator is in the executable.

    sudo scripts/bench-inside.py [--pairs N] [--memprof PATH] [WORKLOAD]...

benches/workloads/requests.c is linked with libjemalloc.a and with libtcmalloc_minimal.a, and statically with glibc and with
musl, and runs alternately alone and as the command of `memprof --heap`, which redirects the allocator's functions. The program measures the CPU time of its loop,
in user space and in the kernel, memprof's samples included. Printed are the medians of the pairs' ratios, the spread of
the middle half, and the ratio of the fastest runs.
"""

import argparse
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from heap_workloads import ROOT

ALLOCATORS = ["libjemalloc.a", "libtcmalloc_minimal.a"]
STATIC = {"glibc": "gcc", "musl": "musl-gcc"}
WORKLOADS = {"loop": 30_000_000, "mixed": 10_000_000, "serve": 300_000}


def link(directory, allocator):
    """The program with an allocator inside; None if the allocator is not installed."""
    program, part = directory / allocator.removesuffix(".a"), directory / "requests.o"
    source = ROOT / "benches/workloads/requests.c"
    options = ["-std=gnu11", "-O2", "-fno-builtin-malloc"]
    if compiler := STATIC.get(allocator):
        if not shutil.which(compiler):
            print(f"{compiler} is not installed", file=sys.stderr)
            return None
        subprocess.run([compiler, *options, "-static", source, "-o", program], check=True)
        return program
    found = next(iter(sorted(pathlib.Path("/usr/lib").glob(f"*/{allocator}"))), None)
    if not found:
        print(f"{allocator} is not installed", file=sys.stderr)
        return None
    subprocess.run(["gcc", *options, "-c", source, "-o", part], check=True)
    subprocess.run(["g++", part, found, "-pthread", "-ldl", "-o", program], check=True)
    return program


def run(*args):
    """The program's figure: ns for each turn."""
    done = subprocess.run(list(map(str, args)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{args} failed: {done.stderr}")
    return float(done.stdout.split()[0]), done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--memprof", default=ROOT / "target/release/memprof")
    parser.add_argument("workload", nargs="*", default=list(WORKLOADS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for allocator in [*ALLOCATORS, *STATIC]:
            if program := link(pathlib.Path(name), allocator):
                measure(program, options)


def measure(program, options):
    for workload in options.workload:
        command = [program, workload, WORKLOADS[workload]]
        alone, sampled = [], []
        for _ in range(options.pairs):
            alone.append(run(*command)[0])
            figure, said = run(options.memprof, "--heap", "--no-server", "--", *command)
            # A figure without samples would be one of a program that is not redirected.
            if "live heap" not in said:
                sys.exit(f"memprof sampled nothing: {said}")
            sampled.append(figure)
        low, middle, high = statistics.quantiles([a / b for a, b in zip(sampled, alone)], n=4)
        fastest = min(sampled) / min(alone)
        print(
            f"{program.name}, {workload}: {min(alone):.1f} ns; {middle:.3f} ({low:.3f} to {high:.3f}), "
            f"of the fastest runs {fastest:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
