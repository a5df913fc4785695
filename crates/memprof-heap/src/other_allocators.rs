//! Detects allocators and managed heaps other than glibc's in a process, by the names of its files and mappings, and
//! by the symbols and sections of these files. Memory contents are not used as evidence.

use std::collections::HashSet;
use std::io::{self, Write};

use object::elf::{SHT_DYNSYM, SHT_SYMTAB};
use schemars::JsonSchema;
use serde::Serialize;

use super::source::Source;
use memprof_code::elf::Elf;
use memprof_sys::residency::Vma;
use memprof_sys::text::printable;

/// A detected allocator or managed heap that is not read. Its memory is reported as anonymous memory of unknown use.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "SeenAllocator")]
pub struct Seen {
    /// Name of the allocator or runtime.
    pub name: &'static str,
    /// Version, if the file contains it.
    pub version: Option<String>,
    /// The file that contains it, or the mapping whose name identifies it.
    pub module: String,
    /// The evidence: a name, symbol or section.
    pub evidence: String,
    /// Command of a managed heap's own tools that shows the heap.
    pub tool: Option<String>,
}

impl Seen {
    /// Whether it is jemalloc.
    pub(super) fn is_jemalloc(&self) -> bool {
        self.name == JEMALLOC
    }

    /// Writes it as lines of text.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let version = self.version.as_deref().unwrap_or_default();
        let space = if version.is_empty() { "" } else { " " };
        writeln!(
            out,
            "Seen, not read: {}{space}{} ({}; {})",
            self.name,
            printable(version),
            printable(&self.module),
            printable(&self.evidence)
        )?;
        match &self.tool {
            Some(tool) => writeln!(out, "    Its own tool shows more: {tool}"),
            None => Ok(()),
        }
    }
}

/// The evidence for one kind of allocator.
#[derive(Clone, Copy, Debug)]
struct AllocatorSignature {
    name: &'static str,
    /// Prefixes of its files' names.
    files: &'static [&'static str],
    /// Symbols that it defines.
    symbols: &'static [&'static str],
    /// A section of its files.
    section: Option<&'static str>,
    /// Prefixes of its mappings' names.
    mappings: &'static [&'static str],
    /// A command that shows its heap; `PID` is replaced by the process id.
    tool: Option<&'static str>,
}

const NONE: AllocatorSignature = AllocatorSignature {
    name: "",
    files: &[],
    symbols: &[],
    section: None,
    mappings: &[],
    tool: None,
};

const JEMALLOC: &str = "jemalloc";
const GO: &str = "Go";

const KINDS: [AllocatorSignature; 11] = [
    AllocatorSignature {
        name: JEMALLOC,
        files: &["libjemalloc."],
        symbols: &["mallctl", "je_mallctl", "_rjem_mallctl"],
        ..NONE
    },
    AllocatorSignature {
        name: "tcmalloc",
        files: &["libtcmalloc"],
        symbols: &["tc_malloc", "TCMallocInternalMalloc"],
        ..NONE
    },
    AllocatorSignature {
        name: "mimalloc",
        files: &["libmimalloc"],
        symbols: &["mi_malloc"],
        ..NONE
    },
    AllocatorSignature {
        name: "musl",
        files: &["ld-musl-", "libc.musl-"],
        symbols: &["__libc_malloc_impl"],
        ..NONE
    },
    AllocatorSignature {
        name: "Scudo",
        files: &["libclang_rt.scudo"],
        symbols: &["__scudo_default_options"],
        mappings: &["[anon:scudo:"],
        ..NONE
    },
    AllocatorSignature {
        name: GO,
        section: Some(".go.buildinfo"),
        mappings: &["[anon: Go:"],
        tool: Some(
            "go tool pprof http://HOST:PORT/debug/pprof/heap (if the program serves net/http/pprof)",
        ),
        ..NONE
    },
    AllocatorSignature {
        name: "Java (HotSpot)",
        files: &["libjvm.so"],
        tool: Some("jcmd PID GC.class_histogram"),
        ..NONE
    },
    AllocatorSignature {
        name: "V8",
        files: &["libnode.so"],
        symbols: &["_ZN2v87Isolate10GetCurrentEv"],
        mappings: &["[anon:v8"],
        tool: Some("node --heapsnapshot-signal=SIGUSR2 (at its start), then kill -USR2 PID"),
        ..NONE
    },
    AllocatorSignature {
        name: ".NET",
        files: &["libcoreclr.so"],
        tool: Some("dotnet-gcdump collect --process-id PID"),
        ..NONE
    },
    AllocatorSignature {
        name: "Mono",
        files: &["libmonosgen-"],
        symbols: &["mono_gc_collect"],
        tool: Some("mono --profile=log:heapshot (at its start)"),
        ..NONE
    },
    AllocatorSignature {
        name: "Boehm GC",
        files: &["libgc.so"],
        symbols: &["GC_gcollect"],
        ..NONE
    },
];

/// Maximum number of files to open.
const MAX_FILES: usize = 4096;
/// Maximum size of a section to search for a version, in bytes.
const MAX_SECTION: u64 = 64 << 20;
/// Maximum length of a version, in bytes.
const MAX_VERSION: usize = 64;

/// Searches the process's mappings and the files of its code.
pub(super) fn find(source: Source<'_>, vmas: &[Vma]) -> Vec<Seen> {
    let mut found: Vec<Seen> = Vec::new();
    let mut files = HashSet::new();
    for vma in vmas {
        let named = KINDS.iter().find(|kind| starts(&vma.name, kind.mappings));
        if let Some(kind) = named {
            add(
                &mut found,
                kind,
                &vma.name,
                "name of a mapping".to_owned(),
                None,
                source.pid(),
            );
        }
        let is_code = vma.ino != 0 && vma.perms.exec && !vma.perms.shared;
        if is_code && files.len() < MAX_FILES && files.insert((vma.dev, vma.ino)) {
            in_file(source, vma, &mut found);
        }
    }
    found
}

fn starts(name: &str, with: &[&str]) -> bool {
    with.iter().any(|start| name.starts_with(start))
}

/// Adds an allocator, unless it is listed already.
fn add(
    found: &mut Vec<Seen>,
    kind: &AllocatorSignature,
    module: &str,
    evidence: String,
    version: Option<String>,
    pid: u32,
) {
    if found.iter().any(|seen| seen.name == kind.name) {
        return;
    }
    found.push(Seen {
        name: kind.name,
        version,
        module: module.to_owned(),
        evidence,
        tool: kind.tool.map(|tool| tool.replace("PID", &pid.to_string())),
    });
}

fn in_file(source: Source<'_>, vma: &Vma, found: &mut Vec<Seen>) {
    let by_name = KINDS.iter().find(|kind| starts(vma.label(), kind.files));
    let file = source.file_of(vma);
    let elf = file.as_ref().and_then(|file| Elf::read(file).ok());
    let mut put = |kind: &AllocatorSignature, evidence: String| {
        let version = elf.as_ref().and_then(|elf| version(kind, elf));
        add(found, kind, &vma.name, evidence, version, source.pid());
    };
    if let Some(kind) = by_name {
        put(kind, "name of the file".to_owned());
    }
    let Some(elf) = &elf else {
        return;
    };
    // musl's loader is a link to its libc.so, whose name is not specific.
    let loader = elf.interpreter();
    let loader = loader
        .as_deref()
        .and_then(|path| path.file_name()?.to_str());
    if let Some(kind) = KINDS
        .iter()
        .find(|kind| loader.is_some_and(|name| starts(name, kind.files)))
    {
        put(kind, "the program's loader".to_owned());
    }
    for kind in KINDS {
        let section = kind
            .section
            .filter(|name| elf.section_named(name).is_some());
        if let Some(section) = section {
            put(&kind, format!("section {section}"));
        }
    }
    const SYMBOLS: usize = {
        let (mut count, mut i) = (0, 0);
        while i < KINDS.len() {
            count += KINDS[i].symbols.len();
            i += 1;
        }
        count
    };
    let mut all = KINDS
        .iter()
        .flat_map(|kind| kind.symbols.iter().map(move |s| (kind, *s)));
    let names: [(&AllocatorSignature, &str); SYMBOLS] =
        std::array::from_fn(|_| all.next().unwrap_or((&NONE, "")));
    for table in [SHT_DYNSYM, SHT_SYMTAB] {
        let defined = elf.extents(table, names.map(|(_, name)| name));
        for ((kind, name), at) in names.iter().zip(defined.unwrap_or([None; SYMBOLS])) {
            if at.is_some() {
                put(kind, format!("symbol {name}"));
            }
        }
    }
}

/// The version of an allocator, if its file contains it.
fn version(kind: &AllocatorSignature, elf: &Elf) -> Option<String> {
    let contents = |name| {
        let section = elf.section_named(name).filter(|s| s.size <= MAX_SECTION)?;
        elf.contents(section).ok()
    };
    match kind.name {
        JEMALLOC => jemalloc_version(&contents(".rodata")?),
        GO => go_version(&contents(".go.buildinfo")?),
        _ => None,
    }
}

/// jemalloc's version string: version, number of commits since, and the commit: `5.3.0-0-g54eaed1d8b56…`.
fn jemalloc_version(data: &[u8]) -> Option<String> {
    memchr::memmem::find_iter(data, b"-g").find_map(|at| {
        let commit = data.get(at + 2..at + 42)?;
        if !commit.iter().all(u8::is_ascii_hexdigit) || *data.get(at + 42)? != 0 {
            return None;
        }
        let start = data[..at].iter().rposition(|b| *b == 0)? + 1;
        let (version, commits) = std::str::from_utf8(&data[start..at])
            .ok()?
            .split_once('-')?;
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let fits = version.len() <= MAX_VERSION
            && version.split('.').count() == 3
            && version.split('.').all(digits)
            && digits(commits);
        fits.then(|| version.to_owned())
    })
}

/// Since Go 1.18, the version is in the section itself, after 32 bytes: a length, then the text.
fn go_version(data: &[u8]) -> Option<String> {
    let length = usize::from(*data.get(32)?);
    let text = data.get(33..33 + length.min(MAX_VERSION))?;
    let text = std::str::from_utf8(text).ok()?.strip_prefix("go")?;
    text.chars()
        .all(|c| c.is_ascii_graphic())
        .then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let text = b"x\x005.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c\0y";
        assert_eq!(jemalloc_version(text).as_deref(), Some("5.3.0"));
        assert_eq!(jemalloc_version(b"\0a-g123\0"), None);
        let mut section = vec![0; 32];
        section.extend(b"\x08go1.19.8\x00");
        assert_eq!(go_version(&section).as_deref(), Some("1.19.8"));
        assert_eq!(go_version(&section[..34]), None);
    }
}
