//! The schema of a saved profile. The first two fields identify the file, so that a foreign file or another version is
//! reported as such, whatever follows.

use std::borrow::Cow;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::cgroup::Cgroup;
use super::forms::{ByName, List};
use super::frame::NamedFrame;
use super::parts::{Mapping, Uncertainty};
use super::{FORMAT, VERSION};
use crate::{
    Amounts, CodeLayout, Ended, Faults, FreezeOutcome, KnownPath, NotObserved, OomKills, Outcome,
    Peak, TargetInfo,
};
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::process::Container;

/// Marks the end of the message about a version inside a JSON error.
pub const VERSION_MARK: char = '\u{1}';

/// Limits of lists whose entries can take much more memory than their text.
const MAX_MODULES: usize = u16::MAX as usize;
const MAX_FRAMES: usize = 4 << 20;
const MAX_LOSSES: usize = 1000;
const MAX_MEASURES: usize = 100;

/// The whole file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Whole<'a> {
    pub format: Format,
    pub version: Version,
    pub report: u64,
    pub taken_unix_ms: u64,
    /// Nanoseconds after `taken_unix_ms`.
    pub taken_ns: u32,
    pub followed_ms: u64,
    pub target: Cow<'a, TargetInfo>,
    #[serde(skip_deserializing)]
    pub stopped_us: Option<u128>,
    #[serde(skip_deserializing)]
    pub stopped_in_turn: bool,
    #[serde(skip_deserializing)]
    pub freeze_error: Option<&'a str>,
    pub freeze: Cow<'a, FreezeOutcome>,
    pub measures: List<'a, Cow<'a, str>, MAX_MEASURES>,
    /// Whether each optional measure was counted, as fields `NAMECounted`.
    #[serde(flatten, skip_deserializing)]
    pub counted: ByName<bool, MAX_MEASURES>,
    /// If the stacks of some faults were not unwound, bytes by stack are estimates. `null` if faults had no hook.
    pub faults: Option<Faults>,
    pub total: Amounts,
    pub kernel_before: KernelFigures,
    pub kernel_after: KernelFigures,
    pub losses: ByName<u64, MAX_LOSSES>,
    /// Absent if no process was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<OomKills>,
    /// Absent if no control group was followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Cgroup>,
    /// Absent if the peak is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    /// Absent if there are several processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_peak: Option<Peak>,
    /// Absent if no process has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Cow<'a, Ended>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names_advice: Option<Cow<'a, str>>,
    pub modules: List<'a, Module<'a>, MAX_MODULES>,
    pub frames: List<'a, NamedFrame, MAX_FRAMES>,
    pub stacks: List<'a, Stack>,
    pub not_observed: Cow<'a, [NotObserved]>,
    /// The errors of `stacks`.
    pub uncertainties: List<'a, Uncertainty>,
    /// Stacks that occur only in `processes` or `files`, numbered after those in `stacks`.
    pub other_stacks: List<'a, OtherStack>,
    pub processes: List<'a, Process<'a>>,
    pub mappings: List<'a, Mapping<'a>>,
    pub files: List<'a, File<'a>>,
    pub other_files: u64,
}

/// The field `format`.
pub(super) struct Format;

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(FORMAT)
    }
}

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
pub(super) struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u32(VERSION)
    }
}

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

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Module<'a> {
    pub name: Cow<'a, str>,
    pub path: Cow<'a, str>,
    pub own_executable: bool,
    /// The language of a source file of an interpreted program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Cow<'a, str>>,
    /// The language of a source file whose functions are JIT code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made_at_run_time: Option<Cow<'a, str>>,
    /// `null` if the file could not be read.
    pub layout: Option<Cow<'a, CodeLayout>>,
}

/// A stack, with the numbers of its frames.
#[derive(Serialize, Deserialize)]
pub(super) struct Stack {
    pub bytes: Amounts,
    pub outcome: Outcome,
    pub frames: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct OtherStack {
    pub outcome: Outcome,
    pub frames: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Process<'a> {
    pub pid: Pid,
    pub comm: Cow<'a, str>,
    /// Absent in older files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Cow<'a, Container>>,
    /// Numbers of stacks.
    pub stacks: List<'a, (u32, Amounts)>,
    pub not_observed: Cow<'a, [NotObserved]>,
    pub total: Amounts,
    pub uncertainties: List<'a, Uncertainty>,
    pub kernel_before: KernelFigures,
    pub kernel_after: KernelFigures,
    pub freeze: Cow<'a, FreezeOutcome>,
    /// Absent if the peak is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
}

/// A file in the page cache, with the numbers of the stacks that brought in its pages.
#[derive(Serialize, Deserialize)]
pub(super) struct File<'a> {
    pub device: (u32, u32),
    pub inode: u64,
    pub path: Option<Cow<'a, KnownPath>>,
    pub stacks: List<'a, (u32, Amounts)>,
    pub lost: u64,
}
