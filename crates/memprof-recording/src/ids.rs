//! Ids that last for the file: of processes, code files, frames, stacks, mappings, cached files and figures.

use std::hash::Hash;
use std::sync::Arc;

use rusqlite::{Connection, Params, Row, params};
use rustc_hash::FxHashMap;

use crate::RecordingError;
use memprof_profile::{CachedFile, Kind, Mapping, Module, NotObserved, Origin, Outcome};

/// The ids of things of one type, by what identifies them.
pub(crate) struct Ids<K>(FxHashMap<K, i64>);

impl<K> Default for Ids<K> {
    fn default() -> Ids<K> {
        Ids(FxHashMap::default())
    }
}

impl<K: Hash + Eq> Ids<K> {
    fn load(
        db: &Connection,
        columns: &str,
        key: impl Fn(&Row<'_>) -> rusqlite::Result<K>,
    ) -> rusqlite::Result<Ids<K>> {
        let mut rows = db.prepare(&format!("SELECT {columns}"))?;
        let rows = rows.query_map([], |row| Ok((key(row)?, row.get(0)?)))?;
        rows.collect::<Result<_, _>>().map(Ids)
    }

    /// The id of a thing, inserted with this statement if it is new.
    fn get<P: Params>(
        &mut self,
        db: &Connection,
        key: K,
        insert: &str,
        row: impl FnOnce(&K) -> P,
    ) -> rusqlite::Result<i64> {
        if let Some(id) = self.0.get(&key) {
            return Ok(*id);
        }
        let id = db.prepare_cached(insert)?.insert(row(&key))?;
        self.0.insert(key, id);
        Ok(id)
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ModuleKey {
    name: String,
    path: String,
    own_executable: bool,
    interpreted: Option<String>,
    jit: Option<String>,
    layout: Option<String>,
    /// Frames of functions without a file have numbers or addresses that only this run knows.
    run: Option<i64>,
    /// Distinguishes modules of one report that are otherwise the same.
    number: i64,
}

/// Device, inode, and the path, whether it was deleted and where it was seen.
type FileKey = (u32, u32, i64, Option<String>, bool, Option<String>);

/// A stack without its number: the outcome and the ids of its frames, or a mapping and the reason why its memory has no
/// stack.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum Content {
    Frames(String, Box<[i64]>),
    Unobserved(String, String),
}

/// All ids of a file.
#[derive(Default)]
pub(crate) struct AllIds {
    processes: Ids<(u32, String, Option<String>)>,
    modules: Ids<ModuleKey>,
    frames: Ids<(i64, i64)>,
    contents: FxHashMap<Arc<Content>, usize>,
    /// Each content, and the ids of the stacks with it, by their number.
    stacks: Vec<(Arc<Content>, Vec<i64>)>,
    mappings: Ids<(u32, i64, String, String, String)>,
    files: Ids<FileKey>,
    /// `None` stands for kinds that this memprof does not know.
    kinds: Ids<Option<Kind>>,
    series: Ids<[i64; 4]>,
    items: Ids<String>,
    names: Ids<String>,
}

impl AllIds {
    /// The ids of a file.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn load(db: &Connection) -> Result<AllIds, RecordingError> {
        let stacks = stacks(db)?;
        let contents = stacks.iter().enumerate();
        Ok(AllIds {
            contents: contents
                .map(|(at, (content, _))| (Arc::clone(content), at))
                .collect(),
            stacks,
            processes: Ids::load(db, "id, pid, comm, container FROM process", |row| {
                Ok((row.get(1)?, row.get(2)?, row.get(3)?))
            })?,
            modules: Ids::load(
                db,
                "id, name, path, own_executable, interpreted, jit, layout, run, number FROM module",
                |row| {
                    Ok(ModuleKey {
                        name: row.get(1)?,
                        path: row.get(2)?,
                        own_executable: row.get(3)?,
                        interpreted: row.get(4)?,
                        jit: row.get(5)?,
                        layout: row.get(6)?,
                        run: row.get(7)?,
                        number: row.get(8)?,
                    })
                },
            )?,
            frames: Ids::load(db, "id, module, offset FROM frame", |row| {
                Ok((row.get(1)?, row.get(2)?))
            })?,
            mappings: Ids::load(
                db,
                "id, pid, start, permissions, name, category FROM mapping",
                |row| {
                    Ok((
                        row.get(1)?,
                        row.get(2)?,
                        row.get(3)?,
                        row.get(4)?,
                        row.get(5)?,
                    ))
                },
            )?,
            files: Ids::load(
                db,
                "id, major, minor, inode, path, deleted, source FROM file",
                |row| {
                    Ok((
                        row.get(1)?,
                        row.get(2)?,
                        row.get(3)?,
                        row.get(4)?,
                        row.get(5)?,
                        row.get(6)?,
                    ))
                },
            )?,
            kinds: Ids::load(db, "id, name FROM kind", |row| {
                Ok(Kind::by_name(row.get_ref(1)?.as_str()?))
            })?,
            series: Ids::load(db, "id, process, file, stack, kind FROM series", |row| {
                Ok([row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?])
            })?,
            items: Ids::load(db, "id, json FROM item", |row| row.get(1))?,
            names: Ids::load(db, "id, name FROM name", |row| row.get(1))?,
        })
    }

    pub fn process(
        &mut self,
        db: &Connection,
        (pid, comm, container): (u32, &str, Option<String>),
    ) -> rusqlite::Result<i64> {
        let key = (pid, comm.to_owned(), container);
        self.processes.get(
            db,
            key,
            "INSERT INTO process (pid, comm, container) VALUES (?1, ?2, ?3)",
            |(pid, comm, container)| (*pid, comm.clone(), container.clone()),
        )
    }

    /// The ids of a report's modules. `layout` is the text of each one's layout.
    pub fn modules(
        &mut self,
        db: &Connection,
        modules: &[Arc<Module>],
        layout: &dyn Fn(&Module) -> Option<String>,
        run: i64,
    ) -> rusqlite::Result<Vec<i64>> {
        let mut taken = rustc_hash::FxHashSet::default();
        let mut ids = Vec::with_capacity(modules.len());
        for module in modules {
            let mut key = ModuleKey {
                name: module.name.clone(),
                path: module.path.to_string_lossy().into_owned(),
                own_executable: module.own_executable,
                interpreted: module.language_from(Origin::Interpreter).map(str::to_owned),
                jit: module.language_from(Origin::Runtime).map(str::to_owned),
                layout: layout(module),
                run: (module.functions.is_some() || module.is_jit()).then_some(run),
                number: 0,
            };
            let id = loop {
                let id = self.modules.get(
                    db,
                    key.clone(),
                    "INSERT INTO module (name, path, own_executable, interpreted, jit, layout, run, number) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    |key| {
                        let ModuleKey {
                            name,
                            path,
                            own_executable,
                            interpreted,
                            jit,
                            layout,
                            run,
                            number,
                        } = key.clone();
                        (name, path, own_executable, interpreted, jit, layout, run, number)
                    },
                )?;
                if taken.insert(id) {
                    break id;
                }
                key.number += 1;
            };
            ids.push(id);
        }
        Ok(ids)
    }

    /// The id of a frame: an offset in a module, or an address in module 0.
    pub fn frame(&mut self, db: &Connection, module: i64, offset: u64) -> rusqlite::Result<i64> {
        self.frames.get(
            db,
            (module, offset.cast_signed()),
            "INSERT INTO frame (module, offset) VALUES (?1, ?2)",
            |key| *key,
        )
    }

    /// The index of a content, for [`AllIds::stack`].
    pub fn content(&mut self, content: Content) -> usize {
        if let Some(at) = self.contents.get(&content) {
            return *at;
        }
        let (content, at) = (Arc::new(content), self.stacks.len());
        self.contents.insert(Arc::clone(&content), at);
        self.stacks.push((content, Vec::new()));
        at
    }

    /// The id of a stack. Of those with the same content in one report, `number` counts the earlier ones.
    pub fn stack(
        &mut self,
        db: &Connection,
        content: usize,
        number: usize,
    ) -> rusqlite::Result<i64> {
        let (content, ids) = &mut self.stacks[content];
        while ids.len() <= number {
            ids.push(insert_stack(db, content, ids.len() as i64)?);
        }
        Ok(ids[number])
    }

    pub fn mapping(&mut self, db: &Connection, mapping: &Mapping) -> rusqlite::Result<i64> {
        let key = (
            mapping.pid.0,
            mapping.start.cast_signed(),
            mapping.permissions.clone(),
            mapping.name.clone(),
            mapping.category.name().to_owned(),
        );
        self.mappings.get(
            db,
            key,
            "INSERT INTO mapping (pid, start, permissions, name, category) VALUES (?1, ?2, ?3, ?4, ?5)",
            Clone::clone,
        )
    }

    pub fn file(&mut self, db: &Connection, file: &CachedFile) -> rusqlite::Result<i64> {
        let path = file.path.as_ref();
        let key = (
            file.id.dev.0,
            file.id.dev.1,
            file.id.ino.cast_signed(),
            path.map(|path| path.path.clone()),
            path.is_some_and(|path| path.deleted),
            path.and_then(|path| label(&path.from)),
        );
        self.files.get(
            db,
            key,
            "INSERT INTO file (major, minor, inode, path, deleted, source) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            Clone::clone,
        )
    }

    pub fn kind(&mut self, db: &Connection, kind: Kind) -> rusqlite::Result<i64> {
        self.kinds.get(
            db,
            Some(kind),
            "INSERT INTO kind (name, unit) VALUES (?1, ?2)",
            |_| (kind.name(), kind.unit().name()),
        )
    }

    /// The id of the figures of a stack in a kind: of a process (0 is all of them together), or of a cached file.
    pub fn series(
        &mut self,
        db: &Connection,
        process: i64,
        file: i64,
        stack: i64,
        kind: i64,
    ) -> rusqlite::Result<i64> {
        self.series.get(
            db,
            [process, file, stack, kind],
            "INSERT INTO series (process, file, stack, kind) VALUES (?1, ?2, ?3, ?4)",
            |key| *key,
        )
    }

    pub fn item(&mut self, db: &Connection, json: String) -> rusqlite::Result<i64> {
        self.items
            .get(db, json, "INSERT INTO item (json) VALUES (?1)", |json| {
                (json.clone(),)
            })
    }

    pub fn name(&mut self, db: &Connection, name: String) -> rusqlite::Result<i64> {
        self.names
            .get(db, name, "INSERT INTO name (name) VALUES (?1)", |name| {
                (name.clone(),)
            })
    }
}

fn insert_stack(db: &Connection, content: &Content, number: i64) -> rusqlite::Result<i64> {
    let mut insert = db.prepare_cached(
        "INSERT INTO stack (outcome, mapping, reason, frames, number) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let nothing = None::<&str>;
    let (outcome, frames) = match content {
        Content::Unobserved(mapping, reason) => {
            return insert.insert(params![nothing, mapping, reason, 0, number]);
        }
        Content::Frames(outcome, frames) => (outcome, frames),
    };
    let id = insert.insert(params![
        outcome,
        nothing,
        nothing,
        frames.len() as i64,
        number
    ])?;
    let mut insert = db.prepare_cached("INSERT INTO stack_frame VALUES (?1, ?2, ?3)")?;
    for (depth, frame) in frames.iter().enumerate() {
        insert.execute(params![id, depth as i64, frame])?;
    }
    Ok(id)
}

fn stacks(db: &Connection) -> rusqlite::Result<Vec<(Arc<Content>, Vec<i64>)>> {
    let mut frames: FxHashMap<i64, Vec<i64>> = FxHashMap::default();
    let mut rows = db.prepare("SELECT stack, frame FROM stack_frame ORDER BY stack, depth")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        frames.entry(row.get(0)?).or_default().push(row.get(1)?);
    }
    let mut stacks: FxHashMap<Content, Vec<i64>> = FxHashMap::default();
    let mut rows =
        db.prepare("SELECT id, outcome, mapping, reason, number FROM stack ORDER BY number")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let content = match row.get::<_, Option<String>>(3)? {
            Some(reason) => Content::Unobserved(row.get(2)?, reason),
            None => Content::Frames(row.get(1)?, frames.remove(&id).unwrap_or_default().into()),
        };
        let ids = stacks.entry(content).or_default();
        // Where an earlier stack was removed from the file, its number and the later ones are given again.
        let number: i64 = row.get(4)?;
        if usize::try_from(number).is_ok_and(|number| number == ids.len()) {
            ids.push(id);
        }
    }
    let stacks = stacks.into_iter();
    Ok(stacks
        .map(|(content, ids)| (Arc::new(content), ids))
        .collect())
}

/// The text of a value whose form is a string.
pub(crate) fn label(value: &impl serde::Serialize) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}

/// The content of a stack with these frames.
pub(crate) fn content_of(outcome: Outcome, frames: Box<[i64]>) -> Content {
    Content::Frames(label(&outcome).unwrap_or_default(), frames)
}

/// The content of memory without a stack.
pub(crate) fn unobserved(row: &NotObserved) -> Content {
    let reason = label(&row.reason).unwrap_or_default();
    Content::Unobserved(row.mapping.clone(), reason)
}
