//! The memory charged to the followed control group, in the form of saved profiles.

use std::borrow::Cow;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::forms::bounded;
use crate::CgroupMemory;
use memprof_sys::residency::cgroup::{GroupFigures, Version};

/// Maximum number of parts of the kernel's memory.
const MAX_PARTS: usize = 100;

/// The directory of the group, and the memory charged to it or the reason why it is unknown.
#[derive(Serialize, Deserialize)]
pub(super) struct Cgroup {
    path: String,
    charged: Result<Charged, String>,
}

/// Figures in bytes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Charged {
    version: u8,
    usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<u64>,
    moved: u64,
    anon: u64,
    shmem: u64,
    file: u64,
    mapped: u64,
    swap_cache: u64,
    kernel: u64,
    #[serde(deserialize_with = "bounded::<MAX_PARTS, (String, u64), _, _>")]
    kernel_parts: Vec<(String, u64)>,
    sock: u64,
    hugetlb: u64,
    oom_kills: Option<u64>,
    limit: Option<u64>,
    tolerance: u64,
}

impl From<&CgroupMemory> for Cgroup {
    fn from(group: &CgroupMemory) -> Cgroup {
        let charged =
            |(version, figures): &(Version, GroupFigures)| Charged::from_figures(*version, figures);
        Cgroup {
            path: group.dir.to_string_lossy().into_owned(),
            charged: group.charged.as_ref().map(charged).map_err(Clone::clone),
        }
    }
}

impl Charged {
    fn from_figures(version: Version, figures: &GroupFigures) -> Charged {
        let parts = figures.kernel_parts.iter();
        Charged {
            version: version.number(),
            usage: figures.usage,
            peak: figures.peak,
            moved: figures.moved,
            anon: figures.anon,
            shmem: figures.shmem,
            file: figures.file,
            mapped: figures.mapped,
            swap_cache: figures.swap_cache,
            kernel: figures.kernel,
            kernel_parts: parts
                .map(|(name, bytes)| (name.to_string(), *bytes))
                .collect(),
            sock: figures.sock,
            hugetlb: figures.hugetlb,
            oom_kills: figures.oom_kills,
            limit: figures.limit,
            tolerance: figures.tolerance,
        }
    }
}

impl Cgroup {
    /// Converts and checks the group. `figure` is called with each figure that is added up, and rejects impossible ones.
    ///
    /// # Errors
    /// The error of `figure`, or a message about an unknown version.
    pub(super) fn read(
        self,
        figure: &mut dyn FnMut(u64) -> Result<u64, String>,
    ) -> Result<CgroupMemory, String> {
        let charged = match self.charged {
            Ok(charged) => Ok(charged.read(figure)?),
            Err(why) => Err(why),
        };
        Ok(CgroupMemory {
            dir: self.path.into(),
            charged,
        })
    }
}

impl Charged {
    fn read(
        self,
        figure: &mut dyn FnMut(u64) -> Result<u64, String>,
    ) -> Result<(Version, GroupFigures), String> {
        let version = match self.version {
            1 => Version::One,
            2 => Version::Two,
            other => return Err(format!("control groups have no version {other}")),
        };
        let parts = self.kernel_parts.into_iter();
        let parts = parts.map(|(name, bytes)| Ok((Cow::Owned(name), figure(bytes)?)));
        let kernel_parts = parts.collect::<Result<_, String>>()?;
        let figures = GroupFigures {
            usage: self.usage.map(&mut *figure).transpose()?,
            peak: self.peak,
            moved: figure(self.moved)?,
            anon: figure(self.anon)?,
            shmem: figure(self.shmem)?,
            file: figure(self.file)?,
            mapped: figure(self.mapped)?,
            swap_cache: figure(self.swap_cache)?,
            kernel: figure(self.kernel)?,
            kernel_parts,
            sock: figure(self.sock)?,
            hugetlb: figure(self.hugetlb)?,
            oom_kills: self.oom_kills,
            limit: self.limit,
            tolerance: figure(self.tolerance)?,
        };
        Ok((version, figures))
    }
}

/// The form of saved profiles.
impl Serialize for CgroupMemory {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Cgroup::from(self).serialize(s)
    }
}

/// Figures are not added up here: the reader of saved profiles does that.
impl<'de> Deserialize<'de> for CgroupMemory {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<CgroupMemory, D::Error> {
        let group = Cgroup::deserialize(d)?;
        group.read(&mut Ok).map_err(D::Error::custom)
    }
}
