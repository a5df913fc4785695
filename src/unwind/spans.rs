//! Which entry of the unwind information holds for an address.

use super::linkage::Linkage;

/// Where a span's rules come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An entry of `.eh_frame`.
    EhFrame,
    /// An entry of `.debug_frame`.
    DebugFrame,
    /// A signal trampoline that was found by its machine code.
    Trampoline,
    /// A linkage table that was found by its machine code.
    Linkage(Linkage),
    /// The program's first instructions.
    Entry,
}

/// A range of addresses and what describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// What describes it.
    pub source: Source,
    /// Position of the entry in its section, in bytes.
    pub entry: usize,
}

/// Sorts spans by address and settles which one holds where several do.
///
/// As a C++ exception's unwinder does, which looks an address up by bisection in the sorted index
/// of function starts: the span with the greatest start at or before an address holds; if that one
/// has ended there, none does, even if an earlier, longer one goes on. Of spans with the same start
/// the first of the section holds.
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

/// Adds the parts of `more` that none of `spans` covers. Both are settled, and so is the result.
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

/// Keeps the parts of settled spans that lie in `ranges`, which are sorted and do not overlap.
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
