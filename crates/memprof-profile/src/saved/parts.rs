//! Parts of a saved profile whose form is the same for writing and reading.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::measure::ColumnId;
use crate::{
    self as profile, Amounts, CodeLayout, CodeSegment, FreezeOutcome, KnownPath, MappedBytes,
    PathFrom, UncertaintyOf,
};
use memprof_sys::ids::Pid;
use memprof_sys::residency::{Category, PageKind};
use memprof_sys::text::hex;
use memprof_sys::usage::Usage;

/// The kinds of resident bytes; `anon` and so on.
#[derive(Serialize, Deserialize)]
pub(super) struct Bytes {
    anon: u64,
    shmem: u64,
    cache: u64,
    file: u64,
    swap: u64,
    hugetlb: u64,
}

impl From<Usage> for Bytes {
    fn from(usage: Usage) -> Bytes {
        let Usage {
            anon,
            shmem,
            file,
            swap,
            hugetlb,
            cache,
        } = usage;
        Bytes {
            anon,
            shmem,
            cache,
            file,
            swap,
            hugetlb,
        }
    }
}

impl From<&Bytes> for Usage {
    fn from(bytes: &Bytes) -> Usage {
        Usage {
            anon: bytes.anon,
            shmem: bytes.shmem,
            file: bytes.file,
            swap: bytes.swap,
            hugetlb: bytes.hugetlb,
            cache: bytes.cache,
        }
    }
}

impl From<&Bytes> for Amounts {
    fn from(bytes: &Bytes) -> Amounts {
        Usage::from(bytes).into()
    }
}

/// Whether the target was frozen, in nanoseconds.
#[derive(Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Freeze {
    /// It ran.
    Ran,
    #[serde(rename_all = "camelCase")]
    /// All processes were stopped at the same time.
    Still {
        /// How long the stop lasted, in ns.
        lasted_ns: u64,
    },
    #[serde(rename = "in turn", rename_all = "camelCase")]
    /// The processes were stopped one after the other.
    InTurn {
        /// The longest stop, in ns.
        longest_ns: u64,
        /// The sum of all stops, in ns.
        sum_ns: u64,
    },
    #[serde(rename_all = "camelCase")]
    /// The processes could not be stopped.
    Failed {
        /// The reason.
        why: String,
        /// How long processes were stopped in vain, in ns.
        stood_ns: u64,
    },
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl From<&FreezeOutcome> for Freeze {
    fn from(freeze: &FreezeOutcome) -> Freeze {
        match freeze {
            FreezeOutcome::Ran => Freeze::Ran,
            FreezeOutcome::Still(lasted) => Freeze::Still {
                lasted_ns: nanos(*lasted),
            },
            FreezeOutcome::InTurn { longest, sum } => Freeze::InTurn {
                longest_ns: nanos(*longest),
                sum_ns: nanos(*sum),
            },
            FreezeOutcome::Failed { why, stood } => Freeze::Failed {
                why: why.clone(),
                stood_ns: nanos(*stood),
            },
        }
    }
}

impl From<Freeze> for FreezeOutcome {
    fn from(freeze: Freeze) -> FreezeOutcome {
        let time = Duration::from_nanos;
        match freeze {
            Freeze::Ran => FreezeOutcome::Ran,
            Freeze::Still { lasted_ns } => FreezeOutcome::Still(time(lasted_ns)),
            Freeze::InTurn { longest_ns, sum_ns } => FreezeOutcome::InTurn {
                longest: time(longest_ns),
                sum: time(sum_ns),
            },
            Freeze::Failed { why, stood_ns } => FreezeOutcome::Failed {
                why,
                stood: time(stood_ns),
            },
        }
    }
}

/// `[kind of pages or column, [part, …]]`, where a part is `[stack, share, variance, variance of one sample]`; no stack is
/// `null`.
#[derive(Serialize, Deserialize)]
pub struct Uncertainty(Of, Vec<UncertainPart>);

#[derive(Serialize, Deserialize)]
struct UncertainPart(Option<u32>, f64, f64, f64);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Of {
    Pages(Pages),
    Column(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Pages {
    Anon,
    Shmem,
    File,
    Swap,
    Hugetlb,
}

impl From<&profile::Uncertainty> for Uncertainty {
    fn from(uncertainty: &profile::Uncertainty) -> Uncertainty {
        let of = match uncertainty.of {
            UncertaintyOf::Pages(PageKind::Anon) => Of::Pages(Pages::Anon),
            UncertaintyOf::Pages(PageKind::Shmem) => Of::Pages(Pages::Shmem),
            UncertaintyOf::Pages(PageKind::File) => Of::Pages(Pages::File),
            UncertaintyOf::Pages(PageKind::Swap) => Of::Pages(Pages::Swap),
            UncertaintyOf::Pages(PageKind::Hugetlb) => Of::Pages(Pages::Hugetlb),
            UncertaintyOf::Column(id) => Of::Column(id.column().name.to_owned()),
        };
        let part = |part: &profile::UncertainPart| {
            UncertainPart(part.sample, part.share, part.variance, part.single)
        };
        Uncertainty(of, uncertainty.parts.iter().map(part).collect())
    }
}

impl TryFrom<Uncertainty> for profile::Uncertainty {
    type Error = String;

    fn try_from(Uncertainty(of, parts): Uncertainty) -> Result<profile::Uncertainty, String> {
        let of = match of {
            Of::Pages(Pages::Anon) => UncertaintyOf::Pages(PageKind::Anon),
            Of::Pages(Pages::Shmem) => UncertaintyOf::Pages(PageKind::Shmem),
            Of::Pages(Pages::File) => UncertaintyOf::Pages(PageKind::File),
            Of::Pages(Pages::Swap) => UncertaintyOf::Pages(PageKind::Swap),
            Of::Pages(Pages::Hugetlb) => UncertaintyOf::Pages(PageKind::Hugetlb),
            Of::Column(name) => match ColumnId::by_name(&name) {
                Some(id) => UncertaintyOf::Column(id),
                None => return Err(format!("an error is of the unknown kind {name:?}")),
            },
        };
        let part = |UncertainPart(sample, share, variance, single)| profile::UncertainPart {
            sample,
            share,
            variance,
            single,
        };
        Ok(profile::Uncertainty {
            of,
            parts: parts.into_iter().map(part).collect(),
        })
    }
}

/// A mapping; addresses are numbers.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mapping {
    pid: u32,
    start: u64,
    end: u64,
    permissions: String,
    name: String,
    /// Profiles that were saved before memprof had categories lack it.
    #[serde(default)]
    category: Option<MappingCategory>,
    attributed: Bytes,
    not_observed: Bytes,
    huge: u64,
}

impl From<&profile::Mapping> for Mapping {
    fn from(mapping: &profile::Mapping) -> Mapping {
        Mapping {
            pid: mapping.pid.0,
            start: mapping.start,
            end: mapping.end,
            permissions: mapping.permissions.clone(),
            name: mapping.name.clone(),
            category: Some(MappingCategory(mapping.category.name().to_owned())),
            attributed: mapping.bytes.attributed.into(),
            not_observed: mapping.bytes.not_observed.into(),
            huge: mapping.bytes.huge,
        }
    }
}

/// The name of a category.
#[derive(Serialize)]
struct MappingCategory(String);

impl<'de> Deserialize<'de> for MappingCategory {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<MappingCategory, D::Error> {
        let name = String::deserialize(d)?;
        match Category::by_name(&name, "") {
            Some(_) => Ok(MappingCategory(name)),
            None => Err(D::Error::custom("a mapping has an unknown category")),
        }
    }
}

impl From<Mapping> for profile::Mapping {
    fn from(mapping: Mapping) -> profile::Mapping {
        let (name, permissions) = (&mapping.name, &mapping.permissions);
        let named = mapping.category.as_ref();
        let category = named.and_then(|category| Category::by_name(&category.0, permissions));
        profile::Mapping {
            category: category.unwrap_or_else(|| Category::guess(name, permissions)),
            pid: Pid(mapping.pid),
            start: mapping.start,
            end: mapping.end,
            permissions: mapping.permissions,
            name: mapping.name,
            bytes: MappedBytes {
                attributed: (&mapping.attributed).into(),
                not_observed: (&mapping.not_observed).into(),
                huge: mapping.huge,
            },
        }
    }
}

/// A known path of a cached file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Path {
    path: String,
    deleted: bool,
    from: Source,
    seen_unix_ms: u64,
}

#[derive(Serialize, Deserialize)]
enum Source {
    #[serde(rename = "open file")]
    OpenFile,
    #[serde(rename = "mapping")]
    Mapping,
    #[serde(rename = "directory")]
    Directory,
}

/// Milliseconds since 1970, rounded down.
pub fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// That many milliseconds after 1970; 1970 if the system's time cannot express it.
pub(super) fn time(unix_ms: u64, further_ns: u32) -> SystemTime {
    let since = Duration::from_millis(unix_ms) + Duration::from_nanos(further_ns.into());
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

impl From<&KnownPath> for Path {
    fn from(known: &KnownPath) -> Path {
        Path {
            path: known.path.clone(),
            deleted: known.deleted,
            from: match known.from {
                PathFrom::OpenFile => Source::OpenFile,
                PathFrom::Mapping => Source::Mapping,
                PathFrom::Directory => Source::Directory,
            },
            seen_unix_ms: unix_ms(known.seen),
        }
    }
}

impl From<Path> for KnownPath {
    fn from(path: Path) -> KnownPath {
        KnownPath {
            path: path.path,
            deleted: path.deleted,
            from: match path.from {
                Source::OpenFile => PathFrom::OpenFile,
                Source::Mapping => PathFrom::Mapping,
                Source::Directory => PathFrom::Directory,
            },
            seen: time(path.seen_unix_ms, 0),
        }
    }
}

/// The build id in hexadecimal, and `[offset, address, size]` of each code segment.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    build_id: Digits,
    code_segments: Vec<(u64, u64, u64)>,
}

struct Digits(Vec<u8>);

impl Serialize for Digits {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Digits {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Digits, D::Error> {
        let text = String::deserialize(d)?;
        let digit = |c: u8| (c as char).to_digit(16);
        let byte = |pair: &[u8]| match pair {
            [a, b] => Some((digit(*a)? << 4 | digit(*b)?) as u8),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        let bytes = bytes.ok_or_else(|| D::Error::custom("buildId must be hexadecimal digits"))?;
        Ok(Digits(bytes))
    }
}

impl From<&CodeLayout> for Layout {
    fn from(layout: &CodeLayout) -> Layout {
        let segments = layout.segments.iter();
        Layout {
            build_id: Digits(layout.build_id.clone()),
            code_segments: segments.map(|s| (s.offset, s.address, s.size)).collect(),
        }
    }
}

impl From<Layout> for CodeLayout {
    fn from(layout: Layout) -> CodeLayout {
        let segments = layout.code_segments.into_iter();
        CodeLayout {
            build_id: layout.build_id.0,
            segments: segments
                .map(|(offset, address, size)| CodeSegment {
                    offset,
                    address,
                    size,
                })
                .collect(),
        }
    }
}
