//! Each test uses its own thread, because dropped privileges cannot be regained.

use std::fs::File;
use std::io;
use std::process::Command;

use super::*;

/// Runs a function on a thread with this role.
fn as_role<T: Send + 'static>(role: ThreadRole, run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        reduce(role);
        run()
    });
    thread.join().unwrap()
}

fn status(key: &str) -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(key));
    line.unwrap().trim().to_owned()
}

#[test]
fn every_role_is_reduced_and_filtered() {
    let own = || ["NoNewPrivs:", "Seccomp:", "CapEff:", "CapBnd:"].map(status);
    let before = own();
    for role in ThreadRole::ALL {
        let (nothing_new, filtered, effective, bounding) = as_role(role, || {
            (
                status("NoNewPrivs:"),
                status("Seccomp:"),
                caps::read(None, CapSet::Effective).unwrap(),
                status("CapBnd:"),
            )
        });
        // Only a thread with CAP_SETPCAP can empty the bounding set.
        if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap() {
            assert_eq!(bounding, "0000000000000000", "{role:?}");
        }
        assert_eq!((&*nothing_new, &*filtered), ("1", "2"), "{role:?}");
        let needs: CapsHashSet = role.needs().into_iter().collect();
        assert!(effective.is_subset(&needs), "{role:?}: {effective:?}");
    }
    assert_eq!(own(), before, "a thread took its starter's");
}

#[test]
fn nobody_starts_programs_or_makes_sockets() {
    for role in ThreadRole::ALL {
        let refused = as_role(role, || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").map(drop);
            [Command::new("/bin/true").status().map(drop), socket]
        });
        for outcome in refused {
            let e = outcome.expect_err("it was allowed");
            assert_eq!(e.raw_os_error(), Some(libc::EPERM), "{role:?}");
        }
    }
}

/// Makes a call with arguments that have no effect even if the call is allowed.
fn errno_of(call: libc::c_long) -> Option<i32> {
    // SAFETY: -1 and 0 are not valid pointers, descriptors or commands, so the kernel refuses them.
    let answer = unsafe { libc::syscall(call, -1, 0, 0, 0, 0) };
    (answer < 0)
        .then(|| io::Error::last_os_error().raw_os_error())
        .flatten()
}

#[test]
fn only_the_collector_uses_bpf_and_looks_into_processes() {
    for call in [libc::SYS_bpf, libc::SYS_ptrace, libc::SYS_process_vm_readv] {
        let allowed = as_role(ThreadRole::Collector, move || errno_of(call));
        assert_ne!(allowed, Some(libc::EPERM), "{call}");
        let server = ThreadRole::Server {
            writes_files: false,
        };
        for role in [
            server,
            ThreadRole::Symbols,
            ThreadRole::Fetch,
            ThreadRole::Push,
            ThreadRole::Record { writes_files: true },
            ThreadRole::Tables,
        ] {
            let refused = as_role(role, move || errno_of(call));
            assert_eq!(refused, Some(libc::EPERM), "{call} by {role:?}");
        }
    }
}

#[test]
fn readers_of_files_change_none() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    std::fs::write(&old, "text").unwrap();
    for role in [ThreadRole::Symbols, ThreadRole::Push] {
        let (changes, thread) = as_role(role, {
            let (old, new) = (old.clone(), new.clone());
            move || {
                assert_eq!(std::fs::read_to_string(&old).unwrap(), "text");
                let changes = [
                    File::create(&new).map(drop),
                    File::options().write(true).open(&old).map(drop),
                    File::options().append(true).open(&old).map(drop),
                    std::fs::rename(&old, &new),
                    std::fs::remove_file(&old),
                ];
                let thread = std::thread::Builder::new().spawn(|| ()).map(drop);
                (changes, thread.map_err(|e| e.raw_os_error()))
            }
        });
        for outcome in changes {
            let e = outcome.expect_err("it was allowed");
            assert_eq!(e.raw_os_error(), Some(libc::EPERM), "{role:?}");
        }
        let starts = role == ThreadRole::Push;
        assert_eq!(thread.is_ok(), starts, "{role:?}: {thread:?}");
    }
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "text");
    assert!(!new.exists());
}

#[test]
fn only_clients_connect() {
    for role in ThreadRole::ALL {
        let (made, connected, signal) = as_role(role, || {
            let connect = std::net::TcpStream::connect("127.0.0.1:1");
            (
                errno_of(libc::SYS_socket),
                connect.map(drop).map_err(|e| e.kind()),
                errno_of(libc::SYS_tkill),
            )
        });
        let refused = Err(io::ErrorKind::PermissionDenied);
        if matches!(role, ThreadRole::Fetch | ThreadRole::Push) {
            assert_ne!(made, Some(libc::EPERM));
            assert_ne!(connected, refused);
            assert_eq!(signal, Some(libc::EPERM));
        } else {
            assert_eq!((made, connected), (Some(libc::EPERM), refused), "{role:?}");
        }
    }
}

#[test]
fn files_are_written_as_before() {
    let writes = ThreadRole::Server { writes_files: true };
    let (before, during, after) = as_role(writes, || {
        let has = || caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_OVERRIDE).unwrap();
        (has(), writing_files(has), has())
    });
    assert!(!before && !after);
    assert_eq!(during, nix::unistd::geteuid().is_root());
    let without = ThreadRole::Server {
        writes_files: false,
    };
    let has = || caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_OVERRIDE).unwrap();
    assert!(!as_role(without, move || writing_files(has)));
}
