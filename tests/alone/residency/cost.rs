//! Durations, printed with their ratios, and `cachestat`.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::skip::skip;
use crate::residency::target::Target;
use crate::residency::{METHODS, between, say};
use memprof_sys::residency::{
    Classifier, Error, Scanner, add_run, cachestat, figures, proc_maps, read_with,
};
use memprof_sys::usage::Usage;

#[test]
fn a_reservation_of_a_tebibyte_is_quick() {
    let _alone = crate::alone();
    let target = Target::start("reserve", Path::new("/"));
    target.stop();
    let mut times = Vec::new();
    for method in METHODS {
        let start = Instant::now();
        let r = read_with(target.pid(), method, &mut Classifier::new()).unwrap();
        times.push(start.elapsed());
        assert_eq!(Some(r.total.anon), r.before.anonymous);
        assert_eq!(r.total.resident(), r.before.resident());
    }
    say!(
        "1 TiB reserved, 11 pages touched: ioctl {:?}, page by page {:?}",
        times[0],
        times[1]
    );
    // The call skips missing page tables; reading page by page would take 2 GiB of entries.
    assert!(times[0] * 5 < times[1], "{times:?}");
}

#[test]
fn cachestat_counts_the_page_cache() {
    let _alone = crate::alone();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    fs::write(&path, vec![1; 4 << 20]).unwrap();
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let stat = match cachestat::cachestat(file.as_fd(), 0, 0) {
        Err(Error::Unsupported { what }) => {
            skip(format_args!("this kernel has no {what}"));
            return;
        }
        other => other.unwrap(),
    };
    assert_eq!(stat.nr_cache, 1024);
    let part = cachestat::cachestat(file.as_fd(), 8192, 5 * 4096).unwrap();
    assert_eq!(part.nr_cache, 5);
    file.sync_all().unwrap();
    let stat = cachestat::cachestat(file.as_fd(), 0, 0).unwrap();
    assert_eq!(
        (stat.nr_cache, stat.nr_dirty, stat.nr_writeback),
        (1024, 0, 0)
    );
    file.set_len(4096).unwrap();
    assert_eq!(
        cachestat::cachestat(file.as_fd(), 0, 0).unwrap().nr_cache,
        1
    );
}

/// Compared with the kernel's own walk of the same page tables, with a margin for busy machines. Measured ratios: 0.14
/// and 1.5.
#[test]
fn a_scan_takes_as_long_as_smaps_rollup() {
    let _alone = crate::alone();
    let target = Target::start("touched", Path::new("/"));
    target.stop();
    let pid = target.pid();
    let rollup = median(|| assert!(figures::rollup(pid).is_ok()));
    for method in METHODS {
        let mut scanner = Scanner::open(pid, method).unwrap();
        let vmas = proc_maps::read(pid, &mut Classifier::new()).unwrap();
        let mut total = Usage::default();
        let scan = median(|| {
            total = Usage::default();
            for vma in &vmas {
                let mut found = |run| add_run(&mut total, run);
                scanner.scan_vma(vma, &mut found, &mut || ()).unwrap();
            }
        });
        assert!(between(total.anon, 1024, 1026));
        let ratio = scan.as_secs_f64() / rollup.as_secs_f64();
        say!(
            "1 GiB of 4 KiB pages, {method:?}: scan {scan:?}, smaps_rollup {rollup:?}, ratio {ratio:.2}"
        );
        assert!(ratio < 15.0, "{method:?}: {ratio}");
    }
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}
