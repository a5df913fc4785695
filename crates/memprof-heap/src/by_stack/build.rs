//! Makes the rows of the report from the divided bytes.

use std::collections::HashMap;

use super::super::report::HeapRegion;
use super::super::sizes::{CLASSES, largest};
use super::estimate::{Cell, Divided, Estimate, Quantity, Rest};
use super::holdings::Joined;
use super::round::apportion;
use super::{
    ByStack, Estimated, EstimatedNumber, FreePagesRow, HeadOf, Joint, LeakRow, RestKind, RestRow,
    StackNames, StackRow,
};

fn requested(joined: &Joined, of: u64) -> f64 {
    of as f64 * (joined.placed.sample.size as f64 / joined.chunk as f64).min(1.0)
}

const LIVE: Quantity = Quantity {
    of_all: |held| held.contents,
    wanted: |joined| joined.placed.sample.size as f64,
};
const NUMBER: Quantity = Quantity {
    of_all: |held| held.chunks,
    wanted: |_| 1.0,
};
const RESIDENT: Quantity = Quantity {
    of_all: |held| held.resident,
    wanted: |joined| joined.held.resident as f64,
};
const REQUESTED: Quantity = Quantity {
    of_all: |held| held.resident,
    wanted: |joined| requested(joined, joined.held.resident),
};
const PINNED: Quantity = Quantity {
    of_all: |held| held.pinned,
    wanted: |joined| joined.held.pinned as f64,
};

/// Makes the rows. `names` are the names of the cells, and `cells` has the cell of each sample.
pub(super) fn build(
    joint: &Joint,
    names: &[StackNames],
    cells: &[u32],
    grown_by: &[(Option<String>, u64)],
    top: usize,
) -> ByStack {
    let live = joint.divide(cells, &LIVE);
    let resident = joint.divide(cells, &RESIDENT);
    let wanted = joint.divide(cells, &REQUESTED);
    let pinned = joint.divide_pinned(cells, &PINNED);
    let mut rows: Vec<StackRow> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let (held, free) = (&resident.cells[index], &pinned.cells[index]);
        let reachable = held.estimates[0].value;
        let requested = match reachable > 0.0 {
            true => (wanted.cells[index].estimates[0].value / reachable).clamp(0.0, 1.0),
            false => 1.0,
        };
        rows.push(StackRow {
            stack: name.names.clone(),
            places: name.places.clone(),
            live: Estimated::both(&live.cells[index]),
            resident: Estimated::new(held.bytes[0], held.estimates[0].variance),
            overhead: (held.bytes[0] as f64 * (1.0 - requested)).round() as u64,
            pinned: Estimated {
                bytes: free.bytes[0] + free.bytes[1],
                ..Estimated::both(free)
            },
            unreachable: Estimated::new(held.bytes[1], held.estimates[1].variance),
            ..StackRow::default()
        });
    }
    for (joined, cell) in joint.holdings.joined.iter().zip(cells) {
        let row = &mut rows[*cell as usize];
        row.samples += 1;
        row.unreachable_samples += u64::from(is_lost(joined));
        row.pinned_beside_samples += joined.held.pinned;
    }
    // With few samples, more bytes may lie beside them than are estimated for all chunks.
    for row in &mut rows {
        row.pinned_beside_samples = row.pinned_beside_samples.min(row.pinned.bytes);
    }
    let order = |row: &StackRow| (row.total(), row.live.bytes, row.samples);
    rows.sort_by(|a, b| order(b).cmp(&order(a)).then_with(|| a.stack.cmp(&b.stack)));
    let left = rows.split_off(rows.len().min(top));
    let (leaks, leaks_left_out) = leaks(joint, names, cells, top);
    ByStack {
        samples: joint.counts,
        from_start: joint.origin.from_start,
        every: joint.origin.is_every(),
        total: joint.total,
        rows,
        left_out: left.len() as u64,
        left_out_bytes: left.iter().map(StackRow::total).sum(),
        leaks,
        leaks_left_out,
        free_pages: free_pages(joint, grown_by, top),
        rest: rest(joint, resident, pinned),
    }
}

impl Estimated {
    fn new(bytes: u64, variance: f64) -> Estimated {
        let error = variance.sqrt().round() as u64;
        Estimated { bytes, error }
    }

    /// The sum of the reachable and the unreachable estimate.
    fn both(cell: &Cell) -> Estimated {
        let [a, b]: [Estimate; 2] = cell.estimates;
        Estimated::new((a.value + b.value).round() as u64, a.variance + b.variance)
    }
}

fn is_lost(joined: &Joined) -> bool {
    joined.class / CLASSES as usize % 2 == 1
}

/// Unreachable chunks by stack and head.
fn leaks(joint: &Joint, names: &[StackNames], cells: &[u32], top: usize) -> (Vec<LeakRow>, u64) {
    let joined = &joint.holdings.joined;
    let name_at = |start: u64| {
        let found = joined.binary_search_by_key(&start, |j| j.placed.start);
        found
            .ok()
            .map(|index| names[cells[index] as usize].names.clone())
    };
    let mut numbers: HashMap<(u32, HeadOf), u32> = HashMap::new();
    let mut rows: Vec<LeakRow> = Vec::new();
    // Cell 0 collects the chunks that are not unreachable; it is not shown.
    let mut by_head = vec![0; joined.len()];
    for (index, one) in joined.iter().enumerate().filter(|(_, one)| is_lost(one)) {
        let start = one.placed.start;
        let head = joint.heads.get(start);
        let of = match head {
            Some(head) if head == start => HeadOf::Itself,
            Some(head) => name_at(head).map_or(HeadOf::NotSampled, HeadOf::Stack),
            None => HeadOf::NotSampled,
        };
        let stack = cells[index];
        let row = *numbers
            .entry((stack, of))
            .or_insert_with_key(|(stack, of)| {
                rows.push(LeakRow {
                    stack: names[*stack as usize].names.clone(),
                    places: names[*stack as usize].places.clone(),
                    head: of.clone(),
                    unreachable: Estimated::default(),
                    requested: Estimated::default(),
                    allocations: EstimatedNumber::default(),
                    samples: 0,
                    example: head.unwrap_or(start),
                });
                rows.len() as u32
            });
        rows[row as usize - 1].samples += 1;
        by_head[index] = row;
    }
    let divided = |quantity| joint.divide(&by_head, quantity).cells.into_iter().skip(1);
    for (row, cell) in rows.iter_mut().zip(divided(&RESIDENT)) {
        row.unreachable = Estimated::new(cell.bytes[1], cell.estimates[1].variance);
    }
    let estimated = |cell: &Cell| {
        let Estimate { value, variance } = cell.estimates[1];
        Estimated::new(value.round() as u64, variance)
    };
    for (row, cell) in rows.iter_mut().zip(divided(&LIVE)) {
        row.requested = estimated(&cell);
    }
    for (row, cell) in rows.iter_mut().zip(divided(&NUMBER)) {
        let Estimated { bytes, error } = estimated(&cell);
        row.allocations = EstimatedNumber {
            number: bytes,
            error,
        };
    }
    let order = |row: &LeakRow| (row.requested.bytes, row.unreachable.bytes, row.samples);
    rows.sort_by(|a, b| {
        order(b)
            .cmp(&order(a))
            .then_with(|| (&a.stack, &a.head).cmp(&(&b.stack, &b.head)))
    });
    let left = rows.len().saturating_sub(top);
    rows.truncate(top);
    (rows, left as u64)
}

/// The free pages, by the stack that brought them in.
fn free_pages(joint: &Joint, grown_by: &[(Option<String>, u64)], top: usize) -> Vec<FreePagesRow> {
    let all: u64 = joint.holdings.free.iter().map(|free| free.free).sum();
    let known = grown_by.iter().filter(|(_, bytes)| *bytes > 0);
    let mut owners: Vec<(Option<String>, f64)> = known
        .map(|(stack, bytes)| (stack.clone(), *bytes as f64))
        .collect();
    owners.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest: f64 = owners
        .drain(owners.len().min(top)..)
        .map(|(_, bytes)| bytes)
        .sum();
    if rest > 0.0 || owners.is_empty() {
        owners.push((None, rest.max(1.0)));
    }
    let shares: Vec<f64> = owners.iter().map(|(_, share)| *share).collect();
    let rows = owners.into_iter().zip(apportion(all, &shares));
    let rows = rows.filter(|(_, bytes)| *bytes > 0);
    rows.map(|((grown_by, _), resident)| FreePagesRow { grown_by, resident })
        .collect()
}

/// The rows of memory without a stack.
fn rest(joint: &Joint, resident: Divided, pinned: Divided) -> Vec<RestRow> {
    let mut rows: Vec<RestRow> = Vec::new();
    let of_sizes = |rest: &Rest| {
        let first = rest.classes.start % CLASSES as usize;
        let last = (rest.classes.end - 1) % CLASSES as usize;
        [largest(first.saturating_sub(1)) + 1, largest(last)]
    };
    // Chunks of the same sizes share one row, whichever allocator they belong to.
    let mut add = |rest: &Rest, sizes: Option<[u64; 2]>, bytes: Estimated, pinned: u64| {
        let new = RestRow {
            kind: joint.reason(rest.method),
            name: None,
            sizes,
            unreachable: rest.group % 2 == 1,
            resident: Estimated::default(),
            pinned: 0,
        };
        let key = |row: &RestRow| (row.kind, row.sizes, row.unreachable);
        let same = rows.iter().position(|row| key(row) == key(&new));
        let at = same.unwrap_or_else(|| {
            rows.push(new);
            rows.len() - 1
        });
        let row = &mut rows[at];
        row.resident.bytes += bytes.bytes;
        row.resident.error = (row.resident.error as f64)
            .hypot(bytes.error as f64)
            .round() as u64;
        row.pinned += pinned;
    };
    for rest in resident.rests.iter().filter(|rest| rest.bytes > 0) {
        add(
            rest,
            Some(of_sizes(rest)),
            Estimated::new(rest.bytes, rest.variance),
            0,
        );
    }
    for rest in pinned.rests.iter().filter(|rest| rest.bytes > 0) {
        add(rest, None, Estimated::default(), rest.bytes);
    }
    rows.sort_by_key(|row| (row.kind, row.unreachable, row.sizes));
    let own = [(RestKind::AllocatorOwn, None, joint.own)];
    let python = joint.python.iter();
    let python =
        python.map(|(what, bytes)| (RestKind::Python, Some(of_python(*what).to_owned()), *bytes));
    let others = joint.others.iter();
    let others = others.map(|row| {
        (
            RestKind::Other,
            Some(row.category.to_string()),
            row.resident,
        )
    });
    let exact = own.into_iter().chain(python).chain(others);
    rows.extend(
        exact
            .filter(|(_, _, bytes)| *bytes > 0)
            .map(|(kind, name, bytes)| RestRow {
                kind,
                name,
                sizes: None,
                unreachable: false,
                resident: Estimated { bytes, error: 0 },
                pinned: 0,
            }),
    );
    rows
}

fn of_python(what: HeapRegion) -> &'static str {
    match what {
        HeapRegion::PythonLive => "blocks in use",
        HeapRegion::PythonFree => "free blocks of pools in use",
        HeapRegion::PythonPools => "free pools",
        _ => "headers of pools, alignment",
    }
}
