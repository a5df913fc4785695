//! Parameters of a tree: direction, merging, limits, and the search.

use super::ApiError;
use super::query::{Query, bad};
use crate::export::tree::v2::{NODES, Shape};
use memprof_profile::Kind;
use memprof_profile::tree::{Direction, Find, FunctionId, Limits, Merge, Naming, Reading, Search};

/// Maximum number of nodes.
const MAX_NODES: u64 = 200_000;

/// Maximum length of a search text, in bytes.
pub(super) const LONGEST_SEARCH: usize = 256;

/// Maximum length of the name and the path of one function, in bytes.
const LONGEST_NAME: usize = 4096;

/// The kind of bytes; `all` by default.
pub(super) fn kind(query: &Query) -> Result<Kind, ApiError> {
    let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
    Ok(query.word("kind", kinds)?.unwrap_or_default())
}

/// The direction, if given.
pub(super) fn direction(query: &Query) -> Result<Option<Direction>, ApiError> {
    query.word("direction", Direction::ALL.map(|d| (d.name(), d)))
}

/// The search, if given.
pub(super) fn search(query: &Query) -> Result<Option<Search>, ApiError> {
    let text = query.short("search", LONGEST_SEARCH)?;
    Ok(text.filter(|t| !t.is_empty()).map(|t| Search::new(&t)))
}

/// The function given by `function` and `path`; `function` is absent for code without a symbol.
pub(super) fn function(query: &Query) -> Result<Option<FunctionId>, ApiError> {
    let name = query.short("function", LONGEST_NAME)?;
    match query.short("path", LONGEST_NAME)? {
        Some(path) => Ok(Some(FunctionId {
            name,
            path: path.into(),
        })),
        None if name.is_some() => Err(bad(
            "parameter function needs path, the path of its file: /v2/functions lists both"
                .to_owned(),
        )),
        None => Ok(None),
    }
}

/// The names to find: those that match `search`, or one function.
fn find(query: &Query) -> Result<Option<Find>, ApiError> {
    match (function(query)?, search(query)?) {
        (Some(_), Some(_)) => Err(bad(
            "parameters search and path exclude each other: give one of them".to_owned(),
        )),
        (Some(function), None) => Ok(Some(Find::Function(function))),
        (None, search) => Ok(search.map(Find::Search)),
    }
}

/// The parameters of a tree.
pub(super) fn shape(query: &Query) -> Result<Shape, ApiError> {
    let merges = [("function", Merge::Function), ("site", Merge::Site)];
    let merge = query.word("merge", merges)?;
    let naming = Naming {
        merge: merge.unwrap_or_default(),
        inlined: query.boolean("inlined")?.unwrap_or(true),
    };
    let reading = Reading {
        direction: direction(query)?.unwrap_or_default(),
        naming,
        kind: kind(query)?,
    };
    let max_nodes = query.number("max_nodes", "", MAX_NODES)?;
    let limits = Limits {
        threshold: query
            .number("threshold", " of bytes", u64::MAX)?
            .unwrap_or(0),
        max_nodes: max_nodes.map_or(NODES, |most| most.max(1) as usize),
    };
    let find = find(query)?;
    let focus = query.boolean("focus")?.unwrap_or(false);
    if focus && !matches!(find, Some(Find::Function(_))) {
        return Err(bad(
            "parameter focus needs a function: give path and function".to_owned(),
        ));
    }
    Ok(Shape {
        reading,
        limits,
        find,
        focus,
    })
}
