//! Determines which entry of the unwind information applies to an address.

use super::linkage::Linkage;

/// The source of a span's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An entry of `.eh_frame`.
    EhFrame,
    /// An entry of `.debug_frame`.
    DebugFrame,
    /// An entry of Go's own table of functions.
    Go,
    /// A signal trampoline, recognised by its machine code.
    Trampoline,
    /// A linkage table, recognised by its machine code.
    Linkage(Linkage),
    /// The program's first instructions.
    Entry,
    /// A function, followed through its machine code.
    MachineCode,
}

/// A range of addresses and the source of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// The source of its rules.
    pub source: Source,
    /// Position of the entry in its section, in bytes; in Go's table its index.
    pub entry: usize,
}

/// Sorts spans by address and resolves overlaps.
///
/// This follows the unwinder of C++ exceptions, which does a binary search in the sorted index of
/// function starts: the span with the greatest start at or before an address applies. If that span
/// ends before the address, none applies, even if an earlier, longer one covers it. Of spans with the
/// same start, the first in the section applies.
pub fn settle(mut spans: Vec<Span>) -> Vec<Span> {
    if !spans.is_sorted_by_key(|s| s.start) {
        // Stable: equal starts keep the section's order.
        spans.sort_by_key(|s| s.start);
    }
    spans.dedup_by_key(|s| s.start);
    for i in 1..spans.len() {
        spans[i - 1].end = spans[i - 1].end.min(spans[i].start);
    }
    spans
}

/// Adds the parts of `more` that `spans` does not cover. Both must be sorted and without overlaps, and so is
/// the result.
pub fn fill(spans: Vec<Span>, more: &[Span]) -> Vec<Span> {
    if more.is_empty() {
        return spans;
    }
    let mut all = Vec::with_capacity(spans.len() + more.len());
    let mut next = 0;
    for extra in more {
        while spans.get(next).is_some_and(|s| s.end <= extra.start) {
            next += 1;
        }
        let mut start = extra.start;
        for s in spans[next..].iter().take_while(|s| s.start < extra.end) {
            push_part(&mut all, extra, start, s.start);
            start = s.end;
        }
        push_part(&mut all, extra, start, extra.end);
    }
    all.extend(spans);
    all.sort_by_key(|s| s.start);
    all
}

fn push_part(all: &mut Vec<Span>, span: &Span, start: u64, end: u64) {
    if start < end {
        all.push(Span {
            start,
            end,
            ..*span
        });
    }
}

/// Clips spans to `ranges`. Both must be sorted and without overlaps.
pub fn clip(spans: &[Span], ranges: &[(u64, u64)]) -> Vec<Span> {
    let mut kept = Vec::with_capacity(spans.len());
    for (start, end) in ranges {
        let from = spans.partition_point(|s| s.end <= *start);
        for s in spans[from..].iter().take_while(|s| s.start < *end) {
            push_part(&mut kept, s, s.start.max(*start), s.end.min(*end));
        }
    }
    kept
}

/// The parts of `ranges` that no span covers.
pub fn gaps(spans: &[Span], ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    for (start, end) in ranges {
        let mut at = *start;
        let from = spans.partition_point(|s| s.end <= *start);
        for s in spans[from..].iter().take_while(|s| s.start < *end) {
            if at < s.start {
                gaps.push((at, s.start));
            }
            at = s.end;
        }
        if at < *end {
            gaps.push((at, *end));
        }
    }
    gaps
}
