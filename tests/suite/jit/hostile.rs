//! Maps that are none, or are damaged: memprof neither waits nor grows, gives no wrong name, and says what is missing.

use std::time::{Duration, Instant};

use crate::common::workload::program;
use crate::jit::{PAGE, number, record};

/// What the functions `f0` to `f7` touch.
const ALL: u64 = 29 * PAGE;

/// Records the program with such a map. Each function has its own bytes, or none; `complaint` is among the losses.
#[track_caller]
fn check(what: &str, complaint: Option<&str>) -> u64 {
    let began = Instant::now();
    let jit = program("jit");
    let r = record(&[], &[jit.to_str().unwrap(), "hostile", what]);
    assert!(
        began.elapsed() < Duration::from_secs(50),
        "{what}: {:?}",
        began.elapsed()
    );
    let said = r.said();
    let (named, nameless) = r.by_function();
    for (n, bytes) in &named {
        assert_eq!(*bytes, (1 + n % 7) * PAGE, "{what}: f{n}: {said}");
    }
    let named: u64 = named.values().sum();
    if !said.contains("not taken in yet") {
        assert_eq!(named + nameless, ALL, "{what}: {said}");
    }
    if let Some(complaint) = complaint {
        assert!(said.contains(complaint), "{what}: {said}");
    }
    named
}

#[test]
fn what_is_no_file_of_the_process_is_not_read() {
    let complaint = "perf maps that were not read";
    assert_eq!(check("fifo", Some(complaint)), 0);
    assert_eq!(check("symlink", Some(complaint)), 0);
}

#[test]
fn damaged_maps_name_what_they_name() {
    assert_eq!(check("nonsense", Some("that could not be read")), ALL);
    check("long line", None);
}

/// After each function it is truncated and begins anew: when it is read, the line may be that of a later function.
#[test]
fn names_of_a_rewritten_map_say_that_they_are_later() {
    let jit = program("jit");
    let r = record(&[], &[jit.to_str().unwrap(), "hostile", "truncated"]);
    let (mut named, mut all) = (0, 0);
    for (frames, bytes) in &r.stacks {
        let made =
            |f: &&String| *f == "[JIT]" || number(f.trim_end_matches(" [named later]")).is_some();
        if let Some(frame) = frames.iter().find(made) {
            all += bytes;
            named += if number(frame).is_some() { *bytes } else { 0 };
        }
    }
    assert_eq!(all, ALL, "{}", r.said());
    // Only of the first function it was not known.
    assert!(named <= PAGE, "{named}: {}", r.said());
    assert!(r.said().contains("was rewritten"), "{}", r.said());
}

#[test]
fn a_map_with_more_names_than_there_is_room_for() {
    check("many", None);
}
