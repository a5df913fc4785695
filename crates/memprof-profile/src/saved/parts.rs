//! Errors and mappings of a saved profile.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::measure::ColumnId;
use crate::{self as profile, MappedBytes, UncertaintyOf};
use memprof_sys::ids::Pid;
use memprof_sys::residency::{Category, PageKind};
use memprof_sys::usage::Usage;

/// `[kind of pages or column, [part, …]]`. A part is `[stack, share, variance, variance of one sample]`; the stack is
/// `null` for memory outside the samples.
#[derive(Serialize, Deserialize)]
pub(super) struct Uncertainty(Of, Vec<UncertainPart>);

#[derive(Serialize, Deserialize)]
struct UncertainPart(Option<u32>, f64, f64, f64);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Of {
    Pages(PageKind),
    Column(String),
}

impl From<&profile::Uncertainty> for Uncertainty {
    fn from(uncertainty: &profile::Uncertainty) -> Uncertainty {
        let of = match uncertainty.of {
            UncertaintyOf::Pages(kind) => Of::Pages(kind),
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
            Of::Pages(kind) => UncertaintyOf::Pages(kind),
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

/// A mapping. Addresses are numbers.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mapping<'a> {
    pid: Pid,
    start: u64,
    end: u64,
    permissions: Cow<'a, str>,
    name: Cow<'a, str>,
    /// Absent in profiles that were saved before memprof had categories.
    #[serde(default)]
    category: Option<MappingCategory<'a>>,
    attributed: Usage,
    not_observed: Usage,
    huge: u64,
}

impl<'a> From<&'a profile::Mapping> for Mapping<'a> {
    fn from(mapping: &'a profile::Mapping) -> Mapping<'a> {
        Mapping {
            pid: mapping.pid,
            start: mapping.start,
            end: mapping.end,
            permissions: (&mapping.permissions).into(),
            name: (&mapping.name).into(),
            category: Some(MappingCategory(mapping.category.name().into())),
            attributed: mapping.bytes.attributed,
            not_observed: mapping.bytes.not_observed,
            huge: mapping.bytes.huge,
        }
    }
}

/// The name of a category, checked when read.
#[derive(Serialize)]
struct MappingCategory<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for MappingCategory<'_> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = String::deserialize(d)?;
        match Category::by_name(&name, "") {
            Some(_) => Ok(MappingCategory(name.into())),
            None => Err(D::Error::custom("a mapping has an unknown category")),
        }
    }
}

impl From<Mapping<'_>> for profile::Mapping {
    fn from(mapping: Mapping<'_>) -> profile::Mapping {
        let (name, permissions) = (&mapping.name, &mapping.permissions);
        let named = mapping.category.as_ref();
        let category = named.and_then(|category| Category::by_name(&category.0, permissions));
        profile::Mapping {
            category: category.unwrap_or_else(|| Category::guess(name, permissions)),
            pid: mapping.pid,
            start: mapping.start,
            end: mapping.end,
            permissions: mapping.permissions.into_owned(),
            name: mapping.name.into_owned(),
            bytes: MappedBytes {
                attributed: mapping.attributed,
                not_observed: mapping.not_observed,
                huge: mapping.huge,
            },
        }
    }
}
