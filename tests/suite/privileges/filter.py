"""Runs a command under the system call filter that systemd makes of `SystemCallFilter=~…` with `SystemCallErrorNumber=EPERM` and
`SystemCallArchitectures=native`, by the same library.

    filter.py @GROUP|CALL… -- COMMAND…
"""

import ctypes
import errno
import os
import subprocess
import sys

ALLOW = 0x7FFF0000
ERRNO = 0x00050000


def calls(names):
    """The system calls of these groups."""
    found = set()
    for name in names:
        if not name.startswith("@"):
            found.add(name)
            continue
        listed = subprocess.run(
            ["systemd-analyze", "--no-pager", "syscall-filter", name], check=True, capture_output=True, text=True
        ).stdout
        lines = [line.strip() for line in listed.splitlines()[1:]]
        found |= calls(line for line in lines if line and not line.startswith("#"))
    return found


def main():
    end = sys.argv.index("--")
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    # Other architectures than this machine's kill, as systemd has it.
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ALLOW)))
    refused = ctypes.c_uint32(ERRNO | errno.EPERM)
    count = 0
    for name in sorted(calls(sys.argv[1:end])):
        number = library.seccomp_syscall_resolve_name(name.encode())
        # Negative: this architecture does not have it.
        if number >= 0:
            failed = library.seccomp_rule_add_array(context, refused, ctypes.c_int(number), 0, None)
            if failed:
                sys.exit(f"cannot refuse {name}: {os.strerror(-failed)}")
            count += 1
    failed = library.seccomp_load(context)
    if failed or not count:
        sys.exit(f"cannot install a filter of {count} calls: {os.strerror(-failed)}")
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])


main()
