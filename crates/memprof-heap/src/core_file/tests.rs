use std::io::Write;

use super::*;
use crate::synthetic::of_core::{core, examine, snapshot};
use crate::{Allocator, RegionRow};

const SIZES: [u8; 40] = [7; 40];
const EHDR_SIZE: usize = headers::EHDR;
const PHDR_SIZE: usize = headers::PHDR;

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn read(bytes: &[u8]) -> Result<Heap> {
    measure_core_bytes(&file_of(bytes), 5)
}

fn of_snapshot() -> Heap {
    let mut snapshot = snapshot(&SIZES);
    // Without figures of a kernel.
    snapshot.taken.approach = crate::Approach::Core;
    let measured = ledger::measure_snapshot(Source::Nothing, snapshot, 5, None);
    measured.unwrap().heap
}

/// A core that memprof wrote has every figure of its snapshot.
#[test]
fn own_cores_have_the_figures_of_the_snapshot() {
    let (expected, bytes) = (of_snapshot(), core(&snapshot(&SIZES), false).unwrap());
    let heap = read(&bytes).unwrap();
    assert!(matches!(heap.allocator, Allocator::Glibc { arenas: 2, .. }));
    assert!(heap.core.as_ref().is_some_and(|core| core.residency));
    assert!(heap.rows.iter().any(|row| row.resident > 0));
    assert_eq!(heap.rows, expected.rows);
    assert_eq!(heap.arenas, expected.arenas);
    assert_eq!(heap.sizes, expected.sizes);
    assert_eq!(heap.map, expected.map);
    assert_eq!(heap.unreachable, expected.unreachable);
    assert_eq!(heap.anonymous, expected.anonymous);
    assert_eq!(heap.missing, []);
    let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
    let others: u64 = heap.others.iter().map(|row| row.resident).sum();
    assert_eq!(rows + others, heap.anonymous);
}

/// Other cores do not say what was resident, but have the same heap.
#[test]
fn other_cores_have_the_same_heap() {
    let (expected, bytes) = (of_snapshot(), core(&snapshot(&SIZES), true).unwrap());
    let heap = read(&bytes).unwrap();
    let report = heap.core.as_ref().unwrap();
    assert!(!report.residency && report.zeroes > 0, "{report:#?}");
    assert_eq!(heap.allocator, expected.allocator);
    let bytes_of = |rows: &[RegionRow]| -> Vec<_> {
        rows.iter()
            .map(|row| (row.what, row.chunks, row.bytes))
            .collect()
    };
    assert_eq!(bytes_of(&heap.rows), bytes_of(&expected.rows));
    assert_eq!(heap.unreachable, expected.unreachable);
    assert!(heap.anonymous < expected.anonymous);
    // The library was not found, so its pages were not compared.
    assert!(report.not_compared > 0);
}

/// Wherever a core is cut off: an error, or what is missing beside the figures.
#[test]
fn a_core_that_is_cut_off_says_what_is_missing() {
    for plain in [false, true] {
        let bytes = core(&snapshot(&SIZES), plain).unwrap();
        let (mut read_in_part, mut refused) = (0, 0);
        for size in (0..bytes.len()).step_by(61) {
            match read(&bytes[..size]) {
                Ok(heap) => {
                    let report = heap.core.as_ref().unwrap();
                    let said = !heap.missing.is_empty() || !report.lacks.is_empty();
                    assert!(said, "{size} of {} bytes", bytes.len());
                    assert_eq!(heap.unreachable, None, "{size}");
                    read_in_part += 1;
                }
                Err(e) => {
                    let why = format!("{e:#}");
                    assert!(why.contains("ends") || why.contains("not an ELF"), "{why}");
                    refused += 1;
                }
            }
        }
        assert!(
            read_in_part > 100 && refused > 3,
            "{read_in_part} {refused}"
        );
    }
}

#[test]
fn damaged_headers_are_refused_with_the_reason() {
    let good = core(&snapshot(&SIZES), true).unwrap();
    let segment = EHDR_SIZE + PHDR_SIZE;
    let cases: [(usize, &[u8], &str); 11] = [
        (0, b"core", "not an ELF file"),
        (4, &[1], "32-bit"),
        (5, &[2], "big-endian"),
        (16, &[2, 0], "not a core"),
        (18, &[8, 0], "processor"),
        (54, &[32, 0], "program headers have an unknown size"),
        (56, &[0, 0], "no segments"),
        (56, &[0xff, 0x7f], "ends within its program headers"),
        (segment + 16, &[1], "does not consist of pages"),
        (segment + 32, &[0xff; 6], "bytes in the file and only"),
        (segment + 40, &[0, 0, 0, 0, 0, 0xff, 0xff], "overlap"),
    ];
    for (at, bytes, why) in cases {
        let mut damaged = good.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        let said = format!("{:#}", read(&damaged).unwrap_err());
        assert!(said.contains(why), "{said}; expected: {why}");
    }
}

/// Damage at random places; the sums hold, and nothing panics.
#[test]
fn damage_anywhere_is_survived() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut readable = 0;
    for round in 0..1500 {
        let changes = (0..=round % 5).flat_map(|_| random());
        let bytes: Vec<u8> = [8_u8, 1, 2, 3, 4, 5, 6, 7, 8]
            .into_iter()
            .chain(changes)
            .collect();
        readable += u32::from(examine(&bytes));
    }
    assert!((100..1500).contains(&readable), "{readable}");
}

#[test]
fn compressed_cores_are_unpacked() {
    let bytes = core(&snapshot(&SIZES), false).unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&bytes[..], level);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&bytes).unwrap();
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(&bytes).unwrap();
    let packed = [
        ("zstd", zstd),
        ("gzip", gzip.finish().unwrap()),
        ("lz4", lz4.finish().unwrap()),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (format, packed) in packed {
        let path = dir.path().join(format);
        std::fs::write(&path, &packed).unwrap();
        let heap = measure_core(&path, &CorePaths::default(), 5).unwrap();
        let report = heap.core.unwrap();
        assert_eq!(report.compression, Some(format));
        assert_eq!(
            (report.bytes, &*report.lacks),
            (bytes.len() as u64, &[][..])
        );
        assert_eq!(heap.rows, of_snapshot().rows, "{format}");
        // Cut off: what was unpacked is read, and the rest is missing.
        std::fs::write(&path, &packed[..packed.len() - 9]).unwrap();
        match measure_core(&path, &CorePaths::default(), 5) {
            Ok(heap) => {
                let lacks = heap.core.unwrap().lacks;
                assert!(
                    lacks.iter().any(|what| what.contains("damaged")),
                    "{lacks:?}"
                );
            }
            Err(e) => assert!(format!("{e:#}").contains("damaged"), "{e:#}"),
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
}

/// The file is complete or not there, and only its owner may read it.
#[test]
fn a_core_that_cannot_be_written_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved");
    let own = Pid(std::process::id());
    let mut writer = CoreWriter::new(own, &path).unwrap();
    writer.write(&snapshot(&SIZES)).unwrap();
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let mut writer = CoreWriter::new(own, &path).unwrap();
    writer.write(&snapshot(&SIZES)).unwrap();
    let saved = writer.finish().unwrap();
    let about = std::fs::metadata(&path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&about.permissions());
    assert_eq!((mode & 0o777, about.len()), (0o600, saved.bytes));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let nowhere = dir.path().join("nowhere/saved");
    let mut writer = CoreWriter::new(own, &nowhere).unwrap();
    let why = writer.write(&snapshot(&SIZES)).unwrap_err();
    assert!(
        format!("{why:#}").contains("nothing of it is left"),
        "{why:#}"
    );
}
