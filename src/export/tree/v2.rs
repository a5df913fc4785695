//! The `/v2` tree as columns: nodes refer to frames, and frames to strings and modules, each stored once.

use std::io::{self, Write};
use std::path::Path;

use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;

use memprof_profile::tree::{
    Cut, Direction, Find, Label, Labels, Layout, LayoutRow, Limits, Merge, Naming, Paths, Reading,
    errors,
};
use memprof_profile::{Kind, Report, Uncertainty};

/// Default maximum number of nodes.
pub(crate) const NODES: usize = 50_000;

/// Parameters of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) reading: Reading,
    pub(crate) limits: Limits,
    pub(crate) find: Option<Find>,
    /// Whether the tree shows only the subtree of the found function.
    pub(crate) focus: bool,
}

impl Shape {
    /// The whole tree, with the default merging and number of nodes.
    pub(crate) fn whole(direction: Direction, kind: Kind) -> Shape {
        Shape {
            reading: Reading {
                direction,
                naming: Naming {
                    inlined: true,
                    ..Naming::default()
                },
                kind,
            },
            limits: Limits {
                threshold: 0,
                max_nodes: NODES,
            },
            find: None,
            focus: false,
        }
    }
}

/// Writes the tree of a report, or of the part of it that `info` describes.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write_tree(
    report: &Report,
    info: impl Serialize,
    shape: &Shape,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut paths = Paths::new([report.side()], shape.reading);
    let [total] = paths.total();
    let mut drawn = Drawn::new(&mut paths, shape, &[&report.profile.uncertainties]);
    let head = Head {
        total,
        matched: drawn.matched.map(|[bytes]| bytes),
    };
    let nodes = Nodes {
        at: drawn.places(),
        total: drawn.rows.iter().map(|row| row.total[0]).collect(),
        own: drawn.rows.iter().map(|row| row.own[0]).collect(),
        errors: drawn.errors(),
    };
    Ok(serde_json::to_writer(
        out,
        &drawn.reply(info, shape, head, nodes),
    )?)
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Tree")]
pub(crate) struct Head {
    /// Bytes of all stacks and of memory without a stack: the total of the root, except with focus.
    total: u64,
    /// Bytes of stacks with at least one matching frame, before nodes are dropped, each byte counted once; null without
    /// search and path.
    matched: Option<u64>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Nodes {
    #[serde(flatten)]
    at: Places,
    /// Bytes of the node and everything below it: its self plus the totals of its children.
    total: Vec<u64>,
    /// Bytes of stacks that end at this node.
    #[serde(rename = "self")]
    own: Vec<u64>,
    #[serde(flatten)]
    errors: Errors,
}

/// Standard errors of nodes, or of their differences.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Errors {
    /// Standard error of total, in bytes, where bytes by stack are estimates; absent if all stacks were walked. total
    /// is within 1.96 standard errors of the truth in 95 % of all cases. In a difference, the standard error of to - from:
    /// the variances of both states are added, so it is rather too large.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    error: Vec<u64>,
    /// Standard error of self, likewise; in a difference, of self_to - self_from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    self_error: Vec<u64>,
}

// `H` and `N` are the fields that differ between a tree and a difference.
/// A call tree as columns; `R` describes the report. Amounts are in bytes.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "{H}")]
pub(crate) struct TreeReply<'a, R, H, N> {
    report: R,
    #[schemars(extend("enum" = ["callers", "callees"]))]
    direction: &'static str,
    #[schemars(extend("enum" = ["function", "site"]))]
    merge: &'static str,
    inlined: bool,
    #[schemars(with = "Kind")]
    kind: &'static str,
    threshold: u64,
    #[serde(flatten)]
    head: H,
    /// Numbers of dropped nodes; nodes of these types contain their bytes.
    cut: CutReply,
    strings: Vec<&'a str>,
    modules: Vec<Module<'a>>,
    frames: FrameColumns,
    /// Nodes as columns, in depth-first order, siblings by bytes descending.
    nodes: N,
}

/// Parent and frame of each node.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Places {
    /// Index of the parent node, always smaller than the node's own; null at node 0, the root.
    parent: Vec<Option<u32>>,
    /// Index into frames; the children of a node have different frames.
    frame: Vec<u32>,
}

/// Numbers of dropped nodes; nodes of these types contain their bytes.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Cut")]
struct CutReply {
    /// Number of nodes dropped by threshold.
    below_threshold: u64,
    /// Number of nodes dropped by max_nodes.
    over_limit: u64,
}

#[derive(JsonSchema, Serialize)]
struct Module<'a> {
    /// Base name of the file; of an executable with several names, the one that it runs under.
    name: &'a str,
    /// Path as shown in /proc/PID/maps.
    path: String,
}

/// Frames as columns; a frame is an index into each of them. No two frames of a reply have the same type, name, module,
/// offset, line and reason.
#[derive(Default, JsonSchema, Serialize)]
#[schemars(rename = "Frames")]
struct FrameColumns {
    #[schemars(with = "Vec<FrameType>")]
    r#type: Vec<&'static str>,
    /// Index into strings: the demangled name of the function; FILE+0xADDRESS, its start, if it has no symbol but
    /// unwind information; null if it has neither, the mapping, or why a stack was cut off; null for other types.
    name: Vec<Option<u32>>,
    /// Index into modules.
    module: Vec<Option<u32>>,
    /// File offset of the call site, in bytes; null unless merge=site, and for functions that have a line.
    offset: Vec<Option<u64>>,
    /// For functions of interpreted programs: the first line or, with merge=site, the line of the call site; null for
    /// machine code.
    #[schemars(with = "Vec<Option<std::num::NonZeroU64>>")]
    line: Vec<Option<u64>>,
    /// Index into strings: path of the source file of source_line; null without debug information.
    source: Vec<Option<u32>>,
    /// The source line in the function that its largest stack goes through; with merge=site, that of the call site.
    #[schemars(with = "Vec<Option<std::num::NonZeroU32>>")]
    source_line: Vec<Option<u32>>,
    /// Why memory has no stack; null for other types.
    #[schemars(with = "Vec<Option<memprof_profile::Unobserved>>")]
    reason: Vec<Option<&'static str>>,
    /// Whether the code belongs to the target's own executable (Rust or any other language) or to another file.
    #[schemars(with = "Vec<Option<memprof_profile::tree::Category>>")]
    category: Vec<Option<&'static str>>,
    /// Whether the frame matches the search; absent without search.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<bool>")]
    r#match: Option<Vec<bool>>,
}

/// A tree laid out, with its frames.
pub(crate) struct Drawn<'a, const N: usize> {
    pub(crate) rows: Vec<LayoutRow<N>>,
    errors: Vec<[u64; 2]>,
    /// Bytes of the matching stacks, for a search.
    pub(crate) matched: Option<[u64; N]>,
    cut: Cut,
    legend: Legend<'a>,
}

impl<'a, const N: usize> Drawn<'a, N> {
    /// Lays out a tree with the standard errors of its nodes; `uncertainties` has one slice per profile.
    pub(crate) fn new(
        paths: &mut Paths<'a, N>,
        shape: &Shape,
        uncertainties: &[&[Uncertainty]],
    ) -> Drawn<'a, N> {
        let found = shape.find.as_ref().map(|find| paths.find(find));
        let (matches, matched) = found.unzip();
        if shape.focus {
            paths.focus(
                matches.as_deref().unwrap_or_default(),
                shape.reading.direction,
            );
        }
        let mut layout = Layout::new(paths, shape.limits);
        let errors = errors::of_rows(paths, &layout.rows, uncertainties, shape.reading.kind);
        let legend = Legend::new(&mut layout.rows, paths.labels(), matches);
        Drawn {
            rows: layout.rows,
            errors,
            matched,
            cut: layout.cut,
            legend,
        }
    }

    pub(crate) fn errors(&mut self) -> Errors {
        let (self_error, error) = self.errors.drain(..).map(|[own, all]| (own, all)).unzip();
        Errors { error, self_error }
    }

    pub(crate) fn places(&self) -> Places {
        let root = std::iter::once(None);
        let others = self.rows.iter().skip(1).map(|row| Some(row.parent));
        Places {
            parent: root.chain(others).collect(),
            frame: self.rows.iter().map(|row| row.label).collect(),
        }
    }

    pub(crate) fn reply<R, H, C>(
        self,
        report: R,
        shape: &Shape,
        head: H,
        nodes: C,
    ) -> TreeReply<'a, R, H, C> {
        let Reading {
            direction,
            naming,
            kind,
        } = shape.reading;
        TreeReply {
            report,
            direction: direction.name(),
            merge: match naming.merge {
                Merge::Site => "site",
                _ => "function",
            },
            inlined: naming.inlined,
            kind: kind.name(),
            threshold: shape.limits.threshold,
            head,
            cut: CutReply {
                below_threshold: self.cut.below_threshold,
                over_limit: self.cut.over_limit,
            },
            strings: self.legend.strings.list,
            modules: self.legend.modules,
            frames: self.legend.frames,
            nodes,
        }
    }
}

/// Tables that the nodes' numbers refer to.
#[derive(Default)]
struct Legend<'a> {
    strings: Strings<'a>,
    modules: Vec<Module<'a>>,
    by_path: FxHashMap<&'a Path, u32>,
    frames: FrameColumns,
}

impl<'a> Legend<'a> {
    /// Numbers the labels of the rows in order of appearance and stores the numbers in the rows.
    fn new<const N: usize>(
        rows: &mut [LayoutRow<N>],
        labels: &Labels<'a>,
        matches: Option<Vec<bool>>,
    ) -> Legend<'a> {
        let mut legend = Legend::default();
        let mut numbers: Vec<Option<u32>> = vec![None; labels.all().len()];
        let mut marks = Vec::new();
        for row in rows {
            let label = row.label as usize;
            row.label = *numbers[label].get_or_insert_with(|| {
                // Labels of aggregate rows are added after the search.
                let is_match = |m: &Vec<bool>| m.get(label).copied().unwrap_or(false);
                marks.push(matches.as_ref().is_some_and(is_match));
                legend.add(labels.get(row.label))
            });
        }
        legend.frames.r#match = matches.map(|_| marks);
        legend
    }

    fn add(&mut self, label: &Label<'a>) -> u32 {
        let number = self.frames.r#type.len() as u32;
        let (name, reason, code) = match *label {
            Label::Code(code) => (code.function, None, Some(code)),
            Label::NotObserved(mapping, reason) => (Some(mapping), Some(reason.name()), None),
            Label::CutOff(reason) => (Some(reason.label()), None, None),
            _ => (None, None, None),
        };
        let name = name.map(|name| self.strings.number(name));
        let module = code.map(|code| self.module(code.file, code.path));
        let frames = &mut self.frames;
        frames.r#type.push(type_name(label));
        frames.name.push(name);
        frames.module.push(module);
        frames.offset.push(code.and_then(|code| code.file_offset()));
        frames.line.push(code.and_then(|code| code.line()));
        let source = code.and_then(|code| code.source.0);
        let file = source.map(|source| self.strings.number(source.file));
        frames.source.push(file);
        frames.source_line.push(source.map(|source| source.line));
        frames.reason.push(reason);
        frames
            .category
            .push(code.map(|code| code.category.0.name()));
        number
    }

    fn module(&mut self, name: &'a str, path: &'a Path) -> u32 {
        let modules = &mut self.modules;
        *self.by_path.entry(path).or_insert_with(|| {
            let path = path.to_string_lossy().into_owned();
            modules.push(Module { name, path });
            (modules.len() - 1) as u32
        })
    }
}

fn type_name(label: &Label<'_>) -> &'static str {
    match label {
        Label::Root => "root",
        Label::Code(code) if code.inlined => "inlined",
        Label::Code(_) | Label::Name(..) => "function",
        Label::Unmapped => "unmapped",
        Label::CutOff(_) => "cut_off",
        Label::NoStack => "no_stack",
        Label::NotObserved(..) => "not_observed",
        Label::BelowThreshold => "below_threshold",
        Label::OverLimit => "over_limit",
    }
}

/// Strings, each stored once.
#[derive(Default)]
struct Strings<'a> {
    list: Vec<&'a str>,
    numbers: FxHashMap<&'a str, u32>,
}

impl<'a> Strings<'a> {
    fn number(&mut self, text: &'a str) -> u32 {
        let list = &mut self.list;
        *self.numbers.entry(text).or_insert_with(|| {
            list.push(text);
            (list.len() - 1) as u32
        })
    }
}

/// The types of frames in a tree.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "only the schema is used")]
pub(crate) enum FrameType {
    /// The root of the tree.
    Root,
    /// A function or, with merge=site, a call site in a function.
    Function,
    /// A function inlined into the next outer frame.
    Inlined,
    /// One or more consecutive frames whose code is in no known file mapping (JIT).
    Unmapped,
    /// The callers of stacks whose unwinding ended before the outermost frame; name says why.
    CutOff,
    /// An empty stack.
    NoStack,
    /// Memory without a stack; name is the mapping, reason says why.
    NotObserved,
    /// The sum of children that were dropped by threshold.
    BelowThreshold,
    /// The sum of children that were dropped by max_nodes.
    OverLimit,
}
