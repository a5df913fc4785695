//! Reads the groups and their slots.

use super::super::chunks::ChunkKind;
use super::super::memory::Memory;
use super::super::spans::{Refusal, SpanMap, refuse};
use super::context::Context;
use super::{AREA, CLASSES, SIZES, UNIT};
use memprof_sys::residency::Vma;

/// Offset of the first description in an area, and size of a description, in bytes.
const DESCRIPTIONS: u64 = 24;
const DESCRIPTION: u64 = 40;
/// Maximum number of areas.
const MAX_AREAS: usize = 1 << 22;
/// Size class of blocks with a mapping of their own.
const MAPPED: usize = 63;
/// Maximum depth of groups within slots of others. Slots shrink by a factor of at least 2 with each.
const MAX_DEPTH: usize = 16;

/// A group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Address of its header.
    start: u64,
    /// End of its last slot.
    end: u64,
    /// End of its pages, or 0 if it has no pages of its own.
    mapped: u64,
    /// Size of its slots, and their number.
    size: u64,
    count: u64,
    /// The free slots, one bit each.
    free: u64,
}

impl Group {
    fn slot(&self, index: u64) -> u64 {
        self.start + UNIT + index * self.size
    }
}

/// Reads all groups, in address order. Adds the areas of descriptions to `map`.
pub(super) fn read(
    memory: &Memory,
    context: &Context,
    map: &mut SpanMap,
) -> Result<Vec<Group>, Refusal> {
    let (mut groups, mut usage) = (Vec::new(), vec![0; CLASSES]);
    let (mut area, mut count) = (context.first, 0);
    loop {
        let end = area.checked_add(AREA);
        let end = end.filter(|_| memory.word(area) == Some(context.secret) && count < MAX_AREAS);
        let Some(end) = end else {
            return refuse!("the area of descriptions at {area:#x} cannot be right");
        };
        count += 1;
        map.add_own(area, end);
        let is_last = area == context.last;
        let mut at = area + DESCRIPTIONS;
        while at + DESCRIPTION <= end && !(is_last && at == context.next) {
            if let Some((group, counts)) = group(memory, at)? {
                if let Some(usage) = counts.and_then(|class| usage.get_mut(class)) {
                    *usage += group.count;
                }
                groups.push(group);
            }
            at += DESCRIPTION;
        }
        if is_last {
            break;
        }
        area = memory.word(area + 8).unwrap_or(0);
    }
    let differs = usage.iter().zip(&context.usage).position(|(a, b)| a != b);
    if let Some(class) = differs {
        return refuse!(
            "there are {} slots of {} bytes, and it counts {}",
            usage[class],
            u64::from(SIZES[class]) * UNIT,
            context.usage[class]
        );
    }
    groups.sort_unstable_by_key(|group| group.start);
    map.spans = groups.len() as u64;
    Ok(groups)
}

/// The group that is described at `at`, and the class that counts its slots. `None` if the description is free.
fn group(memory: &Memory, at: u64) -> Result<Option<(Group, Option<usize>)>, Refusal> {
    let wrong = || {
        Refusal(format!(
            "the description of the group at {at:#x} cannot be right"
        ))
    };
    let word = |offset: u64| memory.word(at + offset).ok_or_else(wrong);
    let (start, masks, bits) = (word(16)?, word(24)?, word(32)?);
    if start == 0 {
        return Ok(None);
    }
    let (available, freed) = (masks & 0xffff_ffff, masks >> 32);
    let (last, is_freeable, pages) = (bits & 31, bits >> 5 & 1 == 1, bits >> 12);
    let class = (bits >> 6 & 63) as usize;
    let mapped = pages
        .checked_mul(AREA)
        .and_then(|len| start.checked_add(len))
        .ok_or_else(wrong)?;
    let size = match SIZES.get(class) {
        _ if last == 0 && pages > 0 => pages * AREA - UNIT,
        Some(units) => u64::from(*units) * UNIT,
        None => return Err(wrong()),
    };
    let all = (2 << last) - 1;
    let end = start
        .checked_add(UNIT + size * (last + 1))
        .ok_or_else(wrong)?;
    let fits = memory.word(start) == Some(at)
        && start.is_multiple_of(UNIT)
        && available & freed == 0
        && (available | freed) & !all == 0
        && (class < CLASSES || class == MAPPED)
        && (pages == 0 || (end <= mapped && start.is_multiple_of(AREA)));
    if !fits {
        return Err(wrong());
    }
    let group = Group {
        start,
        end,
        mapped: if pages == 0 { 0 } else { mapped },
        size,
        count: last + 1,
        free: available | freed,
    };
    // Memory that libraries gave is in no counter.
    Ok(Some((group, Some(class).filter(|_| is_freeable))))
}

/// Adds the slots of all groups, which are in address order.
pub(super) fn add(
    memory: &Memory,
    vmas: &[Vma],
    groups: &[Group],
    map: &mut SpanMap,
) -> Result<(), Refusal> {
    let mut rest = groups;
    while let Some(group) = rest.first() {
        let end = group.mapped.max(group.end);
        let first = vmas.partition_point(|vma| vma.end.0 <= group.start);
        let is_private = vmas
            .get(first)
            .is_some_and(|vma| vma.start.0 <= group.start && vma.perms.write && !vma.perms.shared);
        // Without pages of its own, it lies in a library's data.
        let is_data = group.mapped == 0 && memory.word(group.end - 8).is_some();
        if !is_private || group.mapped == 0 && !is_data {
            return refuse!(
                "the group at {:#x} does not lie in memory of the allocator",
                group.start
            );
        }
        rest = slots(rest, map, 0)?;
        if rest.first().is_some_and(|next| next.start < end) {
            return refuse!("two groups overlap at {:#x}", group.start);
        }
        map.add_own(group.end, end);
    }
    Ok(())
}

/// Adds the slots of the first of these groups, and of all groups within them. Returns the remaining groups.
fn slots<'a>(groups: &'a [Group], map: &mut SpanMap, depth: usize) -> Result<&'a [Group], Refusal> {
    let Some((group, mut rest)) = groups.split_first() else {
        return Ok(groups);
    };
    if depth > MAX_DEPTH {
        return refuse!("the group at {:#x} lies in too many others", group.start);
    }
    map.add_own(group.start, group.start + UNIT);
    let mut first = 0;
    let run = |map: &mut SpanMap, first: u64, end: u64| {
        if first == end {
            return Ok(());
        }
        let kinds: Vec<ChunkKind> = (first..end)
            .map(|index| match group.free >> index & 1 {
                1 => ChunkKind::Small,
                _ => ChunkKind::Live,
            })
            .collect();
        let (start, end) = (group.slot(first), group.slot(end));
        map.add((start, end), start, group.size, kinds.into_iter())
    };
    for index in 0..group.count {
        let (start, end) = (group.slot(index), group.slot(index + 1));
        let Some(inner) = rest.first().filter(|inner| inner.start < end) else {
            continue;
        };
        // A group within a slot begins in its first units, and the slot is in use.
        if inner.mapped != 0
            || inner.start < start
            || inner.end > end
            || group.free >> index & 1 == 1
        {
            return refuse!(
                "the group at {:#x} does not lie in a slot of another",
                inner.start
            );
        }
        run(map, first, index)?;
        first = index + 1;
        map.add_own(start, inner.start);
        rest = slots(rest, map, depth + 1)?;
        map.add_own(inner.end, end);
        if rest.first().is_some_and(|next| next.start < end) {
            return refuse!("two groups share the slot at {start:#x}");
        }
    }
    run(map, first, group.count)?;
    Ok(rest)
}
