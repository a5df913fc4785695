use std::io::{Read, Write};

use proptest::prelude::*;

use super::*;

fn note(owner: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    note.extend((owner.len() as u32).to_le_bytes());
    note.extend((description.len() as u32).to_le_bytes());
    note.extend(kind.to_le_bytes());
    for part in [owner, description] {
        note.extend(part);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    note
}

fn described(texts: &str) -> Vec<u8> {
    let numbers = [0x1000u64, 0x2000, 0x3000];
    let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
    numbers.chain(texts.bytes()).collect()
}

#[test]
fn notes_of_other_owners_are_passed_over() {
    let mut bytes = note(b"GNU\0", 3, b"12345");
    bytes.extend(note(OWNER, 3, &described("p\0n\08@%rax\0")));
    bytes.extend(note(OWNER, 4, &described("p\0n\0\0")));
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while let Some(note) = Note::take(&mut rest) {
        let probe = note.probe();
        found.push(probe.map(|p| {
            (
                p.address,
                p.base,
                p.semaphore,
                p.provider,
                p.name,
                p.arguments,
            )
        }));
    }
    let wanted = Some((0x1000, 0x2000, 0x3000, "p", "n", "8@%rax"));
    assert_eq!(found, [None, wanted, None]);
}

#[test]
fn arguments_are_split_where_they_end() {
    assert_eq!(
        split("8@%rdi -4@$5 8@-8(%rbp)"),
        ["8@%rdi", "-4@$5", "8@-8(%rbp)"]
    );
    assert_eq!(split("8@[sp, 16] 8@x1"), ["8@[sp,16]", "8@x1"]);
    assert!(split("").is_empty());
}

#[test]
fn the_probes_of_a_real_library_are_found() {
    let path = format!(
        "/usr/lib/{}-linux-gnu/libstdc++.so.6",
        std::env::consts::ARCH
    );
    let Ok(file) = std::fs::File::open(&path) else {
        return crate::skip::skip(format!("there is no {path}"));
    };
    let elf = Elf::read(&file).unwrap();
    let found = probes(&elf, |provider, _| provider == "libstdcxx").unwrap();
    if found.is_empty() {
        return crate::skip::skip(format!("{path} has no USDTs"));
    }
    let throw = found.iter().find(|probe| probe.name == "throw");
    let throw = throw.expect("it has a probe where an exception is thrown");
    assert_eq!(throw.semaphore, Some(0));
    assert_eq!(throw.arguments.as_ref().map(Vec::len), Ok(2));
    let mut nop = [0; 4];
    elf.read_at(&mut nop, throw.offset).unwrap();
    match cfg!(target_arch = "x86_64") {
        true => assert_eq!(nop[0], 0x90),
        false => assert_eq!(nop, [0x1f, 0x20, 0x03, 0xd5]),
    }
    assert_eq!(probes(&elf, |_, name| name == "none").unwrap(), []);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut rest = bytes.as_slice();
        while let Some(note) = Note::take(&mut rest) {
            let _ = note.probe();
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "[0-9a-z@%$()\\[\\], -]{0,30}") {
        for part in split(&text) {
            let _ = (Argument::parse(&part, false), Argument::parse(&part, true));
        }
    }

    #[test]
    fn no_file_makes_it_panic(at in 0usize..8192, byte in any::<u8>()) {
        let mut image = Vec::new();
        let own = std::fs::File::open("/proc/self/exe").unwrap();
        own.take(1 << 16).read_to_end(&mut image).unwrap();
        image[at] = byte;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&image).unwrap();
        if let Ok(elf) = Elf::read(&file) {
            let _ = probes(&elf, |_, _| true);
        }
    }
}
