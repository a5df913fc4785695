//! The schema of a saved profile, as it is read. The first two fields identify the file, so that a foreign file or another
//! version is reported as such, whatever follows.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::cgroup::Cgroup;
use super::figures::Figures;
use super::oom_kills::OomKills;
use super::parts::{Freeze, Layout, Mapping, Path, Uncertainty};
use super::place::ContainerLabels;
use super::{FORMAT, VERSION};
use crate::symbol::{
    Function, InlinedFunction, Language, Location, Symbol, UnknownReason, UnnamedFunction,
};
use crate::{self as profile, Frame, ModuleId, Outcome, Unobserved};
use memprof_sys::kernel_figures::KernelFigures;

/// Marks the end of the message about a version inside a JSON error.
pub const VERSION_MARK: char = '\u{1}';

/// Limits of lists whose entries can take much more memory than their text.
const MAX_MODULES: usize = u16::MAX as usize;
const MAX_FRAMES: usize = 4 << 20;
const MAX_LOSSES: usize = 1000;
const MAX_MEASURES: usize = 100;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Whole {
    #[serde(rename = "format")]
    _format: Format,
    #[serde(rename = "version")]
    _version: Version,
    pub report: u64,
    pub taken_unix_ms: u64,
    pub taken_ns: u32,
    pub followed_ms: u64,
    pub target: Target,
    pub freeze: Freeze,
    pub measures: Bounded<String, MAX_MEASURES>,
    pub faults: Option<Faults>,
    pub total: Figures,
    pub kernel_before: Kernel,
    pub kernel_after: Kernel,
    pub losses: Losses,
    /// Absent if no process was killed.
    pub oom_kills: Option<OomKills>,
    /// Absent if no control group was followed.
    pub cgroup: Option<Cgroup>,
    /// Absent if no process has ended.
    pub ended: Option<Ended>,
    pub names_advice: Option<String>,
    pub modules: Bounded<Module, MAX_MODULES>,
    pub frames: Bounded<NamedFrame, MAX_FRAMES>,
    pub stacks: Vec<Stack>,
    pub not_observed: Vec<NotObserved>,
    pub uncertainties: Vec<Uncertainty>,
    pub other_stacks: Vec<OtherStack>,
    pub processes: Vec<Process>,
    pub mappings: Vec<Mapping>,
    pub files: Vec<CachedFile>,
    pub other_files: u64,
}

/// The field `format`.
struct Format;

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Format, D::Error> {
        match String::deserialize(d)?.as_str() {
            FORMAT => Ok(Format),
            other => {
                let other: String = other.chars().take(40).collect();
                Err(D::Error::custom(format!("its format is {other:?}")))
            }
        }
    }
}

/// The field `version`.
struct Version;

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Version, D::Error> {
        let message = match u64::deserialize(d)? {
            version if version == u64::from(VERSION) => return Ok(Version),
            newer if newer > u64::from(VERSION) => format!(
                "it is a saved profile of version {newer}, and this memprof ({}) reads version {VERSION}: open it \
                 with the memprof that saved it, or a later one",
                env!("CARGO_PKG_VERSION")
            ),
            older => format!(
                "it is a saved profile of version {older}, which lacks what a profile of version {VERSION} has: \
                 save it again with this memprof"
            ),
        };
        Err(D::Error::custom(format!("{message}{VERSION_MARK}")))
    }
}

/// A list of at most `MAX` items.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Bounded<T, const MAX: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = Bounded<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    items.push(item);
                }
                Ok(Bounded(items))
            }
        }
        d.deserialize_seq(Items(PhantomData))
    }
}

/// Losses by name, in the order of the file.
pub(super) struct Losses(pub Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Losses {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Losses, D::Error> {
        struct Counts;
        impl<'de> Visitor<'de> for Counts {
            type Value = Losses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_LOSSES} counts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Losses, A::Error> {
                let mut counts = Vec::new();
                while let Some(count) = map.next_entry()? {
                    if counts.len() == MAX_LOSSES {
                        return Err(A::Error::invalid_length(MAX_LOSSES + 1, &self));
                    }
                    counts.push(count);
                }
                Ok(Losses(counts))
            }
        }
        d.deserialize_map(Counts)
    }
}

#[derive(Deserialize)]
pub(super) struct Target {
    pub pid: u32,
    pub comm: String,
    pub pids: Vec<u32>,
    pub alive: bool,
}

#[derive(Deserialize)]
pub(super) struct Faults {
    pub all: u64,
    pub unwalked: u64,
}

/// The kernel's figures.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kernel {
    pub anonymous: Option<u64>,
    pub rss_anon: u64,
    pub rss_shmem: u64,
    pub rss_file: u64,
    pub swap: u64,
    pub page_tables: u64,
}

impl From<&Kernel> for KernelFigures {
    fn from(kernel: &Kernel) -> KernelFigures {
        KernelFigures {
            anonymous: kernel.anonymous,
            rss_anon: kernel.rss_anon,
            rss_shmem: kernel.rss_shmem,
            rss_file: kernel.rss_file,
            swap: kernel.swap,
            page_tables: kernel.page_tables,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Module {
    pub name: String,
    pub path: String,
    pub own_executable: bool,
    /// The language of a source file of an interpreted program.
    pub source: Option<String>,
    /// The language of a source file whose functions are JIT code.
    pub made_at_run_time: Option<String>,
    pub layout: Option<Layout>,
}

/// A frame with its symbol, if it was looked up. Kept small, because there may be many.
#[derive(Deserialize)]
#[serde(try_from = "FrameFields")]
pub(super) struct NamedFrame {
    pub frame: Frame,
    pub symbol: Option<Arc<Symbol>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameFields {
    module: Option<u16>,
    offset: Option<u64>,
    address: Option<u64>,
    function: Option<String>,
    language: Option<String>,
    offset_in_function: Option<u64>,
    first_line: Option<u32>,
    file: Option<String>,
    line: Option<u32>,
    #[serde(default)]
    inlined: Vec<Inlined>,
    /// The substitute for the name of a function without a symbol.
    unnamed: Option<String>,
    no_name: Option<String>,
}

#[derive(Deserialize)]
struct Inlined {
    function: String,
    file: Option<String>,
    line: Option<u32>,
}

/// The text of a frame that was not looked up.
pub const NOT_LOOKED_UP: &str = "not looked up";

fn location(file: Option<String>, line: Option<u32>) -> Option<Location> {
    file.map(|file| Location { file, line })
}

impl TryFrom<FrameFields> for NamedFrame {
    type Error = String;

    fn try_from(fields: FrameFields) -> Result<NamedFrame, String> {
        let frame = match (fields.module, fields.offset, fields.address) {
            (Some(module), Some(offset), None) => {
                let frame = Frame::code(ModuleId(module), offset);
                let same = profile::FrameKind::Code(ModuleId(module), offset);
                (frame.kind() == same).then_some(frame)
            }
            (None, None, Some(address)) => {
                let frame = Frame::unmapped(address);
                (frame.kind() == profile::FrameKind::Unmapped(address)).then_some(frame)
            }
            _ => return Err("a frame has either a module and an offset, or an address".to_owned()),
        };
        let frame =
            frame.ok_or("a frame's module, offset or address is larger than any that exists")?;
        let offset_in_function = fields.offset_in_function.unwrap_or_default();
        let symbol = match (fields.function, fields.unnamed, fields.no_name) {
            (Some(name), None, None) => Some(Symbol::Known(Function {
                name,
                language: fields
                    .language
                    .and_then(|name| Language::by_name(&name))
                    .unwrap_or(Language::Other),
                offset_in_function,
                first_line: fields.first_line,
                inlined: fields
                    .inlined
                    .into_iter()
                    .map(|inlined| InlinedFunction {
                        name: inlined.function,
                        location: location(inlined.file, inlined.line),
                    })
                    .collect(),
                location: location(fields.file, fields.line),
            })),
            (None, Some(name), None) => Some(Symbol::Unnamed(UnnamedFunction {
                name,
                offset_in_function,
            })),
            (None, None, Some(why)) if why != NOT_LOOKED_UP => {
                Some(Symbol::Unknown(UnknownReason::from_text(&why)))
            }
            (None, None, _) => None,
            _ => return Err("a frame has either a function or a reason for having none".to_owned()),
        };
        Ok(NamedFrame {
            frame,
            symbol: symbol.map(Arc::new),
        })
    }
}

/// A type that is read from a label, such as the label of an unwind outcome.
macro_rules! labelled {
    ($name:ident, $of:ty, $what:literal) => {
        pub(super) struct $name(pub $of);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$name, D::Error> {
                let label = String::deserialize(d)?;
                let known = <$of>::by_label(&label).map($name);
                known.ok_or_else(|| {
                    let label: String = label.chars().take(40).collect();
                    D::Error::custom(format!(concat!("unknown ", $what, " {:?}"), label))
                })
            }
        }
    };
}

labelled!(Ending, Outcome, "outcome");
labelled!(Reason, Unobserved, "reason");

#[derive(Deserialize)]
pub(super) struct Stack {
    pub bytes: Figures,
    pub outcome: Ending,
    pub frames: Vec<u32>,
}

#[derive(Deserialize)]
pub(super) struct OtherStack {
    pub outcome: Ending,
    pub frames: Vec<u32>,
}

#[derive(Deserialize)]
pub(super) struct NotObserved {
    pub bytes: Figures,
    pub mapping: String,
    pub reason: Reason,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Process {
    pub pid: u32,
    pub comm: String,
    /// Absent in older files.
    pub place: Option<ContainerLabels>,
    pub stacks: Vec<(u32, Figures)>,
    pub not_observed: Vec<NotObserved>,
    pub total: Figures,
    pub uncertainties: Vec<Uncertainty>,
    pub kernel_before: Kernel,
    pub kernel_after: Kernel,
    pub freeze: Freeze,
}

#[derive(Deserialize)]
pub(super) struct Ended {
    pub processes: Bounded<EndedProcess, { profile::Ended::MAX_PROCESSES }>,
    pub unscanned: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndedProcess {
    pub pid: u32,
    pub comm: String,
    pub place: Option<ContainerLabels>,
    pub total: Figures,
    pub scanned_unix_ms: u64,
    pub ended_unix_ms: u64,
}

#[derive(Deserialize)]
pub(super) struct CachedFile {
    pub device: (u32, u32),
    pub inode: u64,
    pub path: Option<Path>,
    pub stacks: Vec<(u32, Figures)>,
    pub lost: u64,
}
