//! Lists of ids, whose order a report has: written as edits of the list at the moment before.
//!
//! An edit is `[position, removed, [inserted, …]]`. Edits are applied one after the other, so those of two moments follow
//! one another where moments are merged. The edit that makes a whole list anew removes -1.

use rusqlite::{Connection, params};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::RecordingError;

type Edit = (usize, i64, Vec<i64>);

/// Removes everything.
const ALL: i64 = -1;
/// Maximum length of a list. A real one has thousands of ids.
const MAX_IDS: usize = 1 << 24;

/// The state of all lists, by the id of their name.
#[derive(Default)]
pub(crate) struct Lists {
    live: FxHashMap<i64, Vec<i64>>,
    set: FxHashMap<i64, Vec<i64>>,
}

impl Lists {
    /// Continues from the state of a moment.
    pub fn continue_from(&mut self, state: FxHashMap<i64, Vec<i64>>) {
        self.live = state;
    }

    /// The number of ids in all lists.
    pub fn len(&self) -> usize {
        self.live.values().map(Vec::len).sum()
    }

    /// Sets a list of the moment. A list that is not set is empty.
    pub fn set(&mut self, name: i64, ids: Vec<i64>) {
        self.set.insert(name, ids);
    }

    /// Writes the lists of the moment: those that changed, or all of them if the moment is a full one. Returns the number
    /// of rows.
    pub fn write(&mut self, db: &Connection, moment: i64, full: bool) -> rusqlite::Result<usize> {
        let mut insert = db.prepare_cached(
            "INSERT OR REPLACE INTO list (name, moment, edits) VALUES (?1, ?2, ?3)",
        )?;
        let set = std::mem::take(&mut self.set);
        let none = Vec::new();
        let mut rows = 0;
        let emptied = self.live.keys().filter(|name| !set.contains_key(name));
        let emptied = emptied.map(|name| (name, &none));
        for (name, ids) in set.iter().chain(emptied) {
            let before = self.live.get(name).unwrap_or(&none);
            // Nothing before a full moment is read, so its edits fit whatever was before.
            let edits = match full && !(before.is_empty() && ids.is_empty()) {
                true => whole(ids),
                false => edits(before, ids),
            };
            if !edits.is_empty() {
                let text = serde_json::to_string(&edits).unwrap_or_default();
                insert.execute(params![name, moment, text])?;
                rows += 1;
            }
        }
        self.live = set;
        self.live.retain(|_, ids| !ids.is_empty());
        Ok(rows)
    }
}

fn whole(ids: &[i64]) -> Vec<Edit> {
    vec![(0, ALL, ids.to_vec())]
}

/// The edits that make one list from the other; all of it anew if ids have changed places or occur twice.
fn edits(before: &[i64], after: &[i64]) -> Vec<Edit> {
    if before == after {
        return Vec::new();
    }
    let (old, new): (FxHashSet<i64>, FxHashSet<i64>) = (
        before.iter().copied().collect(),
        after.iter().copied().collect(),
    );
    if old.len() < before.len() || new.len() < after.len() {
        return whole(after);
    }
    let mut edits: Vec<Edit> = Vec::new();
    let (mut from, mut to) = (0, 0);
    while from < before.len() || to < after.len() {
        if from < before.len() && to < after.len() && before[from] == after[to] {
            (from, to) = (from + 1, to + 1);
            continue;
        }
        let position = to;
        let first = from;
        while from < before.len() && !new.contains(&before[from]) {
            from += 1;
        }
        while to < after.len() && !old.contains(&after[to]) {
            to += 1;
        }
        if (first, position) == (from, to) {
            return whole(after);
        }
        edits.push((
            position,
            (from - first) as i64,
            after[position..to].to_vec(),
        ));
    }
    edits
}

fn apply(list: &mut Vec<i64>, (position, removed, inserted): Edit) -> Option<()> {
    let end = match removed {
        ALL => list.len(),
        removed => position.checked_add(usize::try_from(removed).ok()?)?,
    };
    if position > end || end > list.len() || list.len() + inserted.len() > MAX_IDS {
        return None;
    }
    list.splice(position..end, inserted);
    Some(())
}

/// The edits of two moments as those of one.
pub(crate) fn merged(earlier: &str, later: &str) -> String {
    let anew = later.starts_with("[[0,-1,");
    match (earlier.strip_suffix(']'), later.strip_prefix('[')) {
        (Some(earlier), Some(later)) if !anew => format!("{earlier},{later}"),
        _ => later.to_owned(),
    }
}

/// The lists at a moment, from the rows since the full moment before it.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(crate) fn state(
    db: &Connection,
    full: i64,
    moment: i64,
) -> Result<FxHashMap<i64, Vec<i64>>, RecordingError> {
    let mut rows = db.prepare_cached(
        "SELECT name, edits FROM list WHERE moment BETWEEN ?1 AND ?2 ORDER BY moment",
    )?;
    let mut rows = rows.query([full, moment])?;
    let mut lists: FxHashMap<i64, Vec<i64>> = FxHashMap::default();
    let damaged = || RecordingError::Damaged("a list has an edit that does not fit".to_owned());
    while let Some(row) = rows.next()? {
        let name: i64 = row.get(0)?;
        let text = row.get_ref(1)?.as_str().map_err(|_| damaged())?;
        let edits: Vec<Edit> = serde_json::from_str(text).map_err(|_| damaged())?;
        let list = lists.entry(name).or_default();
        for edit in edits {
            apply(list, edit).ok_or_else(damaged)?;
        }
    }
    lists.retain(|_, ids| !ids.is_empty());
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn edits_lead_from_one_list_to_the_next(
            lists in prop::collection::vec(prop::collection::vec(0i64..40, 0..30), 1..8),
        ) {
            let (mut list, mut all) = (Vec::new(), String::from("[]"));
            for next in &lists {
                let edits = edits(&list, next);
                let text = serde_json::to_string(&edits).unwrap();
                if !edits.is_empty() {
                    all = if all == "[]" { text } else { merged(&all, &text) };
                }
                for edit in edits {
                    prop_assert!(apply(&mut list, edit).is_some());
                }
                prop_assert_eq!(&list, next);
            }
            // The edits of all moments, merged into one, lead to the last list.
            let mut at_once = Vec::new();
            for edit in serde_json::from_str::<Vec<Edit>>(&all).unwrap() {
                prop_assert!(apply(&mut at_once, edit).is_some());
            }
            prop_assert_eq!(&at_once, lists.last().unwrap());
        }
    }

    #[test]
    fn births_and_deaths_are_small_edits() {
        let before: Vec<i64> = (0..1000).collect();
        let mut after = before.clone();
        after.remove(700);
        after.insert(10, 5000);
        let edits = edits(&before, &after);
        assert_eq!(edits, [(10, 0, vec![5000]), (701, 1, vec![])]);
    }

    #[test]
    fn an_edit_outside_of_the_list_is_refused() {
        for edit in [
            (4, 0, vec![1]),
            (0, 9, vec![]),
            (1, -2, vec![]),
            (9, ALL, vec![]),
        ] {
            assert!(
                apply(&mut vec![1, 2, 3], edit.clone()).is_none(),
                "{edit:?}"
            );
        }
    }
}
