//! Recognizes Python's types. An address is that of a type only if the chain of `ob_type` from there ends at `type`,
//! which is its own type.

use std::collections::HashMap;

use super::super::memory::Memory;
use super::super::snapshot::Snapshot;
use super::super::source::Source;
use super::arenas;
use super::head::Head;
use memprof_sys::ids::Addr;
use memprof_sys::residency::Vma;
use memprof_sys::target_file::{ReadAt, TargetFile};

/// Offsets in `PyTypeObject`, after its head.
const NAME: u64 = 8;
const BASIC_SIZE: u64 = 16;
const FLAGS: u64 = 152;

/// `Py_TPFLAGS_READY` and other flags.
const READY: u64 = 1 << 12;
const HAVE_GC: u64 = 1 << 14;
/// `Py_TPFLAGS_PREHEADER`: 3.11 and later, unused before.
const PRE_HEADER: u64 = 3 << 3;
const IS_LIST: u64 = 1 << 25;
const IS_TEXT: u64 = 1 << 28;
const IS_DICT: u64 = 1 << 29;
const IS_TYPE: u64 = 1 << 31;
/// Bytes in front of an object whose type has that flag.
const PRE_HEADER_SIZE: u64 = 16;

/// Maximum plausible size of an object's fixed part, in bytes.
const MAX_BASIC_SIZE: u64 = 1 << 20;
/// Maximum length of the chain of `ob_type`.
const MAX_CHAIN: u32 = 16;
/// Maximum length of a type's name, in bytes. Longer names are truncated.
const MAX_NAME: usize = 200;
/// Maximum number of types to distinguish.
const MAX_TYPES: usize = 1 << 16;

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Type {
    /// Name of the type (`tp_name`).
    pub name: String,
    /// Bytes in front of its objects in their blocks.
    pub before: u64,
    /// The last of these bytes that are the garbage collector's links.
    pub links: u64,
    /// Minimum size of its objects, in bytes.
    pub least_size: u64,
    /// When the references of its objects are read.
    pub turn: Turn,
}

/// The order in which objects are read. Memory belongs to the first object that refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Lists and dicts, most of whose memory is in separate blocks.
    Collections,
    /// Most objects.
    Others,
    /// Texts: the rest of a text's block may have remains of earlier contents.
    Texts,
}

impl Turn {
    pub(super) const ALL: [Turn; 3] = [Turn::Collections, Turn::Others, Turn::Texts];

    /// The turn of objects whose type has these flags.
    fn of_flags(flags: u64) -> Turn {
        match flags {
            _ if flags & (IS_LIST | IS_DICT) != 0 => Turn::Collections,
            _ if flags & IS_TEXT != 0 => Turn::Texts,
            _ => Turn::Others,
        }
    }
}

/// The types found so far.
#[derive(Debug)]
pub(super) struct Types<'a> {
    memory: &'a Memory,
    /// Layout of the heads of objects, also of types.
    pub head: Head,
    texts: Texts<'a>,
    /// Index in `all` by address.
    known: HashMap<u64, u32>,
    all: Vec<Type>,
    /// The previous lookup: address and result.
    last: (u64, Option<u32>),
    /// Address of `type` itself.
    root: Option<u64>,
}

impl<'a> Types<'a> {
    pub(super) fn new(
        memory: &'a Memory,
        vmas: &'a [Vma],
        source: Source<'a>,
        head: Head,
    ) -> Types<'a> {
        Types {
            memory,
            head,
            texts: Texts {
                source,
                memory,
                vmas,
                files: HashMap::new(),
            },
            known: HashMap::new(),
            all: Vec::new(),
            last: (0, None),
            root: None,
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&Type> {
        self.all.get(index as usize)
    }

    pub(super) fn into_types(self) -> Vec<Type> {
        self.all
    }

    /// Index of the type at an address, if there is one.
    pub(super) fn at(&mut self, addr: u64) -> Option<u32> {
        if self.last.0 != addr {
            self.last = (addr, self.look(addr, MAX_CHAIN));
        }
        self.last.1
    }

    fn look(&mut self, addr: u64, left: u32) -> Option<u32> {
        if let Some(index) = self.known.get(&addr) {
            return Some(*index);
        }
        if addr == 0 || !addr.is_multiple_of(8) || self.all.len() == MAX_TYPES {
            return None;
        }
        let (memory, head) = (self.memory, self.head);
        let field = |of: u64, at| memory.word(of.checked_add(head.size() + at)?);
        let flags = field(addr, FLAGS)?;
        let basic_size = field(addr, BASIC_SIZE)?;
        let (own, name) = (head.type_of(memory, addr)?, field(addr, NAME)?);
        if flags & READY == 0 || !(head.size()..=MAX_BASIC_SIZE).contains(&basic_size) {
            return None;
        }
        let name = if own == addr {
            let name = self.texts.at(name)?;
            (name == "type" && self.root.is_none_or(|root| root == addr)).then_some(())?;
            self.root = Some(addr);
            name
        } else {
            (field(own, FLAGS)? & IS_TYPE != 0).then_some(())?;
            self.look(own, left.checked_sub(1)?)?;
            self.texts.at(name)?
        };
        let index = self.all.len() as u32;
        let if_flag = |flag, bytes| if flags & flag == 0 { 0 } else { bytes };
        let links = if_flag(HAVE_GC, head.links());
        self.all.push(Type {
            name,
            before: links + if_flag(PRE_HEADER, PRE_HEADER_SIZE),
            links,
            least_size: least_size(head, flags, basic_size),
            turn: Turn::of_flags(flags),
        });
        self.known.insert(addr, index);
        Some(index)
    }
}

/// The minimum size of objects of a type with this fixed part (`tp_basicsize`). That of `str` is the size of its largest form: a
/// compact ASCII text has its characters in place of the last fields (`PyASCIIObject`, not `PyUnicodeObject`). Other types with
/// this flag are classes derived from `str`, whose objects are never compact.
fn least_size(head: Head, flags: u64, basic_size: u64) -> u64 {
    match (flags & IS_TEXT, head, basic_size) {
        (IS_TEXT, Head::WithLock, 80) => 48,
        // 3.12 and later.
        (IS_TEXT, Head::WithLock, 64) => 40,
        (IS_TEXT, Head::FreeThreaded, 80) => 56,
        (.., size) => size,
    }
}

/// The heads of the objects of the process's interpreter: those with which an address in its data is that of `type`, which
/// is its own type. `None` without an interpreter.
pub(super) fn head(source: Source<'_>, snapshot: &Snapshot) -> Option<Head> {
    let (memory, vmas) = (&snapshot.memory, &snapshot.vmas);
    let mut types = Head::ALL.map(|head| Types::new(memory, vmas, source, head));
    let mut places = arenas::data(memory, vmas)
        .into_iter()
        .flat_map(|(start, end)| (start..end).step_by(8));
    places.find_map(|at| {
        let mut types = types.iter_mut();
        let own = types.find(|types| types.head.type_of(memory, at) == Some(at))?;
        own.at(at).map(|_| own.head)
    })
}

/// Reads text from the process's memory, and from mapped files where memory is unchanged and therefore was not
/// copied.
#[derive(Debug)]
struct Texts<'a> {
    source: Source<'a>,
    memory: &'a Memory,
    vmas: &'a [Vma],
    /// The files, by the index of their mapping.
    files: HashMap<usize, Option<TargetFile>>,
}

impl Texts<'_> {
    /// The text that begins at an address, if it is printable and not empty.
    fn at(&mut self, addr: u64) -> Option<String> {
        let mut bytes = [0; MAX_NAME];
        let bytes = match self.memory.from(addr) {
            Some(copied) => &copied[..copied.len().min(MAX_NAME)],
            None => {
                let got = self.in_file(addr, &mut bytes)?;
                &bytes[..got]
            }
        };
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        let text = String::from_utf8_lossy(&bytes[..end]);
        // A truncated name may end within a character.
        let text = text.trim_end_matches('\u{fffd}');
        let fits = !text.is_empty() && !text.contains(|c: char| c.is_control() || c == '\u{fffd}');
        fits.then(|| text.to_owned())
    }

    fn in_file(&mut self, addr: u64, bytes: &mut [u8]) -> Option<usize> {
        let index = self.vmas.partition_point(|vma| vma.end.0 <= addr);
        let vma = self
            .vmas
            .get(index)
            .filter(|vma| vma.contains(Addr(addr)))?;
        if vma.ino == 0 || vma.perms.shared {
            return None;
        }
        let source = self.source;
        let file = self
            .files
            .entry(index)
            .or_insert_with(|| source.file_of(vma));
        let inside = addr - vma.start.0;
        let len = bytes.len().min((vma.end.0 - addr) as usize);
        let at = vma.file_offset.checked_add(inside)?;
        file.as_ref()?.read_at(&mut bytes[..len], at).ok()
    }
}
