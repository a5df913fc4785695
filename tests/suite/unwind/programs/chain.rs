// A Rust program whose functions keep no frame pointers. Compiled by tests/suite/unwind.

use std::hint::black_box;

#[unsafe(no_mangle)]
#[inline(never)]
fn rust_leaf(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().step_by(4096) {
        *byte = black_box(1);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn rust_callback(bytes: &mut [u8], n: &u64) -> u64 {
    if *n == 1 {
        rust_leaf(bytes);
    }
    black_box(*n)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn rust_case(bytes: &mut [u8]) -> u64 {
    let sum = (0..3u64).map(|n| rust_callback(bytes, &n)).sum();
    black_box(sum)
}

fn main() {
    // Fresh pages from the kernel: too large for the heap.
    let mut bytes = vec![0u8; 1 << 20];
    // 64 KiB of it, at a page boundary.
    let ahead = bytes.as_ptr().align_offset(4096);
    black_box(rust_case(&mut bytes[ahead..ahead + 65536]));
    let thread = std::thread::spawn(|| {
        let mut bytes = vec![0u8; 1 << 20];
        let ahead = bytes.as_ptr().align_offset(4096);
        black_box(rust_case(&mut bytes[ahead..ahead + 65536]));
        std::mem::forget(bytes);
    });
    let _ = thread.join();
    std::mem::forget(bytes);
}
