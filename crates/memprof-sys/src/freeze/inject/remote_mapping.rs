//! A separate mapping in the thread's process for the code that loads a library: its address and its contents.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;

use super::load::Loading;
use super::ptrace::write;
use super::shellcode::{Job, PREFIX, code};
use super::{Call, Injector};
use crate::residency::proc_maps;

/// Size of the code part, in bytes: a page on every x86-64.
const CODE: u64 = 4096;
/// Size of the loader's stack, in bytes. The loader needs less than 16 KiB.
const STACK: u64 = 128 << 10;
/// Offsets of the parts of the data, in bytes.
const NAME_AT: u64 = 512;
const PREFIX_AT: u64 = 1024;
const PATH_END_AT: u64 = 2047;
const LIBRARY_AT: u64 = 4096;
/// The name of the library in `/proc/PID/maps`, after `/memfd:`.
const NAME: &[u8] = b"libmemprof_heap.so\0";
/// Maximum length of a loader message, in bytes.
const MAX_TEXT: usize = 512;

/// Range of addresses to use. Addresses below 4 GiB are left to the program; addresses from `END` on are given only to programs
/// that request them.
const FIRST: u64 = 4 << 30;
const END: u64 = 1 << 47;
/// Free address space required on each side of the mapping, in bytes.
const MARGIN: u64 = 1 << 30;

/// The mapping: code, then data with the job and the library, then a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteMapping {
    pub(super) at: u64,
    library: u64,
}

impl RemoteMapping {
    /// Chooses an address. It is random and far from all mappings, so that the kernel does not map anything else there: when the
    /// thread returns to its own code, it unmaps this range.
    ///
    /// # Errors
    /// There is no such address.
    pub(super) fn choose(tid: i32, library: usize) -> Result<RemoteMapping, String> {
        let maps = std::fs::read(format!("/proc/{tid}/maps")).map_err(|e| e.to_string())?;
        let maps = proc_maps::parse(&maps).map_err(|e| e.to_string())?;
        let ends = maps.iter().map(|vma| vma.end.0.max(FIRST));
        let ends = std::iter::once(FIRST).chain(ends);
        let starts = maps.iter().map(|vma| vma.start.0.clamp(FIRST, END));
        let starts = starts.chain(std::iter::once(END));
        let gaps = ends
            .zip(starts)
            .map(|(end, start)| (start.saturating_sub(end), end));
        let mut room = RemoteMapping {
            at: 0,
            library: library as u64,
        };
        let (size, from) = gaps.max().unwrap_or_default();
        let free = size.saturating_sub(2 * MARGIN + room.bytes()) / CODE;
        if free == 0 {
            return Err("it has no free part of its address space".to_owned());
        }
        let random = RandomState::new().build_hasher().finish();
        room.at = (from + MARGIN + random % free * CODE).next_multiple_of(CODE);
        Ok(room)
    }

    /// The size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        CODE + self.data_bytes()
    }

    fn data_bytes(&self) -> u64 {
        LIBRARY_AT + self.library.next_multiple_of(CODE) + STACK
    }

    /// The address of the job.
    pub(super) fn data(&self) -> u64 {
        self.at + CODE
    }

    /// The end of the stack, which grows down from here.
    pub(super) fn stack(&self) -> u64 {
        self.at + self.bytes()
    }

    /// The call that maps the memory.
    pub(super) fn mmap(&self) -> Call {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let [protection, flags] = [protection, flags].map(|word| u64::from(word.cast_unsigned()));
        let no_file = u64::from(u32::MAX);
        Call {
            number: libc::SYS_mmap,
            args: [self.at, self.bytes(), protection, flags, no_file, 0],
        }
    }

    /// The call that makes the data writable and no longer executable.
    pub(super) fn mprotect(&self) -> Call {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Call {
            number: libc::SYS_mprotect,
            args: [self.data(), self.data_bytes(), protection as u64, 0, 0, 0],
        }
    }

    /// The call that unmaps the memory.
    pub(super) fn munmap(&self) -> Call {
        Call {
            number: libc::SYS_munmap,
            args: [self.at, self.bytes(), 0, 0, 0, 0],
        }
    }

    /// The words of the job. The job's last call is made by the instruction at `call`, with the stack pointer `back`.
    fn job(&self, call: u64, back: u64, what: &Loading<'_>) -> [u64; Job::WORDS] {
        let data = self.data();
        let mut job = [0; Job::WORDS];
        let mut set = |word: Job, value: u64| job[word as usize] = value;
        set(Job::Region, self.at);
        set(Job::RegionBytes, self.bytes());
        set(Job::Errno, what.functions.errno);
        set(Job::Load, what.functions.load);
        set(Job::Error, what.functions.error);
        set(Job::Flags, what.functions.flags.into());
        set(Job::Library, data + LIBRARY_AT);
        set(Job::LibraryBytes, self.library);
        set(Job::Name, data + NAME_AT);
        set(Job::PrefixEnd, data + PREFIX_AT + PREFIX.len() as u64);
        set(Job::PathEnd, data + PATH_END_AT);
        set(Job::Call, call);
        set(Job::Back, back);
        job
    }

    /// Writes the contents through a stopped thread, once the memory is mapped and its data writable. The job gets `call` and
    /// `back`.
    ///
    /// # Errors
    /// The memory cannot be written.
    pub(super) fn fill(
        &self,
        tid: i32,
        call: u64,
        back: u64,
        what: &Loading<'_>,
    ) -> io::Result<()> {
        let data = self.data();
        let job = self.job(call, back, what);
        let job: Vec<u8> = job.iter().flat_map(|word| word.to_le_bytes()).collect();
        let parts: [(&[u8], u64); 5] = [
            (code(), self.at),
            (&job, data),
            (NAME, data + NAME_AT),
            (PREFIX, data + PREFIX_AT),
            (what.library, data + LIBRARY_AT),
        ];
        let mut parts = parts.iter();
        parts.try_for_each(|(bytes, at)| write(tid, *at, bytes))
    }

    /// The result of the job, read before it is unmapped: the handle of the library, or why there is none.
    pub(super) fn result(&self, injector: &Injector) -> Result<u64, String> {
        let bytes = injector.read(self.data(), Job::WORDS * 8);
        let bytes = bytes.map_err(|e| e.to_string())?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |word: Job| u64::from_le_bytes(words[word as usize]);
        let error = |result: u64| io::Error::from_raw_os_error(-(result.cast_signed() as i32));
        let (file, written, handle) = (word(Job::File), word(Job::Written), word(Job::Handle));
        match () {
            () if handle != 0 => Ok(handle),
            () if file.cast_signed() < 0 => {
                Err(format!("it cannot make a file in memory: {}", error(file)))
            }
            () if written.cast_signed() < 0 => Err(format!(
                "it cannot write the library to memory: {}",
                error(written)
            )),
            () if written != self.library => {
                Err("no free address range fits the library".to_owned())
            }
            () => Err(message(injector, word(Job::Text))),
        }
    }
}

/// The loader's message, at the address `at`; 0 for none.
fn message(injector: &Injector, at: u64) -> String {
    let mut text = [0; MAX_TEXT];
    let read = match at {
        0 => 0,
        at => injector.mem.read_at(&mut text, at).unwrap_or(0),
    };
    let end = text[..read].iter().position(|byte| *byte == 0);
    match &text[..end.unwrap_or(read)] {
        [] => "its loader does not say why".to_owned(),
        text => format!("its loader says: {}", String::from_utf8_lossy(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_and_never_the_same() {
        let tid = nix::unistd::gettid().as_raw();
        let rooms: Vec<RemoteMapping> = (0..20)
            .map(|_| RemoteMapping::choose(tid, 50_000).unwrap())
            .collect();
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let maps = proc_maps::parse(&maps).unwrap();
        for (n, room) in rooms.iter().enumerate() {
            assert!(room.at % CODE == 0 && room.stack() < END);
            let near = |vma: &crate::residency::Vma| {
                vma.start.0 < room.stack() + MARGIN / 2 && room.at < vma.end.0 + MARGIN / 2
            };
            assert!(!maps.iter().any(near), "{room:?}");
            assert!(rooms[..n].iter().all(|other| other.at != room.at));
        }
    }
}
