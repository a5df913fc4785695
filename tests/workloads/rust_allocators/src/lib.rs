//! Allocates on command, as `allocations.c` does: `hold N SIZE` (kept), `churn N SIZE` (freed at once), `grow N SIZE` (vectors that
//! grow from 16 bytes), `release N` (the newest). Answers each line with `ok`.

use std::hint::black_box;
use std::io::{BufRead, Write};

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

pub fn main() {
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
