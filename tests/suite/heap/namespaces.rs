//! Snapshots of processes that make or enter namespaces: they go on doing so.

use std::process::Command;

use crate::common::workload::Workload;
use crate::heap::headroom::taken;

/// The first process of a PID namespace ends it: nobody could be forked there any more.
#[test]
fn a_process_with_another_namespace_for_its_children_is_copied() {
    const PROGRAM: &str = "
import ctypes, os, sys
held = bytearray(60 << 20)
if ctypes.CDLL(None, use_errno=True).unshare(0x20000000) != 0:  # CLONE_NEWPID
    sys.exit('unshare')
print('ok', flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    print('first' if os.waitpid(pid, 0)[1] == 0 else 'later', flush=True)
";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-S", "-c", PROGRAM]);
    let mut workload = Workload::start_as(&mut python);
    assert_eq!(workload.lines.line(), "ok");
    let copied = taken(&workload.pid().to_string());
    assert_eq!(copied["approach"], "copy", "{copied}");
    let reason = copied["not_forked"].as_str().unwrap();
    assert!(reason.contains("another PID namespace"), "{reason}");
    workload.lines.send("fork");
    assert_eq!(workload.lines.line(), "first");
}

/// With the working directory in common (`CLONE_FS`), the process could enter no mount namespace while it has the child.
#[test]
fn a_process_may_enter_a_mount_namespace_meanwhile() {
    const PROGRAM: &str = "
import ctypes, os, select, sys
held = bytearray(60 << 20)
libc = ctypes.CDLL(None, use_errno=True)
own = os.open('/proc/self/ns/mnt', os.O_RDONLY)
print('ok', flush=True)
entered = refused = 0
while not select.select([sys.stdin], [], [], 0.0005)[0]:
    if libc.setns(own, 0x20000) == 0:  # CLONE_NEWNS
        entered += 1
    else:
        refused += 1
print('entered' if entered else 'never', refused, flush=True)
";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-S", "-c", PROGRAM]);
    let mut workload = Workload::start_as(&mut python);
    assert_eq!(workload.lines.line(), "ok");
    for _ in 0..3 {
        let forked = taken(&workload.pid().to_string());
        assert_eq!(forked["approach"], "fork", "{forked}");
    }
    workload.lines.send("end");
    assert_eq!(workload.lines.line(), "entered 0");
}
