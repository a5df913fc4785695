//! Pointers, and the C++ containers that have several of them for one buffer.

use super::containers;
use super::context::{Context, Elements, Extent};
use super::fit::{Chunk, is_open_ended};
use super::labels::{Form, Label};
use super::walk::Walk;
use memprof_code::symbolize::types::{Layout, Record, Type, TypeId};

/// Maximum size of the elements of arrays that a pointer may lead to although their type has no members, in bytes.
const MAX_SCALAR: u64 = 16;
/// Maximum number of buffers of a deque.
const MAX_BUFFERS: u64 = 1 << 24;

impl Walk<'_, '_> {
    /// Follows the pointer at an address to an object of a type.
    pub(super) fn pointer(&mut self, at: u64, to: TypeId, context: Context) {
        let Some(address) = self.word(at) else { return };
        let Some(chunk) = self.chunk(address) else {
            return;
        };
        let of = self.types.get(to);
        if let Some(node) = context.node
            && self.is_of_nodes((address, chunk), (to, &of), node, context)
        {
            return;
        }
        match context.element {
            Some(element) if of.size == 1 => {
                let extent = context.extent;
                self.buffer((address, chunk), element, extent, context);
            }
            _ => self.raw((address, chunk), (to, &of), context),
        }
    }

    /// The type that pointers of a type lead to.
    pub(super) fn pointee(&mut self, pointer: TypeId) -> Option<TypeId> {
        match self.types.get(pointer).layout {
            Layout::Pointer(to) => to,
            _ => None,
        }
    }

    /// Follows a pointer of a container with nodes to a node, or to its table of them.
    fn is_of_nodes(
        &mut self,
        (address, chunk): (u64, Chunk),
        (to, of): (TypeId, &Type),
        node: TypeId,
        context: Context,
    ) -> bool {
        let label = |of, form| Label {
            of,
            form,
            container: context.container,
            owner: context.owner,
            node: Some(node),
        };
        let is_start = address == chunk.start;
        if containers::is_node_base(of.head()) {
            if is_start && chunk.may_be_for(self.types.get(node).size) {
                let one = Elements {
                    at: address,
                    count: 1,
                    of: node,
                };
                self.find(chunk, label(node, Form::Node), &[one]);
            }
            return true;
        }
        let Layout::Pointer(Some(base)) = of.layout else {
            return false;
        };
        let is_table = containers::is_node_base(self.types.get(base).head());
        if is_table && is_start {
            let all = Elements {
                at: address,
                count: chunk.len / 8,
                of: to,
            };
            self.find(chunk, label(to, Form::Buckets), &[all]);
        }
        is_table
    }

    /// Gives a chunk the type of a container's elements, and follows those that exist.
    pub(super) fn buffer(
        &mut self,
        (address, chunk): (u64, Chunk),
        of: TypeId,
        extent: Extent,
        context: Context,
    ) {
        let size = self.types.get(of).size;
        let Some(capacity) = chunk.len.checked_div(size) else {
            return;
        };
        if address != chunk.start || extent.count > capacity {
            return;
        }
        let label = Label {
            of,
            form: Form::Buffer,
            container: context.container,
            owner: context.owner,
            node: None,
        };
        let elements = |(first, count): (u64, u64)| {
            let first = first.min(capacity);
            Elements {
                at: address + size * first,
                count: count.min(capacity - first),
                of,
            }
        };
        self.find(chunk, label, &extent.parts().map(elements));
    }

    /// Follows a pointer about which nothing else is known.
    fn raw(&mut self, (address, chunk): (u64, Chunk), (to, of): (TypeId, &Type), context: Context) {
        let is_record = matches!(of.layout, Layout::Record(_));
        let label = |form| Label {
            of: to,
            form,
            container: None,
            owner: context.owner.filter(|_| !is_record),
            node: None,
        };
        let count = match (address.checked_sub(chunk.start), of.size) {
            (_, 0) | (None, _) => return,
            (Some(0), size) if chunk.may_be_for(size) => 1,
            (Some(0), size) if is_record => {
                if is_open_ended(&mut self.types, of) && size <= chunk.len {
                    1
                } else if self.types.is_extended(of) {
                    return;
                } else {
                    chunk.len / size
                }
            }
            (Some(0), size) if size <= MAX_SCALAR => chunk.len / size,
            // `new T[n]` stores n in front of objects with destructors.
            (Some(8 | 16), _) if is_record => self.word(address.wrapping_sub(8)).unwrap_or(0),
            _ => return,
        };
        let before = address - chunk.start;
        let is_whole = chunk.may_be_for(of.size.saturating_mul(count).saturating_add(before));
        if count == 0 || !(is_whole || count == 1 && before == 0) {
            return;
        }
        if !is_record && context.container.is_some() {
            return self.buffer((address, chunk), to, Extent::first(count), context);
        }
        // Bytes of no particular type say less than what they look like.
        if !is_record && of.size == 1 && context.owner.is_none() {
            return;
        }
        let form = match count {
            1 if before == 0 => Form::One,
            _ => Form::Many,
        };
        self.find(
            chunk,
            label(form),
            &[Elements {
                at: address,
                count,
                of: to,
            }],
        );
    }

    /// Whether a record has the addresses of its first element and behind its last, as a vector has.
    pub(super) fn is_buffer(&mut self, record: &Record, at: u64, context: Context) -> bool {
        let ends = [("_M_start", "_M_finish"), ("__begin_", "__end_")];
        let found = ends
            .iter()
            .find_map(|(first, last)| Some((record.member(first)?, record.member(last)?)));
        let Some((first, last)) = found else {
            return false;
        };
        let Some(of) = self.pointee(first.of) else {
            return false;
        };
        let address = |offset: u64| self.word(at.wrapping_add(offset));
        let (Some(first), Some(last)) = (address(first.offset), address(last.offset)) else {
            return true;
        };
        let size = self.types.get(of).size;
        let count = last
            .checked_sub(first)
            .and_then(|len| len.checked_div(size));
        if let (Some(count), Some(chunk)) = (count, self.chunk(first)) {
            self.buffer((first, chunk), of, Extent::first(count), context);
        }
        true
    }

    /// Whether a record is a deque's: a table of buffers, and the positions of the first element and behind the last.
    pub(super) fn is_deque(&mut self, record: &Record, at: u64, context: Context) -> bool {
        let members = ["_M_map", "_M_start", "_M_finish"].map(|name| record.member(name));
        let [Some(map), Some(first), Some(last)] = members else {
            return false;
        };
        let position = self.types.get(first.of);
        let Layout::Record(position) = &position.layout else {
            return false;
        };
        let current = position.member("_M_cur");
        let Some(of) = current.and_then(|current| self.pointee(current.of)) else {
            return false;
        };
        let Some(map_type) = self.pointee(map.of) else {
            return false;
        };
        let parts = ["_M_cur", "_M_first", "_M_last", "_M_node"];
        let read = |at: u64| {
            let all = parts.map(|part| self.word(at.wrapping_add(position.member(part)?.offset)));
            all.into_iter().collect::<Option<Vec<u64>>>()
        };
        let ends = (
            read(at.wrapping_add(first.offset)),
            read(at.wrapping_add(last.offset)),
        );
        let map = self.word(at.wrapping_add(map.offset));
        if let ((Some(first), Some(last)), Some(map)) = (ends, map) {
            if let Some(chunk) = self.chunk(map) {
                self.buffer((map, chunk), map_type, Extent::default(), context);
            }
            self.deque(&first, &last, of, context);
        }
        true
    }

    /// Follows the buffers of a deque between two positions: current element, begin and end of its buffer, place in the table.
    fn deque(&mut self, first: &[u64], last: &[u64], of: TypeId, context: Context) {
        let (&[current, begin, end, node], &[last, .., last_node]) = (first, last) else {
            return;
        };
        let size = self.types.get(of).size;
        let Some(per_buffer) = end.checked_sub(begin).and_then(|len| len.checked_div(size)) else {
            return;
        };
        let count = last_node.checked_sub(node).map_or(0, |by| by / 8 + 1);
        for index in 0..count.min(MAX_BUFFERS) {
            let at = node.wrapping_add(8 * index);
            let Some(start) = self.word(at).filter(|_| !self.ends()) else {
                return;
            };
            let from = if at == node { current } else { start };
            let to = match at == last_node {
                true => last,
                false => start.wrapping_add(size * per_buffer),
            };
            let index_of = |at: u64| at.checked_sub(start).and_then(|by| by.checked_div(size));
            let (Some(from), Some(to), Some(chunk)) =
                (index_of(from), index_of(to), self.chunk(start))
            else {
                continue;
            };
            let extent = Extent {
                first: from,
                count: to.saturating_sub(from),
                end: None,
            };
            self.buffer((start, chunk), of, extent, context);
        }
    }
}
