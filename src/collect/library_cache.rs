//! Parses the dynamic loader's list of libraries, `/etc/ld.so.cache`, in the format of glibc 2.2 and later.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memprof_code::elf::u32_at;
use memprof_code::modules::open_regular;

const PATH: &str = "/etc/ld.so.cache";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Magic, number of libraries, bytes of strings, and unused fields.
const HEADER: usize = 48;
/// Flags, offset of the name, offset of the path, and unused fields.
const ENTRY: usize = 24;
/// The file has a few hundred kilobytes on a large system.
const MAX_BYTES: u64 = 64 << 20;

/// Libraries by name, with their paths; empty if the file is missing or has another format.
pub(super) fn read() -> Vec<(OsString, PathBuf)> {
    let mut bytes = Vec::new();
    let file = open_regular(Path::new(PATH));
    let got = file.and_then(|file| file.contents().take(MAX_BYTES).read_to_end(&mut bytes));
    match got {
        Ok(_) => parse(&bytes),
        Err(_) => Vec::new(),
    }
}

fn parse(bytes: &[u8]) -> Vec<(OsString, PathBuf)> {
    // A table in the older format may precede it.
    let Some(start) = bytes.windows(MAGIC.len()).position(|w| w == MAGIC) else {
        return Vec::new();
    };
    let cache = &bytes[start..];
    let Some(entries) = cache.get(HEADER..) else {
        return Vec::new();
    };
    let text = |at: u32| {
        let text = cache.get(at as usize..)?;
        let end = text.iter().position(|b| *b == 0)?;
        Some(OsStr::from_bytes(&text[..end]))
    };
    let entries = entries
        .chunks_exact(ENTRY)
        .take(u32_at(cache, MAGIC.len()) as usize);
    let libraries = entries.filter_map(|e| {
        let path = PathBuf::from(text(u32_at(e, 8))?);
        Some((text(u32_at(e, 4))?.to_owned(), path))
    });
    libraries.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cache(entries: u32) -> Vec<u8> {
        let mut bytes = b"something older".to_vec();
        let start = bytes.len();
        bytes.extend(MAGIC);
        bytes.extend(entries.to_le_bytes());
        bytes.resize(start + HEADER, 0);
        let names = (HEADER + ENTRY) as u32;
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(names.to_le_bytes());
        bytes.extend((names + 7).to_le_bytes());
        bytes.resize(start + HEADER + ENTRY, 0);
        bytes.extend(b"libx.1\0/lib/libx.1\0");
        bytes
    }

    #[test]
    fn libraries_have_a_name_and_a_path() {
        let want = [(OsString::from("libx.1"), PathBuf::from("/lib/libx.1"))];
        assert_eq!(parse(&cache(1)), want);
        assert_eq!(parse(&cache(0)), []);
        assert_eq!(parse(b"something older"), []);
    }

    #[test]
    fn this_systems_cache_has_libc() {
        let libc = |(name, path): &(OsString, PathBuf)| {
            name.as_bytes().starts_with(b"libc.so.") && path.is_file()
        };
        assert!(!Path::new(PATH).exists() || read().iter().any(libc));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            entries: u32, cut in 0usize..200, rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = cache(entries);
            bytes.truncate(cut);
            bytes.extend(rest);
            let _ = parse(&bytes);
        }
    }
}
