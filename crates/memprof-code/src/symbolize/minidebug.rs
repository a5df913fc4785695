//! MiniDebugInfo (`.gnu_debugdata`): a small ELF file inside a program, compressed with xz, with the symbols that
//! `.dynsym` lacks. Fedora, RHEL and their derivatives build it into all programs.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::{Arc, Weak};

use lzma_rust2::XzReader;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::ModuleKey;
use super::decompress::PartReader;
use crate::elf::Elf;
use memprof_profile::Module;

const SECTION: &str = ".gnu_debugdata";
/// Maximum size of the decompressed file, in bytes, and maximum ratio to its compressed size. The symbols of a library
/// of 150 MB decompress to 30 MB, five times their compressed size.
const MAX_UNPACKED: u64 = 128 << 20;
const MAX_RATIO: u64 = 64;
/// Size in bytes up to which a small section may exceed that ratio.
const ALWAYS: u64 = 1 << 20;
/// Memory limit of the decoder, in KiB: the dictionary of `xz -9`, the largest preset, and some overhead.
const MAX_DECODER: u32 = 66 << 10;
/// Maximum total size of the decompressed files that are cached between requests, in bytes.
const MAX_KEPT: u64 = 256 << 20;

/// The decompressed files of recently requested modules. They are memfds, which are not mapped.
#[derive(Debug, Default)]
pub struct MiniDebug {
    open: HashMap<ModuleKey, Entry>,
    bytes: u64,
}

#[derive(Debug)]
struct Entry {
    /// Prevents reuse of the key for another module.
    _module: Weak<Module>,
    file: Option<Arc<File>>,
}

impl MiniDebug {
    /// The decompressed file of a module; `None` if it has none, or a damaged one.
    pub fn file(&mut self, module: &Arc<Module>, elf: &Elf) -> Option<Arc<File>> {
        let key = ModuleKey::new(module);
        if let Some(entry) = self.open.get(&key) {
            return entry.file.clone();
        }
        elf.section_named(SECTION)?;
        let unpacked = unpack(elf);
        let bytes = unpacked.as_ref().map_or(0, |(_, bytes)| *bytes);
        if self.bytes + bytes > MAX_KEPT {
            self.clear();
        }
        self.bytes += bytes;
        let file = unpacked.map(|(file, _)| Arc::new(file));
        let entry = Entry {
            _module: Arc::downgrade(module),
            file: file.clone(),
        };
        self.open.insert(key, entry);
        file
    }

    /// Drops all decompressed files; they are decompressed again when needed.
    pub fn clear(&mut self) {
        *self = MiniDebug::default();
    }
}

/// Decompresses the section into a memfd. Also returns the number of bytes.
fn unpack(elf: &Elf) -> Option<(File, u64)> {
    let section = elf.section_named(SECTION)?;
    let file_size = elf.file_size().ok()?;
    if section.offset.checked_add(section.size)? > file_size {
        return None;
    }
    let most = (section.size.saturating_mul(MAX_RATIO)).clamp(ALWAYS, MAX_UNPACKED);
    let packed = BufReader::new(PartReader::new(elf, section.offset, section.size));
    let mut unpacked = XzReader::new_mem_limit(packed, false, MAX_DECODER).take(most + 1);
    let mut file = File::from(memfd_create(c"gnu_debugdata", MFdFlags::MFD_CLOEXEC).ok()?);
    let bytes = io::copy(&mut unpacked, &mut file).ok()?;
    (bytes <= most).then_some((file, bytes))
}
