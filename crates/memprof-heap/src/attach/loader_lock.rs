//! The lock that glibc's loader holds while it loads a library and runs the library's constructors, which may take
//! long.

use std::fs::File;
use std::os::unix::fs::FileExt;

use memprof_code::elf::Elf;
use memprof_sys::target_file::ReadAt;

/// The symbol of the loader's variables. Their layout differs between glibc versions.
const VARIABLES: &str = "_rtld_global";
/// Maximum size of the variables, in bytes. Actual size: about 5 KiB.
const MAX_SIZE: u64 = 64 << 10;
/// Size of glibc's `pthread_mutex_t` and offset of its kind, in bytes.
const MUTEX: usize = 40;
const KIND: usize = 16;
/// The mutex kind `PTHREAD_MUTEX_RECURSIVE_NP`.
const RECURSIVE: u8 = 1;

/// Finds the lock: the first of two adjacent recursive mutexes in the initial contents of the loader's variables.
/// Returns its address in the loader's file, or `None` if there are no such mutexes.
pub(super) fn find(file: &dyn ReadAt) -> Option<u64> {
    let elf = Elf::read(file).ok()?;
    let mut found = None;
    let found_at = |_: &str, extent| found = Some(extent);
    elf.for_each_defined(&[VARIABLES], found_at).ok()?;
    let variables = found.filter(|found| found.size <= MAX_SIZE)?;
    let (segment, inside) = elf.loaded_at(variables.address)?;
    let in_file = segment.size.saturating_sub(inside).min(variables.size);
    let mut bytes = vec![0; in_file as usize];
    elf.read_at(&mut bytes, segment.offset.checked_add(inside)?)
        .ok()?;
    Some(variables.address + locks(&bytes)? as u64)
}

/// Offset of the first of two adjacent recursive mutexes that are unlocked.
fn locks(bytes: &[u8]) -> Option<usize> {
    let is_lock = |at: usize| {
        let lock = bytes.get(at..at + MUTEX);
        lock.is_some_and(|lock| {
            let mut bytes = lock.iter().enumerate();
            bytes.all(|(n, byte)| *byte == if n == KIND { RECURSIVE } else { 0 })
        })
    };
    let mut places = (0..bytes.len()).step_by(8);
    places.find(|at| is_lock(*at) && is_lock(at + MUTEX))
}

/// Whether a thread holds the lock at this address of a process.
pub(super) fn is_held(memory: &File, lock: u64) -> bool {
    let mut word = [0; 4];
    memory.read_exact_at(&mut word, lock).is_ok() && word != [0; 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_loader_has_one_that_is_free_now() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(line) = maps.lines().find(|line| line.contains("/ld-linux")) else {
            return;
        };
        let file = File::open(line.split_whitespace().last().unwrap()).unwrap();
        let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let lock = find(&file).expect("glibc's loader has it") + start;
        let memory = File::open("/proc/self/mem").unwrap();
        // Other tests may load a library meanwhile.
        assert!((0..1000).any(|_| !is_held(&memory, lock)));
    }

    #[test]
    fn two_free_locks_next_to_each_other() {
        let mut bytes = vec![0; 400];
        assert_eq!(locks(&bytes), None);
        bytes[80 + KIND] = RECURSIVE;
        assert_eq!(locks(&bytes), None);
        bytes[120 + KIND] = RECURSIVE;
        assert_eq!(locks(&bytes), Some(80));
    }
}
