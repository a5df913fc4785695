//! Programs whose files claim what they do not have: each costs its own names, in bounded time and memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::tempdir_in;

use crate::common::memprof::Memprof;
use crate::common::process::figure;
use crate::common::programs::copy_program;
use crate::common::workload::{Workload, program};
use crate::life::{KIB, MIB};

/// What takes an hour without a limit takes less with one, on a busy machine, too.
const MOMENT: Duration = Duration::from_secs(30);

/// Kind of a section with symbols (`SHT_SYMTAB`), and size of a section's header.
const SYMBOLS: u32 = 2;
const HEADER: u64 = 64;

/// Puts the symbols at the end of the file, of which they claim so many bytes: a hole.
fn claim(path: &Path, bytes: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let number = |at: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).unwrap();
        u64::from_le_bytes(word)
    };
    let (first, count) = (number(0x28), number(0x3c) & 0xffff);
    let mut headers = (0..count).map(|n| first + n * HEADER);
    let symbols = headers.find(|at| (number(*at) >> 32) as u32 == SYMBOLS);
    let symbols = symbols.expect("it has symbols");
    let end = fs::metadata(path).unwrap().len().next_multiple_of(4096);
    file.write_all_at(&[end, bytes].map(u64::to_le_bytes).concat(), symbols + 24)
        .unwrap();
    file.set_len(end + bytes).unwrap();
}

#[test]
fn more_symbols_than_any_program_has() {
    let directory = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [made, path] = ["made", "claims"].map(|name| directory.path().join(name));
    fs::copy(program("scenarios"), &made).unwrap();
    claim(&made, 1 << 40);
    copy_program(&made, &path);
    let mut workload = Workload::start(&path);
    let m = Memprof::attach(workload.pid(), &[]);
    workload.lines.tell("mmap 4194304");
    let began = Instant::now();
    let tree = m.tree();
    assert!(tree.value >= 4 * KIB, "{}", tree.text());
    // Its own names are not known, those of its libraries are.
    assert!(tree.through("main").value == 0, "{}", tree.text());
    assert!(
        tree.through("__libc_start_main").value >= 4 * KIB
            || tree.through("__libc_start_call_main").value >= 4 * KIB
    );
    let peak = figure(&format!("/proc/{}/status", m.pid()), "VmHWM:");
    assert!(peak < 512 * MIB, "{peak} bytes");
    m.interrupt();
    let took = began.elapsed();
    assert!(took < MOMENT, "{took:?}");
    workload.end();
}
