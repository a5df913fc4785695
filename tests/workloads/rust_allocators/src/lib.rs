//! Allocates on command, as `allocations.c` does: `hold N SIZE` (kept), `churn N SIZE` (freed at once), `grow N SIZE` (vectors that
//! grow from 16 bytes), `release N` (the newest). Answers each line with `ok`.
//!
//! With the argument `N`: threads that allocate, as `allocating_threads.c` has them.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

#[inline(never)]
fn hold(count: usize, bytes: usize, held: &mut Vec<Vec<u8>>) {
    held.extend((0..count).map(|_| black_box(Vec::with_capacity(bytes))));
}

#[inline(never)]
fn churn(count: usize, bytes: usize) {
    for _ in 0..count {
        black_box(Vec::<u8>::with_capacity(bytes));
    }
}

#[inline(never)]
fn grow(count: usize, bytes: usize, held: &mut Vec<Vec<u8>>) {
    held.extend((0..count).map(|_| {
        let mut grown = black_box(Vec::with_capacity(16));
        grown.push(1);
        grown.reserve_exact(bytes - 1);
        grown
    }));
}

static WRONG: AtomicU64 = AtomicU64::new(0);
static ROUNDS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Blocks are checked by another thread than the one that filled them, which then frees them.
fn allocates(number: usize, next: Sender<Vec<u64>>, from: Receiver<Vec<u64>>) {
    let mut seed = number as u64 + 1;
    loop {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let words = (seed >> 33) % if seed >> 58 == 0 { 20_000 } else { 40 } + 1;
        // Grows while it is filled.
        let mut block = Vec::with_capacity(if seed & 1 << 40 == 0 { words } else { 1 } as usize);
        (0..words).for_each(|at| block.push(words * 7 + at));
        if next.send(block).is_err() {
            return;
        }
        if let Ok(block) = from.try_recv() {
            let words = block.len() as u64;
            let right = (0..words)
                .zip(&block)
                .all(|(at, word)| *word == words * 7 + at);
            WRONG.fetch_add(u64::from(!right), Ordering::Relaxed);
            // An allocator may have another function for zeroed memory.
            let zeroes = black_box(vec![0_u64; words as usize]);
            let right = zeroes.iter().all(|word| *word == 0);
            WRONG.fetch_add(u64::from(!right), Ordering::Relaxed);
        }
        ROUNDS[number].fetch_add(1, Ordering::Relaxed);
    }
}

fn threads(count: usize) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
    for (number, from) in receivers.into_iter().enumerate() {
        let next = senders[(number + 1) % count].clone();
        std::thread::spawn(move || allocates(number, next, from));
    }
    for _ in std::io::stdin().lock().lines() {
        print!("{}", WRONG.load(Ordering::Relaxed));
        ROUNDS[..count]
            .iter()
            .for_each(|n| print!(" {}", n.load(Ordering::Relaxed)));
        println!();
        std::io::stdout().flush().unwrap();
    }
}

pub fn main() {
    if let Some(count) = std::env::args().nth(1) {
        return threads(count.parse().unwrap());
    }
    let mut held = Vec::with_capacity(1 << 20);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        match words[0] {
            "hold" => hold(number(1), number(2), &mut held),
            "churn" => churn(number(1), number(2)),
            "grow" => grow(number(1), number(2), &mut held),
            "release" => held.truncate(held.len() - number(1)),
            other => panic!("unknown command {other}"),
        }
        println!("ok");
        std::io::stdout().flush().unwrap();
    }
}
