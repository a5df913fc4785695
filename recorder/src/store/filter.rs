//! Questions for messages and lines, as SQL for one segment.

use std::fmt::Write;
use std::net::IpAddr;

use rusqlite::params;
use rusqlite::types::Value;

use super::bounds::Bounds;
use super::pool::File;
use super::query::{LogQuery, MessageQuery};
use super::search::Terms;
use super::values::{int, ip, side};

/// Number of values of which the index is asked one by one.
const MERGED: usize = 64;
/// Number of rows up to which indexes are compared.
const COMPARED: i64 = 4000;

/// SQL with its values, and what it is made of.
#[derive(Debug, Default)]
pub(super) struct Select {
    conditions: String,
    values: Vec<Value>,
    /// Instead of the whole table: an index, a column and values, of which the rows are merged.
    merged: Option<(&'static str, &'static str, Vec<i64>)>,
    /// Instead of the whole table: an index.
    index: Option<&'static str>,
    /// Instead of the whole table: lines by the index of words.
    text: bool,
}

impl Select {
    fn condition(&mut self, condition: &str) {
        let _ = write!(self.conditions, " AND {condition}");
    }

    fn value(&mut self, condition: &str, value: impl Into<Value>) {
        self.condition(condition);
        self.values.push(value.into());
    }

    fn list(&mut self, column: &str, values: &[i64]) {
        let values: Vec<_> = values.iter().map(i64::to_string).collect();
        self.condition(&format!("{column} IN ({})", values.join(",")));
    }

    fn bounds(&mut self, bounds: &Bounds) {
        let (from, to) = bounds.times;
        if from > 0 {
            self.value("time >= ?", int(from));
        }
        if to < u64::MAX {
            self.value("time <= ?", int(to));
        }
    }

    /// The statement that selects ids of a table, in order.
    pub(super) fn sql(&self, table: &str, bounds: &Bounds, limit: u64) -> (String, Vec<Value>) {
        let order = bounds.direction.sql();
        let range = format!("BETWEEN {} AND {}", bounds.ids.0, bounds.ids.1);
        let ids = format!("id {range}");
        let conditions = &self.conditions;
        let (sql, values) = match &self.merged {
            Some((index, column, merged)) => {
                let each = merged.iter().map(|value| {
                    format!("SELECT id FROM {table} INDEXED BY {index} WHERE {column} = {value} AND {ids}{conditions}")
                });
                let values = self
                    .values
                    .iter()
                    .cycle()
                    .take(self.values.len() * merged.len());
                (
                    each.collect::<Vec<_>>().join(" UNION ALL "),
                    values.cloned().collect(),
                )
            }
            None if self.text => {
                let from = "log_text CROSS JOIN log ON log.id = log_text.rowid";
                let id = "log_text.rowid";
                let sql = format!(
                    "SELECT {id} AS id FROM {from} WHERE {id} {range}{conditions} ORDER BY {id} {order} LIMIT {limit}"
                );
                return (sql, self.values.clone());
            }
            None => {
                let index = self
                    .index
                    .map_or("NOT INDEXED".into(), |index| format!("INDEXED BY {index}"));
                (
                    format!("SELECT id FROM {table} {index} WHERE {ids}{conditions}"),
                    self.values.clone(),
                )
            }
        };
        (format!("{sql} ORDER BY id {order} LIMIT {limit}"), values)
    }
}

/// A question for messages, for one segment; nothing if it has no such messages. `peers` are the connections of the peer.
pub(super) fn messages(
    file: &File,
    query: &MessageQuery,
    peers: Option<&[i64]>,
    bounds: &Bounds,
) -> rusqlite::Result<Option<Select>> {
    let mut select = Select::default();
    let links = match links(file, query, peers)? {
        Some(links) if links.is_empty() => return Ok(None),
        links => links,
    };
    let kinds = file.codes(&query.kinds);
    if kinds.is_empty() && !query.kinds.is_empty() {
        return Ok(None);
    }
    if let Some(sender) = query.sender {
        select.value("sender = ?", side(sender));
    }
    match query.error {
        Some(true) => select.condition("error IS NOT NULL"),
        Some(false) => select.condition("error IS NULL"),
        None => {}
    }
    if let Some(hash) = query.hash.as_deref().filter(|hash| !hash.is_empty()) {
        for value in hashes(hash) {
            select.values.push(value.into());
        }
        select.condition(HASH);
    }
    select.bounds(bounds);
    let both = [
        ("message_link", "link", links),
        ("message_kind", "kind", (!kinds.is_empty()).then_some(kinds)),
    ];
    let mut filters: Vec<_> = both
        .into_iter()
        .filter_map(|(i, c, v)| Some((i, c, v?)))
        .collect();
    let hash = query.hash.as_deref();
    let best = most_selective(file, &mut filters, hash.is_some())?;
    let most = best.as_ref().map_or(COMPARED, |(rows, _)| *rows);
    let best = best.map(|(_, filter)| filter);
    if is_rare_hash(file, hash, most)? {
        select.index = Some("message_hash");
        filters.extend(best);
    } else if query.error == Some(true) {
        select.index = Some("message_error");
        filters.extend(best);
    } else {
        select.merged = best;
    }
    for (_, column, values) in &filters {
        select.list(column, values);
    }
    Ok(Some(select))
}

/// Texts with a beginning.
const HASH: &str = "hash >= ? AND hash < ?";

/// The first text with that beginning, and one behind the last: base58 is ASCII.
fn hashes(start: &str) -> [String; 2] {
    [start.to_owned(), format!("{start}\u{10ffff}")]
}

/// Whether at most so many hashes begin like that, and there is an index of them.
fn is_rare_hash(file: &File, start: Option<&str>, most: i64) -> rusqlite::Result<bool> {
    let Some(start) = start.filter(|start| !start.is_empty() && file.hashes) else {
        return Ok(false);
    };
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM message INDEXED BY message_hash WHERE {HASH} LIMIT ?)"
    );
    let [first, behind] = hashes(start);
    let rows: i64 = file
        .prepare_cached(&sql)?
        .query_row(params![first, behind, most + 1], |row| row.get(0))?;
    Ok(rows <= most)
}

/// An index, its column and the wanted values.
type Filter = (&'static str, &'static str, Vec<i64>);

/// Takes the filter out that leaves the fewest rows, with their number, if they are merged by index. Rows of a single filter are
/// only counted to be `compared`.
fn most_selective(
    file: &File,
    filters: &mut Vec<Filter>,
    compared: bool,
) -> rusqlite::Result<Option<(i64, Filter)>> {
    let mut best: Option<(i64, usize)> = None;
    for (at, (index, column, values)) in filters.iter().enumerate() {
        if values.len() > MERGED {
            continue;
        }
        let mut rows = 0;
        if filters.len() > 1 || compared {
            let mut select = Select::default();
            select.list(column, values);
            let conditions = &select.conditions;
            let sql = format!(
                "SELECT count(*) FROM (SELECT 1 FROM message INDEXED BY {index} WHERE true{conditions} LIMIT {COMPARED})"
            );
            rows = file.prepare(&sql)?.query_row([], |row| row.get(0))?;
        }
        // An index of many rows is slower than the table.
        let worthwhile = rows < COMPARED || filters.len() == 1;
        if worthwhile && best.is_none_or(|(least, _)| rows < least) {
            best = Some((rows, at));
        }
    }
    Ok(best.map(|(rows, at)| (rows, filters.remove(at))))
}

/// The links of the wanted connections; nothing if every connection is wanted.
fn links(
    file: &File,
    query: &MessageQuery,
    peers: Option<&[i64]>,
) -> rusqlite::Result<Option<Vec<i64>>> {
    let mut select = Select::default();
    if let Some(connection) = query.connection {
        select.value("connection = ?", int(connection.0));
    }
    let host = query.host.map(ip_value);
    let address = query.address.map(|address| ip_value(address.ip()));
    for ip in host.into_iter().chain(address) {
        select.value("ip = ?", ip);
    }
    if let Some(address) = query.address {
        select.value("port = ?", i64::from(address.port()));
    }
    if let Some(initiator) = query.initiator {
        select.value("initiator = ?", side(initiator));
    }
    if let Some(peers) = peers {
        select.list("connection", peers);
    }
    if select.conditions.is_empty() {
        return Ok(None);
    }
    let sql = format!("SELECT id FROM link WHERE true{}", select.conditions);
    let mut links = file.prepare(&sql)?;
    let links = links.query_map(rusqlite::params_from_iter(select.values), |row| row.get(0))?;
    links.collect::<Result<_, _>>().map(Some)
}

fn ip_value(address: IpAddr) -> Value {
    Value::Blob(ip(address).to_vec())
}

/// A question for lines, for one segment.
pub(super) fn logs(file: &File, query: &LogQuery, terms: &Terms, bounds: &Bounds) -> Select {
    let mut select = Select::default();
    select.bounds(bounds);
    let mut levels: Vec<_> = query.levels.iter().map(|level| *level as i64).collect();
    levels.sort_unstable();
    levels.dedup();
    if terms.is_empty() {
        if !levels.is_empty() {
            select.merged = Some(("log_level", "level", levels));
        }
        return select;
    }
    if !levels.is_empty() {
        select.list("level", &levels);
    }
    match terms.expression().filter(|_| file.search) {
        Some(expression) => {
            select.text = true;
            select.value("log_text MATCH ?", expression);
        }
        None if file.search => {
            let others = "id NOT IN (SELECT rowid FROM log_text WHERE log_text MATCH ?)";
            select.value(others, terms.excluded());
        }
        None => {
            let (condition, values) = terms.condition();
            select.condition(&condition);
            select.values.extend(values);
        }
    }
    select
}
