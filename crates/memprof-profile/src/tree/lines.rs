//! The lines of one source file with the bytes of the stacks that go through them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustc_hash::FxHashMap;

use super::label::{Label, Merge, Naming};
use super::names::frame_labels;
use super::paths::{Paths, Reading};
use super::table::by_label;
use super::{Direction, Find, FunctionId};
use crate::symbol::Symbols;
use crate::{Frame, Kind, Profile};
use memprof_sys::ids::Pid;

/// A source file and its lines with bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLines {
    /// Path of the file, as debug information or the interpreter names it.
    pub file: PathBuf,
    /// The lines with bytes, in ascending order.
    pub lines: Vec<LineBytes>,
    /// The first and the last line of the function among them. Other lines are of other functions in the file.
    pub function: (u32, u32),
}

/// The bytes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineBytes {
    /// The line, counted from 1.
    pub line: u32,
    /// Bytes of stacks whose innermost frame is on the line.
    pub own: u64,
    /// Bytes of stacks that go through the line, each counted once.
    pub total: u64,
    /// The standard errors of `own` and `total`, in the unit of the kind; 0 if no figure is estimated.
    pub errors: [u64; 2],
}

impl FileLines {
    /// The lines of the file in which a function holds most bytes; `None` if no frame of the function has a line.
    pub fn around(of: (&Profile, &Symbols), kind: Kind, function: FunctionId) -> Option<FileLines> {
        let paths = Paths::new(
            [of],
            Reading {
                direction: Direction::InnermostFirst,
                naming: Naming {
                    merge: Merge::Site,
                    inlined: true,
                },
                kind,
            },
        );
        let function = Find::Function(function);
        let labels = paths.labels().all().iter();
        let places: Vec<_> = labels
            .zip(by_label(&paths, &[], kind))
            .filter(|(label, _)| function.matches(label))
            .filter_map(|(label, sum)| Some((place(label)?, sum.total[0])))
            .collect();
        let mut files: BTreeMap<&str, u64> = BTreeMap::new();
        for ((file, _), bytes) in &places {
            *files.entry(file).or_default() += bytes;
        }
        let (file, _) = files.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        let own_lines = places.iter().filter(|((of, _), _)| *of == file);
        let own_lines = own_lines.map(|((_, line), _)| *line);
        let function = (own_lines.clone().min()?, own_lines.max()?);

        // All frames on a line get the same label, which has the line in place of an offset.
        let paths = paths.relabelled(|label| match place(label) {
            Some((of, line)) if of == file => Label::Name(file, Some(line.into())),
            _ => Label::Unmapped,
        });
        let labels = paths.labels().all().iter();
        let sums = by_label(&paths, &[&of.0.uncertainties], kind);
        let lines = labels.zip(sums).filter_map(|(label, sum)| match label {
            Label::Name(_, Some(line)) => Some(LineBytes {
                line: u32::try_from(*line).ok()?,
                own: sum.own[0],
                total: sum.total[0],
                errors: sum.errors,
            }),
            _ => None,
        });
        let mut lines: Vec<LineBytes> = lines.collect();
        lines.sort_unstable_by_key(|line| line.line);
        Some(FileLines {
            file: file.into(),
            lines,
            function,
        })
    }
}

/// The processes of a report that have a function on a stack: the only one, or those of its processes that do.
pub fn processes_with((profile, symbols): (&Profile, &Symbols), function: &FunctionId) -> Vec<Pid> {
    let naming = Naming {
        merge: Merge::Function,
        inlined: true,
    };
    let mut known: FxHashMap<Frame, bool> = FxHashMap::default();
    let mut is_in = |frame: Frame| {
        *known.entry(frame).or_insert_with(|| {
            let labels = frame_labels((profile, symbols), frame, naming);
            labels.iter().any(|label| match label {
                Label::Code(code) => function.is(code),
                _ => false,
            })
        })
    };
    if profile.processes.is_empty() {
        return profile.target.pids.clone();
    }
    let mut found = Vec::new();
    for process in &profile.processes {
        let mut frames = process.samples.iter().flat_map(|s| s.stack.frames.iter());
        if frames.any(|frame| is_in(*frame)) {
            found.push(process.pid);
        }
    }
    found
}

/// The source file and the line of a frame.
fn place<'a>(label: &Label<'a>) -> Option<(&'a str, u32)> {
    let Label::Code(code) = label else {
        return None;
    };
    if let Some(source) = code.native_source() {
        return Some((source.file, source.line));
    }
    let line = u32::try_from(code.line()?).ok()?;
    Some((code.path.to_str()?, line))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memprof_sys::residency::PageKind;

    use super::*;
    use crate::symbol::{Function, InlinedFunction, Language, Location, Symbol};
    use crate::testing::{KIB, at, kib, profile};
    use crate::{FreezeOutcome, ProcessProfile, Uncertainty};

    fn at_line(line: u32) -> Option<Location> {
        let file = "/src/load.c".to_owned();
        let line = Some(line);
        Some(Location { file, line })
    }

    fn symbol(name: &str, line: u32, inlined: &[(&str, u32)]) -> Arc<Symbol> {
        Arc::new(Symbol::Known(Function {
            name: name.to_owned(),
            language: Language::Other,
            offset_in_function: 0,
            first_line: None,
            inlined: inlined
                .iter()
                .map(|(name, line)| InlinedFunction {
                    name: (*name).to_owned(),
                    location: at_line(*line),
                })
                .collect(),
            location: at_line(line),
        }))
    }

    /// `main` calls `load` on line 20 and, on the same line, at another address; `load` calls itself on line 12, and has an
    /// inlined `read` on line 5 in one of its calls.
    #[test]
    fn each_line_has_the_bytes_of_the_stacks_through_it() {
        let frames = [at(0, 1), at(0, 2), at(0, 3), at(0, 4), at(1, 1)];
        let [load, again, main, main_too, malloc] = frames;
        let names = [
            (load, symbol("load", 11, &[("read", 5)])),
            (again, symbol("load", 12, &[])),
            (main, symbol("main", 20, &[])),
            (main_too, symbol("main", 20, &[])),
        ];
        let symbols: Symbols = names.into_iter().collect();
        let mut profile = profile(
            &[
                (&[malloc, load, again, again, main], kib(4, 0)),
                (&[again, main_too], kib(8, 0)),
                (&[malloc], kib(100, 0)),
            ],
            &[],
        );
        // How many pages the first two stacks have is uncertain; their sum is not.
        let variance = (KIB as f64).powi(2);
        let between = Uncertainty::between(PageKind::Anon, [Some(0), Some(1)], variance);
        profile.uncertainties.push(between);
        let of = |name: &str| FunctionId {
            name: Some(name.to_owned()),
            path: "/usr/lib/node".into(),
        };
        let found = FileLines::around((&profile, &symbols), Kind::Anon, of("load")).unwrap();
        assert_eq!(found.file, PathBuf::from("/src/load.c"));
        assert_eq!(found.function, (11, 12));
        let rows = found.lines.iter();
        let rows: Vec<_> = rows.map(|l| (l.line, l.own / KIB, l.total / KIB)).collect();
        assert_eq!(rows, [(5, 0, 4), (11, 0, 4), (12, 8, 12), (20, 0, 12)]);
        let uncertain = found.lines.iter().map(|l| l.errors.map(|error| error > 0));
        let uncertain: Vec<_> = uncertain.collect();
        let [none, total, own] = [[false, false], [false, true], [true, false]];
        assert_eq!(uncertain, [total, total, own, none]);
        let inlined = FileLines::around((&profile, &symbols), Kind::Anon, of("read")).unwrap();
        assert_eq!((inlined.function, &inlined.lines), ((5, 5), &found.lines));
        assert!(FileLines::around((&profile, &symbols), Kind::Anon, of("store")).is_none());
    }

    /// A file of the same name may be another one in another container.
    #[test]
    fn only_processes_with_the_function_are_named() {
        let mut all = profile(&[(&[at(0, 1)], kib(4, 0)), (&[at(0, 2)], kib(8, 0))], &[]);
        let symbols: Symbols = [
            (at(0, 1), symbol("load", 11, &[("read", 5)])),
            (at(0, 2), symbol("main", 20, &[])),
        ]
        .into_iter()
        .collect();
        let with = |profile: &Profile, name: &str| {
            let function = FunctionId {
                name: Some(name.to_owned()),
                path: "/usr/lib/node".into(),
            };
            processes_with((profile, &symbols), &function)
        };
        assert_eq!(with(&all, "read"), [Pid(42)]);
        let process = |pid: u32, sample: usize| ProcessProfile {
            pid: Pid(pid),
            comm: "node".to_owned(),
            container: None,
            samples: vec![all.samples[sample].clone()],
            not_observed: Vec::new(),
            total: all.samples[sample].amounts,
            uncertainties: Vec::new(),
            kernel_before: all.kernel_before,
            kernel_after: all.kernel_after,
            freeze: FreezeOutcome::Ran,
            peak: None,
        };
        all.processes = vec![process(7, 0), process(8, 1)];
        assert_eq!(with(&all, "read"), [Pid(7)]);
        assert_eq!(with(&all, "main"), [Pid(8)]);
        assert_eq!(with(&all, "store"), []);
    }
}
