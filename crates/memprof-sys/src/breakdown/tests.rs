use proptest::prelude::*;

use super::*;
use crate::ids::Addr;
use crate::residency::smaps::{AtFork, Region};
use crate::residency::{Backing, Perms, Vma};

const PAGE: u64 = 4096;

fn perms(text: &str) -> Perms {
    let has = |c| text.contains(c);
    Perms {
        read: has('r'),
        write: has('w'),
        exec: has('x'),
        shared: has('s'),
    }
}

/// A mapping of `pages` pages, half of them resident.
fn region(page: u64, pages: u64, bits: &str, name: &str, backing: Backing) -> Region {
    let (path, deleted) = match name.strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (name, false),
    };
    let ino = match backing {
        Backing::Anon | Backing::Special => 0,
        // A separate inode for each name.
        _ => path.bytes().map(u64::from).sum(),
    };
    Region {
        vma: Vma {
            start: Addr(page * PAGE),
            end: Addr((page + pages) * PAGE),
            perms: perms(bits),
            file_offset: 0,
            dev: (0, u32::from(ino > 0)),
            ino,
            name: path.to_owned(),
            deleted,
            backing,
        },
        figures: SmapsFigures {
            rss: pages / 2 * PAGE,
            ..SmapsFigures::default()
        },
        grows_down: false,
        guarded: false,
        at_fork: AtFork::Shared,
    }
}

fn breakdown(regions: Vec<Region>, threads: &Threads, show: Show) -> Breakdown {
    let nobody = Pid(u32::MAX >> 1);
    let from = Categories::new(nobody, threads, Some("/bin/own".into()));
    let mut accounts = Accounts::new(from, show);
    regions.into_iter().for_each(|r| accounts.add(r));
    finish(Pid(u32::MAX >> 1), accounts, threads, (None, None), show)
}

fn category_of(r: Region) -> String {
    let all = breakdown(vec![r], &Threads::default(), Show::All);
    assert_eq!((all.categories.len(), all.regions.len()), (1, 1));
    assert_eq!(all.categories[0].category, all.regions[0].category);
    all.categories[0].category.to_string()
}

#[test]
fn every_kind_of_mapping_has_its_category() {
    use Backing::*;
    #[rustfmt::skip]
    let cases = [
        ("rwp", "[heap]", Anon, "heap"),
        ("rwp", "[stack]", Anon, "stack of the main thread"),
        ("rwp", "[stack:12]", Anon, "stacks of other threads"),
        ("rwp", "[anon:a: b]", Anon, "anonymous, named"),
        ("rwp", "", Anon, "anonymous rw-"),
        ("rp", "", Anon, "anonymous r--"),
        ("p", "", Anon, "anonymous --- (reserved)"),
        ("rxp", "", Anon, "anonymous r-x (JIT code)"),
        ("rwxp", "", Anon, "anonymous rwx (JIT code)"),
        ("rwp", "/dev/zero", Anon, "anonymous rw-"),
        ("rp", "/bin/own", File, "own binary"),
        ("rp", "/bin/own (deleted)", File, "own binary"),
        ("rp", "/lib/libc.so.6", File, "shared libraries"),
        ("rp", "/lib/x.so", Stacked, "shared libraries"),
        ("rxp", "/opt/plugin", File, "shared libraries"),
        ("rp", "/lib/x.sound", File, "other files"),
        ("rws", "/data/a\nb", File, "other files"),
        ("rws", "/dev/zero (deleted)", Shmem, "shared anonymous (/dev/zero)"),
        ("rws", "[anon_shmem:x]", Shmem, "shared anonymous, named"),
        ("rws", "/memfd:x (deleted)", Shmem, "memfd"),
        ("rws", "/SYSV00000000 (deleted)", Shmem, "System V shared memory"),
        ("rws", "/dev/shm/x", Shmem, "tmpfs and POSIX shared memory"),
        ("rws", "/dev/shm/memfd:x", Shmem, "tmpfs and POSIX shared memory"),
        ("rws", "/anon_hugepage (deleted)", Hugetlb, "hugetlb (not in RSS)"),
        ("rws", "/dev/dri/card0", Device, "devices"),
        ("rxp", "[vdso]", Special, "vdso, vvar, vsyscall"),
    ];
    for (bits, name, backing, wanted) in cases {
        assert_eq!(
            category_of(region(1, 2, bits, name, backing)),
            wanted,
            "{name}"
        );
    }
}

#[test]
fn a_file_with_code_in_it_is_a_library_from_its_first_mapping_on() {
    let file = |page, bits| region(page, 2, bits, "/opt/plugin", Backing::File);
    let all = breakdown(
        vec![file(1, "rp"), file(3, "rxp"), file(5, "rwp")],
        &Threads::default(),
        Show::All,
    );
    assert_eq!(all.categories.len(), 1);
    assert_eq!(all.categories[0].category, Category::Library);
    assert_eq!(all.names.len(), 1);
    assert_eq!(all.names[0].sums, all.total);
    assert!(all.regions.iter().all(|r| r.category == Category::Library));
}

#[test]
fn threads_stacks_and_their_guards() {
    let anon = |page, pages, bits| region(page, pages, bits, "", Backing::Anon);
    let threads = Threads {
        count: 4,
        pointers: vec![12 * PAGE, 41 * PAGE, 61 * PAGE],
    };
    let mut inside = anon(60, 8, "rwp");
    inside.guarded = true;
    let regions = vec![
        anon(9, 1, "p"),
        anon(10, 8, "rwp"),
        // A guard, but no thread in the mapping above it.
        anon(19, 1, "p"),
        anon(20, 8, "rwp"),
        // Not a guard: there is a hole above it.
        anon(30, 1, "p"),
        // A thread, but no guard: a language runtime's own stacks, or other memory.
        anon(40, 8, "rwp"),
        inside,
    ];
    let all = breakdown(regions, &threads, Show::All);
    let names: Vec<String> = all.regions.iter().map(|r| r.category.to_string()).collect();
    let (stack, plain, none) = (
        "stacks of other threads",
        "anonymous rw-",
        "anonymous --- (reserved)",
    );
    assert_eq!(
        names,
        [
            "guard pages of stacks",
            stack,
            none,
            plain,
            none,
            plain,
            stack
        ]
    );
    let told = all.stacks;
    assert_eq!((told.threads, told.found), (4, 2));
}

#[test]
fn the_top_is_the_largest_and_the_rest_is_counted() {
    let anon = |page, pages| region(page, pages, "rwp", "", Backing::Anon);
    let regions = || {
        vec![
            anon(10, 4),
            anon(20, 9),
            anon(30, 2),
            anon(40, 8),
            anon(50, 9),
        ]
    };
    let starts = |show| {
        let all = breakdown(regions(), &Threads::default(), show);
        let starts: Vec<u64> = all.regions.iter().map(|r| r.start / PAGE).collect();
        (starts, all.regions_left_out)
    };
    // Equal resident sizes: the larger mapping first, then the lower address.
    assert_eq!(starts(Show::Top(3)), (vec![20, 50, 40], 2));
    assert_eq!(starts(Show::Top(0)), (vec![], 5));
    assert_eq!(starts(Show::Top(usize::MAX)).0, [20, 50, 40, 10, 30]);
    assert_eq!(starts(Show::All), (vec![10, 20, 30, 40, 50], 0));
}

#[test]
fn very_many_names_are_summed_though_not_kept() {
    let regions = (0..40_000u64)
        .map(|n| region(2 * n, 2, "rwp", &format!("[anon:{n}]"), Backing::Anon))
        .collect();
    let all = breakdown(regions, &Threads::default(), Show::Top(3));
    assert_eq!((all.total.mappings, all.categories.len()), (40_000, 1));
    assert_eq!(all.categories[0].sums, all.total);
    assert_eq!(all.names.len() as u64 + all.names_left_out, 40_000);
}

#[test]
fn the_verdict_knows_what_the_kernel_rounds() {
    let figures = |rss: u64, pss: u64| SmapsFigures {
        rss: rss << 10,
        pss: pss << 10,
        ..SmapsFigures::default()
    };
    let total = Sums {
        mappings: 5,
        size: 0,
        figures: figures(40, 10),
    };
    let of = |a, b| compare(&total, Some(a), Some(b));
    let equal = |others: &[&'static str]| (Verdict::Equal, others.to_vec());
    assert_eq!(of(figures(40, 10), figures(40, 10)), equal(&[]));
    assert_eq!(of(figures(40, 14), figures(40, 14)), equal(&[]));
    assert_eq!(of(figures(40, 15), figures(40, 15)), equal(&["Pss"]));
    assert_eq!(of(figures(40, 9), figures(40, 9)), equal(&["Pss"]));
    let between = (Verdict::Between, vec![]);
    assert_eq!(of(figures(36, 10), figures(44, 10)), between);
    assert_eq!(of(figures(44, 10), figures(36, 10)), between);
    let rss = Verdict::Differs(vec!["Rss"]);
    assert_eq!(of(figures(44, 10), figures(48, 10)), (rss, vec![]));
    assert_eq!(compare(&total, None, None), (Verdict::Unknown, vec![]));
}

#[test]
fn the_text_has_every_part_and_steers_no_terminal() {
    let mut regions = vec![
        region(1, 4, "rwp", "/tmp/a\nb\x1b[2J", Backing::File),
        region(8, 6, "rwp", "[heap]", Backing::Anon),
    ];
    regions[1].figures.swap = 8 << 10;
    let mut all = breakdown(regions, &Threads::default(), Show::Top(1));
    all.comm = "x\x1b]0;y".into();
    let mut text = Vec::new();
    all.write_text(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let wanted = "\
x\u{fffd}]0;y (pid 2147483647), 2 mappings

mappings      virtual         RSS         PSS priv. dirty      swap      huge
                  KiB         KiB         KiB         KiB       KiB       KiB
       1           24          12           0           0         8         0  heap
       1           16           8           0           0         0         0  other files
       2           40          20           0           0         8         0  total

This kernel has no total (smaps_rollup) to compare with.
Page tables: 0 KiB of kernel memory (VmPTE), not part of RSS.

By file or name:
mappings      virtual         RSS         PSS priv. dirty      swap      huge
                  KiB         KiB         KiB         KiB       KiB       KiB
       1           16           8           0           0         0         0  /tmp/a\u{fffd}b\u{fffd}[2J  [other files]

Mappings, in KiB:
     virtual         RSS         PSS priv. dirty      swap  addresses, permissions, category, name
          24          12           0           0         8  000000008000-00000000e000 rw-p heap  [heap]
           1 more mapping
";
    assert_eq!(text, wanted);
}

#[test]
fn json_holds_the_same() {
    let all = breakdown(
        vec![region(1, 4, "rwp", "[heap]", Backing::Anon)],
        &Threads::default(),
        Show::All,
    );
    let json = serde_json::to_value(&all).unwrap();
    assert_eq!(json["total"]["virtual"], 4 * PAGE);
    assert_eq!(json["categories"][0]["category"], "heap");
    assert_eq!(json["categories"][0]["rss"], 2 * PAGE);
    assert_eq!(json["regions"][0]["start"], "0x1000");
    assert_eq!(json["verdict"], "unknown");
}

proptest! {
    /// For any mappings: each total is the sum over all of them.
    #[test]
    fn nothing_is_lost_or_counted_twice(
        mappings in proptest::collection::vec(
            (1u64..64, "[rwxsp]{0,5}", "(|\\[heap\\]|\\[anon:\\PC{0,8}\\]|/\\PC{0,12}|/dev/zero|/bin/own)( \\(deleted\\))?", 0usize..7),
            0..60,
        ),
        pointers in proptest::collection::vec(0u64..1 << 24, 0..8),
        top in 0usize..20,
    ) {
        use Backing::*;
        let backings = [Anon, Shmem, File, Stacked, Hugetlb, Device, Special];
        let mut page = 1;
        let mut regions = Vec::new();
        let mut wanted = Sums::default();
        for (pages, bits, name, backing) in mappings {
            let r = region(page, pages, &bits, &name, backings[backing]);
            // Sometimes with a hole.
            page += pages + pages % 3 / 2;
            wanted.add(r.vma.len(), r.figures);
            regions.push(r);
        }
        let mut pointers = pointers;
        pointers.sort_unstable();
        let threads = Threads { count: pointers.len(), pointers };
        let sum = |rows: &[CategoryRow]| {
            let mut sums = Sums::default();
            rows.iter().for_each(|r| sums.merge(r.sums));
            sums
        };
        for show in [Show::Top(top), Show::All] {
            let all = breakdown(regions.clone(), &threads, show);
            prop_assert_eq!(all.total, wanted);
            prop_assert_eq!(sum(&all.categories), wanted);
            prop_assert_eq!(all.regions.len() as u64 + all.regions_left_out, wanted.mappings);
            prop_assert!(all.stacks.found <= all.stacks.threads);
            let mut text = Vec::new();
            all.write_text(&mut text).unwrap();
        }
        let all = breakdown(regions, &threads, Show::All);
        for row in &all.categories {
            let shown = all.regions.iter().filter(|r| r.category == row.category);
            prop_assert_eq!(shown.count() as u64, row.sums.mappings);
        }
    }
}
