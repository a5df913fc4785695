//! Compressed cores: zstd and lz4 as systemd-coredump writes them, xz as it did earlier, and gzip.
//!
//! A core is read in any order, so it is unpacked first, to an unlinked file in `TMPDIR` that only memprof can read. Pages of zeroes
//! take no space there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use lzma_rust2::XzReader;
use nix::sys::statvfs::fstatvfs;
use ruzstd::decoding::StreamingDecoder;

use memprof_sys::residency::page_size;
use memprof_sys::target_file::{ReadAt, TargetFile};

/// Maximum length of an unpacked core, in bytes, including pages of zeroes.
const MAX_LENGTH: u64 = 256 << 30;
/// Bytes unpacked at once.
const BLOCK: usize = 256 << 10;

/// How a core is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Zstd,
    Lz4,
    Gzip,
    Xz,
}

const MAGIC: [(&[u8], Format); 4] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], Format::Zstd),
    (&[0x04, 0x22, 0x4d, 0x18], Format::Lz4),
    (&[0x1f, 0x8b], Format::Gzip),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Format::Xz),
];

impl Format {
    fn name(self) -> &'static str {
        match self {
            Format::Zstd => "zstd",
            Format::Lz4 => "lz4",
            Format::Gzip => "gzip",
            Format::Xz => "xz",
        }
    }
}

/// An unpacked core.
#[derive(Debug)]
pub(super) struct Unpacked {
    /// The unlinked file.
    pub file: File,
    /// How it was compressed.
    pub format: &'static str,
    /// Where unpacking stopped, and why.
    pub damage: Option<String>,
}

/// Unpacks a core into a file in `directory`. `None` if it is not compressed.
///
/// # Errors
/// It cannot be read or written, or is too large.
pub(super) fn unpack(packed: &TargetFile, directory: &Path) -> Result<Option<Unpacked>> {
    let mut head = [0; 6];
    let got = packed.read_some(&mut head, 0)?;
    let known = MAGIC
        .iter()
        .find(|(magic, _)| head[..got].starts_with(magic));
    let Some((_, format)) = known else {
        return Ok(None);
    };
    let whole = || {
        format!(
            "it is compressed ({}), and is unpacked in {}; TMPDIR names another directory",
            format.name(),
            directory.display()
        )
    };
    let file = unlinked(directory).with_context(whole)?;
    let input = BufReader::with_capacity(BLOCK, packed.contents());
    let damage = copy(*format, input, &file).with_context(whole)?;
    Ok(Some(Unpacked {
        file,
        format: format.name(),
        damage,
    }))
}

/// A new file without a name.
fn unlinked(directory: &Path) -> io::Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!(".memprof-core-{}-{number}", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Unpacks everything. Returns why unpacking stopped early.
fn copy(format: Format, mut input: impl BufRead, file: &File) -> Result<Option<String>> {
    let mut output = Output::new(file)?;
    let stopped = match format {
        Format::Gzip => output.take(&mut MultiGzDecoder::new(input))?,
        Format::Xz => output.take(&mut XzReader::new(input, true))?,
        // These decoders end with a frame, and others may follow.
        Format::Zstd | Format::Lz4 => loop {
            if input.fill_buf()?.is_empty() {
                break None;
            }
            let before = output.length;
            let stopped = match format {
                Format::Lz4 => output.take(&mut FrameDecoder::new(&mut input))?,
                _ => match StreamingDecoder::new(&mut input) {
                    Ok(mut decoder) => output.take(&mut decoder)?,
                    Err(e) => Some(e.to_string()),
                },
            };
            if stopped.is_some() || output.length == before {
                break stopped;
            }
        },
    };
    file.set_len(output.length)?;
    let at = output.length;
    Ok(stopped.map(|why| format!("it is damaged behind {at} unpacked bytes ({why})")))
}

struct Output<'a> {
    file: &'a File,
    length: u64,
    /// Bytes that may be written to the disk yet.
    left: u64,
    block: Vec<u8>,
}

impl Output<'_> {
    fn new(file: &File) -> Result<Output<'_>> {
        let space = fstatvfs(file)?;
        Ok(Output {
            file,
            length: 0,
            left: space
                .blocks_available()
                .saturating_mul(space.fragment_size())
                / 2,
            block: vec![0; BLOCK],
        })
    }

    /// Takes all bytes of a decoder. Returns why it failed, if it did.
    fn take(&mut self, from: &mut dyn Read) -> Result<Option<String>> {
        loop {
            let mut got = 0;
            let mut stopped = None;
            while got < self.block.len() {
                match from.read(&mut self.block[got..]) {
                    Ok(0) => break,
                    Ok(n) => got += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        stopped = Some(e.to_string());
                        break;
                    }
                }
            }
            let end = got < self.block.len();
            self.put(got)?;
            if end {
                return Ok(stopped);
            }
        }
    }

    fn put(&mut self, got: usize) -> Result<()> {
        let pages = self.block[..got].chunks(page_size() as usize);
        for page in pages {
            if page.iter().any(|byte| *byte != 0) {
                let Some(left) = self.left.checked_sub(page.len() as u64) else {
                    bail!("half of the free space there is not enough for it");
                };
                self.left = left;
                self.file.write_all_at(page, self.length)?;
            }
            self.length += page.len() as u64;
        }
        ensure!(
            self.length <= MAX_LENGTH,
            "unpacked it has more than {} GiB, which is the limit",
            MAX_LENGTH >> 30
        );
        Ok(())
    }
}
