// SPDX-License-Identifier: MIT OR Apache-2.0

//! Objects without a mark of their own, whose types only debug information declares: in containers, boxes, enumerations.
//!
//! ```text
//! rustc -g declared.rs && ./declared
//! ```
//!
//! Prints what it has, as JSON: `{"types":[["declared::Item",10,560],…]}`: name, number and usable bytes of each type's chunks.
//! Then it waits for the end of stdin.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_void;
use std::io::Read;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};

unsafe extern "C" {
    fn malloc_usable_size(at: *const c_void) -> usize;
}

struct Item {
    _price: u64,
    _weights: [f64; 6],
}

struct Detail {
    _values: [f64; 12],
}

struct Order {
    name: String,
    items: Vec<Item>,
    extra: Option<Box<Detail>>,
}

enum Kind {
    Small(Box<Item>),
    Large(Arc<Detail>),
    Named { name: String },
    Nothing,
}

trait Animal: Send + Sync {
    fn name(&self) -> &String;
}

struct Cat {
    name: String,
    _age: u64,
}

impl Animal for Cat {
    fn name(&self) -> &String {
        &self.name
    }
}

struct Local(Rc<Detail>);
// Only one thread uses it.
unsafe impl Send for Local {}

struct Book {
    orders: Vec<Order>,
    names: HashMap<u64, String>,
    shared: Vec<Arc<Detail>>,
    local: Local,
    queue: VecDeque<Box<Detail>>,
    tree: BTreeMap<u32, Box<Item>>,
    kinds: Vec<Kind>,
    animals: Vec<Box<dyn Animal>>,
    slice: Box<[u64]>,
}

static BOOK: OnceLock<Mutex<Book>> = OnceLock::new();

fn item() -> Item {
    Item {
        _price: 1,
        _weights: [0.5; 6],
    }
}

fn detail() -> Detail {
    Detail { _values: [1.5; 12] }
}

fn book() -> Book {
    let order = |i| Order {
        name: "x".repeat(100),
        items: (0..1 + i % 5).map(|_| item()).collect(),
        extra: (i % 2 == 0).then(|| Box::new(detail())),
    };
    let kind = |i| match i % 4 {
        0 => Kind::Small(Box::new(item())),
        1 => Kind::Large(Arc::new(detail())),
        2 => Kind::Named {
            name: "k".repeat(80),
        },
        _ => Kind::Nothing,
    };
    let cat = |i| -> Box<dyn Animal> {
        Box::new(Cat {
            name: "z".repeat(150),
            _age: i,
        })
    };
    // Its first elements lie behind its last.
    let mut queue: VecDeque<_> = (0..60).map(|_| Box::new(detail())).collect();
    for _ in 0..50 {
        queue.pop_front();
        queue.push_back(Box::new(detail()));
    }
    Book {
        orders: (0..100).map(order).collect(),
        names: (0..70).map(|i| (i, "y".repeat(200))).collect(),
        shared: (0..30).map(|_| Arc::new(detail())).collect(),
        local: Local(Rc::new(detail())),
        queue,
        tree: (0..200).map(|i| (i, Box::new(item()))).collect(),
        kinds: (0..40).map(kind).collect(),
        animals: (0..10).map(cat).collect(),
        slice: vec![7; 500].into_boxed_slice(),
    }
}

#[derive(Default)]
struct Types(BTreeMap<&'static str, (usize, usize)>);

impl Types {
    fn has<T: ?Sized>(&mut self, name: &'static str, at: *const T, before: usize) {
        let sum = self.0.entry(name).or_default();
        sum.0 += 1;
        let at = at.cast::<u8>().wrapping_sub(before);
        // SAFETY: the address is that of a chunk in use.
        sum.1 += unsafe { malloc_usable_size(at.cast()) };
    }
}

fn types(book: &Book) -> Types {
    let mut types = Types::default();
    types.has(
        "buffer of Vec<declared::Order> in declared::Book",
        book.orders.as_ptr(),
        0,
    );
    for order in &book.orders {
        types.has("text of String in declared::Order", order.name.as_ptr(), 0);
        types.has(
            "buffer of Vec<declared::Item> in declared::Order",
            order.items.as_ptr(),
            0,
        );
        if let Some(extra) = &order.extra {
            types.has("declared::Detail", &raw const **extra, 0);
        }
    }
    for name in book.names.values() {
        types.has("text of String in declared::Book", name.as_ptr(), 0);
    }
    types.has(
        "buffer of Vec<Arc<declared::Detail>> in declared::Book",
        book.shared.as_ptr(),
        0,
    );
    for shared in &book.shared {
        types.has("Arc<declared::Detail>", Arc::as_ptr(shared), 16);
    }
    types.has("Rc<declared::Detail>", Rc::as_ptr(&book.local.0), 16);
    for queued in &book.queue {
        types.has("declared::Detail", &raw const **queued, 0);
    }
    for item in book.tree.values() {
        types.has("declared::Item", &raw const **item, 0);
    }
    types.has(
        "buffer of Vec<declared::Kind> in declared::Book",
        book.kinds.as_ptr(),
        0,
    );
    for kind in &book.kinds {
        match kind {
            Kind::Small(item) => types.has("declared::Item", &raw const **item, 0),
            Kind::Large(detail) => types.has("Arc<declared::Detail>", Arc::as_ptr(detail), 16),
            Kind::Named { name } => {
                types.has("text of String in declared::Kind::Named", name.as_ptr(), 0)
            }
            Kind::Nothing => {}
        }
    }
    types.has(
        "buffer of Vec<Box<dyn declared::Animal>> in declared::Book",
        book.animals.as_ptr(),
        0,
    );
    for animal in &book.animals {
        types.has("text of String in declared::Cat", animal.name().as_ptr(), 0);
    }
    types.has("u64[] in declared::Book", book.slice.as_ptr(), 0);
    types
}

fn main() {
    let book = BOOK.get_or_init(|| Mutex::new(book())).lock().unwrap();
    let types = types(&book);
    drop(book);
    let row =
        |(name, (count, bytes)): (&&str, &(usize, usize))| format!("[\"{name}\",{count},{bytes}]");
    let rows: Vec<String> = types.0.iter().map(row).collect();
    println!("{{\"types\":[{}]}}", rows.join(","));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
