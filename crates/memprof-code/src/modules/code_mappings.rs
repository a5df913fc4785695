//! Reads the mappings of files and of code from `/proc/PID/maps`.

use std::io::{self, BufRead};

use memprof_sys::residency::{Vma, proc_maps};

/// Name of the vDSO in maps.
pub const VDSO: &str = "[vdso]";

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// File offset of the first byte, in bytes.
    pub offset: u64,
    /// Device, as `stat` shows it in most file systems.
    pub dev: u64,
    /// Inode number; 0 for the vDSO and for anonymous memory.
    pub inode: u64,
    /// Whether it is executable.
    pub exec: bool,
    /// Path with newlines decoded, possibly with ` (deleted)` appended.
    pub path: Vec<u8>,
}

impl From<&Vma> for Mapping {
    fn from(vma: &Vma) -> Mapping {
        Mapping {
            start: vma.start.0,
            end: vma.end.0,
            offset: vma.file_offset,
            dev: libc::makedev(vma.dev.0, vma.dev.1),
            inode: vma.ino,
            exec: vma.perms.exec,
            path: vma.name.clone().into_bytes(),
        }
    }
}

impl Mapping {
    /// Whether it is anonymous memory, whose code is JIT code. Programs can name such memory; the kernel then shows it
    /// as `[anon:NAME]`.
    pub fn anonymous(&self) -> bool {
        self.inode == 0 && (self.path.is_empty() || self.path.starts_with(b"[anon"))
    }

    /// Whether it is memory without a file, private or shared.
    pub(super) fn without_file(&self) -> bool {
        self.inode == 0 || self.shared_memory()
    }

    /// Whether it is shared memory without a file: `memfd_create`, `MAP_SHARED | MAP_ANONYMOUS`, System V, or
    /// `MAP_HUGETLB`. It can contain JIT code, or a program.
    pub fn shared_memory(&self) -> bool {
        let starts: [&[u8]; 5] = [
            b"/memfd:",
            b"/dev/zero (deleted)",
            b"/SYSV",
            b"/dev/shm/",
            b"/anon_hugepage (deleted)",
        ];
        self.path.ends_with(b" (deleted)")
            && starts.iter().any(|start| self.path.starts_with(start))
    }
}

/// Calls `f` for each file mapping, and for each executable mapping of the vDSO and of memory without a file. Skips
/// lines that it cannot parse.
///
/// # Errors
/// Reading fails.
pub fn for_each_mapping(mut maps: impl BufRead, mut f: impl FnMut(Mapping)) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if let Some(mapping) = parse(&line) {
            f(mapping);
        }
    }
}

fn parse(line: &[u8]) -> Option<Mapping> {
    let line = proc_maps::fields(line)?;
    let mapping = Mapping {
        start: line.start,
        end: line.end,
        offset: line.offset,
        dev: libc::makedev(line.dev.0, line.dev.1),
        inode: line.ino,
        exec: line.perms.exec,
        path: proc_maps::unescape(line.name),
    };
    // All other mappings are data, the vsyscall page, or code on the heap or stack.
    let code = || mapping.exec && (mapping.anonymous() || line.name == VDSO.as_bytes());
    (mapping.inode != 0 || code()).then_some(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_writes() {
        let line = b"7f1b2c028000-7f1b2c1bd000 r-xp 00028000 fe:01 1835137                    /usr/lib/a b (deleted)";
        let m = parse(line).unwrap();
        assert_eq!(
            (m.start, m.end, m.offset),
            (0x7f1b2c028000, 0x7f1b2c1bd000, 0x28000)
        );
        assert_eq!((m.dev, m.inode), (libc::makedev(0xfe, 1), 1835137));
        assert_eq!(m.path, b"/usr/lib/a b (deleted)");
        assert_eq!(proc_maps::unescape(b"/a\\012b\\x\\"), b"/a\nb\\x\\");
    }

    #[test]
    fn only_files_and_code_of_the_vdso_and_of_anonymous_memory() {
        let maps = b"00400000-00401000 r--p 00000000 fe:01 5 /bin/x\n\
            00401000-00402000 r-xp 00001000 fe:01 5 /bin/x\n\
            00500000-00501000 rwxp 00000000 00:00 0 \n\
            00600000-00601000 r-xp 00000000 00:00 0                          [vdso]\n\
            00700000-00701000 r-xp 00000000 00:00 0                          [anon:v8]\n\
            00800000-00801000 rwxp 00000000 00:00 0                          [stack]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        let mut got = Vec::new();
        for_each_mapping(&maps[..], |m| got.push((m.start, m.anonymous()))).unwrap();
        let want = [
            (0x400000, false),
            (0x401000, false),
            (0x500000, true),
            (0x600000, false),
            (0x700000, true),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn memory_without_a_file_may_have_a_path() {
        for (path, shared) in [
            ("/memfd:doublemapper (deleted)", true),
            ("/dev/zero (deleted)", true),
            ("/SYSV00000000 (deleted)", true),
            ("/dev/shm/x (deleted)", true),
            ("/anon_hugepage (deleted)", true),
            ("/dev/shm/x", false),
            ("/memfd", false),
            ("/usr/lib/libx.so (deleted)", false),
        ] {
            let line = format!("7f0000000000-7f0000001000 r-xp 00002000 00:01 7 {path}");
            let m = parse(line.as_bytes()).unwrap();
            assert_eq!(
                (m.shared_memory(), m.anonymous()),
                (shared, false),
                "{path}"
            );
        }
    }

    #[test]
    fn nonsense_is_passed_over() {
        for line in [
            &b""[..],
            b"\xff\xff",
            b"1-2",
            b"1-2 r-xp",
            b"2-1 r-xp 0 0:0 1 /x",
            b"g-h r-xp 0 0:0 1 /x",
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }
}
