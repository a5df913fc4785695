"""Lists the BPF objects of a process, and which of them still exist.

    bpf.py held PID        prints its programs, maps and links, one per line: `prog 12`
    bpf.py left <LINES     prints those of these lines that still exist in the kernel
"""

import ctypes
import errno
import glob
import os
import platform
import struct
import sys

CALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
# The commands of bpf(2): BPF_PROG_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_LINK_GET_FD_BY_ID.
BY_ID = {"prog": 13, "map": 14, "link": 30}


def held(pid):
    for path in glob.glob(f"/proc/{pid}/fdinfo/*"):
        try:
            lines = open(path).read().splitlines()
        except FileNotFoundError:
            continue
        for key, _, value in (line.partition(":") for line in lines):
            kind = key.removesuffix("_id")
            if key.endswith("_id") and kind in BY_ID:
                yield f"{kind} {int(value)}"


def exists(kind, number):
    attributes = struct.pack("III", number, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(CALL, BY_ID[kind], attributes, len(attributes))
    if fd < 0:
        if ctypes.get_errno() != errno.ENOENT:
            sys.exit(f"bpf: {kind} {number}: {os.strerror(ctypes.get_errno())}")
        return False
    os.close(fd)
    return True


if sys.argv[1] == "held":
    print("\n".join(sorted(set(held(sys.argv[2])))))
else:
    objects = [line.split() for line in sys.stdin if line.strip()]
    print("\n".join(f"{kind} {number}" for kind, number in objects if exists(kind, int(number))))
