//! Properties that must hold for arbitrary bytes, shared by the fuzz targets and tests/alone/fuzz_smoke.rs.

use std::fs::File;
use std::io::Write;
use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memprof_code::elf::Elf;
use memprof_code::interpreter;
use memprof_code::symbolize::types::{DebugTypes, Layout, TypeId, pretty};
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_code::unwind::walk::{Mapped, Process, Registers, walk};
use memprof_code::unwind::{Arch, Table};
use memprof_profile::saved;
use memprof_profile::saved::Saved;
use memprof_profile::symbol::Symbol;
use memprof_profile::{Amounts, Frame, FrameKind, Kind, Module, ModuleId, NotObserved, Sample};
use nix::sys::memfd::{MFdFlags, memfd_create};

fn file_of(bytes: &[u8]) -> File {
    let file = memfd_create(c"fuzzed", MFdFlags::MFD_CLOEXEC).expect("a file in memory");
    let mut file = File::from(file);
    file.write_all(bytes).expect("room for it");
    file
}

/// A process with pseudo-random memory, some of it unreadable, and one file mapped at every address.
struct Anything<'t>(&'t Table, u64);

impl Process for Anything<'_> {
    fn read(&self, addr: u64) -> Option<u64> {
        let mixed = (addr ^ self.1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match mixed >> 62 {
            0 => None,
            1 => Some(addr.wrapping_add(mixed >> 56)),
            2 => self
                .0
                .rows
                .get(mixed as usize % self.0.rows.len())
                .map(|r| r.pc + 1),
            _ => Some(mixed),
        }
    }

    fn module(&self, _: u64) -> Mapped<'_> {
        Mapped::Table(self.0, 0)
    }
}

/// Builds a table from the bytes and checks it; returns whether there is one. Also looks for an interpreter.
pub fn table(bytes: &[u8]) -> bool {
    if let Ok(elf) = Elf::read(&file_of(bytes)) {
        let _ = interpreter::find(&elf, interpreter::EnabledInterpreters::ALL);
    }
    let Ok(table) = Table::build(&file_of(bytes)) else {
        return false;
    };
    let (rows, rules) = (&table.rows, &table.rules);
    assert!(!rows.is_empty() && rules.len() <= usize::from(u16::MAX));
    assert!(
        rows.windows(2)
            .all(|w| w[0].pc < w[1].pc && w[0].rule != w[1].rule)
    );
    assert!(
        rows.iter()
            .all(|r| usize::from(r.rule) < rules.len() && r.pc <= 1 << 48)
    );
    assert!(
        rows.last().is_some_and(|r| r.rule == 0),
        "the end is covered"
    );

    let packed = table.pack();
    assert_eq!(packed.pages.len(), table.pages());
    for row in rows.iter().step_by(1 + rows.len() / 1000) {
        for pc in [row.pc.wrapping_sub(1), row.pc, row.pc | 0xffff] {
            let rule = &rules[usize::from(packed.rule_at(pc))];
            assert_eq!(rule, table.rule_at(pc), "at {pc:#x}");
        }
    }
    for (i, row) in rows.iter().enumerate().take(20) {
        let start = Registers {
            ip: row.pc,
            sp: 0x7fff_0000,
            fp: 0x7fff_0100,
            lr: row.pc,
            bx: 0x7000,
        };
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let stack = walk(&Anything(&table, i as u64), arch, start, 64);
            assert!((1..=64).contains(&stack.frames.len()));
        }
    }
    true
}

/// Starts the symbolizer, and silences its readers' panics over malformed debug information from now on: they
/// are caught and lose no names. Other panics are handled as before.
pub fn symbolizer() -> Symbolizer {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let from = info.location().map_or("", |l| l.file());
        if !["/blazesym-", "/addr2line-", "/gimli-"]
            .iter()
            .any(|reader| from.contains(reader))
        {
            usual(info);
        }
    }));
    Symbolizer::start().expect("a thread for names")
}

/// Looks up names in the bytes, at every `step`-th file offset.
pub fn symbols(symbolizer: &Symbolizer, bytes: &[u8], step: usize) {
    let module = Arc::new(Module {
        path: "/nowhere/fuzzed".into(),
        tree: None,
        name: "fuzzed".into(),
        dev_ino: (0, 0),
        file: Some(file_of(bytes).into()),
        layout: None,
        functions: None,
        own_executable: true,
    });
    let positions = (0..bytes.len() as u64).step_by(step.max(1));
    let frames: Vec<Frame> = positions.map(|o| Frame::code(ModuleId(0), o)).collect();
    let modules = [module];
    let names = symbolizer.resolve_with(&frames, &modules, Detail::Names);
    let lines = symbolizer.resolve_with(&frames, &modules, Detail::Inlined);
    for frame in frames {
        let (Some(plain), Some(detailed)) = (names.get(frame), lines.get(frame)) else {
            panic!("nothing is said of {frame:?}");
        };
        // Debug information, valid or not, must not remove a name.
        if let Symbol::Known(function) = plain {
            let Symbol::Known(same) = detailed else {
                panic!("{function:?} is lost: {detailed:?}");
            };
            assert_eq!(same.name, function.name);
        }
    }
}

/// Reads the variables and types of the bytes; returns the number of types with a name.
pub fn types(bytes: &[u8]) -> usize {
    let end = Instant::now() + Duration::from_secs(5);
    let mut types = DebugTypes::new(end, 16 << 20);
    let file = file_of(bytes).into();
    if types
        .add(&file, Path::new("/nowhere/fuzzed"), None)
        .is_none()
    {
        return 0;
    }
    let class = (b"4demo3Foo".to_vec(), "Foo".to_owned());
    types.scan(&[class], end);
    let mut waiting: Vec<TypeId> = types.class(0).into_iter().collect();
    for variable in types.variables().to_vec().iter().take(100) {
        waiting.extend(types.type_of(variable));
    }
    let mut named = 0;
    for _ in 0..1000 {
        let Some(of) = waiting.pop().map(|id| types.get(id)) else {
            break;
        };
        named += usize::from(!of.name.is_empty());
        pretty(&of.name);
        let _ = (types.is_extended(&of), types.named(&of.name));
        match &of.layout {
            Layout::Scalar => {}
            Layout::Pointer(to) => waiting.extend(*to),
            Layout::Array(of, _) => waiting.push(*of),
            Layout::Record(record) => {
                let variants = record.variants.iter().flat_map(|variants| &variants.all);
                let members = variants.flat_map(|(_, members)| members);
                waiting.extend(members.chain(&record.members).map(|member| member.of));
            }
        }
    }
    named
}

/// The sum of all rows, kind by kind; overflow panics.
fn sum(samples: &[Sample], not_observed: &[NotObserved]) -> Vec<u64> {
    let rows = samples.iter().map(|row| &row.amounts);
    let rows: Vec<&Amounts> = rows
        .chain(not_observed.iter().map(|row| &row.amounts))
        .collect();
    let of = |kind: Kind| {
        rows.iter()
            .try_fold(0u64, |sum, row| sum.checked_add(kind.figure(row)))
    };
    Kind::ALL
        .map(|kind| of(kind).expect("no overflow"))
        .to_vec()
}

/// Reads the bytes as a saved profile, and checks what its users rely on.
pub fn saved(bytes: &[u8]) -> Option<Saved> {
    let saved = saved::read(bytes, 16 << 20).ok()?;
    let profile = &saved.profile;
    let total = Kind::ALL.map(|kind| kind.figure(&profile.total));
    assert_eq!(sum(&profile.samples, &profile.not_observed), total);
    let places = &profile.places;
    let shares = profile.processes.iter().map(|share| &share.samples);
    let files = places.files.iter().map(|file| &file.samples);
    for sample in [&profile.samples]
        .into_iter()
        .chain(shares)
        .chain(files)
        .flatten()
    {
        assert!(sample.stack.frames.len() <= 1024);
        for frame in &sample.stack.frames {
            if let FrameKind::Code(module, _) = frame.kind() {
                assert!(profile.module(module).is_some());
            }
        }
    }
    for part in profile.uncertainties.iter().flat_map(|one| &one.parts) {
        assert!(
            part.sample
                .is_none_or(|n| (n as usize) < profile.samples.len())
        );
        assert!((0.0..=1.0).contains(&part.share));
        assert!(
            [part.variance, part.single]
                .iter()
                .all(|v| v.is_finite() && *v >= 0.0)
        );
    }
    // Sums that may not overflow.
    let _ = (
        profile.agreement(),
        profile.attributed(),
        profile.incomplete(),
        profile.outcomes(),
    );
    let cached = places.files.iter().map(|file| file.cached());
    let _ = cached.fold(places.other_files, |sum, bytes| sum + bytes);
    let sizes = places
        .mappings
        .iter()
        .map(|mapping| mapping.end - mapping.start);
    let _ = sizes.sum::<u64>();
    for pid in profile.target.pids.iter().take(20) {
        if let Some(one) = profile.for_process(*pid) {
            assert_eq!(
                sum(&one.samples, &one.not_observed),
                Kind::ALL.map(|kind| kind.figure(&one.total))
            );
        }
    }
    Some(saved)
}

/// Reads the bytes as a perf map, in pieces, and as a jitdump file that grows; looks code up in what they name.
pub fn names(bytes: &[u8]) {
    use memprof_code::jit::{Budget, Jitdump, PerfMap, Ranges, Record, RuntimeName};

    let mut ranges = Ranges::new(Budget::new(1 << 20));
    let mut map = PerfMap::default();
    for piece in bytes.chunks(1 + bytes.len() / 7) {
        map.read(piece, |start, size, code| {
            assert!(!RuntimeName::parse(&code.name).name.is_empty());
            ranges.add(start, size, code);
        });
    }
    let mut dump = Jitdump::default();
    for size in [bytes.len() / 2, bytes.len()] {
        let read_at = |to: &mut [u8], at: u64| {
            let from = usize::try_from(at)
                .ok()
                .and_then(|at| bytes.get(at..)?.get(..to.len()));
            from.map(|from| to.copy_from_slice(from)).is_some()
        };
        dump.read(size as u64, read_at, |record, _| match record {
            Record::Load(start, size, code) => drop(ranges.add(start, size, code)),
            Record::Move(from, to) => drop(ranges.moved(from, to)),
        });
    }
    for addr in (0..64).map(|i| 1u64 << i) {
        let _ = ranges
            .get(addr)
            .map(|(code, at)| code.lines.as_ref().map(|l| l.at(at)));
    }
}

/// Reads the bytes as a core, and a core that is made and damaged as the bytes say; returns whether either was read.
pub fn core(bytes: &[u8]) -> bool {
    let is_core = memprof_heap::measure_core_bytes(&file_of(bytes), 3).is_ok();
    memprof_heap::synthetic::examine_core(bytes) | is_core
}

/// Reads a heap that is made and changed as the bytes say; returns whether it was read.
pub fn heap(bytes: &[u8]) -> bool {
    memprof_heap::synthetic::examine(bytes)
        | memprof_heap::synthetic::examine_jemalloc(bytes)
        | memprof_heap::synthetic::examine_mimalloc(bytes)
}
