//! Symbols in the tables `function` and `frame`. Names may come late (JIT code, debug files from servers), so a frame's
//! symbol is replaced when a better one is known; earlier moments then show it, too.

use rusqlite::{Connection, Row, params};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::RecordingError;
use memprof_profile::symbol::{
    Function, InlinedFunction, Language, Location, Symbol, UnknownReason, UnnamedFunction,
};

/// The columns of a frame's symbol, for [`read`].
pub(crate) const COLUMNS: &str = "u.name, u.language, u.first_line, u.file, u.named, f.offset_in_function, f.line, f.inlined, \
     f.no_name";

/// An inlined function: name, file, line.
#[derive(Serialize, Deserialize)]
struct Inlined(String, Option<String>, Option<u32>);

/// How much a symbol says: a later one with less does not replace it. A file may no longer be readable, for example.
fn worth(symbol: &Symbol) -> u8 {
    match symbol {
        Symbol::Unknown(_) => 1,
        Symbol::Unnamed(_) => 2,
        Symbol::Known(function) if function.location.is_none() => 3,
        Symbol::Known(_) => 4,
    }
}

/// Functions and symbols that the file has.
#[derive(Default)]
pub(crate) struct SymbolStore {
    functions: FxHashMap<FunctionKey, i64>,
    /// By id of the frame.
    symbols: FxHashMap<i64, Symbol>,
}

#[derive(PartialEq, Eq, Hash)]
struct FunctionKey {
    name: String,
    language: Option<&'static str>,
    first_line: Option<u32>,
    file: Option<String>,
}

impl SymbolStore {
    /// The store of a file.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn load(db: &Connection) -> Result<SymbolStore, RecordingError> {
        let mut store = SymbolStore::default();
        let mut rows = db.prepare("SELECT id, name, language, first_line, file FROM function")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let language: Option<String> = row.get(2)?;
            let key = FunctionKey {
                name: row.get(1)?,
                language: language
                    .and_then(|l| Language::by_name(&l))
                    .map(Language::name),
                first_line: row.get(3)?,
                file: row.get(4)?,
            };
            store.functions.insert(key, row.get(0)?);
        }
        let mut rows = db.prepare(&format!(
            "SELECT {COLUMNS}, f.id FROM frame f LEFT JOIN function u ON u.id = f.function"
        ))?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(symbol) = read(row)? {
                store.symbols.insert(row.get(9)?, symbol);
            }
        }
        Ok(store)
    }

    /// Stores a frame's symbol, unless the file has that one or a better one.
    pub fn set(&mut self, db: &Connection, frame: i64, symbol: &Symbol) -> rusqlite::Result<()> {
        let known = self.symbols.get(&frame);
        if known.is_some_and(|known| known == symbol || worth(known) > worth(symbol)) {
            return Ok(());
        }
        let mut update = db.prepare_cached(
            "UPDATE frame SET function = ?2, offset_in_function = ?3, line = ?4, inlined = ?5, no_name = ?6 WHERE id = ?1",
        )?;
        match symbol {
            Symbol::Known(function) => {
                let place = function.location.as_ref();
                let key = FunctionKey {
                    name: function.name.clone(),
                    language: Some(function.language.name()),
                    first_line: function.first_line,
                    file: place.map(|place| place.file.clone()),
                };
                let id = self.function(db, key)?;
                let inlined = function.inlined.iter().map(|inlined| {
                    let place = inlined.location.as_ref();
                    let file = place.map(|place| place.file.clone());
                    Inlined(inlined.name.clone(), file, place.and_then(|p| p.line))
                });
                let inlined: Vec<Inlined> = inlined.collect();
                let inlined = (!inlined.is_empty())
                    .then(|| serde_json::to_string(&inlined).unwrap_or_default());
                let offset = function.offset_in_function.cast_signed();
                let line = place.and_then(|place| place.line);
                update.execute(params![frame, id, offset, line, inlined, None::<String>])?;
            }
            Symbol::Unnamed(function) => {
                let key = FunctionKey {
                    name: function.name.clone(),
                    language: None,
                    first_line: None,
                    file: None,
                };
                let id = self.function(db, key)?;
                let offset = function.offset_in_function.cast_signed();
                let nothing = None::<String>;
                update.execute(params![frame, id, offset, nothing, nothing, nothing])?;
            }
            Symbol::Unknown(why) => {
                let nothing = None::<String>;
                let why = why.to_string();
                update.execute(params![frame, nothing, nothing, nothing, nothing, why])?;
            }
        }
        self.symbols.insert(frame, symbol.clone());
        Ok(())
    }

    fn function(&mut self, db: &Connection, key: FunctionKey) -> rusqlite::Result<i64> {
        if let Some(id) = self.functions.get(&key) {
            return Ok(*id);
        }
        let mut insert = db.prepare_cached(
            "INSERT INTO function (name, language, first_line, file, named) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let named = key.language.is_some();
        let FunctionKey {
            name,
            language,
            first_line,
            file,
        } = &key;
        let id = insert.insert(params![name, language, first_line, file, named])?;
        self.functions.insert(key, id);
        Ok(id)
    }
}

/// The symbol in a row that begins with [`COLUMNS`]; `None` if it was not looked up.
///
/// # Errors
/// A value has another type.
pub(crate) fn read(row: &Row<'_>) -> Result<Option<Symbol>, RecordingError> {
    let name: Option<String> = row.get(0)?;
    let offset_in_function = row.get::<_, Option<i64>>(5)?.unwrap_or(0).cast_unsigned();
    let Some(name) = name else {
        let why: Option<String> = row.get(8)?;
        return Ok(why.map(|why| Symbol::Unknown(UnknownReason::from_text(&why))));
    };
    if row.get::<_, Option<i64>>(4)? != Some(1) {
        return Ok(Some(Symbol::Unnamed(UnnamedFunction {
            name,
            offset_in_function,
        })));
    }
    let language: Option<String> = row.get(1)?;
    let language = language.and_then(|language| Language::by_name(&language));
    let inlined: Option<String> = row.get(7)?;
    let inlined: Vec<Inlined> = match inlined {
        Some(text) => serde_json::from_str(&text)
            .map_err(|e| RecordingError::Damaged(format!("inlined functions: {e}")))?,
        None => Vec::new(),
    };
    let place = |file: Option<String>, line| file.map(|file| Location { file, line });
    let inlined = inlined
        .into_iter()
        .map(|Inlined(name, file, line)| InlinedFunction {
            name,
            location: place(file, line),
        });
    Ok(Some(Symbol::Known(Function {
        name,
        language: language.unwrap_or(Language::Other),
        offset_in_function,
        first_line: row.get(2)?,
        inlined: inlined.collect(),
        location: place(row.get(3)?, row.get(6)?),
    })))
}

/// The size of a symbol's texts, in bytes.
pub(crate) fn text_len(symbol: &Symbol) -> usize {
    let place = |place: &Option<Location>| place.as_ref().map_or(0, |place| place.file.len());
    match symbol {
        Symbol::Known(function) => {
            let inlined = function.inlined.iter();
            let inlined = inlined.map(|inlined| inlined.name.len() + place(&inlined.location));
            function.name.len() + place(&function.location) + inlined.sum::<usize>()
        }
        Symbol::Unnamed(function) => function.name.len(),
        Symbol::Unknown(_) => 0,
    }
}
