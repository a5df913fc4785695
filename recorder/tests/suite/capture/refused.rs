//! Captures that are not possible say what was tried, why it failed, and what to do.

use caps::Capability;
use tezos_recorder::capture::{Capture, CaptureFacts, CaptureOptions, Source, Target};
use tezos_recorder::{cgroups, privileges};

use super::common::Group;

fn open(target: Target, source: Source) -> Result<CaptureFacts, String> {
    let options = CaptureOptions {
        targets: vec![target],
        source,
        ..CaptureOptions::default()
    };
    let opened = Capture::open(&options);
    opened
        .map(|capture| capture.facts())
        .map_err(|e| e.to_string())
}

/// Opens a capture in a thread with these capabilities only.
fn open_with(capabilities: &'static [Capability], target: Target) -> String {
    let thread = std::thread::spawn(move || {
        privileges::reduce(capabilities);
        open(target, Source::Sockets).unwrap_err()
    });
    thread.join().unwrap()
}

#[test]
fn a_directory_that_is_no_control_group() {
    let directory = tempfile::tempdir().unwrap();
    let target = Target::Cgroup(directory.path().into());
    let expected = format!(
        "cannot attach to {0}: it is not a control group of version 2; give one below {1}, or a `unit`, `pid` or `port`",
        directory.path().display(),
        cgroups::mount().unwrap().display()
    );
    assert_eq!(open(target.clone(), Source::Sockets), Err(expected.clone()));
    let facts = open(target, Source::Auto).unwrap();
    assert_eq!(
        (facts.source, facts.reason),
        (Source::Calls, Some(expected))
    );
}

#[test]
fn without_the_capability_to_attach() {
    let group = Group::new("unattached");
    let error = open_with(
        &[Capability::CAP_BPF, Capability::CAP_PERFMON],
        group.target(),
    );
    for part in [
        "cannot attach to the control group",
        &group.0.display().to_string(),
        "Operation not permitted",
        "; run the recorder as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn without_any_capability() {
    let group = Group::new("unloaded");
    let error = open_with(&[], group.target());
    for part in [
        "cannot load the BPF programs into the kernel",
        "Operation not permitted",
        "; run the recorder as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
    ] {
        assert!(error.contains(part), "{error}");
    }
}
