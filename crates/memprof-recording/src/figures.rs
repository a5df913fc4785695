//! Rows that are written only when they change: the state at the last moment, and the rows of the next one.

use rusqlite::Connection;
use rusqlite::params_from_iter;
use rustc_hash::FxHashMap;

use crate::RecordingError;
use crate::cell::Cell;
use crate::schema::Table;

/// The key columns of a row; unused ones are 0.
pub(crate) type Key = [i64; 3];

/// Maximum number of rows of one table in the state of a moment. Real states have thousands.
const MAX_ROWS: usize = 1 << 24;

/// The state of one table.
pub(crate) struct Figures {
    table: &'static Table,
    insert: String,
    live: FxHashMap<Key, Live>,
    /// Number of the moment that is being collected.
    round: u64,
    changed: Vec<Key>,
    /// Whether the rows that the moment does not set stay as they are.
    keeps: bool,
}

struct Live {
    values: Box<[Cell]>,
    round: u64,
}

impl Figures {
    pub fn new(table: &'static Table) -> Figures {
        let columns = table.keys.len() + 1 + table.values.len();
        let places = vec!["?"; columns].join(", ");
        Figures {
            table,
            insert: format!("INSERT OR REPLACE INTO {} VALUES ({places})", table.name),
            live: FxHashMap::default(),
            round: 0,
            changed: Vec::new(),
            keeps: false,
        }
    }

    /// Continues from the state of a moment.
    pub fn continue_from(&mut self, state: FxHashMap<Key, Box<[Cell]>>) {
        let round = self.round;
        let live = |(key, values)| (key, Live { values, round });
        self.live = state.into_iter().map(live).collect();
    }

    /// The table.
    pub fn table(&self) -> &'static Table {
        self.table
    }

    /// The number of rows in the state.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Begins the next moment.
    pub fn begin(&mut self) {
        self.round += 1;
        self.changed.clear();
    }

    /// Keeps the rows that the moment does not set.
    pub fn keep(&mut self) {
        self.keeps = true;
    }

    /// Sets a row of the moment. Rows that are not set are gone, unless [`Figures::keep`] keeps them.
    pub fn set(&mut self, key: Key, values: &[Cell]) {
        let compared = self.table.compared;
        let round = self.round;
        match self.live.get_mut(&key) {
            Some(live) if live.values[..compared] == values[..compared] => live.round = round,
            Some(live) => {
                live.values.clone_from_slice(values);
                live.round = round;
                self.changed.push(key);
            }
            None => {
                let values = values.into();
                self.live.insert(key, Live { values, round });
                self.changed.push(key);
            }
        }
    }

    /// Writes the rows of the moment: those that changed, or all of them if the moment is a full one. Returns their number.
    pub fn write(&mut self, db: &Connection, moment: i64, full: bool) -> rusqlite::Result<usize> {
        let round = self.round;
        let mut gone = Vec::new();
        if !std::mem::take(&mut self.keeps) {
            self.live.retain(|key, live| {
                let stays = live.round == round;
                if !stays {
                    gone.push(*key);
                }
                stays
            });
        }
        if full {
            self.changed = self.live.keys().copied().collect();
            self.changed.sort_unstable();
        }
        let mut insert = db.prepare_cached(&self.insert)?;
        let keys = self.table.keys.len();
        let mut put = |key: &Key, values: &[Cell]| {
            let key = key[..keys].iter().map(|number| Cell::Int(*number));
            let row = [Cell::Int(moment)].into_iter().chain(key);
            let row = row.chain(values.iter().cloned());
            insert.execute(params_from_iter(row)).map(drop)
        };
        for key in &self.changed {
            if let Some(live) = self.live.get(key) {
                put(key, &live.values)?;
            }
        }
        let nothing = vec![Cell::Null; self.table.values.len()];
        for key in &gone {
            put(key, &nothing)?;
        }
        Ok(self.changed.len() + gone.len())
    }
}

/// The state of a table at a moment, from the rows since the full moment before it.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(crate) fn state(
    db: &Connection,
    table: &Table,
    full: i64,
    moment: i64,
) -> Result<FxHashMap<Key, Box<[Cell]>>, RecordingError> {
    let (keys, values) = (table.keys, table.values);
    let columns = [keys, values].concat().join(", ");
    let mut rows = db.prepare_cached(&format!(
        "SELECT {columns} FROM {} WHERE moment BETWEEN ?1 AND ?2 ORDER BY moment",
        table.name
    ))?;
    let mut rows = rows.query([full, moment])?;
    let mut state = FxHashMap::default();
    while let Some(row) = rows.next()? {
        let mut key = Key::default();
        for (at, part) in key[..keys.len()].iter_mut().enumerate() {
            *part = row.get(at)?;
        }
        let cells = (0..values.len()).map(|at| row.get(keys.len() + at));
        let cells: Box<[Cell]> = cells.collect::<Result<_, _>>()?;
        match cells[0] {
            Cell::Null => drop(state.remove(&key)),
            _ => drop(state.insert(key, cells)),
        }
        if state.len() > MAX_ROWS {
            let message = format!("a moment has more than {MAX_ROWS} rows of {}", table.name);
            return Err(RecordingError::Damaged(message));
        }
    }
    Ok(state)
}
