//! Allocates as many blocks of as many bytes as each line of stdin says (`1000 4096`), and keeps them; `0 0` frees all.
//! Answers each line with `ok`.

use std::alloc::System;
use std::io::{BufRead, Write};

use libdd_profiling_heap_allocator::SampledAllocator;

#[global_allocator]
static ALLOCATOR: SampledAllocator<System> = SampledAllocator::<System>::DEFAULT;

#[inline(never)]
fn allocate(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| Vec::with_capacity(bytes)).collect()
}

fn main() {
    let mut kept = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ').map(|word| word.parse().unwrap());
        match (words.next().unwrap(), words.next().unwrap()) {
            (0, 0) => kept.clear(),
            (count, bytes) => kept.push(allocate(count, bytes)),
        }
        println!("ok");
        std::io::stdout().flush().unwrap();
    }
}
