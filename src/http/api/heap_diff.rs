//! `/v2/heap/diff`: the changes between two heap snapshots, table by table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::heap::{Info, StoredSnapshot};
use super::query::bad;
use super::reply::{self, internal};
use super::request::RequestContext;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};

/// Parameters of `/v2/heap/diff`.
pub(super) const PARAMETERS: &[&str] = &["from", "to"];

/// Numeric columns that hold examples and are not compared.
const NOT_COMPARED: &[&str] = &["address", "example"];

/// Key columns of tables with numeric keys; in other tables the text columns are the keys.
const NUMBERED: &[(&str, &[&str])] = &[("sizes", &["from", "to"])];

/// Tables that list every row: a row that is missing from one snapshot was 0 there. Other tables list only the largest
/// rows, so a missing row is unknown.
const COMPLETE: &[&str] = &["rows", "others", "sizes"];

#[derive(Debug)]
struct Diff {
    from: String,
    to: String,
}

/// `GET /v2/heap/diff`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    let id = |name: &str| {
        let id = asked.query.text(name).map(str::to_owned);
        let missing =
            || format!("parameter {name} is missing: the id of a heap snapshot in /v2/heap");
        id.ok_or_else(|| bad(missing()))
    };
    Ok(Arc::new(Diff {
        from: id("from")?,
        to: id("to")?,
    }))
}

#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "HeapDiff")]
pub(super) struct DiffReply {
    from: Info,
    to: Info,
    /// Pages by how much of them is live, in the earlier and in the later snapshot.
    #[schemars(with = "[[u64; 11]; 2]")]
    occupancy: [Value; 2],
    /// The tables of the snapshots whose rows can be compared.
    tables: Vec<Table>,
}

/// A table of both snapshots.
#[derive(Debug, PartialEq, JsonSchema, Serialize)]
#[schemars(rename = "HeapDiffTable")]
struct Table {
    /// rows, others, sizes or another table of the snapshots.
    name: String,
    /// Names of the columns that tell rows apart.
    keys: Vec<String>,
    /// Names of the compared figures.
    columns: Vec<String>,
    /// The rows of both snapshots.
    rows: Vec<ChangedRow>,
}

#[derive(Debug, PartialEq, JsonSchema, Serialize)]
#[schemars(rename = "HeapDiffRow")]
struct ChangedRow {
    /// Values of the key columns.
    key: Vec<Value>,
    /// The figures in the earlier snapshot; null if it does not list the row, in a table that lists the largest ones
    /// only.
    from: Option<Vec<i64>>,
    /// The figures in the later snapshot.
    to: Option<Vec<i64>>,
}

impl Endpoint for Diff {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let (from, to) = (api.heaps.get(&self.from)?, api.heaps.get(&self.to)?);
            let sides = [whole(&from)?, whole(&to)?];
            let occupancy = [&sides[0], &sides[1]].map(|side| side["occupancy"].clone());
            reply::json(&DiffReply {
                from: from.info,
                to: to.info,
                occupancy,
                tables: tables(&sides),
            })
        })
    }
}

/// A snapshot with its exact tables by stack.
fn whole(kept: &StoredSnapshot) -> Result<Map<String, Value>, ApiError> {
    let mut whole: Map<String, Value> = serde_json::from_slice(&kept.json).map_err(internal)?;
    for name in ["grown_by", "zero_by"] {
        let table = serde_json::from_slice(kept.table(name)).map_err(internal)?;
        whole.insert(name.to_owned(), table);
    }
    Ok(whole)
}

/// Compares the tables of two snapshots: lists of objects with a text column, and the tables in [`NUMBERED`]. A table
/// that is added to the report later is therefore compared as well.
fn tables(sides: &[Map<String, Value>; 2]) -> Vec<Table> {
    let lists = sides.each_ref().map(lists);
    let mut names: Vec<&String> = lists[1].keys().collect();
    names.extend(lists[0].keys().filter(|name| !lists[1].contains_key(*name)));
    let side = |name: &str| {
        lists
            .each_ref()
            .map(|side| side.get(name).copied().unwrap_or_default())
    };
    let tables = names.iter().filter_map(|name| table(name, side(name)));
    tables.collect()
}

/// The lists of a snapshot by name; nested lists have names such as `types.rows`.
type Lists<'a> = BTreeMap<String, &'a [Value]>;

fn lists(snapshot: &Map<String, Value>) -> Lists<'_> {
    let mut found = Lists::new();
    for (name, value) in snapshot {
        match value {
            Value::Array(rows) => drop(found.insert(name.clone(), &rows[..])),
            Value::Object(part) => {
                for (inner, value) in part {
                    if let Value::Array(rows) = value {
                        found.insert(format!("{name}.{inner}"), rows);
                    }
                }
            }
            _ => {}
        }
    }
    found
}

fn table(name: &str, lists: [&[Value]; 2]) -> Option<Table> {
    let first = lists[1].first().or(lists[0].first())?.as_object()?;
    let numbered = NUMBERED.iter().find(|(table, _)| *table == name);
    let keys: Vec<String> = match numbered {
        Some((_, keys)) => keys.iter().map(|key| (*key).to_owned()).collect(),
        None => {
            let texts = first.iter().filter(|(_, value)| value.is_string());
            texts.map(|(key, _)| key.clone()).collect()
        }
    };
    if keys.is_empty() {
        return None;
    }
    let is_compared =
        |name: &String| !keys.contains(name) && !NOT_COMPARED.contains(&name.as_str());
    let numbers = first.iter().filter(|(_, value)| value.is_u64());
    let columns: Vec<String> = numbers
        .map(|(name, _)| name.clone())
        .filter(is_compared)
        .collect();
    let mut rows: Vec<ChangedRow> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (side, list) in lists.iter().enumerate() {
        for row in list.iter().filter_map(Value::as_object) {
            let of = |name: &String| row.get(name).cloned().unwrap_or_default();
            let key: Vec<Value> = keys.iter().map(of).collect();
            let figures = columns.iter().map(|name| of(name).as_i64().unwrap_or(0));
            let at = *places
                .entry(Value::from(key.clone()).to_string())
                .or_insert_with(|| {
                    let absent = COMPLETE.contains(&name).then(|| vec![0; columns.len()]);
                    let (from, to) = (absent.clone(), absent);
                    rows.push(ChangedRow { key, from, to });
                    rows.len() - 1
                });
            let sums = match side {
                0 => &mut rows[at].from,
                _ => &mut rows[at].to,
            };
            sums.get_or_insert_with(|| vec![0; columns.len()])
                .iter_mut()
                .zip(figures)
                .for_each(|(sum, figure)| *sum += figure);
        }
    }
    Some(Table {
        name: name.to_owned(),
        keys,
        columns,
        rows,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn rows_are_found_by_their_keys() {
        let before = object(json!({
            "rows": [{"what": "live", "bytes": 10}, {"what": "fast", "bytes": 3}],
            "sizes": [{"from": 17, "to": 32, "live": 5}],
            "largest": [{"address": 4096, "bytes": 10}],
            "occupancy": [1, 2],
        }));
        let after = object(json!({
            "rows": [{"what": "live", "bytes": 12}],
            "sizes": [{"from": 17, "to": 32, "live": 4}, {"from": 33, "to": 48, "live": 1}],
            "types": {"rows": [{"name": "A", "count": 2, "example": 4096}], "typed": 2},
            "comm": "x",
        }));
        let tables = tables(&[before, after]);
        let table = |name: &str| tables.iter().find(|table| table.name == name);
        let rows = |name: &str| -> BTreeMap<String, [Option<Vec<i64>>; 2]> {
            let rows = &table(name).unwrap().rows;
            let row = |row: &ChangedRow| {
                let key = Value::from(row.key.clone()).to_string();
                (key, [row.from.clone(), row.to.clone()])
            };
            rows.iter().map(row).collect()
        };
        assert_eq!(rows("rows")["[\"live\"]"], [Some(vec![10]), Some(vec![12])]);
        assert_eq!(rows("rows")["[\"fast\"]"], [Some(vec![3]), Some(vec![0])]);
        assert_eq!(rows("sizes")["[17,32]"], [Some(vec![5]), Some(vec![4])]);
        assert_eq!(rows("sizes")["[33,48]"], [Some(vec![0]), Some(vec![1])]);
        assert_eq!(rows("types.rows")["[\"A\"]"], [None, Some(vec![2])]);
        assert_eq!(table("types.rows").unwrap().columns, ["count"]);
        assert!(table("largest").is_none() && table("occupancy").is_none());
    }
}
