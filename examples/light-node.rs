//! The bundled workload: a toy light node, a small but real program to profile.
//!
//! ```text
//! cargo run --release --example light-node -- [--seconds N] [--cache-mib N] [--dir DIR]
//! ```
//!
//! It runs until SIGTERM or Ctrl-C, or for `--seconds`, and removes its files when it ends. Four threads
//! form a pipeline of blocks. These functions hold memory:
//!
//! | function | holds |
//! |---|---|
//! | `peer::receive_buffer` | 4 MiB, from the start |
//! | `peer::receive_block`, `file_store::write_block` | page cache: the last 64 blocks on disk, 32 MiB |
//! | `file_store::read_block` | one block at a time, 512 KiB |
//! | `block_cache::grow` | unpacked blocks, up to `--cache-mib` (default 64); drops half when full |
//! | `header_index::insert` | a `BTreeMap` of at most 50,000 headers |
//! | `transaction_index::insert` | a `HashMap` of at most 300,000 entries |
//! | `mempool::accept` | pending transactions in slabs of 256 KiB, 4 to 8 MiB once it has been full |
//! | `index_file::put` | a shared file mapping of 8 MiB (page cache, not anonymous memory) |
//!
//! Its files are in a directory of its own below `--dir`. The default is `/var/tmp`, because `/tmp` may be
//! a tmpfs, whose pages are shared memory instead of page cache.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

/// Bytes of one block.
const BLOCK: usize = 512 * 1024;
/// Time between two blocks.
const BLOCK_INTERVAL: Duration = Duration::from_millis(100);
/// Transactions in each block.
const TRANSACTIONS_PER_BLOCK: u64 = 2_000;

/// State that all threads share.
struct Node {
    stop: AtomicBool,
    dir: PathBuf,
    cache_bytes: usize,
}

impl Node {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A verified block, which the verifier sends to the indexer.
struct Verified {
    height: u64,
    hash: u64,
    body: Vec<u8>,
}

/// Marsaglia's xorshift: generates the contents of blocks.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

mod hash {
    /// A simple, non-cryptographic hash of a block's bytes, eight at a time.
    #[inline(never)]
    pub fn block(bytes: &[u8]) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for chunk in bytes.chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    }
}

mod peer {
    use super::{BLOCK, Random};

    const BUFFER: usize = 4 * 1024 * 1024;

    /// Allocates the receive buffer and writes all of it, so that 4 MiB stay resident.
    #[inline(never)]
    pub fn receive_buffer() -> Vec<u8> {
        let mut buffer = vec![0; BUFFER];
        for (i, byte) in buffer.iter_mut().enumerate() {
            *byte = i as u8;
        }
        buffer
    }

    /// "Receives" block `height` into part of the buffer and returns that part.
    #[inline(never)]
    pub fn receive_block(buffer: &mut [u8], height: u64) -> &[u8] {
        let start = height as usize % (buffer.len() / BLOCK) * BLOCK;
        let block = &mut buffer[start..start + BLOCK];
        let mut random = Random(height + 1);
        for chunk in block.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes());
        }
        block
    }
}

mod file_store {
    use std::fs::{self, File};
    use std::io::{self, Read, Write};
    use std::path::{Path, PathBuf};

    use super::BLOCK;

    /// Blocks kept on disk.
    const KEEP: u64 = 64;

    fn path(dir: &Path, height: u64) -> PathBuf {
        dir.join(format!("block-{height:08}"))
    }

    /// Writes a block to its file and deletes the oldest one.
    #[inline(never)]
    pub fn write_block(dir: &Path, height: u64, block: &[u8]) -> io::Result<()> {
        File::create(path(dir, height))?.write_all(block)?;
        match height.checked_sub(KEEP) {
            Some(old) => fs::remove_file(path(dir, old)),
            None => Ok(()),
        }
    }

    /// Reads a block back through `read(2)`.
    #[inline(never)]
    pub fn read_block(dir: &Path, height: u64) -> io::Result<Vec<u8>> {
        let mut block = Vec::with_capacity(BLOCK);
        File::open(path(dir, height))?.read_to_end(&mut block)?;
        Ok(block)
    }
}

mod block_cache {
    use std::collections::VecDeque;

    /// The most recent blocks, unpacked, up to a number of bytes.
    pub struct BlockCache {
        blocks: VecDeque<Vec<u8>>,
        bytes: usize,
        limit: usize,
    }

    impl BlockCache {
        pub fn new(limit: usize) -> Self {
            BlockCache {
                blocks: VecDeque::new(),
                bytes: 0,
                limit,
            }
        }
    }

    /// Adds a block to the cache. When the cache is full, drops the older half first.
    #[inline(never)]
    pub fn grow(cache: &mut BlockCache, packed: &[u8]) {
        if cache.bytes + packed.len() > cache.limit {
            shrink(cache);
        }
        if packed.len() > cache.limit {
            return;
        }
        // "Unpacking": a loop of stores in this function itself.
        let unpacked: Vec<u8> = packed.iter().map(|b| b ^ 0xa5).collect();
        cache.bytes += unpacked.len();
        cache.blocks.push_back(unpacked);
    }

    #[inline(never)]
    fn shrink(cache: &mut BlockCache) {
        while cache.bytes > cache.limit / 2 {
            let Some(block) = cache.blocks.pop_front() else {
                return;
            };
            cache.bytes -= block.len();
        }
    }
}

mod header_index {
    use std::collections::BTreeMap;

    const LIMIT: usize = 50_000;
    const HEADERS_PER_BLOCK: u64 = 100;

    pub struct Header {
        pub hash: u64,
        pub signature: [u8; 96],
    }

    /// Inserts the headers of a block and removes the oldest ones beyond the limit.
    #[inline(never)]
    pub fn insert(index: &mut BTreeMap<u64, Header>, height: u64, hash: u64) {
        for i in 0..HEADERS_PER_BLOCK {
            let header = Header {
                hash: hash.rotate_left(i as u32),
                signature: [hash as u8; 96],
            };
            index.insert(height * HEADERS_PER_BLOCK + i, header);
        }
        while index.len() > LIMIT {
            index.pop_first();
        }
    }
}

mod transaction_index {
    use std::collections::HashMap;

    use super::{Random, TRANSACTIONS_PER_BLOCK};

    const LIMIT: usize = 300_000;

    /// Maps each transaction to its block. Clears the index when it is full.
    #[inline(never)]
    pub fn insert(index: &mut HashMap<u64, (u64, u32)>, height: u64) {
        if index.len() + TRANSACTIONS_PER_BLOCK as usize > LIMIT {
            index.clear();
        }
        let mut random = Random(height.wrapping_mul(0x9e37_79b9) | 1);
        for i in 0..TRANSACTIONS_PER_BLOCK {
            index.insert(random.next(), (height, i as u32));
        }
    }
}

mod index_file {
    use std::fs::OpenOptions;
    use std::io;
    use std::path::Path;
    use std::ptr::{NonNull, null_mut};

    const SIZE: usize = 8 * 1024 * 1024;
    const ENTRY: usize = 16;

    /// A shared, writable mapping of the file `index`.
    pub struct IndexFile {
        start: NonNull<u8>,
    }

    impl IndexFile {
        /// Creates the file and maps it.
        #[inline(never)]
        pub fn create(dir: &Path) -> io::Result<IndexFile> {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(true);
            let file = file.open(dir.join("index"))?;
            file.set_len(SIZE as u64)?;
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice; `fd` is open.
            let p = unsafe { libc::mmap(null_mut(), SIZE, access, libc::MAP_SHARED, fd, 0) };
            if p == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let start = NonNull::new(p.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
            Ok(IndexFile { start })
        }
    }

    /// Writes one entry to the slot that its hash selects.
    #[inline(never)]
    pub fn put(file: &mut IndexFile, height: u64, hash: u64) {
        let slot = (hash % (SIZE / ENTRY) as u64) as usize;
        let entry = (u128::from(height) << 64) | u128::from(hash);
        // SAFETY: `slot * ENTRY + ENTRY <= SIZE`, the mapping's length; no other pointer into it
        // exists, and the file is never shortened while it is mapped.
        unsafe {
            let at = file.start.as_ptr().add(slot * ENTRY).cast::<u128>();
            at.write_unaligned(entry);
        }
    }

    impl Drop for IndexFile {
        fn drop(&mut self) {
            // SAFETY: the mapping made in `create`, not used after this.
            unsafe { libc::munmap(self.start.as_ptr().cast(), SIZE) };
        }
    }
}

mod mempool {
    use std::collections::VecDeque;

    use super::Random;

    const SLAB: usize = 256 * 1024;
    const FULL: usize = 32;

    /// Pending transactions, packed into slabs.
    #[derive(Default)]
    pub struct Mempool {
        slabs: VecDeque<Vec<u8>>,
    }

    /// Adds a transaction of 200 to 4,200 bytes.
    #[inline(never)]
    pub fn accept(pool: &mut Mempool, random: &mut Random) {
        let len = 200 + (random.next() % 4_000) as usize;
        let fill = random.next() as u8;
        let bytes = (0..len).map(|i| fill ^ i as u8);
        match pool.slabs.back_mut() {
            Some(slab) if slab.capacity() - slab.len() >= len => slab.extend(bytes),
            _ => {
                let mut slab = Vec::with_capacity(SLAB);
                slab.extend(bytes);
                pool.slabs.push_back(slab);
                evict(pool);
            }
        }
    }

    /// Drops the older half of a full pool.
    #[inline(never)]
    pub fn evict(pool: &mut Mempool) {
        if pool.slabs.len() > FULL {
            pool.slabs.drain(..FULL / 2);
        }
    }
}

#[inline(never)]
fn run_fetcher(node: &Node, fetched: &SyncSender<u64>) -> io::Result<u64> {
    let mut buffer = peer::receive_buffer();
    let mut height = 0;
    while !node.stopping() {
        let block = peer::receive_block(&mut buffer, height);
        file_store::write_block(&node.dir, height, block)?;
        if fetched.send(height).is_err() {
            break;
        }
        height += 1;
        thread::sleep(BLOCK_INTERVAL);
    }
    Ok(height)
}

#[inline(never)]
fn run_verifier(
    node: &Node,
    fetched: &Receiver<u64>,
    verified: &SyncSender<Verified>,
) -> io::Result<u64> {
    let mut count = 0;
    while let Some(height) = receive(node, fetched) {
        let body = file_store::read_block(&node.dir, height)?;
        let hash = hash::block(&body);
        let block = Verified { height, hash, body };
        if verified.send(block).is_err() {
            break;
        }
        count += 1;
    }
    Ok(count)
}

#[inline(never)]
fn run_indexer(node: &Node, verified: &Receiver<Verified>) -> io::Result<u64> {
    let mut cache = block_cache::BlockCache::new(node.cache_bytes);
    let mut headers = std::collections::BTreeMap::new();
    let mut transactions = std::collections::HashMap::new();
    let mut file = index_file::IndexFile::create(&node.dir)?;
    let mut count = 0;
    while let Some(block) = receive(node, verified) {
        block_cache::grow(&mut cache, &block.body);
        header_index::insert(&mut headers, block.height, block.hash);
        transaction_index::insert(&mut transactions, block.height);
        let mut random = Random(block.hash | 1);
        for _ in 0..32 {
            index_file::put(&mut file, block.height, random.next());
        }
        count += 1;
    }
    let newest = headers
        .last_key_value()
        .map(|(_, h)| h.hash ^ h.signature.len() as u64);
    std::hint::black_box(newest);
    Ok(count)
}

#[inline(never)]
fn run_mempool(node: &Node) -> io::Result<u64> {
    let mut pool = mempool::Mempool::default();
    let mut random = Random(42);
    let mut count = 0;
    while !node.stopping() {
        for _ in 0..200 {
            mempool::accept(&mut pool, &mut random);
        }
        count += 200;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(count)
}

/// Returns the next item, or `None` when the sender is gone or the node is stopping.
fn receive<T>(node: &Node, from: &Receiver<T>) -> Option<T> {
    while !node.stopping() {
        match from.recv_timeout(Duration::from_millis(100)) {
            Ok(item) => return Some(item),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

/// Starts a named thread. An error in it stops the whole node.
fn spawn<F>(
    node: &Arc<Node>,
    name: &'static str,
    body: F,
) -> io::Result<JoinHandle<io::Result<u64>>>
where
    F: FnOnce(&Node) -> io::Result<u64> + Send + 'static,
{
    let node = Arc::clone(node);
    thread::Builder::new().name(name.into()).spawn(move || {
        let result = body(&node);
        if result.is_err() {
            node.stop.store(true, Ordering::Relaxed);
        }
        result
    })
}

/// Blocks SIGINT and SIGTERM for this thread and those that it starts, so that `wait` receives them.
fn block_signals() -> libc::sigset_t {
    // SAFETY: `set` is initialised by sigemptyset before it is read; all pointers are valid.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    }
}

/// Returns when a blocked signal arrives, when `deadline` has passed, or when a thread has failed.
fn wait(node: &Node, signals: &libc::sigset_t, deadline: Option<Instant>) {
    let pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    while !node.stopping() && deadline.is_none_or(|d| Instant::now() < d) {
        // SAFETY: both pointers are to live values; a null siginfo is allowed.
        let signal = unsafe { libc::sigtimedwait(signals, std::ptr::null_mut(), &raw const pause) };
        if signal > 0 {
            return;
        }
    }
}

struct Options {
    seconds: Option<u64>,
    cache_mib: usize,
    dir: PathBuf,
}

const USAGE: &str = "usage: light-node [--seconds N] [--cache-mib N] [--dir DIR]";

fn options() -> Result<Options, String> {
    let mut options = Options {
        seconds: None,
        cache_mib: 64,
        dir: PathBuf::from("/var/tmp"),
    };
    let mut args = std::env::args().skip(1);
    while let Some(option) = args.next() {
        if option == "--help" || option == "-h" {
            println!("{USAGE}");
            std::process::exit(0);
        }
        let value = args
            .next()
            .ok_or_else(|| format!("{option}: a value is missing"));
        let number = |v: String| {
            v.parse()
                .map_err(|_| format!("{option}: {v:?} is not a number"))
        };
        match option.as_str() {
            "--seconds" => options.seconds = Some(value.and_then(number)?),
            "--cache-mib" => options.cache_mib = value.and_then(number)? as usize,
            "--dir" => options.dir = PathBuf::from(value?),
            _ => return Err(format!("{option}: no such option")),
        }
    }
    Ok(options)
}

#[inline(never)]
fn run(node: &Arc<Node>, signals: &libc::sigset_t, seconds: Option<u64>) -> io::Result<()> {
    let (fetched, to_verify) = sync_channel(8);
    let (verified, to_index) = sync_channel(2);
    let threads = [
        (
            "blocks fetched",
            spawn(node, "fetcher", move |n| run_fetcher(n, &fetched))?,
        ),
        (
            "verified",
            spawn(node, "verifier", move |n| {
                run_verifier(n, &to_verify, &verified)
            })?,
        ),
        (
            "indexed",
            spawn(node, "indexer", move |n| run_indexer(n, &to_index))?,
        ),
        ("transactions", spawn(node, "mempool", run_mempool)?),
    ];
    let deadline = seconds.map(|s| Instant::now() + Duration::from_secs(s));
    wait(node, signals, deadline);
    node.stop.store(true, Ordering::Relaxed);
    let mut failed = None;
    for (what, thread) in threads {
        match thread.join() {
            Ok(Ok(count)) => eprintln!("light-node: {what}: {count}"),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => failed = Some(io::Error::other(format!("the thread for {what} panicked"))),
        }
    }
    failed.map_or(Ok(()), Err)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("light-node: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // Before the directory is created, so that a signal cannot leave it behind.
    let signals = block_signals();
    let dir = options
        .dir
        .join(format!("light-node-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&dir) {
        eprintln!("light-node: cannot create {}: {error}", dir.display());
        return ExitCode::FAILURE;
    }
    let node = Arc::new(Node {
        stop: AtomicBool::new(false),
        dir,
        cache_bytes: options.cache_mib.saturating_mul(1024 * 1024),
    });
    eprintln!(
        "light-node: pid {}, files in {}, block cache up to {} MiB",
        std::process::id(),
        node.dir.display(),
        options.cache_mib
    );
    let result = run(&node, &signals, options.seconds);
    let removed = fs::remove_dir_all(&node.dir);
    for (what, result) in [
        ("stopped by", result),
        ("cannot remove its files:", removed),
    ] {
        if let Err(error) = result {
            eprintln!("light-node: {what} {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
