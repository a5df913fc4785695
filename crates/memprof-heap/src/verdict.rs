//! What an expert would say of a snapshot first, in at most eight sentences. Every figure is also in the tables, and a sentence is made
//! only where the figures leave no doubt.

use super::python::PythonHeap;
use super::report::{Allocator, Heap, HeapRegion};
use super::whole::MissingKind;
use memprof_sys::text::{grouped, printable, size};

/// Free memory is explained from this many bytes and this share of the heap on.
const MUCH: u64 = 1 << 20;
const MUCH_SHARE: f64 = 0.1;
/// Part of the free memory from which on one reason explains it.
const MOST: f64 = 0.5;
/// Lost memory is mentioned from this many bytes, or from this share of the memory in use on.
const LOST: u64 = 64 << 10;
const LOST_SHARE: f64 = 0.01;
/// Part of the memory in use from which on one type is mentioned.
const MUCH_OF_TYPE: f64 = 0.2;
/// Number of arenas from which on their number is mentioned.
const MANY_ARENAS: usize = 8;

/// Sums of resident bytes.
struct Sums<'a>(&'a Heap);

impl Sums<'_> {
    fn of(&self, kinds: &[HeapRegion]) -> u64 {
        self.matching(|what| kinds.contains(&what))
    }

    fn matching(&self, wanted: impl Fn(HeapRegion) -> bool) -> u64 {
        let rows = self.0.rows.iter().filter(|row| wanted(row.what));
        rows.map(|row| row.resident).sum()
    }
}

impl Heap {
    /// What the snapshot says, in sentences, the most important first.
    pub fn verdict(&self) -> Vec<String> {
        let sums = Sums(self);
        let live = sums.matching(HeapRegion::is_live);
        let free = sums.matching(|what| !what.is_live() && !what.is_overhead());
        let mut said = vec![self.in_use(live, free)];
        if self.rows.is_empty() {
            said.extend(self.not_read());
            return said;
        }
        let heap = sums.matching(|_| true);
        if free >= MUCH && free as f64 >= MUCH_SHARE * heap as f64 {
            said.extend(self.why_free(&sums, free));
        }
        said.extend(self.zeroes());
        said.extend(self.lost(live));
        said.extend(self.largest_type(live));
        if self.core.is_some() {
            return said;
        }
        said.push(match self.unreachable.as_ref().is_some_and(|lost| is_much_lost(lost.bytes, live)) {
            true => format!(
                "Which code allocated what is lost: memprof heap --by-stack -- COMMAND, or memprof attach-heap --pid {} and then heap \
                 --by-stack --for 60.",
                self.pid
            ),
            false => "Which code holds it: memprof heap --by-stack.".to_owned(),
        });
        said
    }

    fn in_use(&self, live: u64, free: u64) -> String {
        let all = size(self.anonymous);
        let swapped = match self.swapped {
            0 => String::new(),
            bytes => format!("; {} more is swapped out", size(bytes)),
        };
        match self.rows.is_empty() {
            true => format!(
                "{all} of anonymous memory{swapped}, none of it in a heap that memprof reads."
            ),
            false => format!(
                "{} of {all} of anonymous memory is heap in use, {} is free heap{swapped}.",
                size(live),
                size(free)
            ),
        }
    }

    /// Why no heap was read.
    fn not_read(&self) -> Option<String> {
        if let Some(reason) = self.refused() {
            return Some(format!(
                "The heap was found and not read: {}.",
                printable(reason)
            ));
        }
        let seen: Vec<String> = self
            .seen
            .iter()
            .map(|seen| format!("{} ({})", seen.name, printable(&seen.module)))
            .collect();
        (!seen.is_empty())
            .then(|| format!("It has {}, which memprof does not read.", seen.join(", ")))
    }

    /// What free memory consists of, and what gives it back.
    fn why_free(&self, sums: &Sums<'_>, free: u64) -> Vec<String> {
        use HeapRegion::*;
        let mut said = Vec::new();
        let is_most = |bytes: u64| bytes as f64 >= MOST * free as f64;
        let is_glibc = matches!(self.allocator, Allocator::Glibc { .. });
        let top = sums.of(&[Top]);
        let dirty = sums.of(&[JemallocDirty, JemallocMuzzy]);
        let pools = sums.of(&[PythonFree, PythonPools]);
        let caches = sums.of(&[ThreadCache, Fast, JemallocCache, SpanCache]);
        if is_most(top) {
            said.push(format!(
                "{} of it is free at the ends of arenas.",
                size(top)
            ));
        } else if is_most(dirty) {
            said.push(format!(
                "{} of it is pages that jemalloc keeps for reuse: it returns them after its decay time (MALLOC_CONF=dirty_decay_ms:0, \
                 or background_thread:true in a program that is idle).",
                size(dirty)
            ));
        } else if is_most(pools) {
            said.push(format!(
                "{} of it is free in Python's arenas, which go back only when all of an arena is free.",
                size(pools)
            ));
        } else if is_most(caches) {
            said.push(format!(
                "{} of it is free in the caches of threads.",
                size(caches)
            ));
        } else {
            said.extend(self.fragmentation(free));
        }
        if is_glibc && self.trimmable >= MUCH {
            said.push(format!(
                "malloc_trim(0) would return {} to the system now.",
                size(self.trimmable)
            ));
        }
        if let Allocator::Glibc { arenas, .. } = self.allocator
            && arenas >= MANY_ARENAS
        {
            said.push(format!(
                "glibc has {arenas} arenas; MALLOC_ARENA_MAX=2 in its environment limits them."
            ));
        }
        said
    }

    /// Which chunks keep the pages of free memory.
    fn fragmentation(&self, free: u64) -> Option<String> {
        let pinned: u64 = self.sizes.iter().map(|class| class.pinned).sum();
        let class = self.sizes.iter().max_by_key(|class| class.pinned)?;
        if (pinned as f64) < MOST * free as f64 || class.pinned == 0 {
            return None;
        }
        let range = match class.to - class.from < 16 {
            true => format!("{} bytes", class.to),
            false => format!("{} to {} bytes", class.from, class.to),
        };
        let sparse: u64 = self.occupancy[1];
        let sparse = match sparse {
            0 => String::new(),
            pages => format!(" {} pages are at most a tenth in use.", grouped(pages)),
        };
        Some(format!(
            "Fragmentation: chunks of {range}, {} of them in use, keep {} of it in memory.{sparse}",
            grouped(class.live),
            size(class.pinned)
        ))
    }

    /// How much memory in use is pages of zeroes, and what would save it. Pages of free memory and of slabs are not counted: zeroes
    /// there do not show that the program asked for too much.
    fn zeroes(&self) -> Option<String> {
        use HeapRegion::*;
        let zero = self.zero_pages.as_ref()?;
        let large = [Live, LiveMapped, JemallocLarge, SpanLarge, ManagedLive];
        let in_heap = zero.regions.iter().filter(|r| large.contains(&r.what));
        let used = zero.outside + in_heap.map(|region| region.zero).sum::<u64>();
        if used < MUCH || (used as f64) < MUCH_SHARE * zero.examined as f64 {
            return None;
        }
        let huge = zero.huge_zero.unwrap_or(0).min(used);
        let advice = match huge as f64 >= MOST * used as f64 {
            true => format!(
                "up to {} is the unused part of huge pages, which MADV_NOHUGEPAGE or PR_SET_THP_DISABLE would save",
                size(huge)
            ),
            false => "smaller buffers, or clearing them only when they are used, would save it"
                .to_owned(),
        };
        Some(format!(
            "{} of the memory in use is pages of zeroes: {advice}.",
            size(used)
        ))
    }

    fn lost(&self, live: u64) -> Option<String> {
        let Some(lost) = &self.unreachable else {
            let why = self.not_called_unreachable.as_ref()?;
            let forked = self
                .missing
                .iter()
                .any(|missing| missing.kind == MissingKind::NotForked);
            let hint = if forked {
                " (--snapshot copy has it)"
            } else {
                ""
            };
            return Some(format!(
                "What is lost is not known: {}{hint}.",
                printable(why)
            ));
        };
        if !is_much_lost(lost.bytes, live) {
            return None;
        }
        let shapes: Vec<String> = lost
            .shapes
            .iter()
            // Others are in the table.
            .filter(|shape| shape.bytes * 10 >= lost.bytes)
            .take(2)
            .map(|shape| {
                format!(
                    "{} \u{d7} {shape}, {}",
                    grouped(shape.groups),
                    size(shape.bytes)
                )
            })
            .collect();
        Some(format!(
            "{} chunks, {}, are lost (nothing refers to them): {}.",
            grouped(lost.chunks),
            size(lost.bytes),
            shapes.join("; ")
        ))
    }

    /// The type of which there is most, if its name is known.
    fn largest_type(&self, live: u64) -> Option<String> {
        let is_much = |bytes: u64| bytes as f64 >= MUCH_OF_TYPE * live.max(1) as f64;
        if let Some(PythonHeap::Read(read)) = &self.python {
            let row = read.types.iter().find(|row| !row.name.is_empty())?;
            return is_much(row.bytes).then(|| {
                format!(
                    "The Python type with the most bytes: {} in {} {} of type {}.",
                    size(row.bytes),
                    grouped(row.count),
                    match row.role {
                        super::python::BlockRole::Memory => "blocks of objects",
                        _ => "objects",
                    },
                    printable(&row.name)
                )
            });
        }
        let types = self.types.as_ref()?;
        let row = types.rows.iter().find(|row| {
            use super::types::TypeKind::*;
            matches!(row.kind, Class | TraitObject)
        })?;
        is_much(row.bytes).then(|| {
            format!(
                "The type with the most bytes: {} \u{d7} {}, {}.",
                grouped(row.count),
                printable(&row.name),
                size(row.bytes)
            )
        })
    }
}

fn is_much_lost(lost: u64, live: u64) -> bool {
    lost >= LOST || (lost >= 4096 && lost as f64 >= LOST_SHARE * live as f64)
}

#[cfg(test)]
mod tests {
    use super::super::report::{RegionRow, SizeClass};
    use super::super::{
        LostShape, Mallinfo, ShapePart, TypeKind, Unreachable, ZeroPages, ZeroRegion,
    };
    use super::*;

    const MIB: u64 = 1 << 20;

    fn heap(rows: &[(HeapRegion, u64)], arenas: usize) -> Heap {
        let row = |(what, resident): &(HeapRegion, u64)| RegionRow {
            what: *what,
            chunks: 1,
            bytes: *resident,
            resident: *resident,
        };
        Heap {
            pid: 42,
            allocator: Allocator::Glibc {
                arenas,
                thread_caches: 1,
                mallinfo2: Mallinfo::default(),
            },
            anonymous: rows.iter().map(|(_, bytes)| bytes).sum(),
            rows: rows.iter().map(row).collect(),
            unreachable: Some(Unreachable::default()),
            ..Heap::default()
        }
    }

    #[test]
    fn a_heap_in_order_is_not_explained() {
        let said = heap(&[(HeapRegion::Live, 20 * MIB), (HeapRegion::Small, MIB)], 1).verdict();
        assert_eq!(
            said[0],
            "20.0 MiB of 21.0 MiB of anonymous memory is heap in use, 1.0 MiB is free heap."
        );
        assert_eq!(said.len(), 2, "{said:?}");
    }

    #[test]
    fn free_memory_has_its_reason() {
        let fragmented = Heap {
            trimmable: 30 * MIB,
            sizes: vec![SizeClass {
                from: 33,
                to: 48,
                live: 20_000,
                pinned: 40 * MIB,
                ..SizeClass::default()
            }],
            occupancy: [0, 12_345, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ..heap(
                &[(HeapRegion::Live, 4 * MIB), (HeapRegion::Large, 50 * MIB)],
                64,
            )
        };
        let said = fragmented.verdict().join("\n");
        for wanted in [
            "chunks of 48 bytes, 20,000 of them in use, keep 40.0 MiB of it in memory",
            "12,345 pages are at most a tenth in use",
            "malloc_trim(0) would return 30.0 MiB",
            "64 arenas",
        ] {
            assert!(said.contains(wanted), "{said}");
        }
        let said = heap(
            &[(HeapRegion::Live, 4 * MIB), (HeapRegion::Top, 50 * MIB)],
            1,
        )
        .verdict();
        assert!(
            said[1].contains("50.0 MiB of it is free at the ends of arenas"),
            "{said:?}"
        );
        let jemalloc = Heap {
            allocator: Allocator::Unknown,
            ..heap(
                &[
                    (HeapRegion::JemallocLive, 4 * MIB),
                    (HeapRegion::JemallocDirty, 50 * MIB),
                ],
                1,
            )
        };
        let said = jemalloc.verdict().join("\n");
        assert!(
            said.contains("jemalloc keeps") && !said.contains("malloc_trim"),
            "{said}"
        );
    }

    #[test]
    fn pages_of_zeroes_are_mentioned_if_they_are_many() {
        let with = |zero, huge_zero| Heap {
            zero_pages: Some(ZeroPages {
                examined: 100 * MIB,
                zero,
                outside: zero,
                huge: huge_zero,
                huge_zero,
                ..ZeroPages::default()
            }),
            ..heap(&[(HeapRegion::Live, 100 * MIB)], 1)
        };
        let said = |heap: Heap| heap.verdict().join("\n");
        let huge = said(with(40 * MIB, Some(30 * MIB)));
        assert!(
            huge.contains("40.0 MiB of the memory in use is pages of zeroes: up to 30.0 MiB is the unused part of huge"),
            "{huge}"
        );
        let small = said(with(40 * MIB, None));
        assert!(small.contains("smaller buffers"), "{small}");
        let mut free = with(40 * MIB, None);
        let zero = free.zero_pages.as_mut().unwrap();
        zero.outside = 9 * MIB;
        zero.regions = vec![ZeroRegion {
            what: HeapRegion::Top,
            zero: 31 * MIB,
        }];
        assert!(!said(free).contains("zeroes"));
        assert!(!said(with(9 * MIB, Some(9 * MIB))).contains("zeroes"));
    }

    #[test]
    fn what_is_lost_is_grouped() {
        let part = |bytes, kind| ShapePart {
            bytes,
            kind,
            name: String::new(),
        };
        let leaking = Heap {
            unreachable: Some(Unreachable {
                chunks: 39_770,
                bytes: 2_803_785,
                shapes: vec![LostShape {
                    groups: 19_885,
                    chunks: 39_770,
                    bytes: 2_803_785,
                    parts: vec![part(40, TypeKind::Unknown), part(101, TypeKind::Text)],
                    example: 1,
                }],
                ..Unreachable::default()
            }),
            ..heap(&[(HeapRegion::Live, 20 * MIB)], 1)
        };
        let said = leaking.verdict().join("\n");
        let wanted = "39,770 chunks, 2.7 MiB, are lost (nothing refers to them): 19,885 \u{d7} {40 B + 101 B text}, 2.7 MiB.";
        assert!(
            said.contains(wanted) && said.contains("--by-stack"),
            "{said}"
        );
    }

    #[test]
    fn nothing_is_said_of_a_heap_that_was_not_read() {
        let said = Heap {
            anonymous: 5 * MIB,
            allocator: Allocator::Refused {
                reason: "a bin is damaged".to_owned(),
            },
            ..Heap::default()
        };
        assert_eq!(
            said.verdict(),
            [
                "5.0 MiB of anonymous memory, none of it in a heap that memprof reads.",
                "The heap was found and not read: a bin is damaged."
            ]
        );
    }
}
