//! Reading whole BPF hash maps in batches.
//!
//! libbpf-rs 0.27's iterator takes a batch that is not full for the last one. The kernel also ends a batch early, before a bucket
//! of the map that does not fit into the rest of the batch. That iterator therefore omits entries now and then.

use std::io;
use std::os::fd::AsRawFd;

use libbpf_rs::{MapCore, libbpf_sys};

/// Calls `each` with the key and the value of every entry of a hash map, and reads `at_once` entries per system call. Entries that
/// are added or removed meanwhile may be omitted. A key-by-key iteration would restart if its current key is removed.
///
/// # Errors
/// The kernel's error, for example because the map is not a hash map.
pub(super) fn each_entry(
    map: &(impl MapCore + ?Sized),
    at_once: u32,
    mut each: impl FnMut(&[u8], &[u8]),
) -> io::Result<()> {
    let (key, value) = (map.key_size() as usize, map.value_size() as usize);
    let mut at_once = at_once.max(1);
    let mut keys = Vec::new();
    let mut values = Vec::new();
    let mut from: Option<u32> = None;
    loop {
        keys.resize(at_once as usize * key, 0);
        values.resize(at_once as usize * value, 0);
        let (mut count, mut to) = (at_once, 0u32);
        let start = from
            .as_mut()
            .map_or(std::ptr::null_mut(), |at| &raw mut *at);
        // SAFETY: both buffers hold `count` keys and values of this map, which is not a per-CPU map; a position in the iteration of
        // a hash map has 4 bytes.
        let done = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                start.cast(),
                (&raw mut to).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        match -done {
            // ENOENT: this batch is the last one.
            0 | libc::ENOENT => {}
            // ENOSPC: a bucket has more entries than a batch.
            libc::ENOSPC if at_once < u32::MAX / 2 => {
                at_once *= 2;
                continue;
            }
            libc::EINTR | libc::EAGAIN => continue,
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        let found = keys.chunks_exact(key).zip(values.chunks_exact(value));
        found
            .take(count as usize)
            .for_each(|(key, value)| each(key, value));
        if done != 0 {
            return Ok(());
        }
        from = Some(to);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use libbpf_rs::{MapFlags, MapHandle, MapType};

    use super::*;

    /// Covers buckets with several entries, and a bucket with more entries than a batch.
    #[test]
    fn every_entry_is_read() {
        let opts = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        // Needs root, like everything that loads BPF.
        let map = MapHandle::create(MapType::Hash, Some("batch_test"), 4, 8, 1000, &opts).unwrap();
        for n in 0..1000u32 {
            let value = u64::from(n) * 3;
            map.update(&n.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
                .unwrap();
        }
        for at_once in [1, 2, 3, 7, 100, 999, 1000, 5000] {
            let mut seen = BTreeSet::new();
            each_entry(&map, at_once, |key, value| {
                let key = u32::from_ne_bytes(key.try_into().unwrap());
                let value = u64::from_ne_bytes(value.try_into().unwrap());
                assert_eq!(value, u64::from(key) * 3);
                assert!(seen.insert(key), "{key} twice");
            })
            .unwrap();
            assert_eq!(seen.len(), 1000, "{at_once} at once");
        }
    }
}
