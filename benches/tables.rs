//! Build time and size of unwind tables.
//!
//! cargo bench --bench tables [-- FILE…]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memprof_code::unwind::{Packed, Table};

/// Repetitions: at least this many, and for at least this long.
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(400);
/// Limits of the figures.
const BYTES_A_ROW: f64 = 4.5;
const LARGE_MS: f64 = 300.0;

fn main() {
    let named: Vec<PathBuf> = std::env::args_os()
        .skip(1)
        .filter(|a| !a.to_string_lossy().starts_with("--"))
        .map(PathBuf::from)
        .collect();
    let files = if named.is_empty() { usual() } else { named };
    println!(
        "{:<44} {:>7} {:>9} {:>8} {:>8} {:>7} {:>9} {:>6} {:>7} {:>7} {:>6}",
        "file",
        "MiB",
        "eh_frame",
        "ms",
        "MB/s",
        "pack ms",
        "rows",
        "rules",
        "B a row",
        "pages",
        "unsup%"
    );
    let mut missed = false;
    for path in files {
        missed |= !report(&path);
    }
    println!("aims: at most {BYTES_A_ROW} bytes a row; at most {LARGE_MS} ms for a 150 MB file");
    if missed {
        println!("an aim was MISSED");
    }
}

fn report(path: &Path) -> bool {
    let Ok(file) = File::open(path) else {
        println!("{}: not there", path.display());
        return true;
    };
    let (table, figures) = match Table::build_with_figures(&file) {
        Ok(made) => made,
        Err(e) => {
            println!("{}: {e}", path.display());
            return true;
        }
    };
    let build = best(|| Table::build(&file).map(|t| t.rows.len()).unwrap_or(0));
    let pack = best(|| table.pack().rows.len());
    let packed = table.pack();
    let size = file.metadata().map_or(0, |m| m.len());
    let a_row = bytes_a_row(&packed);
    let name = path
        .file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let covered: u64 = covered(&table);
    println!(
        "{:<44.44} {:>7.1} {:>9} {:>8.2} {:>8.1} {:>7.2} {:>9} {:>6} {:>7.3} {:>7} {:>6.3}",
        name,
        size as f64 / (1 << 20) as f64,
        figures.section_bytes,
        build.as_secs_f64() * 1e3,
        figures.section_bytes as f64 / 1e6 / build.as_secs_f64(),
        pack.as_secs_f64() * 1e3,
        packed.rows.len(),
        table.rules.len(),
        a_row,
        packed.pages.len(),
        figures.unsupported as f64 * 100.0 / covered as f64,
    );
    // A page's own 12 bytes matter only if a page has few rows.
    let small = packed.rows.len() < 1000;
    let large = size as f64 / 150e6;
    (small || a_row <= BYTES_A_ROW) && build.as_secs_f64() * 1e3 <= LARGE_MS * large.max(1.0)
}

fn covered(table: &Table) -> u64 {
    let pairs = table.rows.windows(2).filter(|w| w[0].rule != 0);
    pairs.map(|w| w[1].pc - w[0].pc).sum()
}

fn bytes_a_row(packed: &Packed) -> f64 {
    packed.size() as f64 / packed.rows.len() as f64
}

fn best(mut run: impl FnMut() -> usize) -> Duration {
    let began = Instant::now();
    let mut best = Duration::MAX;
    let mut rounds = 0;
    while rounds < ROUNDS || began.elapsed() < TIME {
        let one = Instant::now();
        std::hint::black_box(run());
        best = best.min(one.elapsed());
        rounds += 1;
    }
    best
}

/// libc, the C++ library, this program, and the large libraries of the Rust toolchain and LLVM.
fn usual() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::env::current_exe().into_iter().collect();
    let arch = std::env::consts::ARCH;
    let libraries = PathBuf::from(format!("/usr/lib/{arch}-linux-gnu"));
    files.extend(matching(
        &libraries,
        &["libc.so.6", "libstdc++.so.6", "libLLVM*", "libcrypto.so.3"],
    ));
    let sysroot = std::process::Command::new("rustc")
        .args(["--print", "sysroot"])
        .output();
    if let Ok(out) = sysroot {
        let root = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
        files.extend(matching(
            &root.join("lib"),
            &["librustc_driver*", "libLLVM.so*"],
        ));
    }
    files
}

/// Files of a directory by name, without duplicates: `libc.so.6` exactly, `libLLVM*` by prefix.
fn matching(dir: &Path, names: &[&str]) -> BTreeSet<PathBuf> {
    let wanted = |name: &str| {
        names.iter().any(|w| match w.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == *w,
        })
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter(|e| wanted(&e.file_name().to_string_lossy()));
    let files = named.filter_map(|e| fs::canonicalize(e.path()).ok());
    // Skips linker scripts, which are a few bytes long.
    let large = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.len() > 100_000);
    files.filter(large).collect()
}
