// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Objects behind trait objects, and text, in known variables, and some that are forgotten.
//
//   rustc --edition 2021 -g -o boxes boxes.rs
//
// Prints what it has, as JSON: {"types":[["boxes::Cat",300,5],…],"texts":60,"forgotten":15}: of each type the number of objects,
// and how many of them are forgotten. Then it waits for the end of stdin.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Read;
use std::sync::{Arc, Mutex};

trait Animal: Send + Sync {
    fn legs(&self) -> usize;
}

struct Cat {
    name: String,
    age: [u64; 9],
}

struct Duck([u64; 3]);

struct Spider {
    web: Vec<u32>,
}

impl Animal for Cat {
    fn legs(&self) -> usize {
        self.name.len() + self.age.len() - 5
    }
}

impl Animal for Duck {
    fn legs(&self) -> usize {
        self.0.len() - 1
    }
}

impl Animal for Spider {
    fn legs(&self) -> usize {
        self.web.len() + 8
    }
}

const CATS: usize = 300;
const DUCKS: usize = 200;
const SPIDERS: usize = 100;
const TEXTS: usize = 60;
const FORGOTTEN: usize = 5;

static BOXES: Mutex<Vec<Box<dyn Animal>>> = Mutex::new(Vec::new());
static SHARED: Mutex<Vec<Arc<dyn Animal>>> = Mutex::new(Vec::new());
static TEXT: Mutex<Option<HashMap<usize, String>>> = Mutex::new(None);

fn cat() -> Cat {
    Cat {
        name: String::new(),
        age: [7; 9],
    }
}

#[inline(never)]
fn fill() {
    let mut boxes = BOXES.lock().unwrap();
    for _ in 0..CATS {
        boxes.push(Box::new(cat()));
    }
    for i in 0..DUCKS {
        boxes.push(Box::new(Duck([1, 2, i as u64])));
    }
    for _ in 0..SPIDERS {
        SHARED.lock().unwrap().push(Arc::new(Spider { web: Vec::new() }));
    }
    let texts = (0..TEXTS).map(|i| (i, format!("a text of known length, number {i}, and its end")));
    *TEXT.lock().unwrap() = Some(texts.collect());
}

/// A box that holds the pair of addresses which says what the forgotten object is, is forgotten, too.
#[inline(never)]
fn forget() {
    for _ in 0..FORGOTTEN {
        let animal: Box<dyn Animal> = Box::new(cat());
        std::mem::forget(black_box(Box::new(animal)));
        std::mem::forget(black_box(vec![1_u8; 500]));
    }
}

/// Overwrites what the calls before have left on the stack.
#[inline(never)]
fn clean_stack() {
    black_box([0_u8; 1 << 16]);
}

fn main() {
    fill();
    forget();
    clean_stack();
    let legs: usize = BOXES.lock().unwrap().iter().map(|animal| animal.legs()).sum();
    black_box(legs);
    println!(
        "{{\"types\":[[\"boxes::Cat\",{},{FORGOTTEN}],[\"boxes::Duck\",{DUCKS},0],[\"boxes::Spider\",{SPIDERS},0]],\"texts\":{TEXTS},\
         \"forgotten\":{}}}",
        CATS + FORGOTTEN,
        3 * FORGOTTEN
    );
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
