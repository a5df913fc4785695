use proptest::prelude::*;

use super::*;
use crate::residency::vma::VmaKind;

fn one(line: &str) -> Vma {
    let vmas = parse(line.as_bytes()).unwrap();
    assert_eq!(vmas.len(), 1, "{line}");
    vmas.into_iter().next().unwrap()
}

#[test]
fn plain_lines() {
    let v = one(
        "7f1f59aa9000-7f1f59bff000 r-xp 00026000 fe:00 326279                     /usr/lib/libc.so.6\n",
    );
    assert_eq!(
        (v.start, v.end),
        (Addr(0x7f1f_59aa_9000), Addr(0x7f1f_59bf_f000))
    );
    assert_eq!((v.file_offset, v.dev, v.ino), (0x26000, (0xfe, 0), 326_279));
    assert!(v.perms.read && !v.perms.write && v.perms.exec && !v.perms.shared);
    assert_eq!((v.label(), v.kind()), ("libc.so.6", VmaKind::Private));
    assert_eq!(v.len(), 0x15_6000);
    assert!(v.contains(v.start) && !v.contains(v.end));
}

#[test]
fn names_and_labels() {
    let at = "560f1f17e000-560f1f182000 rw-p 00000000 00:00 0                          ";
    for (name, label, backing) in [
        ("", "[anon]", Backing::Anon),
        ("[heap]", "[heap]", Backing::Anon),
        ("[stack]", "[stack]", Backing::Anon),
        ("[stack:4711]", "[stack:4711]", Backing::Anon),
        ("[anon:a name]", "[anon:a name]", Backing::Anon),
        ("[vdso]", "[vdso]", Backing::Special),
        ("[vvar]", "[vvar]", Backing::Special),
        ("[vvar_vclock]", "[vvar_vclock]", Backing::Special),
        ("[uprobes]", "[uprobes]", Backing::Special),
    ] {
        let v = one(&format!("{at}{name}"));
        assert_eq!(
            (v.name.as_str(), v.label(), v.backing),
            (name, label, backing)
        );
    }
}

#[test]
fn an_anonymous_line_may_end_after_the_inode() {
    for line in [
        "00400000-00401000 ---p 00000000 00:00 0",
        "00400000-00401000 ---p 00000000 00:00 0 ",
    ] {
        let v = one(line);
        assert_eq!((v.name.as_str(), v.perms), ("", Perms::default()));
    }
}

#[test]
fn vsyscall_in_the_upper_half() {
    let v =
        one("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]");
    assert!(v.is_vsyscall());
    assert_eq!(v.kind(), VmaKind::Special);
}

#[test]
fn deleted_and_escaped_paths() {
    let at = "7f0000000000-7f0000001000 rw-s 00000000 00:01 2053                       ";
    let v = one(&format!("{at}/memfd:x (deleted)"));
    assert_eq!(
        (v.name.as_str(), v.deleted, v.label()),
        ("/memfd:x", true, "memfd:x")
    );
    assert!(v.perms.shared);
    assert_eq!(v.kind(), VmaKind::File, "text alone does not show shmem");
    let v = one(&format!("{at}/a\\012b c  d (deleted) (deleted)"));
    assert_eq!(v.name, "/a\nb c  d (deleted)");
    let v = one(&format!("{at}/dir/"));
    assert_eq!(v.label(), "/dir/");
    let v = one(&format!("{at}anon_inode:[perf_event]"));
    assert_eq!(
        (v.name.as_str(), v.backing),
        ("anon_inode:[perf_event]", Backing::File)
    );
    let v = one(&format!("{at}[anon_shmem:x]"));
    assert_eq!(v.backing, Backing::File);
}

#[test]
fn not_utf8_and_very_long() {
    let mut line = b"1000-2000 r--p 00000000 103:00002 18446744073709551615 /\xff\xfe".to_vec();
    line.extend(std::iter::repeat_n(b'x', 100_000));
    let vmas = parse(&line).unwrap();
    assert_eq!(vmas[0].dev, (0x103, 2));
    assert_eq!(vmas[0].ino, u64::MAX);
    assert_eq!(vmas[0].name.chars().count(), 100_003);
}

#[test]
fn malformed_lines_are_named() {
    for line in [
        "garbage",
        "1000-2000",
        "1000-2000 r--p",
        "2000-1000 r--p 0 00:00 0 ",
        "1000-1000 r--p 0 00:00 0 ",
        "1000_2000 r--p 0 00:00 0 ",
        "1000-2000 r-- 0 00:00 0 ",
        "1000-2000 r--q 0 00:00 0 ",
        "1000-2000 r--p zz 00:00 0 ",
        "1000-2000 r--p 0 0000 0 ",
        "1000-2000 r--p 0 00:00 -1 ",
        "+1000-2000 r--p 0 00:00 0 ",
        "1000-10000000000000000 r--p 0 00:00 0 ",
        "1000-2000 r--p 0 100000000:0 0 ",
    ] {
        let text = format!("00400000-00401000 ---p 00000000 00:00 0\n{line}\n");
        match parse(text.as_bytes()) {
            Err(Error::Malformed { line: shown, .. }) => assert_eq!(shown, line),
            other => panic!("{line:?} gave {other:?}"),
        }
    }
    assert_eq!(parse(b"").unwrap(), vec![]);
}

proptest! {
    #[test]
    fn no_input_panics(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&text);
    }

    #[test]
    fn no_damaged_line_panics(
        at in 0usize..80,
        byte in any::<u8>(),
        cut in 0usize..90,
    ) {
        let mut line =
            b"7f1f59aa9000-7f1f59bff000 r-xp 00026000 fe:00 326279          /usr/lib/libc (deleted)".to_vec();
        let at = at % line.len();
        line[at] = byte;
        line.truncate(cut);
        let _ = parse(&line);
    }

    #[test]
    fn what_the_kernel_prints_comes_back(
        start in 0u64..1 << 46, len in 1u64..1 << 40, offset in any::<u64>(),
        major in 0u32..4096, minor in 0u32..1 << 20, ino in 1u64..,
        shared in any::<bool>(),
        name in "/[ a-zA-Z0-9_.\n-]{0,60}[a-z]",
    ) {
        let (start, end) = (start << 12, (start + len) << 12);
        let line = format!(
            "{start:08x}-{end:08x} rw-{} {offset:08x} {major:02x}:{minor:02x} {ino} {:10}{}\n",
            if shared { 's' } else { 'p' }, "", name.replace('\n', "\\012"),
        );
        let v = one(&line);
        prop_assert_eq!((v.start.0, v.end.0, v.file_offset), (start, end, offset));
        prop_assert_eq!((v.dev, v.ino, v.perms.shared), ((major, minor), ino, shared));
        prop_assert_eq!(v.name, name);
    }
}
