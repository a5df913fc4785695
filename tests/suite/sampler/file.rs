//! The library's file: what it exports and needs, its probes, and where copies of it lie.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use object::LittleEndian;
use object::elf::{DT_NEEDED, DT_TEXTREL, FileHeader64, PF_W, PT_LOAD, ProgramHeader64};

use super::support::program;
use crate::common::process::wait_until;
use crate::common::skip::skip;
use memprof_code::elf::Elf;
use memprof_heap::sampler::{Library, Options, SamplerError, Unfit, check};

/// Every function that programs find in the library, and what memprof and the loader find.
const EXPORTS: &str = "aligned_alloc calloc dallocx free free_aligned_sized free_sized malloc mallocx memalign \
    memprof_heap_config memprof_heap_detours memprof_heap_imports memprof_heap_look_again memprof_heap_stats posix_memalign pvalloc rallocx realloc reallocarray sdallocx valloc xallocx \
    _Znwm _Znam _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t _ZnwmSt11align_val_t _ZnamSt11align_val_t \
    _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm \
    _ZdlPvRKSt9nothrow_t _ZdaPvRKSt9nothrow_t _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t _ZdlPvmSt11align_val_t \
    _ZdaPvmSt11align_val_t _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPvSt11align_val_tRKSt9nothrow_t";
/// The symbols by which memprof places the library in a program without a loader.
#[cfg(target_arch = "x86_64")]
const EXPORTS_WITHOUT_LOADER: &str =
    "memprof_heap_tables memprof_heap_tables_without_loader memprof_heap_threads";
#[cfg(not(target_arch = "x86_64"))]
const EXPORTS_WITHOUT_LOADER: &str = "";
/// What it uses if the C library has it.
const IMPORTS: &str =
    "dl_iterate_phdr environ getauxval malloc_usable_size mprotect __errno_location";

/// A probe as `.note.stapsdt` describes it.
#[derive(Debug)]
pub struct Probe {
    pub provider: String,
    pub name: String,
    pub arguments: String,
    pub address: u64,
    pub base: u64,
    pub semaphore: u64,
}

fn contents(elf: &Elf, section: &str) -> Vec<u8> {
    let section = elf
        .section_named(section)
        .unwrap_or_else(|| panic!("there is no {section}"));
    let mut bytes = vec![0; section.size as usize];
    elf.read_at(&mut bytes, section.offset).unwrap();
    bytes
}

/// The probes of a file.
pub fn probes(path: &Path) -> Vec<Probe> {
    let file = File::open(path).unwrap();
    let notes = contents(&Elf::read(&file).unwrap(), ".note.stapsdt");
    let mut rest = notes.as_slice();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(
            (word(0), word(8)),
            (8, 3),
            "the name's length and the note's type"
        );
        assert_eq!(&rest[12..20], b"stapsdt\0");
        let (description, next) = rest[20..].split_at(word(4));
        let address =
            |n: usize| u64::from_le_bytes(description[n * 8..n * 8 + 8].try_into().unwrap());
        let mut texts = description[24..].split(|b| *b == 0);
        let mut text = || String::from_utf8(texts.next().unwrap().to_vec()).unwrap();
        found.push(Probe {
            provider: text(),
            name: text(),
            arguments: text(),
            address: address(0),
            base: address(1),
            semaphore: address(2),
        });
        rest = &next[word(4).next_multiple_of(4) - word(4)..];
    }
    found
}

/// How many segments that can be written to the loader maps with the page of the file that has this byte.
fn writable_mappings_of(path: &Path, at: u64) -> usize {
    let file = fs::read(path).unwrap();
    let size = size_of::<ProgramHeader64<LittleEndian>>();
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let headers = word(offset_of!(FileHeader64<LittleEndian>, e_phoff)) as usize;
    let count = word(offset_of!(FileHeader64<LittleEndian>, e_phentsize)) >> 16 & 0xffff;
    let mapped = (0..count as usize).filter(|number| {
        let header = headers + number * size;
        let field = |offset| word(header + offset);
        let kind_and_flags = field(0);
        let offset = field(offset_of!(ProgramHeader64<LittleEndian>, p_offset));
        let end = offset + field(offset_of!(ProgramHeader64<LittleEndian>, p_filesz));
        let page = field(offset_of!(ProgramHeader64<LittleEndian>, p_align));
        kind_and_flags as u32 == PT_LOAD.0
            && kind_and_flags >> 32 & u64::from(PF_W.0) != 0
            && (offset / page..end.div_ceil(page)).contains(&(at / page))
    });
    mapped.count()
}

fn placed() -> Library {
    Library::place(&Options::default()).unwrap()
}

#[test]
fn it_needs_no_library_and_exports_what_it_means_to() {
    let library = placed();
    let file = File::open(library.path()).unwrap();
    let elf = Elf::read(&file).unwrap();
    let tags: Vec<_> = elf.dynamic().into_iter().map(|(tag, _)| tag).collect();
    assert!(
        !tags.contains(&DT_NEEDED) && !tags.contains(&DT_TEXTREL),
        "{tags:?}"
    );
    let (symbols, names) = (contents(&elf, ".dynsym"), contents(&elf, ".dynstr"));
    let (mut exports, mut imports) = (BTreeSet::new(), BTreeSet::new());
    for symbol in symbols.chunks_exact(24).skip(1) {
        let name = &names[u32::from_le_bytes(symbol[..4].try_into().unwrap()) as usize..];
        let name = str::from_utf8(name.split(|b| *b == 0).next().unwrap()).unwrap();
        let (binding, section) = (symbol[4] >> 4, u16::from_le_bytes([symbol[6], symbol[7]]));
        if section != 0 {
            exports.insert(name);
        } else {
            assert_eq!(binding, 2, "{name} is not weak");
            imports.insert(name);
        }
    }
    let expected = [EXPORTS, EXPORTS_WITHOUT_LOADER];
    let expected = expected.iter().flat_map(|names| names.split_whitespace());
    assert_eq!(exports, expected.collect());
    assert_eq!(imports, IMPORTS.split_whitespace().collect());
}

#[test]
fn its_probes_are_one_byte_long_and_have_semaphores() {
    let library = placed();
    let file = File::open(library.path()).unwrap();
    let elf = Elf::read(&file).unwrap();
    let registers: [&str; 2] = if cfg!(target_arch = "x86_64") {
        ["8@%rdi 8@%rsi 8@%rdx", "8@%rdi"]
    } else {
        ["8@x0 8@x1 8@x2", "8@x0"]
    };
    let mut found = probes(library.path());
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(found.len(), 2, "each probe has one place: {found:?}");
    for (probe, (name, arguments)) in found
        .iter()
        .zip([("alloc", registers[0]), ("free", registers[1])])
    {
        assert_eq!(
            (&*probe.provider, &*probe.name, &*probe.arguments),
            ("otel_memory", name, arguments)
        );
        assert_eq!(probe.base, elf.section_named(".stapsdt.base").unwrap().addr);
        let (segment, within) = elf.loaded_at(probe.address).unwrap();
        let mut nop = [0; 4];
        elf.read_at(&mut nop, segment.offset + within).unwrap();
        if cfg!(target_arch = "x86_64") {
            assert_eq!(nop[0], 0x90);
        } else {
            assert_eq!(u32::from_le_bytes(nop), 0xd503_201f);
        }
        // In the file, as the kernel finds it by its offset, and 0.
        let (segment, within) = elf.loaded_at(probe.semaphore).unwrap();
        let mut semaphore = [1; 2];
        elf.read_at(&mut semaphore, segment.offset + within)
            .unwrap();
        assert_eq!(semaphore, [0; 2]);
        // The kernel counts in the first writable mapping of the page of the file, see build.rs.
        assert_eq!(
            writable_mappings_of(library.path(), segment.offset + within),
            1
        );
        let section = elf.section_named(".probes").unwrap();
        assert!((section.addr..section.addr + section.size).contains(&probe.semaphore));
    }
}

#[test]
fn each_copy_is_a_file_of_its_own_that_other_users_can_read() {
    let (a, b) = (placed(), placed());
    assert_ne!(a.path(), b.path());
    let path = a.path().to_owned();
    let dir = path.parent().unwrap().to_owned();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&dir), mode(&path)), (0o755, 0o644));
    drop(a);
    assert!(!dir.exists() && b.path().exists());
    let kept = b.keep();
    assert!(kept.exists());
    fs::remove_dir_all(kept.parent().unwrap()).unwrap();
}

/// A killed memprof's copy is removed by a later one; not what is used, what another memprof holds, or what is so young
/// that another one may be about to.
#[test]
fn what_a_killed_memprof_has_left_is_removed() {
    let temporary = tempfile::tempdir().unwrap();
    let dirs = [temporary.path().to_owned()];
    let place = || Library::place_in(&dirs, &Options::default()).unwrap();
    let age = |path: &Path| {
        let dir = File::open(path.parent().unwrap()).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(600);
        dir.set_modified(long_ago).unwrap();
    };
    let (left, used, held, young) = (place().keep(), place().keep(), place(), place().keep());
    // A process has it mapped as one that preloads it.
    let mut user = Command::new("sleep")
        .arg("1000")
        .env("LD_PRELOAD", &used)
        .spawn()
        .unwrap();
    let maps = format!("/proc/{}/maps", user.id());
    let name = used.to_str().unwrap();
    wait_until(|| fs::read_to_string(&maps).is_ok_and(|maps| maps.contains(name)));
    for path in [&left, &used, held.path()] {
        age(path);
    }
    let next = place();
    let mine = [&used, held.path(), &young, next.path()];
    assert_eq!(
        (left.exists(), left.parent().unwrap().exists()),
        (false, false)
    );
    assert!(mine.iter().all(|path| path.exists()), "{mine:?}");
    user.kill().unwrap();
    user.wait().unwrap();
    drop(place());
    assert!(!used.exists() && held.path().exists() && young.exists());
}

#[test]
fn options_are_in_the_copy() {
    let at = |options: &Options| {
        let library = Library::place(options).unwrap();
        let bytes = fs::read(library.path()).unwrap();
        let start = memchr::memmem::find(&bytes, b"pm_heap1").unwrap();
        let words = bytes[start + 8..start + 32].chunks(8);
        words
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(at(&Options::default()), [512 << 10, 0, 0]);
    let options = Options {
        interval: u64::MAX,
        children: false,
        seed: Some(9.try_into().unwrap()),
    };
    assert_eq!(at(&options), [1 << 56, 9, 1]);
}

#[test]
fn directories_that_are_not_fit_are_passed_over() {
    let temporary = tempfile::tempdir().unwrap();
    let odd = temporary.path().join("a b:c");
    fs::create_dir(&odd).unwrap();
    let unfit: Vec<PathBuf> = vec![
        "relative".into(),
        odd,
        temporary.path().join("missing"),
        "/proc".into(),
    ];
    let fit: Vec<PathBuf> = unfit
        .iter()
        .cloned()
        .chain([temporary.path().into()])
        .collect();
    let library = Library::place_in(&fit, &Options::default()).unwrap();
    assert!(library.path().starts_with(temporary.path()));
    let error = Library::place_in(&unfit, &Options::default()).unwrap_err();
    assert!(matches!(error, SamplerError::NoDirectory(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("relative: not an absolute path") && text.contains("LD_PRELOAD"),
        "{text}"
    );
}

#[test]
fn it_comes_before_what_is_preloaded_already() {
    let library = placed();
    let own = library.path().to_str().unwrap();
    assert_eq!(library.preload(None), OsString::from(own));
    assert_eq!(library.preload(Some(OsStr::new(""))), OsString::from(own));
    assert_eq!(
        library.preload(Some(OsStr::new("a.so:b.so"))),
        OsString::from(format!("{own}:a.so:b.so"))
    );
}

#[test]
fn programs_that_preload_nothing_are_known() {
    let dynamic = program("sampler.c", "cc");
    check(&dynamic).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let script = file(
        "script",
        format!("#! {} -x\n", dynamic.display()).as_bytes(),
    );
    check(&script).unwrap();
    assert!(matches!(
        check(&file("text", b"text")),
        Err(Unfit::NotNative(_))
    ));
    assert!(matches!(
        check(&dir.path().join("missing")),
        Err(Unfit::Unreadable { .. })
    ));
    let round = dir.path().join("round");
    fs::write(&round, format!("#!{}\n", round.display())).unwrap();
    assert!(matches!(check(&round), Err(Unfit::NotNative(_))));

    let fixed = dir.path().join("static");
    let source = file("static.c", b"int main(void) { return 0; }");
    let status = Command::new("cc")
        .arg("-static")
        .arg("-o")
        .args([&fixed, &source])
        .status();
    if status.unwrap().success() {
        assert!(matches!(check(&fixed), Err(Unfit::Static(_))));
        assert!(matches!(
            check(&file(
                "script2",
                format!("#!{}", fixed.display()).as_bytes()
            )),
            Err(Unfit::Static(_))
        ));
    } else {
        skip("the compiler cannot link static programs");
    }

    let other_user = dir.path().join("set-uid");
    fs::copy(&dynamic, &other_user).unwrap();
    if std::os::unix::fs::chown(&other_user, Some(12345), None).is_err() {
        skip("only root may give a file to another user");
        return;
    }
    fs::set_permissions(&other_user, fs::Permissions::from_mode(0o4755)).unwrap();
    assert!(matches!(check(&other_user), Err(Unfit::Privileged(_))));
}
