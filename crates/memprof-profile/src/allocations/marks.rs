//! Marks in filters: `mark('NAME')` and `mark(ID)` stand for the moment of a mark.
//!
//! Filters are parsed before it is known which marks there are, and evaluated with the marks of that moment: each call is
//! replaced by its number of seconds first. So a name that no mark has is an error, whatever the rest of the filter says.

use cel::common::ast::{EntryExpr, Expr, LiteralValue};
use cel::parser::Expression;

use super::FilterError;

/// The function.
const MARK: &str = "mark";

/// When a mark was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkTime {
    /// Its number.
    pub id: u64,
    /// Its name. Several marks may have the same: the newest is meant.
    pub name: Option<String>,
    /// When its report was taken, in ns of `CLOCK_MONOTONIC`; `None` if it is of a saved profile.
    pub at_ns: Option<u64>,
}

/// Whether an expression names marks.
///
/// # Errors
/// It names one by something else than a text or a number.
pub(super) fn names_any(expression: &Expression) -> Result<bool, FilterError> {
    let mut found = false;
    let mut copy = expression.clone();
    replace(&mut copy, &mut |name| {
        found = true;
        match name {
            Some(_) => Ok(0.0),
            None => Err(FilterError::MarkName),
        }
    })?;
    Ok(found)
}

/// The expression with the moments of marks, in seconds since `began_ns`.
///
/// # Errors
/// There is no such mark, or it is of a saved profile.
pub(super) fn with_times(
    expression: &Expression,
    marks: &[MarkTime],
    began_ns: u64,
) -> Result<Expression, FilterError> {
    let mut timed = expression.clone();
    replace(&mut timed, &mut |name| {
        let name = name.ok_or(FilterError::MarkName)?;
        let Some(mark) = marks.iter().rev().find(|mark| name.is_of(mark)) else {
            return Err(FilterError::NoMark {
                mark: name.to_string(),
                known: known(marks),
            });
        };
        let at = mark
            .at_ns
            .ok_or(FilterError::MarkOfFile(name.to_string()))?;
        // The mark may be older than the first sample.
        Ok((i128::from(at) - i128::from(began_ns)) as f64 / 1e9)
    })?;
    Ok(timed)
}

/// The marks that can be named, in one line.
fn known(marks: &[MarkTime]) -> String {
    let names = marks.iter().filter(|mark| mark.at_ns.is_some());
    let names = names.map(|mark| match &mark.name {
        Some(name) => Name::Text(name).to_string(),
        None => Name::Number(mark.id.cast_signed()).to_string(),
    });
    let names: Vec<String> = names.collect();
    match names.is_empty() {
        true => "none; POST /v2/marks makes one".to_owned(),
        false => names.join(", "),
    }
}

/// How a filter names a mark.
#[derive(Clone, Copy, Debug)]
enum Name<'a> {
    Text(&'a str),
    Number(i64),
}

impl Name<'_> {
    fn is_of(self, mark: &MarkTime) -> bool {
        match self {
            Name::Text(name) => mark.name.as_deref() == Some(name),
            Name::Number(id) => i64::try_from(mark.id) == Ok(id),
        }
    }
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Text(name) => write!(f, "'{}'", name.escape_debug()),
            Name::Number(id) => write!(f, "{id}"),
        }
    }
}

/// Replaces each call of [`MARK`] by what `time` makes of its argument, which is `None` if it is no name.
fn replace(
    at: &mut Expression,
    time: &mut impl FnMut(Option<Name<'_>>) -> Result<f64, FilterError>,
) -> Result<(), FilterError> {
    if let Expr::Call(call) = &at.expr
        && call.func_name == MARK
    {
        let name = match (&call.target, call.args.as_slice()) {
            (None, [argument]) => match &argument.expr {
                Expr::Literal(LiteralValue::String(name)) => Some(Name::Text(name.inner())),
                Expr::Literal(LiteralValue::Int(id)) => Some(Name::Number(*id.inner())),
                _ => None,
            },
            _ => None,
        };
        let seconds = time(name)?;
        at.expr = Expr::Literal(LiteralValue::Double(seconds.into()));
        return Ok(());
    }
    for part in parts(&mut at.expr) {
        replace(part, time)?;
    }
    Ok(())
}

/// The expressions within an expression.
fn parts(of: &mut Expr) -> Vec<&mut Expression> {
    match of {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => {
            let target = call.target.as_deref_mut();
            target.into_iter().chain(&mut call.args).collect()
        }
        Expr::Comprehension(all) => vec![
            &mut all.iter_range,
            &mut all.accu_init,
            &mut all.loop_cond,
            &mut all.loop_step,
            &mut all.result,
        ],
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => entries(map.entries.iter_mut().map(|entry| &mut entry.expr)),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Struct(fields) => entries(fields.entries.iter_mut().map(|entry| &mut entry.expr)),
    }
}

fn entries<'a>(all: impl Iterator<Item = &'a mut EntryExpr>) -> Vec<&'a mut Expression> {
    let parts = all.flat_map(|entry| match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    });
    parts.collect()
}
