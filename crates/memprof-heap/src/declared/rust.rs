//! Rust's containers, whose pointers do not declare their elements, and its enumerations.

use super::containers;
use super::context::{Context, Elements, Extent};
use super::labels::{Form, Label};
use super::walk::Walk;
use memprof_code::symbolize::types::{Layout, Member, Record, Type, TypeId, Variants};

/// Bytes of control bytes that hashbrown compares at once; their copies follow the control bytes.
const GROUP: u64 = 16;
/// Maximum height of a B-tree. Its nodes have at least six children.
const MAX_HEIGHT: u64 = 24;
/// Maximum number of members around the capacity of a buffer.
const MAX_NESTED: u32 = 4;
const LEAF: &str = "alloc::collections::btree::node::LeafNode";
const INTERNAL: &str = "alloc::collections::btree::node::InternalNode";

/// A B-tree: its types of nodes, and its nodes' label.
#[derive(Clone, Copy)]
struct Tree {
    leaf: TypeId,
    internal: TypeId,
    context: Context,
}

impl Walk<'_, '_> {
    /// The context of the members of a type of Rust's library.
    pub(super) fn enter_rust(
        &mut self,
        head: &str,
        record: &Record,
        at: u64,
        mut context: Context,
    ) -> Context {
        match head {
            "alloc::vec::Vec" => {
                let len = self.member_number(record, "len", at);
                context.extent = Extent::first(len.unwrap_or(0));
                context.element = record.argument("T");
            }
            "alloc::collections::vec_deque::VecDeque" => {
                let [head, len] = ["head", "len"].map(|name| self.member_number(record, name, at));
                let buffer = record.member("buf");
                context.extent = Extent {
                    first: head.unwrap_or(0),
                    count: len.unwrap_or(0),
                    end: buffer.and_then(|buffer| self.capacity(buffer, at, MAX_NESTED)),
                };
                context.element = record.argument("T");
            }
            "alloc::raw_vec::RawVec" => context.element = record.argument("T"),
            _ => {}
        }
        context
    }

    /// The capacity of a buffer, which is a member of an object at an address, in elements.
    fn capacity(&mut self, buffer: &Member, at: u64, left: u32) -> Option<u64> {
        let left = left.checked_sub(1)?;
        let (of, at) = (self.types.get(buffer.of), at.wrapping_add(buffer.offset));
        let Layout::Record(record) = &of.layout else {
            return None;
        };
        match record.member("inner") {
            Some(inner) => self.capacity(inner, at, left),
            None => self.member_number(record, "cap", at),
        }
    }

    /// Whether a record is the address of a slice and its length, or of an object and its vtable.
    pub(super) fn is_fat_pointer(
        &mut self,
        record: &Record,
        at: u64,
        context: Context,
        left: u32,
    ) -> bool {
        let member = |name| record.member(name);
        let word = |walk: &Self, offset: u64| walk.word(at.wrapping_add(offset));
        if let (Some(data), Some(length)) = (member("data_ptr"), member("length")) {
            let Some(of) = self.pointee(data.of) else {
                return false;
            };
            let ends = word(self, data.offset).zip(word(self, length.offset));
            if let Some((address, count)) = ends
                && let Some(chunk) = self.chunk(address)
            {
                let context = Context {
                    container: None,
                    ..context
                };
                self.buffer((address, chunk), of, Extent::first(count), context);
            }
            return true;
        }
        let (Some(data), Some(table)) = (member("pointer"), member("vtable")) else {
            return false;
        };
        let ends = word(self, data.offset).zip(word(self, table.offset));
        if let Some((address, table)) = ends {
            self.trait_object(address, table, data.of, left);
        }
        true
    }

    /// Follows the members of an object behind a vtable, whose chunk has its type from there.
    fn trait_object(&mut self, address: u64, table: u64, pointer: TypeId, left: u32) {
        let Some(of) = self.behind_vtable(table) else {
            return;
        };
        let Some(to) = self.pointee(pointer).map(|to| self.types.get(to)) else {
            return;
        };
        // The two counters of `Rc` and `Arc` come first.
        let counters = match to.head() {
            "alloc::sync::ArcInner" | "alloc::rc::RcInner" | "alloc::rc::RcBox" => 16,
            _ => 0,
        };
        let size = self.types.get(of).size;
        let Some(chunk) = self.chunk(address) else {
            return;
        };
        if address == chunk.start && chunk.may_be_for(size.saturating_add(counters)) {
            let label = Label {
                of,
                form: Form::One,
                container: None,
                owner: None,
                node: None,
            };
            let one = Elements {
                at: address + counters,
                count: 1,
                of,
            };
            if left > 0 {
                self.find(chunk, label, &[one]);
            }
        }
    }

    /// Whether a record is a hash table: the elements lie before its control bytes, the last one first.
    pub(super) fn is_table(
        &mut self,
        of: &Type,
        record: &Record,
        at: u64,
        context: Context,
        left: u32,
    ) -> bool {
        if of.head() != "hashbrown::raw::RawTable" {
            return false;
        }
        let (Some(element), Some(inner)) = (record.argument("T"), record.member("table")) else {
            return true;
        };
        let inner_type = self.types.get(inner.of);
        let Layout::Record(inner_record) = &inner_type.layout else {
            return true;
        };
        let at = at.wrapping_add(inner.offset);
        let mask = self.member_number(inner_record, "bucket_mask", at);
        let control = inner_record.member("ctrl").map(|control| control.offset);
        let control = control.and_then(|offset| self.word(at.wrapping_add(offset)));
        if let Some((mask, control)) = mask.zip(control) {
            self.table(control, mask, element, context, left);
        }
        true
    }

    fn table(&mut self, control: u64, mask: u64, of: TypeId, context: Context, left: u32) {
        let size = self.types.get(of).size;
        let Some(chunk) = self.chunk(control) else {
            return;
        };
        let Some(buckets) = mask.checked_add(1).filter(|buckets| *buckets <= chunk.len) else {
            return;
        };
        let before = buckets.saturating_mul(size).checked_next_multiple_of(GROUP);
        let needed = before.and_then(|before| before.checked_add(buckets + GROUP));
        let is_whole = needed.is_some_and(|needed| chunk.may_be_for(needed));
        if !is_whole || before.and_then(|before| control.checked_sub(before)) != Some(chunk.start) {
            return;
        }
        let label = Label {
            of,
            form: Form::Buckets,
            container: context.container,
            owner: context.owner,
            node: None,
        };
        if !self.find(chunk, label, &[]) {
            return;
        }
        for index in 0..buckets {
            // The highest bit is set for buckets that are empty.
            let is_full = self
                .number(control + index, 1)
                .is_some_and(|byte| byte < 0x80);
            if is_full {
                self.visit(of, control - (index + 1) * size, context.owned(), left);
            }
        }
    }

    /// Whether a record is the root of a B-tree.
    pub(super) fn is_tree(
        &mut self,
        head: &str,
        record: &Record,
        at: u64,
        context: Context,
        left: u32,
    ) -> bool {
        if head != "alloc::collections::btree::node::NodeRef" {
            return false;
        }
        let height = self.member_number(record, "height", at);
        let node = record.member("node");
        let address = node.and_then(|node| self.word(at.wrapping_add(node.offset)));
        let leaf = node.and_then(|node| containers::stored(&self.types.get(node.of)));
        let internal = leaf.and_then(|leaf| {
            let arguments = self.types.get(leaf).name.strip_prefix(LEAF)?.to_owned();
            self.types.named(&format!("{INTERNAL}{arguments}"))
        });
        if let (Some(height), Some(address), Some(leaf)) = (height, address, leaf)
            && height <= MAX_HEIGHT
        {
            let internal = internal.unwrap_or(leaf);
            let tree = Tree {
                leaf,
                internal,
                context,
            };
            self.tree(tree, address, height, left);
        }
        true
    }

    fn tree(&mut self, tree: Tree, address: u64, height: u64, left: u32) {
        let of = if height > 0 { tree.internal } else { tree.leaf };
        let Some(chunk) = self.chunk(address) else {
            return;
        };
        if address != chunk.start || !chunk.may_be_for(self.types.get(of).size) {
            return;
        }
        let label = Label {
            of,
            form: Form::Node,
            container: tree.context.container,
            owner: tree.context.owner,
            node: None,
        };
        if !self.find(chunk, label, &[]) {
            return;
        }
        let leaf = self.types.get(tree.leaf);
        let Layout::Record(record) = &leaf.layout else {
            return;
        };
        let count = self.member_number(record, "len", address).unwrap_or(0);
        for name in ["keys", "vals"] {
            self.first_of(record, name, address, count, &mut |walk, of, at| {
                walk.visit(of, at, tree.context.owned(), left);
            });
        }
        let internal = self.types.get(tree.internal);
        if let (Layout::Record(record), true) = (&internal.layout, height > 0) {
            self.first_of(
                record,
                "edges",
                address,
                count.saturating_add(1),
                &mut |walk, _, at| {
                    if let Some(child) = walk.word(at) {
                        walk.tree(tree, child, height - 1, left);
                    }
                },
            );
        }
    }

    /// Calls a function for the first `count` elements of a member that is an array of `MaybeUninit`: their type and address.
    fn first_of(
        &mut self,
        record: &Record,
        name: &str,
        at: u64,
        count: u64,
        each: &mut dyn FnMut(&mut Self, TypeId, u64),
    ) {
        let Some(member) = record.member(name) else {
            return;
        };
        let Layout::Array(of, Some(length)) = self.types.get(member.of).layout else {
            return;
        };
        let of = self.types.get(of);
        let Some(stored) = containers::stored(&of) else {
            return;
        };
        for index in 0..count.min(length) {
            if self.ends() {
                return;
            }
            let at = at
                .wrapping_add(member.offset)
                .wrapping_add(index.wrapping_mul(of.size));
            each(self, stored, at);
        }
    }

    /// Follows the members of the variant that an enumeration has.
    pub(super) fn variants(&mut self, variants: &Variants, at: u64, context: Context, left: u32) {
        let number = variants
            .tag
            .map(|(offset, size)| (self.number(at.wrapping_add(offset), size), size));
        let members = match (number, variants.all.as_slice()) {
            (None, [(_, members)]) => members,
            (Some((Some(number), size)), all) => {
                let mask = u64::MAX
                    .checked_shr(64 - 8 * size.min(8) as u32)
                    .unwrap_or(0);
                let is = |(known, _): &&(Option<u64>, _)| {
                    known.is_some_and(|known| known & mask == number)
                };
                let found = all.iter().find(is);
                match found.or_else(|| all.iter().find(|(known, _)| known.is_none())) {
                    Some((_, members)) => members,
                    None => return,
                }
            }
            _ => return,
        };
        for member in members {
            self.visit(member.of, at.wrapping_add(member.offset), context, left);
        }
    }
}
