//! Follows declared pointers from object to object.

use std::collections::{HashMap, VecDeque};

use super::super::all_heaps::AllHeaps;
use super::super::mapped_files::Files;
use super::super::memory::Memory;
use super::super::snapshot::Snapshot;
use super::containers;
use super::context::{Context, Elements};
use super::fit::Chunk;
use super::labels::Label;
use memprof_code::symbolize::types::{DebugTypes, Layout, Record, Type, TypeId};

/// Maximum nesting of members.
const MAX_DEPTH: u32 = 32;
/// Maximum number of members and elements to visit.
const MAX_STEPS: u64 = 200_000_000;
/// Number of steps between two looks at the clock.
const OFTEN: u64 = 1 << 14;
/// Maximum number of chunks with a type: so many, and one for so many bytes of the snapshot. A chunk takes 20 to 40 bytes.
const MAX_CHUNKS: usize = 3 << 20;
const FEW_CHUNKS: u64 = 1 << 18;
const BYTES_PER_CHUNK: u64 = 160;
/// Maximum number of different types to tell apart.
const MAX_LABELS: usize = 1 << 16;

/// The types by chunk, their names, and why not all debug information was used.
type Found = (HashMap<u64, u32>, Vec<String>, Option<String>);

/// The search.
pub(super) struct Walk<'a, 'f> {
    memory: &'a Memory,
    files: &'a Files<'f>,
    pub heaps: &'a AllHeaps,
    bounds: (u64, u64),
    pub types: DebugTypes,
    /// The load bias of each file.
    biases: Vec<u64>,
    /// Whether objects of a type have pointers.
    leads: HashMap<TypeId, bool>,
    labels: Vec<(Label, u8)>,
    ids: HashMap<Label, u32>,
    found: HashMap<u64, u32>,
    max_found: usize,
    waiting: VecDeque<(Elements, u32)>,
    steps: u64,
    is_over: bool,
}

impl<'a, 'f> Walk<'a, 'f> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        heaps: &'a AllHeaps,
        files: &'a Files<'f>,
        (types, biases): (DebugTypes, Vec<u64>),
    ) -> Walk<'a, 'f> {
        let max_found = FEW_CHUNKS + snapshot.memory.len() / BYTES_PER_CHUNK;
        Walk {
            memory: &snapshot.memory,
            files,
            heaps,
            bounds: heaps.bounds(),
            types,
            biases,
            leads: HashMap::new(),
            labels: Vec::new(),
            ids: HashMap::new(),
            found: HashMap::new(),
            max_found: MAX_CHUNKS.min(max_found as usize),
            waiting: VecDeque::new(),
            steps: 0,
            is_over: false,
        }
    }

    /// Searches from all variables; returns their number.
    pub(super) fn search_variables(&mut self) -> u64 {
        let variables = self.types.variables().to_vec();
        let mut count = 0;
        for variable in variables {
            let bias = self.biases.get(variable.file).copied();
            let of = self.types.type_of(&variable);
            if let (Some(bias), Some(of)) = (bias, of) {
                count += 1;
                let at = variable.address.wrapping_add(bias);
                self.visit(of, at, Context::default(), MAX_DEPTH);
            }
        }
        self.follow();
        count
    }

    /// Searches from objects: first address, end, index of the C++ class.
    pub(super) fn search_objects(&mut self, objects: &[(u64, u64, usize)]) {
        for (start, end, class) in objects {
            let Some(of) = self.types.class(*class) else {
                continue;
            };
            if self.types.get(of).size <= end.saturating_sub(*start) {
                self.visit(of, *start, Context::default(), MAX_DEPTH);
                self.follow();
            }
        }
    }

    /// Returns what was found; `None` if a file was truncated.
    pub(super) fn finish(mut self) -> Option<Found> {
        let labels = std::mem::take(&mut self.labels).into_iter();
        let names = labels
            .map(|(label, _)| label.name(&mut self.types))
            .collect();
        let incomplete = self.types.incomplete().map(str::to_owned);
        self.types
            .is_whole()
            .then_some((self.found, names, incomplete))
    }

    fn follow(&mut self) {
        while let Some((elements, label)) = self.waiting.pop_front() {
            let (label, _) = self.labels[label as usize];
            let context = Context {
                owner: label.owner,
                container: label.node.and(label.container),
                node: label.node,
                ..Context::default()
            };
            self.elements(elements, context, MAX_DEPTH);
        }
    }

    /// Whether the search has to end.
    pub(super) fn ends(&mut self) -> bool {
        self.steps += 1;
        if self.steps.is_multiple_of(OFTEN) && self.types.is_late() {
            self.types
                .stopped("following its types takes too long".into());
            self.is_over = true;
        }
        if self.steps > MAX_STEPS || self.found.len() >= self.max_found {
            self.types
                .stopped("it declares the types of too many objects".into());
            self.is_over = true;
        }
        self.is_over
    }

    /// The word at an address.
    pub(super) fn word(&self, at: u64) -> Option<u64> {
        self.memory.word(at).or_else(|| self.files.word(at))
    }

    /// A number of 1, 2, 4 or 8 bytes.
    pub(super) fn number(&self, at: u64, size: u64) -> Option<u64> {
        let bytes = 8_u64.checked_sub(size)?;
        // The word that ends with it, because the next bytes may belong to another page.
        let word = self.word(at.checked_sub(bytes)?);
        match word {
            Some(word) => word.checked_shr(8 * bytes as u32),
            None => {
                let mask = u64::MAX.checked_shr(8 * bytes as u32)?;
                Some(self.word(at)? & mask)
            }
        }
    }

    /// The number in a member of a record, which lies at an address.
    pub(super) fn member_number(&mut self, record: &Record, name: &str, at: u64) -> Option<u64> {
        let member = record.member(name)?;
        let (of, at) = (member.of, at.checked_add(member.offset)?);
        let size = self.types.get(of).size;
        self.number(at, size)
    }

    /// The chunk in use that contains an address.
    pub(super) fn chunk(&self, address: u64) -> Option<Chunk> {
        let inside = address >= self.bounds.0 && address < self.bounds.1;
        inside.then(|| Chunk::containing(self.heaps, address))?
    }

    /// Gives a chunk a type, unless it has one that says as much, and has its elements visited.
    pub(super) fn find(&mut self, chunk: Chunk, label: Label, all: &[Elements]) -> bool {
        let Some(id) = self.label_id(label) else {
            return false;
        };
        let rank = |id: u32| self.labels[id as usize].1;
        let known = self.found.get(&chunk.start);
        if known.is_some_and(|known| rank(*known) >= rank(id)) || self.ends() {
            return false;
        }
        self.found.insert(chunk.start, id);
        for elements in all {
            if elements.count > 0 && self.leads(elements.of, MAX_DEPTH) {
                self.waiting.push_back((*elements, id));
            }
        }
        true
    }

    fn label_id(&mut self, label: Label) -> Option<u32> {
        if let Some(id) = self.ids.get(&label) {
            return Some(*id);
        }
        let id = self.labels.len() as u32;
        let is_plain = matches!(
            self.types.get(label.of).layout,
            Layout::Scalar | Layout::Pointer(_)
        );
        if self.labels.len() >= MAX_LABELS {
            self.types.stopped("it declares too many types".into());
            return None;
        }
        self.labels.push((label, label.rank(is_plain)));
        self.ids.insert(label, id);
        Some(id)
    }

    /// Whether objects of a type may have pointers.
    fn leads(&mut self, of: TypeId, left: u32) -> bool {
        if let Some(known) = self.leads.get(&of) {
            return *known;
        }
        let Some(left) = left.checked_sub(1) else {
            return false;
        };
        let found = self.types.get(of);
        let leads = match &found.layout {
            Layout::Scalar => false,
            Layout::Pointer(to) => to.is_some(),
            Layout::Array(of, _) => self.leads(*of, left),
            Layout::Record(_) if containers::is_storage(found.head()) => {
                containers::stored(&found).is_some_and(|of| self.leads(of, left))
            }
            Layout::Record(record) => {
                let variants = record.variants.iter().flat_map(|variants| &variants.all);
                let variants = variants.flat_map(|(_, members)| members);
                let mut members = record.members.iter().chain(variants);
                members.any(|member| self.leads(member.of, left))
            }
        };
        self.leads.insert(of, leads);
        leads
    }

    pub(super) fn elements(&mut self, elements: Elements, context: Context, left: u32) {
        let size = self.types.get(elements.of).size;
        if size == 0 || !self.leads(elements.of, MAX_DEPTH) {
            return;
        }
        for index in 0..elements.count {
            let at = size
                .checked_mul(index)
                .and_then(|by| elements.at.checked_add(by));
            let Some(at) = at.filter(|_| !self.is_over) else {
                return;
            };
            self.visit(elements.of, at, context, left);
        }
    }

    /// The type behind a vtable of a trait object.
    pub(super) fn behind_vtable(&mut self, table: u64) -> Option<TypeId> {
        (0..self.biases.len()).find_map(|file| {
            let address = table.wrapping_sub(self.biases[file]);
            self.types.behind_vtable(file, address)
        })
    }

    /// Follows the pointers of an object at an address.
    pub(super) fn visit(&mut self, of: TypeId, at: u64, context: Context, left: u32) {
        let Some(left) = left.checked_sub(1) else {
            return;
        };
        if !self.leads(of, MAX_DEPTH) || self.ends() {
            return;
        }
        let found = self.types.get(of);
        match &found.layout {
            Layout::Scalar => {}
            Layout::Pointer(to) => {
                if let Some(to) = to {
                    self.pointer(at, *to, context);
                }
            }
            Layout::Array(of, count) => {
                let count = count.unwrap_or(0);
                self.elements(Elements { at, count, of: *of }, context, left);
            }
            Layout::Record(record) => {
                let context = self.enter(of, &found, record, at, context);
                self.record((&found, record), at, context, left);
            }
        }
    }

    /// The context of the members of a record.
    fn enter(
        &mut self,
        id: TypeId,
        of: &Type,
        record: &Record,
        at: u64,
        mut context: Context,
    ) -> Context {
        let head = of.head();
        if !containers::is_library(&of.name) {
            // A type without a name is a part of the one around it.
            let owner = match of.name.is_empty() || of.name.ends_with("::") {
                true => context.owner,
                false => Some(id),
            };
            return Context {
                owner,
                ..Context::default()
            };
        }
        if context.container.is_none() && containers::is_container(head) {
            context.container = Some(id);
        }
        if containers::is_cell(head) {
            context.is_cell = true;
        }
        if let Some(node) = containers::node_of(&mut self.types, of) {
            context.node = Some(node);
        }
        self.enter_rust(head, record, at, context)
    }

    fn record(&mut self, (of, record): (&Type, &Record), at: u64, context: Context, left: u32) {
        let head = of.head();
        if containers::is_storage(head) {
            if let Some(of) = containers::stored(of) {
                self.visit(of, at, context.owned(), left);
            }
            return;
        }
        if head == containers::OPTIONAL {
            let exists = self.member_number(record, "_M_engaged", at) == Some(1);
            let stored = record.member("_M_payload").zip(containers::stored(of));
            if let Some((payload, of)) = stored.filter(|_| exists) {
                self.visit(of, at.wrapping_add(payload.offset), context, left);
            }
            return;
        }
        if self.is_buffer(record, at, context)
            || self.is_deque(record, at, context)
            || self.is_fat_pointer(record, at, context, left)
            || self.is_table(of, record, at, context, left)
            || self.is_tree(head, record, at, context, left)
        {
            return;
        }
        // Which member of a union exists is not known, except in storage of one object that is zero without it.
        if record.is_union && !context.is_cell {
            return;
        }
        let within = match record.is_union {
            true => Context {
                is_cell: false,
                ..context
            },
            false => context,
        };
        for member in &record.members {
            if !containers::is_past_end(&member.name) {
                self.visit(member.of, at.wrapping_add(member.offset), within, left);
            }
        }
        if let Some(variants) = &record.variants {
            self.variants(variants, at, context, left);
        }
    }
}
