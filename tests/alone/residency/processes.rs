//! Processes of all kinds, including some that end during a scan.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::residency::target::{Target, signal, stop};
use crate::residency::{METHODS, between, measure, say};
use memprof_sys::breakdown::{Category, Show};
use memprof_sys::ids::Pid;
use memprof_sys::residency::{
    Classifier, Error, Method, Scanner, figures, proc_maps, read, read_with,
};

#[test]
fn python_and_a_fork_of_this_test() {
    let _others = crate::beside_others();
    let code = "import json, ssl; x = [str(i) for i in range(300000)]; print('ready', flush=True); input()";
    let mut python = Command::new("python3")
        .args(["-c", code])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(python.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let pid = Pid(python.id());
    stop(pid);
    let total = measure(pid);
    python.kill().unwrap();
    python.wait().unwrap();
    assert!(between(total.anon, 20, 200), "{total:?}");
    // SAFETY: the child calls only pause(2).
    let fork = unsafe { libc::fork() };
    if fork == 0 {
        loop {
            // SAFETY: pause has no preconditions.
            unsafe { libc::pause() };
        }
    }
    let pid = Pid(fork as u32);
    stop(pid);
    let forked = std::panic::catch_unwind(|| measure(pid));
    signal(pid, libc::SIGKILL);
    // SAFETY: waits for the child forked above.
    unsafe { libc::waitpid(fork, std::ptr::null_mut(), 0) };
    assert!(forked.unwrap().anon > 0);
}

/// These processes run, so a comparison counts only if the kernel's figures did not change. The test fails for a
/// process whose sum differed repeatedly in such comparisons.
#[test]
fn every_quiet_process_of_this_machine() {
    let _others = crate::beside_others();
    let (mut equal, mut restless) = (0, 0);
    for entry in fs::read_dir("/proc").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Ok(pid) = name.parse().map(Pid) else {
            continue;
        };
        let mut wrong = Vec::new();
        for _ in 0..5 {
            let Ok(r) = read(pid) else { break };
            let same = Some(r.total.anon) == r.before.anonymous
                && r.total.resident() == r.before.resident()
                && r.total.swap == r.before.swap;
            if same {
                equal += 1;
                wrong.clear();
                break;
            }
            if r.before != r.after {
                restless += 1;
                wrong.clear();
                break;
            }
            wrong.push(r);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(wrong.len() < 5, "{pid}: {wrong:?}");
    }
    say!("{equal} processes of this machine equal, {restless} changed meanwhile");
    assert!(equal >= 3);
}

#[test]
fn a_process_that_ends_is_gone() {
    let _others = crate::beside_others();
    for method in METHODS {
        let target = Target::start("alternating", Path::new("/"));
        let vmas = proc_maps::read(target.pid(), &mut Classifier::new()).unwrap();
        let mut scanner = Scanner::open(target.pid(), method).unwrap();
        let mut killed = false;
        let mut kill = || {
            if !std::mem::replace(&mut killed, true) {
                target.kill();
            }
        };
        let result = vmas
            .iter()
            .try_for_each(|vma| scanner.scan_vma(vma, &mut |_| (), &mut kill))
            .and_then(|()| scanner.check_alive());
        assert!(
            matches!(result, Err(Error::Gone(p)) if p == target.pid()),
            "{result:?}"
        );
        assert!(killed, "there was more than one window");
        // Every query treats a zombie as ended.
        let pid = target.pid();
        assert!(figures::status(pid).unwrap_err().is_gone());
        assert!(figures::rollup(pid).unwrap_err().is_gone());
        assert!(
            proc_maps::read(pid, &mut Classifier::new())
                .unwrap_err()
                .is_gone()
        );
        assert!(
            Scanner::open(pid, method)
                .map(|_| ())
                .unwrap_err()
                .is_gone()
        );
        drop(target);
        assert!(read(pid).unwrap_err().is_gone());
    }
}

#[test]
fn a_process_that_calls_exec_is_gone_for_the_scanner() {
    let _others = crate::beside_others();
    for method in METHODS {
        let mut target = Target::start("malloc_small", Path::new("/"));
        let scanner = Scanner::open(target.pid(), method).unwrap();
        scanner.check_alive().unwrap();
        target.exec();
        assert!(scanner.check_alive().unwrap_err().is_gone());
        assert!(read(target.pid()).is_ok());
    }
}

#[test]
fn kernel_threads_have_no_memory() {
    let _others = crate::beside_others();
    assert!(figures::status(Pid(2)).unwrap_err().is_gone());
    assert!(read(Pid(2)).unwrap_err().is_gone());
}

/// Without privileges, refused figures are errors, and the others are exact.
#[test]
fn as_an_ordinary_user() {
    let _others = crate::beside_others();
    const NOBODY: u32 = 65534;
    if std::env::var_os("AS_NOBODY").is_none() {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "residency::processes::as_an_ordinary_user"])
            .env("AS_NOBODY", "1")
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let denied = |e: Error| matches!(e, Error::Denied { .. });
    assert!(denied(
        Scanner::open(Pid(1), Method::Auto).map(|_| ()).unwrap_err()
    ));
    assert!(denied(
        proc_maps::read(Pid(1), &mut Classifier::new()).unwrap_err()
    ));
    assert!(denied(figures::rollup(Pid(1)).unwrap_err()));
    assert!(denied(
        memprof_sys::breakdown::measure(Pid(1), Show::All).unwrap_err()
    ));
    assert!(figures::status(Pid(1)).is_ok());
    for scenario in ["memfd", "zero_read", "shared_anon", "thp", "huge_zero"] {
        let target = Target::start(scenario, Path::new("/"));
        target.stop();
        let scanner = Scanner::open(target.pid(), Method::Pagemap);
        assert!(denied(scanner.map(|_| ()).unwrap_err()));
        let r = read_with(target.pid(), Method::Auto, &mut Classifier::new()).unwrap();
        assert_eq!(r.method, Method::Ioctl);
        assert_eq!(Some(r.total.anon), r.before.anonymous, "{scenario}");
        assert_eq!(r.total.resident(), r.before.resident(), "{scenario}");
        let all = crate::residency::breakdown::equals(target.pid());
        let memfd = all.categories.iter().any(|r| r.category == Category::Memfd);
        assert_eq!(memfd, scenario == "memfd", "{all:?}");
    }
}
