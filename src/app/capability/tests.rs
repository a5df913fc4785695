//! Tests of the checks with synthetic facts.

use super::checks::ENOUGH_OPEN_FILES;
use super::*;
use crate::probe::{SyscallHooks, source};
use memprof_sys::ids::Pid;

/// A current kernel, root, nothing missing.
fn good() -> Facts {
    Facts {
        proc: Trial::Works,
        uid: 0,
        caps: Caps(u64::MAX),
        release: "6.12.0".into(),
        version: Some(KernelVersion(6, 12)),
        arch: "x86_64",
        btf: BtfFact::Present(source::tracepoints().collect()),
        bpf: Trial::Works,
        bpf_helpers: Trial::Works,
        fault_event: Trial::Works,
        pagemap_scan: Trial::Works,
        cachestat: Trial::Works,
        uprobes: Trial::Works,
        page_frames: Trial::Works,
        mapped_files: Trial::Works,
        lockdown: Some("none".into()),
        initial_pid_namespace: Some(true),
        initial_user_namespace: Some(true),
        open_files: Some((1024, 1_048_576)),
        trials: Some(Trials {
            other: Some(access(Trial::Works, Trial::Works)),
            probe: Some(Ok(Vec::new())),
            syscall_hooks: Some(SyscallHooks::Functions),
            reduction: Trial::Works,
        }),
    }
}

/// memprof's access to a process of another user.
fn access(pages: Trial, rest: Trial) -> Access {
    Access {
        pid: Pid(7),
        uid: 65534,
        pages,
        program: rest.clone(),
        mapped_files: rest.clone(),
        memory: rest,
    }
}

/// Changes the trials of `memprof doctor`.
fn trials(f: &mut Facts, change: impl FnOnce(&mut Trials)) {
    change(f.trials.as_mut().unwrap());
}

/// The capabilities that the README names.
const OTHERS: &[u32] = &[
    Caps::BPF,
    Caps::PERFMON,
    Caps::SYS_PTRACE,
    Caps::DAC_READ_SEARCH,
    Caps::CHECKPOINT_RESTORE,
];

fn caps(bits: &[u32]) -> Caps {
    Caps(bits.iter().map(|bit| 1 << bit).sum())
}

fn fails(why: &str) -> Trial {
    Trial::Fails(why.into())
}

fn btf_without(names: &[&str]) -> BtfFact {
    let all = source::tracepoints();
    BtfFact::Present(all.filter(|n| !names.contains(n)).collect())
}

/// The names of the checks that are not ok, with their status.
fn not_ok(facts: &Facts) -> Vec<(&'static str, Status)> {
    checks(facts)
        .into_iter()
        .filter(|c| c.status != Status::Ok)
        .map(|c| (c.name, c.status))
        .collect()
}

#[test]
fn a_current_kernel_and_root_have_nothing_to_complain_about() {
    assert_eq!(not_ok(&good()), []);
    assert_eq!(decide(&good()), Ok(()));
    let (text, status) = doctor(&good());
    assert_eq!(status, 0);
    assert!(
        text.ends_with("memprof works here without restrictions.\n"),
        "{text}"
    );
}

/// Each row: a change to the good facts, and exactly the checks that must report it.
#[test]
fn each_fact_is_noticed_by_its_own_check() {
    use Status::{Degraded, Missing};
    type Change = fn(&mut Facts);
    let cases: &[(Change, &[(&str, Status)])] = &[
        (
            |f| f.caps = caps(&[Caps::SYS_PTRACE]),
            &[("privileges", Missing)],
        ),
        (
            |f| f.caps = caps(&[Caps::SYS_PTRACE, Caps::BPF]),
            &[("privileges", Missing)],
        ),
        (
            |f| f.initial_user_namespace = Some(false),
            &[("privileges", Missing)],
        ),
        (|f| f.initial_user_namespace = None, &[]),
        (|f| f.caps = caps(OTHERS), &[]),
        // The trial's result takes precedence over the capabilities.
        (|f| f.caps = caps(&[Caps::SYS_ADMIN]), &[]),
        (
            |f| {
                f.caps = caps(&[Caps::SYS_ADMIN]);
                trials(f, |t| t.other = None);
            },
            &[("other processes", Degraded)],
        ),
        (
            |f| {
                trials(f, |t| {
                    t.other = Some(access(fails("EACCES"), fails("EACCES")))
                })
            },
            &[("other processes", Degraded)],
        ),
        (
            |f| trials(f, |t| t.other = Some(access(Trial::Works, fails("EACCES")))),
            &[("other processes", Degraded)],
        ),
        (
            |f| trials(f, |t| t.probe = Some(Ok(vec!["enter_mmap"]))),
            &[("probe", Degraded)],
        ),
        (
            |f| trials(f, |t| t.probe = Some(Err("EPERM".into()))),
            &[("probe", Missing)],
        ),
        (
            |f| trials(f, |t| t.reduction = fails("EINVAL")),
            &[("own privileges", Degraded)],
        ),
        (
            |f| f.mapped_files = fails("EPERM"),
            &[("mapped files", Degraded)],
        ),
        (
            |f| f.page_frames = fails("EPERM"),
            &[("page frames", Degraded)],
        ),
        (
            |f| {
                f.page_frames = fails("EPERM");
                f.pagemap_scan = fails("ENOTTY");
            },
            &[("page scan", Missing), ("page frames", Degraded)],
        ),
        (
            |f| f.version = Some(KernelVersion(5, 17)),
            &[("kernel", Degraded)],
        ),
        (|f| f.version = Some(KernelVersion(6, 1)), &[]),
        (|f| f.version = None, &[("kernel", Degraded)]),
        (|f| f.lockdown = Some("integrity".into()), &[]),
        (
            |f| f.lockdown = Some("confidentiality".into()),
            &[("lockdown", Missing)],
        ),
        (|f| f.lockdown = None, &[]),
        (
            |f| f.btf = btf_without(&["mm_page_alloc"]),
            &[("ownership tracepoints", Missing)],
        ),
        (
            |f| {
                f.btf = btf_without(&["page_fault_user", "page_fault_kernel"]);
                f.fault_event = fails("Operation not permitted");
            },
            &[("page faults", Missing)],
        ),
        (
            |f| f.btf = btf_without(&["page_fault_user", "page_fault_kernel"]),
            &[],
        ),
        (|f| f.fault_event = fails("Operation not permitted"), &[]),
        (
            |f| f.btf = btf_without(&["mm_filemap_delete_from_page_cache"]),
            &[("page-cache tracepoints", Missing)],
        ),
        (
            |f| f.bpf = fails("Operation not permitted"),
            &[("bpf(2)", Missing)],
        ),
        (
            |f| f.bpf_helpers = fails("this kernel has no bpf_loop"),
            &[("BPF helpers", Missing)],
        ),
        (
            |f| f.pagemap_scan = fails("ENOTTY"),
            &[("page scan", Degraded)],
        ),
        (
            |f| f.cachestat = fails("Function not implemented"),
            &[("cache totals", Degraded)],
        ),
        (|f| f.uprobes = fails("ENOENT"), &[("uprobes", Degraded)]),
        (
            |f| f.initial_pid_namespace = Some(false),
            &[("pid namespace", Degraded)],
        ),
        (|f| f.initial_pid_namespace = None, &[]),
        (
            |f| f.open_files = Some((1000, 1000)),
            &[("open files", Degraded)],
        ),
        (|f| f.open_files = Some((1024, ENOUGH_OPEN_FILES)), &[]),
    ];
    for (i, (change, expected)) in cases.iter().enumerate() {
        let mut facts = good();
        change(&mut facts);
        assert_eq!(not_ok(&facts), *expected, "case {i}");
        let missing = expected.iter().any(|(_, status)| *status == Missing);
        assert_eq!(doctor(&facts).1, u8::from(missing), "case {i}");
        assert_eq!(decide(&facts).is_err(), missing, "case {i}");
    }
}

/// Fails the test unless the error contains `this` and does not contain `not`.
#[track_caller]
fn must_say(facts: &Facts, this: &str, not: &str) {
    let text = decide(facts).unwrap_err().to_string();
    assert!(text.contains(this), "{text}");
    assert!(!text.contains(not), "{text}");
}

#[test]
fn without_proc_nothing_else_is_named() {
    let facts = Facts {
        proc: fails("No such file or directory"),
        caps: Caps(0),
        version: None,
        ..good()
    };
    must_say(&facts, "mount -t proc", "CAP_BPF");
}

#[test]
fn too_few_open_files_for_memprof_itself() {
    let facts = |hard| Facts {
        open_files: Some((64, hard)),
        ..good()
    };
    let text = decide(&facts(64)).unwrap_err().to_string();
    for word in ["open files: at most 64", "needs 128", "ulimit"] {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    decide(&facts(128)).unwrap();
}

#[test]
fn without_root_the_message_names_sudo_and_nothing_else() {
    let facts = Facts {
        uid: 1000,
        caps: Caps(0),
        bpf: fails("Operation not permitted"),
        ..good()
    };
    let error = decide(&facts).unwrap_err();
    assert_eq!(error.missing.len(), 1);
    let text = error.to_string();
    for word in [
        "needs root",
        "CAP_BPF",
        "CAP_PERFMON",
        "CAP_SYS_PTRACE",
        "run `sudo memprof …`",
        "user id 1000",
    ] {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn root_in_a_container_is_not_told_to_use_sudo() {
    let facts = Facts {
        caps: Caps(0),
        ..good()
    };
    must_say(&facts, "--privileged", "sudo");
}

#[test]
fn without_btf_the_message_names_the_file_and_the_option() {
    for btf in [BtfFact::Absent, BtfFact::Unreadable("bad magic".into())] {
        let error = decide(&Facts { btf, ..good() }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(VMLINUX_BTF), "{text}");
        assert!(text.contains("CONFIG_DEBUG_INFO_BTF=y"), "{text}");
    }
}

#[test]
fn whatever_is_not_ok_says_what_follows_and_what_to_do() {
    let bad = Facts {
        proc: fails("No such file or directory"),
        uid: 1000,
        caps: Caps(0),
        release: "4.9.0".into(),
        version: Some(KernelVersion(4, 9)),
        arch: "x86_64",
        btf: BtfFact::Absent,
        bpf: fails("x"),
        bpf_helpers: fails("x"),
        fault_event: fails("x"),
        pagemap_scan: fails("x"),
        cachestat: fails("x"),
        uprobes: fails("x"),
        page_frames: fails("x"),
        mapped_files: fails("x"),
        lockdown: Some("confidentiality".into()),
        initial_pid_namespace: Some(false),
        initial_user_namespace: Some(false),
        open_files: Some((256, 256)),
        trials: Some(Trials {
            other: Some(access(fails("x"), fails("x"))),
            probe: Some(Err("x".into())),
            syscall_hooks: None,
            reduction: fails("x"),
        }),
    };
    let all = checks(&bad);
    assert!(all.iter().all(|c| c.status != Status::Ok), "{all:#?}");
    for check in &all {
        assert!(!check.found.is_empty(), "{check:?}");
        assert!(!check.consequence.is_empty(), "{check:?}");
        assert!(!check.remedy.is_empty(), "{check:?}");
    }
    let (text, status) = doctor(&bad);
    assert_eq!(status, 1);
    for check in &all {
        assert!(text.contains(&check.remedy), "{text}");
    }
    let verdict = "memprof does not work here; missing: 11.\n";
    assert!(text.ends_with(verdict), "{text}");
}

#[test]
fn the_verdict_says_whose_processes_can_be_profiled() {
    let mut facts = Facts {
        uid: 1000,
        caps: caps(&[Caps::BPF, Caps::PERFMON]),
        ..good()
    };
    let wanted = "only for processes of user id 1000; degraded: 1.\n";
    trials(&mut facts, |t| {
        t.other = Some(access(fails("EACCES"), Trial::Works));
    });
    assert!(doctor(&facts).0.ends_with(wanted));
    trials(&mut facts, |t| t.other = None);
    assert!(doctor(&facts).0.ends_with(wanted));
    trials(&mut facts, |t| {
        t.other = Some(access(Trial::Works, Trial::Works));
    });
    assert!(
        doctor(&facts)
            .0
            .ends_with("works here without restrictions.\n")
    );
}

#[test]
fn this_machine_gets_a_verdict() {
    let facts = examine();
    let (text, status) = doctor(&facts);
    assert_eq!(status == 0, decide(&facts).is_ok(), "{text}");
}
