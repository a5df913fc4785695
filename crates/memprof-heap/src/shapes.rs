//! Groups of unreachable chunks by shape: what each of their chunks looks like, in the order in which the head leads to them. A leak
//! that happened twenty thousand times is one shape.

use std::cmp::Reverse;
use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::types::TypeKind;

/// Number of chunks of a group that its shape describes; further chunks are only counted.
const DESCRIBED: usize = 4;
/// Maximum number of shapes to tell apart, and to list.
const MAX_SHAPES: usize = 4096;
const MAX_ROWS: usize = 100;

/// Groups of unreachable chunks that look alike.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapLostShape")]
pub struct LostShape {
    /// Number of groups.
    pub groups: u64,
    /// Number of chunks of all groups.
    pub chunks: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// The first chunks of a group, the head first. Empty for groups whose shapes were too many to tell apart.
    pub parts: Vec<ShapePart>,
    /// Address of the head of one group.
    pub example: u64,
}

/// A chunk of a group.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapShapePart")]
pub struct ShapePart {
    /// Bytes of its contents: the mean of all groups.
    pub bytes: u64,
    /// How its type is recognized.
    pub kind: TypeKind,
    /// Name of its type; empty if it is not known.
    pub name: String,
}

/// A shape: the type and size of each described chunk, and whether there are more.
type Key = (Vec<(u32, u64)>, bool);

#[derive(Debug, Default)]
struct Sum {
    groups: u64,
    chunks: u64,
    bytes: u64,
    /// Bytes of the described chunks, by position.
    of_parts: [u64; DESCRIBED],
    example: u64,
}

/// A group that is being counted.
#[derive(Debug, Default)]
pub(super) struct Group {
    key: Key,
    sizes: Vec<u64>,
}

impl Group {
    /// Adds a chunk with its type's id. Text of any length looks alike.
    pub(super) fn add(&mut self, id: u32, is_text: bool, bytes: u64) {
        if self.sizes.len() < DESCRIBED {
            self.key.0.push((id, if is_text { 0 } else { bytes }));
            self.sizes.push(bytes);
        } else {
            self.key.1 = true;
        }
    }
}

/// The shapes found so far.
#[derive(Debug, Default)]
pub(super) struct Shapes(HashMap<Key, Sum>);

impl Shapes {
    /// Adds a finished group with its head, the number of its chunks and their bytes.
    pub(super) fn add(&mut self, group: Group, (head, chunks, bytes): (u64, u64, u64)) {
        let full = self.0.len() >= MAX_SHAPES && !self.0.contains_key(&group.key);
        let (key, sizes) = match full {
            true => (Key::default(), Vec::new()),
            false => (group.key, group.sizes),
        };
        let sum = self.0.entry(key).or_default();
        sum.groups += 1;
        sum.chunks += chunks;
        sum.bytes += bytes;
        sum.example = head;
        sum.of_parts
            .iter_mut()
            .zip(sizes)
            .for_each(|(sum, size)| *sum += size);
    }

    /// The shapes with the most bytes, and the number of further ones. `name` returns the kind and the name of a type.
    pub(super) fn finish(self, name: impl Fn(u32) -> (TypeKind, String)) -> (Vec<LostShape>, u64) {
        let shape = |((parts, _), sum): (Key, Sum)| LostShape {
            groups: sum.groups,
            chunks: sum.chunks,
            bytes: sum.bytes,
            parts: parts
                .iter()
                .zip(sum.of_parts)
                .map(|((id, _), bytes)| {
                    let (kind, name) = name(*id);
                    ShapePart {
                        bytes: bytes / sum.groups.max(1),
                        kind,
                        name,
                    }
                })
                .collect(),
            example: sum.example,
        };
        let mut sums: Vec<(Key, Sum)> = self.0.into_iter().collect();
        sums.sort_by_key(|(_, sum)| Reverse((sum.bytes, sum.groups, sum.example)));
        let left_out = sums.len().saturating_sub(MAX_ROWS) as u64;
        sums.truncate(MAX_ROWS);
        (sums.into_iter().map(shape).collect(), left_out)
    }
}

/// `{40 B + 101 B text + 2 more}`: the chunks of one group.
impl std::fmt::Display for LostShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |part: &ShapePart| {
            let bytes = part.bytes;
            match part.kind {
                TypeKind::Unknown => format!("{bytes} B"),
                TypeKind::Text | TypeKind::Pointers | TypeKind::Zeroes => {
                    format!("{bytes} B {}", part.kind.name())
                }
                TypeKind::Class | TypeKind::TraitObject | TypeKind::Python | TypeKind::Declared => {
                    format!("{bytes} B {}", memprof_sys::text::printable(&part.name))
                }
            }
        };
        if self.parts.is_empty() {
            return f.write_str("of many other shapes");
        }
        let mut parts: Vec<String> = self.parts.iter().map(part).collect();
        let mean = self.chunks as f64 / self.groups.max(1) as f64;
        let more = mean - parts.len() as f64;
        if more > 0.0 {
            parts.push(format!("{more:.0} more"));
        }
        write!(f, "{{{}}}", parts.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_look_alike_are_one_row() {
        let mut shapes = Shapes::default();
        for n in 0..100 {
            let mut group = Group::default();
            group.add(7, false, 40);
            group.add(8, true, 96 + n % 11);
            shapes.add(group, (0x1000 + n, 2, 136 + n % 11));
        }
        let mut other = Group::default();
        (0..6).for_each(|_| other.add(7, false, 24));
        shapes.add(other, (1, 6, 144));
        let name = |id| match id {
            7 => (TypeKind::Unknown, "40 bytes".to_owned()),
            _ => (TypeKind::Text, String::new()),
        };
        let (rows, left_out) = shapes.finish(name);
        assert_eq!((rows.len(), left_out), (2, 0));
        assert_eq!(
            (rows[0].groups, rows[0].chunks, rows[1].groups),
            (100, 200, 1)
        );
        assert_eq!(rows[0].to_string(), "{40 B + 100 B text}");
        assert_eq!(rows[1].to_string(), "{24 B + 24 B + 24 B + 24 B + 2 more}");
    }

    #[test]
    fn too_many_shapes_are_one_row_and_lose_no_bytes() {
        let mut shapes = Shapes::default();
        for n in 0..2 * MAX_SHAPES as u64 {
            let mut group = Group::default();
            group.add(1, false, n);
            shapes.add(group, (n, 1, 10));
        }
        let (rows, left_out) = shapes.finish(|_| (TypeKind::Unknown, String::new()));
        assert!(rows[0].parts.is_empty(), "{:?}", rows[0]);
        assert_eq!(rows[0].to_string(), "of many other shapes");
        assert_eq!(rows[0].groups as usize, MAX_SHAPES);
        assert_eq!(rows.len() as u64 + left_out, MAX_SHAPES as u64 + 1);
    }
}
