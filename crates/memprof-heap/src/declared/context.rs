//! The types around a member that a search visits, and the elements of a buffer.

use memprof_code::symbolize::types::TypeId;

/// The types around a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context {
    /// The innermost type that is not a library's.
    pub owner: Option<TypeId>,
    /// The outermost container in it.
    pub container: Option<TypeId>,
    /// The type of the container's nodes.
    pub node: Option<TypeId>,
    /// Type of the elements of a Rust container.
    pub element: Option<TypeId>,
    /// The elements that exist.
    pub extent: Extent,
    /// Whether an object that may not exist is zero then.
    pub is_cell: bool,
}

impl Context {
    /// The same type around it, and nothing else.
    pub(super) fn owned(self) -> Context {
        Context {
            owner: self.owner,
            ..Context::default()
        }
    }
}

/// The elements of a buffer that exist: all others may have remains of earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    /// Index of the first.
    pub first: u64,
    pub count: u64,
    /// The index from which they continue at the beginning.
    pub end: Option<u64>,
}

impl Extent {
    /// The first elements.
    pub(super) fn first(count: u64) -> Extent {
        Extent {
            count,
            ..Extent::default()
        }
    }

    /// Index of the first, and number: up to the end, and at the beginning.
    pub(super) fn parts(self) -> [(u64, u64); 2] {
        let end = self.end.unwrap_or(u64::MAX);
        let before = self.count.min(end.saturating_sub(self.first));
        [(self.first, before), (0, self.count - before)]
    }
}

/// Elements to visit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    pub at: u64,
    pub count: u64,
    pub of: TypeId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_continues_at_its_beginning() {
        let ring = |first, count| Extent {
            first,
            count,
            end: Some(8),
        };
        assert_eq!(ring(6, 5).parts(), [(6, 2), (0, 3)]);
        assert_eq!(ring(2, 5).parts(), [(2, 5), (0, 0)]);
        assert_eq!(ring(9, 5).parts(), [(9, 0), (0, 5)]);
        assert_eq!(Extent::first(7).parts(), [(0, 7), (0, 0)]);
    }
}
