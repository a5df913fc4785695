use proptest::prelude::*;

use super::*;
use crate::residency::figures;

const FIELDS: &str = "Size:                132 kB\nKernelPageSize:        4 kB\n\
    Rss:                  12 kB\nPss:                   5 kB\nPss_Dirty:             1 kB\n\
    Shared_Clean:          4 kB\nShared_Dirty:          0 kB\nPrivate_Clean:         0 kB\n\
    Private_Dirty:         8 kB\nAnonymous:             8 kB\nAnonHugePages:         0 kB\n\
    Shared_Hugetlb:     2048 kB\nPrivate_Hugetlb:    4096 kB\nSwap:                 16 kB\n\
    SwapPss:               3 kB\nLocked:                0 kB\nTHPeligible:           0\n\
    ProtectionKey:         0\nA_Later_Field: one two three\n";

fn all(text: &[u8]) -> std::result::Result<Vec<Region>, Failure> {
    let mut regions = Vec::new();
    parse(text, &mut |r| regions.push(r)).map(|()| regions)
}

#[test]
fn a_mapping_and_its_figures() {
    let text = format!(
        "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n\
         {FIELDS}VmFlags: rd wr mr mw me gd ac sd \n\
         7ffc00030000-7ffc00031000 ---p 00000000 00:00 0 \n{FIELDS}VmFlags: mr mw me gu dc wf\n\
         7ffc00031000-7ffc00032000 rw-p 00000000 00:00 0 \n{FIELDS}VmFlags: rd wr wf \n"
    );
    let regions = all(text.as_bytes()).unwrap();
    let [stack, guard, wiped] = &regions[..] else {
        panic!("{regions:?}")
    };
    let f = stack.figures;
    let kib = |n: u64| n << 10;
    assert_eq!((f.rss, f.pss, f.anonymous), (kib(12), kib(5), kib(8)));
    assert_eq!((f.private_dirty, f.shared_clean), (kib(8), kib(4)));
    assert_eq!((f.swap, f.swap_pss), (kib(16), kib(3)));
    assert_eq!(f.hugetlb, kib(6144));
    assert_eq!((stack.vma.label(), stack.grows_down), ("[stack]", true));
    assert_eq!((guard.guarded, guard.grows_down), (true, false));
    let at_fork = [stack, guard, wiped].map(|region| region.at_fork);
    assert_eq!(at_fork, [AtFork::Shared, AtFork::LeftOut, AtFork::Wiped]);
    assert_eq!(guard.vma.perms, crate::residency::Perms::default());
}

#[test]
fn odd_names_are_no_fields() {
    for name in [
        "/a b: 7 kB",
        "/Rss: 99 kB (deleted)",
        "/dir/a\\012Rss: 77 kB",
        "[anon:Rss: 5 kB]",
        "/\u{2028}",
    ] {
        let text = format!("1000-2000 r--p 00000000 fe:00 7       {name}\n{FIELDS}");
        let regions = all(text.as_bytes()).unwrap();
        assert_eq!((regions.len(), regions[0].figures.rss), (1, 12 << 10));
    }
}

#[test]
fn a_line_of_any_length_takes_bounded_memory() {
    let mut text = b"1000-2000 r--p 00000000 fe:00 7    /".to_vec();
    text.resize(3 * LONGEST as usize, b'x');
    text.push(b'\n');
    text.extend_from_slice(FIELDS.as_bytes());
    let regions = all(&text).unwrap();
    assert_eq!((regions.len(), regions[0].figures.rss), (1, 12 << 10));
    assert!(regions[0].vma.name.len() < LONGEST as usize);
}

#[test]
fn nonsense_is_named() {
    for line in ["garbage", "2000-1000 r--p 0 00:00 0 ", "1000-2000: x"] {
        let text = format!("1000-2000 r--p 00000000 00:00 0 \n{FIELDS}{line}\nRss: 1 kB\n");
        match all(text.as_bytes()) {
            Err(Failure::Line(shown)) => assert_eq!(shown, line.as_bytes()),
            // A word with a colon at its end is an unknown field.
            Ok(regions) => assert!(line.contains(": ") && regions.len() == 1),
            Err(e) => panic!("{e:?}"),
        }
    }
    assert!(matches!(all(b"Rss: 1 kB\n"), Err(Failure::Line(_))));
    let odd = "1000-2000 r--p 00000000 00:00 0 \nRss: -1 kB\n";
    assert!(matches!(all(odd.as_bytes()), Err(Failure::Line(l)) if l == b"Rss: -1 kB"));
    assert!(all(b"").unwrap().is_empty());
}

#[test]
fn who_has_no_mappings_is_gone() {
    let nobody = Pid(u32::MAX >> 1);
    let read = |pid| read(pid, &mut Classifier::new(), &mut |_| ());
    assert!(read(nobody).unwrap_err().is_gone());
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = Pid(child.id());
    let stat = format!("/proc/{pid}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    assert!(read(pid).unwrap_err().is_gone(), "a zombie");
    child.wait().unwrap();
}

/// More mappings than one batch, each with its index.
#[test]
fn ten_thousand_mappings() {
    let text: String = (1..=10_000u64)
        .map(|n| {
            let start = n << 13;
            format!(
                "{start:x}-{:x} rw-p 0 00:00 0 \nRss: 4 kB\nSwap: {n} kB\n",
                start + 4096
            )
        })
        .collect();
    let (mut count, mut swap) = (0, 0);
    parse(text.as_bytes(), &mut |r| {
        count += 1;
        swap += r.figures.swap;
    })
    .unwrap();
    assert_eq!((count, swap), (10_000, 50_005_000 << 10));
}

#[test]
fn the_own_process_is_read() {
    let own = Pid(std::process::id());
    let (mut regions, mut rss) = (0, 0);
    read(own, &mut Classifier::new(), &mut |r| {
        regions += 1;
        rss += r.figures.rss;
    })
    .unwrap();
    assert!(regions > 10 && rss > 0);
    assert!(figures::rollup(own).unwrap().rss > 0);
}

proptest! {
    #[test]
    fn no_input_panics(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = all(&text);
    }

    #[test]
    fn no_damaged_text_panics(at in 0usize..700, byte in any::<u8>(), cut in 0usize..700) {
        let mut text =
            format!("1000-2000 rw-p 00000000 fe:00 7   /x y (deleted)\n{FIELDS}").into_bytes();
        let len = text.len();
        text[at % len] = byte;
        text.truncate(cut);
        let _ = all(&text);
    }

    /// Fields may come in any order; each known one is added once.
    #[test]
    fn sums_are_those_of_the_lines(
        values in proptest::collection::vec((0usize..4, 0u64..1 << 40), 0..40),
    ) {
        let keys = ["Rss", "Swap", "Private_Dirty", "Unknown_Field"];
        let mut text = "1000-2000 rw-p 00000000 00:00 0 \n".to_owned();
        let mut sums = [0u64; 4];
        for (key, kib) in values {
            text += &format!("{}: {kib:>8} kB\n", keys[key]);
            sums[key] += kib << 10;
        }
        let f = all(text.as_bytes()).unwrap()[0].figures;
        prop_assert_eq!([f.rss, f.swap, f.private_dirty], [sums[0], sums[1], sums[2]]);
        prop_assert_eq!((f.pss, f.anonymous, f.hugetlb), (0, 0, 0));
    }
}
