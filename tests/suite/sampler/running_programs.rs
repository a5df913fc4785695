//! The library in running programs: what it says of itself, and the environment of their children.

use std::fs::{self, File};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::file::probes;
use super::support::{LIBCS, exists, program};
use crate::common::workload::Workload;
use memprof_code::elf::Elf;
use memprof_heap::sampler::{Library, Options, SamplerState, Stats};

/// Entries of the library's table of samples.
const ROOM: u64 = 1 << 16;

/// A copy that takes practically every allocation as a sample, and believes that somebody listens.
fn listened() -> Library {
    listened_at(1)
}

fn listened_at(interval: u64) -> Library {
    let options = Options {
        interval,
        seed: NonZeroU64::new(1),
        ..Options::default()
    };
    let library = Library::place(&options).unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .open(library.path())
        .unwrap();
    let elf = Elf::read(&file).unwrap();
    for probe in probes(library.path()) {
        let (segment, within) = elf.loaded_at(probe.semaphore).unwrap();
        file.write_all_at(&[1, 0], segment.offset + within).unwrap();
    }
    library
}

#[track_caller]
fn stats(library: &Library, workload: &Workload) -> Stats {
    library
        .stats(workload.pid())
        .unwrap()
        .expect("the library is not loaded")
}

#[test]
fn what_does_not_fit_is_counted_and_frees_make_room() {
    let library = listened();
    for libc in LIBCS {
        if !exists(libc) {
            continue;
        }
        let mut command = Command::new(program("sampler_behaviour.c", libc));
        command.arg("hold").env("LD_PRELOAD", library.path());
        let mut workload = Workload::start_as(&mut command);
        workload.lines.tell("10");
        let before = stats(&library, &workload);
        assert_eq!(
            (before.state, before.dropped),
            (SamplerState::Active, 0),
            "{libc}"
        );
        assert!((10..1000).contains(&before.tracked), "{libc}: {before:?}");
        workload.lines.tell("1010");
        let more = stats(&library, &workload);
        assert_eq!(
            (more.tracked, more.dropped),
            (before.tracked + 1000, 0),
            "{libc}"
        );
        workload.lines.tell("150010");
        let full = stats(&library, &workload);
        // (Blocks of 1000 bytes: each slice of the address space has fewer than the filter can count.)
        assert!(
            full.tracked > ROOM * 9 / 10 && full.tracked <= ROOM,
            "{libc}: {full:?}"
        );
        // Each line also allocates 10 bytes, and frees them.
        let all = before.tracked + 150_001;
        assert_eq!(full.tracked + full.dropped, all, "{libc}");
        let bytes = (full.dropped - 1) * 1000 + 10;
        assert_eq!(full.dropped_bytes, bytes, "{libc}");
        workload.lines.tell("0");
        assert_eq!(
            stats(&library, &workload).tracked,
            before.tracked - 10,
            "{libc}"
        );
        workload.end();
    }
}

/// If each allocation is a sample, there is room for sixteen times as many, for which a program without samples pays nothing.
#[test]
fn all_allocations_have_more_room() {
    let library = listened_at(0);
    for libc in LIBCS {
        if !exists(libc) {
            continue;
        }
        let mut command = Command::new(program("sampler_behaviour.c", libc));
        command.arg("hold").env("LD_PRELOAD", library.path());
        let mut workload = Workload::start_as(&mut command);
        workload.lines.tell("150010");
        let full = stats(&library, &workload);
        assert_eq!(full.dropped, 0, "{libc}: {full:?}");
        assert!(full.tracked >= 150_010, "{libc}: {full:?}");
        workload.lines.tell("0");
        assert!(stats(&library, &workload).tracked < 1000, "{libc}");
        workload.end();
    }
}

#[test]
fn nothing_is_remembered_while_nobody_listens() {
    let options = Options {
        interval: 0,
        ..Options::default()
    };
    let library = Library::place(&options).unwrap();
    let mut command = Command::new(program("sampler_behaviour.c", "cc"));
    command.arg("hold").env("LD_PRELOAD", library.path());
    let mut workload = Workload::start_as(&mut command);
    workload.lines.tell("1000");
    let found = stats(&library, &workload);
    assert_eq!(
        (found.state, found.tracked, found.dropped),
        (SamplerState::Active, 0, 0)
    );
    workload.end();
}

#[test]
fn a_program_with_its_own_allocator_is_known() {
    let library = listened();
    let mut command = Command::new(program("sampler_own_malloc.c", "cc"));
    command.env("LD_PRELOAD", library.path());
    let mut workload = Workload::start_as(&mut command);
    assert_eq!(workload.lines.line(), "ready");
    let found = stats(&library, &workload);
    assert_eq!((found.state, found.tracked), (SamplerState::OwnMalloc, 0));
    workload.end();
}

#[test]
fn a_process_without_the_library_has_no_counters() {
    let library = listened();
    let mut command = Command::new(program("sampler_behaviour.c", "cc"));
    let mut workload = Workload::start_as(command.arg("hold").env_remove("LD_PRELOAD"));
    workload.lines.tell("1");
    assert_eq!(library.stats(workload.pid()).unwrap(), None);
    workload.end();
}

/// The environment that a program's child has, with this value of `LD_PRELOAD` at its start.
fn child_environment(options: &Options, preload: impl Fn(&Library) -> String) -> (String, Library) {
    let library = Library::place(options).unwrap();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "env"])
        .env_clear()
        .env("A", "1")
        .env("Z", "2");
    let output = command
        .env("LD_PRELOAD", preload(&library))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (String::from_utf8(output.stdout).unwrap(), library)
}

fn preload_of(environment: &str) -> Option<&str> {
    assert!(
        environment.contains("A=1\n") && environment.contains("Z=2\n"),
        "{environment}"
    );
    environment
        .lines()
        .find_map(|line| line.strip_prefix("LD_PRELOAD="))
}

#[test]
fn programs_that_the_target_executes_preload_it_if_they_are_to() {
    let own = |library: &Library| library.path().to_str().unwrap().to_owned();
    let (environment, library) = child_environment(&Options::default(), own);
    assert_eq!(preload_of(&environment), library.path().to_str());
    let alone = Options {
        children: false,
        ..Options::default()
    };
    let (environment, _) = child_environment(&alone, own);
    assert_eq!(preload_of(&environment), None);

    // What else is preloaded stays, whatever stands between.
    let other = Library::place(&Options::default()).unwrap();
    let other_path = other.path().to_str().unwrap();
    for separator in [":", " "] {
        let (environment, _) =
            child_environment(&alone, |l| format!("{}{separator}{other_path}", own(l)));
        assert_eq!(preload_of(&environment), Some(other_path));
        let (environment, _) =
            child_environment(&alone, |l| format!("{other_path}{separator}{}", own(l)));
        assert_eq!(preload_of(&environment), Some(other_path));
    }
}

#[test]
fn another_user_can_preload_it() {
    use std::os::unix::process::CommandExt;
    let library = Library::place(&Options::default()).unwrap();
    let mut command = Command::new("/bin/cat");
    command
        .arg("/proc/self/maps")
        .env("LD_PRELOAD", library.path());
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let maps = String::from_utf8(output.stdout).unwrap();
    assert!(maps.contains(library.path().to_str().unwrap()), "{maps}");
    assert!(fs::exists(library.path()).unwrap());
}
