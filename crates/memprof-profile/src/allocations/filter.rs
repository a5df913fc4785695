//! A filter: an expression of the Common Expression Language (CEL) over one allocation.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cel::parser::Expression;
use cel::{Context, Env, ExecutionError, Program, Value};

use super::marks::{self, MarkTime};
use super::{Allocation, Allocations, NamedAllocations};
use crate::symbol::Symbols;
use crate::{FrameKind, Report, Stack};
use memprof_sys::ids::Pid;

/// Maximum length of an expression, in bytes, and depth of its brackets: parsing and evaluation are recursive.
const LONGEST: usize = 500;
const DEEPEST: usize = 12;
/// Time limit for looking at all allocations.
const PATIENCE: Duration = Duration::from_secs(10);

/// The names that an expression may contain, each with what it stands for.
pub const VARIABLES: [(&str, &str); 12] = [
    ("size", "bytes that the program asked for"),
    ("born", "seconds from the first sample to the allocation"),
    (
        "died",
        "seconds from the first sample to the free; of live ones, infinite",
    ),
    ("lifetime", "seconds that it lived, or has lived until now"),
    ("now", "seconds from the first sample to this moment"),
    ("live", "whether it was not freed"),
    ("temporary", "whether it was freed within --heap-temporary"),
    ("at_peak", "whether it was live when the most bytes were"),
    ("thread", "id of the thread that made it"),
    ("process", "id of its process; 0 if that has ended"),
    (
        "functions",
        "names of the functions on its stack, innermost first",
    ),
    ("modules", "names of their files"),
];

/// Why a filter cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It is too long or too deep.
    #[error(
        "the filter is too long: at most {LONGEST} bytes, and {DEEPEST} brackets within each other"
    )]
    TooLong,
    /// It is no expression.
    #[error("the filter is not an expression of CEL: {0}")]
    Syntax(String),
    /// It contains a name that means nothing.
    #[error("the filter has the unknown name {name}; known are {known}", known = VARIABLES.map(|(name, _)| name).join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// It fails for an allocation.
    #[error("the filter cannot be evaluated: {0}")]
    Evaluation(String),
    /// It is neither true nor false.
    #[error("the filter is neither true nor false, but {0}")]
    NotBoolean(String),
    /// It names a mark by something else than a text or a number.
    #[error(
        "mark() takes the name of a mark in quotes or its id, as in mark('before-load') and mark(2)"
    )]
    MarkName,
    /// It names a mark that is not there.
    #[error("the filter names the mark {mark}, which is not there; known are {known}")]
    NoMark {
        /// The mark.
        mark: String,
        /// Those that are there.
        known: String,
    },
    /// It names a mark that was opened from a file.
    #[error(
        "the filter names the mark {0}, which is of a saved profile: it is no moment of this session"
    )]
    MarkOfFile(String),
    /// It took too long.
    #[error("the filter took longer than {} s: make it simpler", PATIENCE.as_secs())]
    TooSlow,
}

/// A filter of allocations.
#[derive(Clone)]
pub struct Filter {
    text: Arc<str>,
    program: Arc<Program>,
    names_marks: bool,
}

/// Equal texts are equal filters.
impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Filter) -> bool {
        self.text == other.text
    }
}

impl Eq for Filter {}

impl Filter {
    /// Parses an expression.
    ///
    /// # Errors
    /// It is no expression, or has an unknown name.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        if text.len() > LONGEST || depth(text) > DEEPEST {
            return Err(FilterError::TooLong);
        }
        let program = Program::compile(text).map_err(|e| FilterError::Syntax(one_line(&e)))?;
        let references = program.references();
        let mut names: Vec<&str> = references.variables();
        names.sort_unstable();
        let bound = bound_names(text);
        let known = |name: &str| VARIABLES.iter().any(|(known, _)| *known == name);
        let mut unknown = names.into_iter();
        if let Some(unknown) = unknown.find(|name| !known(name) && !bound.contains(name)) {
            return Err(FilterError::Unknown {
                name: unknown.to_owned(),
            });
        }
        Ok(Filter {
            text: text.into(),
            names_marks: marks::names_any(program.expression())?,
            program: Arc::new(program),
        })
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The report of the allocations for which it is true, of one process if `pid` names it. `marks` are those that it may
    /// name, the newest last.
    ///
    /// # Errors
    /// It cannot be evaluated, or that takes too long.
    pub fn choose(
        &self,
        named: &NamedAllocations,
        pid: Option<Pid>,
        marks: &[MarkTime],
    ) -> Result<Report, FilterError> {
        let (report, all) = (&named.report, &*named.allocations);
        let chosen = self.indices(named, pid, marks)?;
        let mut profile = all.profile_of(chosen.into_iter(), &report.profile);
        profile.losses.counters.extend(all.not_looked_at());
        Ok(Report {
            profile: Arc::new(profile),
            ..report.clone()
        })
    }

    /// The indices of the allocations that [`Filter::choose`] chooses.
    ///
    /// # Errors
    /// As there.
    pub fn indices(
        &self,
        named: &NamedAllocations,
        pid: Option<Pid>,
        marks: &[MarkTime],
    ) -> Result<Vec<usize>, FilterError> {
        let (report, all) = (&named.report, &*named.allocations);
        let expression = match self.names_marks {
            true => Cow::Owned(marks::with_times(
                self.program.expression(),
                marks,
                all.began_ns,
            )?),
            false => Cow::Borrowed(self.program.expression()),
        };
        let begun = Instant::now();
        let env = Arc::new(Env::stdlib());
        let peak_ns = self.mentions("at_peak").then(|| all.peak_ns());
        let mut by_stack: Vec<Vec<usize>> = vec![Vec::new(); all.stacks.len()];
        for at in named.of_process(pid) {
            if let Some(of_stack) = by_stack.get_mut(all.all[at].stack as usize) {
                of_stack.push(at);
            }
        }
        let mut chosen = Vec::new();
        for (stack, of_stack) in all.stacks.iter().zip(by_stack) {
            let mut context = Context::with_env(Arc::clone(&env));
            self.name(&mut context, stack, report)?;
            for at in of_stack {
                if begun.elapsed() > PATIENCE {
                    return Err(FilterError::TooSlow);
                }
                let mut of_one = context.new_inner_scope();
                describe(&mut of_one, &all.all[at], all, peak_ns.unwrap_or(0))?;
                if holds(&expression, &of_one)? {
                    chosen.push(at);
                }
            }
        }
        Ok(chosen)
    }

    fn mentions(&self, name: &str) -> bool {
        self.program.references().has_variable(name)
    }

    /// Adds what is known of the stack. (Names take the most time: only if they are wanted.)
    fn name(
        &self,
        context: &mut Context<'_, '_>,
        stack: &Stack,
        report: &Report,
    ) -> Result<(), FilterError> {
        if self.mentions("functions") {
            let functions = functions(stack, &report.symbols);
            context
                .add_variable("functions", functions)
                .map_err(failed)?;
        }
        if self.mentions("modules") {
            let modules = stack.frames.iter().filter_map(|frame| match frame.kind() {
                FrameKind::Code(id, _) => report.profile.module(id),
                _ => None,
            });
            let names: Vec<String> = modules.map(|module| module.name.clone()).collect();
            context.add_variable("modules", names).map_err(failed)?;
        }
        Ok(())
    }
}

fn holds(expression: &Expression, context: &Context<'_, '_>) -> Result<bool, FilterError> {
    match Value::resolve(expression, context).map_err(evaluation)? {
        Value::Bool(holds) => Ok(holds),
        other => Err(FilterError::NotBoolean(format!("{:?}", other.type_of()))),
    }
}

/// Adds what is known of one allocation.
fn describe(
    context: &mut Context<'_, '_>,
    one: &Allocation,
    all: &Allocations,
    peak_ns: u64,
) -> Result<(), FilterError> {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let died = one.freed_ns.map_or(f64::INFINITY, seconds);
    let whole = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
    let process = one.pid.map_or(0, |pid| pid.0);
    let values: [(&str, Value); 10] = [
        ("size", whole(one.size).into()),
        ("born", seconds(one.born_ns).into()),
        ("died", died.into()),
        ("lifetime", seconds(one.lifetime_ns(all)).into()),
        ("now", seconds(all.now_ns).into()),
        ("live", one.freed_ns.is_none().into()),
        ("temporary", one.is_temporary(all).into()),
        ("at_peak", one.lived_at(peak_ns).into()),
        ("thread", i64::from(one.thread).into()),
        ("process", i64::from(process).into()),
    ];
    for (name, value) in values {
        context.add_variable(name, value).map_err(failed)?;
    }
    Ok(())
}

/// The names of the functions on a stack, innermost first, with those that were inlined.
fn functions(stack: &Stack, symbols: &Symbols) -> Vec<String> {
    let named = stack
        .frames
        .iter()
        .filter_map(|frame| symbols.function(*frame));
    named.map(|function| function.name.to_string()).collect()
}

fn failed(e: impl std::fmt::Display) -> FilterError {
    FilterError::Evaluation(one_line(&e))
}

fn evaluation(e: ExecutionError) -> FilterError {
    failed(e)
}

fn one_line(text: &impl std::fmt::Display) -> String {
    let text = text.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(3).collect::<Vec<_>>().join("; ")
}

/// The names that macros bind: that of `functions.exists(f, …)`. (One in a text does no harm.)
fn bound_names(text: &str) -> Vec<&str> {
    const MACROS: [&str; 5] = ["exists(", "exists_one(", "all(", "map(", "filter("];
    let after = MACROS.iter().flat_map(|name| text.split(name).skip(1));
    let named = after.filter_map(|rest| rest.split_once(','));
    named.map(|(name, _)| name.trim()).collect()
}

/// How deep brackets are within each other, at most. (Those in texts count, too.)
fn depth(text: &str) -> usize {
    let (mut depth, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}
