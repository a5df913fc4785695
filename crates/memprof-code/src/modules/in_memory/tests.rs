use std::fs;
use std::num::NonZeroUsize;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::*;
use crate::unwind::{Rule, Table};

fn own() -> Pid {
    Pid(std::process::id())
}

/// A mapping of this process, of a file whose path contains this.
fn mapping(part: &str) -> Mapping {
    let mut found = None;
    for_each_mapping(&*fs::read("/proc/self/maps").unwrap(), |m| {
        if String::from_utf8_lossy(&m.path).contains(part) {
            found.get_or_insert(m);
        }
    })
    .unwrap();
    found.unwrap_or_else(|| panic!("{part} is not mapped"))
}

#[test]
fn the_copy_says_what_the_file_says() {
    let m = mapping("/libc.so.6");
    let file = File::open(std::str::from_utf8(&m.path).unwrap()).unwrap();
    let copy = copy(own(), &m).unwrap();
    let (there, here) = (Elf::read(&file).unwrap(), Elf::read(&copy).unwrap());
    assert!(there.build_id().is_some());
    assert_eq!(here.build_id(), there.build_id());
    let extents = |elf: &Elf| elf.extents(SHT_DYNSYM, ["getaddrinfo", "qsort_r", "nowhere"]);
    assert_eq!(extents(&here), extents(&there));
    assert!(extents(&here).unwrap()[0].is_some());

    let (there, here) = (Table::build(&file).unwrap(), Table::build(&copy).unwrap());
    let same = |pc: &u64| here.rule_at(*pc) == there.rule_at(*pc);
    // The machine code is not copied, by which linkage tables and trampolines without unwind information are known.
    let (equal, other): (Vec<u64>, _) = there.rows.iter().map(|row| row.pc).partition(same);
    assert!(
        equal.len() > 100 * other.len(),
        "{} {}",
        equal.len(),
        other.len()
    );
    for pc in other {
        assert_eq!(*here.rule_at(pc), Rule::NOT_COVERED, "{pc:#x}");
    }
}

/// Whatever a process has mapped as a file: the copy is bounded, and nothing panics.
#[test]
fn what_is_in_memory_may_be_anything() {
    let seed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/corpus/program-x86_64"
    );
    let mut bytes = fs::read(seed).unwrap();
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let file = open::in_memory("hostile-image", &bytes).unwrap();
    let size = NonZeroUsize::new(bytes.len()).unwrap();
    let (access, private) = (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses, of a file that keeps its size.
    let at = unsafe { mmap(None, size, access, private, &file, 0) }.unwrap();
    let m = mapping("hostile-image");
    assert!(copy(own(), &m).is_ok());
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) as usize % below
    };
    for round in 0..1000 {
        let mut damaged = bytes.clone();
        for _ in 0..=next(4) {
            // In the headers, or anywhere.
            let place = if next(2) == 0 {
                next(1024)
            } else {
                next(bytes.len() - 8)
            };
            let value = [0, 0xff, 0x7f, 1, 0x10][next(5)];
            damaged[place..place + 1 + next(8)].fill(value);
        }
        file.write_all_at(&damaged, 0).unwrap();
        if let Ok(copy) = copy(own(), &m) {
            let _ = Table::build(&copy);
            let elf = Elf::read(&copy);
            let _ = elf.map(|elf| elf.extents(SHT_DYNSYM, ["main", "malloc"]));
        }
        assert!(COPIED.load(Ordering::Relaxed) <= MAX_ALL, "round {round}");
    }
    // SAFETY: the mapping from above, to which nothing refers.
    unsafe { munmap(at, size.get()) }.unwrap();
}
