//! Filters of sampled allocations: expressions of the Common Expression Language (CEL) over one allocation.

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

/// Maximum length of an expression in bytes. Parsing and evaluation are recursive, so length and depth must be bounded.
const LONGEST: usize = 500;
const DEEPEST: usize = 12;
/// Time limit for the evaluation over all allocations.
const PATIENCE: Duration = Duration::from_secs(10);

/// The variables of an expression, each with its meaning.
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
    /// The text is too long, or its brackets are nested too deeply.
    #[error(
        "the filter is too long: at most {LONGEST} bytes, and {DEEPEST} brackets within each other"
    )]
    TooLong,
    /// The text is not an expression of CEL.
    #[error("the filter is not an expression of CEL: {0}")]
    Syntax(String),
    /// The expression contains an unknown name.
    #[error("the filter has the unknown name {name}; known are {known}", known = VARIABLES.map(|(name, _)| name).join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The evaluation fails for an allocation.
    #[error("the filter cannot be evaluated: {0}")]
    Evaluation(String),
    /// The result is neither true nor false.
    #[error("the filter is neither true nor false, but {0}")]
    NotBoolean(String),
    /// The argument of `mark()` is neither a text nor a number.
    #[error(
        "mark() takes the name of a mark in quotes or its id, as in mark('before-load') and mark(2)"
    )]
    MarkName,
    /// No mark has the given name or id.
    #[error("the filter names the mark {mark}, which is not there; known are {known}")]
    NoMark {
        /// The name or id in the filter.
        mark: String,
        /// The marks that exist.
        known: String,
    },
    /// The mark was opened from a file.
    #[error(
        "the filter names the mark {0}, which is of a saved profile: it is no moment of this session"
    )]
    MarkOfFile(String),
    /// The evaluation exceeded its time limit.
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
    /// If the text is too long or not an expression, has an unknown name, or calls `mark()` without a name or id.
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

    /// The report of the allocations for which the filter is true, of one process if `pid` is given. `marks` are the marks
    /// that the filter may refer to, the newest last.
    ///
    /// # Errors
    /// If the filter cannot be evaluated, or the evaluation takes too long.
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

    /// Indices of the allocations that [`Filter::choose`] selects.
    ///
    /// # Errors
    /// As for [`Filter::choose`].
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

    /// Adds the variables of the stack. Names are the slowest variables, so they are added only if the filter refers to
    /// them.
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

/// Adds the variables of one allocation.
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

/// Names of the functions on a stack, innermost first, including inlined ones.
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

/// The names that macros bind, such as `f` in `functions.exists(f, …)`. A match inside a text literal does no harm.
fn bound_names(text: &str) -> Vec<&str> {
    const MACROS: [&str; 5] = ["exists(", "exists_one(", "all(", "map(", "filter("];
    let after = MACROS.iter().flat_map(|name| text.split(name).skip(1));
    let named = after.filter_map(|rest| rest.split_once(','));
    named.map(|(name, _)| name.trim()).collect()
}

/// Maximum nesting depth of brackets. Brackets inside text literals also count.
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
