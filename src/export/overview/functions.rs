//! Memory by the program's own functions: each stack counts for its innermost one.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::export::label_text::readable;
use memprof_profile::tree::{Beside, Code, Label, OwnCode};
use memprof_profile::{ErrorSum, Kind, Parts, Report};
use memprof_sys::text::printable;

/// A function with the resident memory of the stacks in which it is the innermost function of the program.
#[derive(Clone, Debug)]
pub(crate) struct OwnFunction<'a> {
    /// The function, with the line that its largest stack goes through.
    pub code: Code<'a>,
    /// Bytes, or what else the figure is.
    pub bytes: u64,
    /// The standard error of `bytes`; 0 if it is no estimate.
    pub error: u64,
}

impl OwnFunction<'_> {
    /// Its name as other views print it, without a line of the source.
    pub fn key(&self) -> String {
        key(self.code)
    }

    /// `FILE:LINE`, or the name of its file.
    pub fn place(&self) -> String {
        place(&self.code)
    }

    /// Its name and its place.
    pub fn text(&self) -> String {
        let name = self.code.function.map(printable);
        format!(
            "{} ({})",
            name.as_deref().unwrap_or("[no symbol]"),
            self.place()
        )
    }
}

/// The name of a function as views print it, without a line of the source, which depends on the stack.
pub(crate) fn key(code: Code<'_>) -> String {
    readable(&Label::Code(Code {
        source: Beside(None),
        ..code
    }))
}

/// The source line of code as `FILE:LINE`, or the name of its file.
pub(crate) fn place(code: &Code<'_>) -> String {
    match (code.source.0, code.line()) {
        (Some(source), _) => format!("{}:{}", printable(source.name()), source.line),
        (None, Some(line)) => format!("{}:{line}", printable(code.file)),
        (None, None) => printable(code.file).into_owned(),
    }
}

/// The functions of a report by the resident memory that they hold, those of the program first.
pub(crate) fn own_functions(report: &Report) -> Vec<OwnFunction<'_>> {
    own_functions_by(report, Kind::Resident)
}

/// The functions of a report by their figure of a kind, those of the program first.
pub(super) fn own_functions_by(report: &Report, kind: Kind) -> Vec<OwnFunction<'_>> {
    let samples = report.profile.samples.iter().enumerate();
    let mut samples: Vec<_> = samples
        .map(|(number, sample)| (kind.figure(&sample.amounts), number, sample))
        .collect();
    samples.sort_by_key(|(bytes, ..)| Reverse(*bytes));
    let mut functions: Vec<OwnFunction<'_>> = Vec::new();
    let mut known: HashMap<Code<'_>, usize> = HashMap::new();
    let mut function_of: HashMap<u32, usize> = HashMap::new();
    let mut own = OwnCode::new(report.side());
    for (bytes, number, sample) in samples {
        let Some(code) = own.innermost(&sample.stack).filter(|_| bytes > 0) else {
            continue;
        };
        let at = *known.entry(code).or_insert_with(|| {
            functions.push(OwnFunction {
                code,
                bytes: 0,
                error: 0,
            });
            functions.len() - 1
        });
        functions[at].bytes += bytes;
        function_of.insert(number as u32, at);
    }
    let mut errors = vec![ErrorSum::default(); functions.len()];
    let uncertainties = report.profile.uncertainties.iter();
    for uncertainty in uncertainties.filter(|uncertainty| uncertainty.is_in(kind)) {
        let mut parts: HashMap<usize, Parts> = HashMap::new();
        for part in &uncertainty.parts {
            if let Some(at) = part.sample.and_then(|sample| function_of.get(&sample)) {
                parts.entry(*at).or_default().add(part);
            }
        }
        for (at, parts) in parts {
            errors[at].add(&parts, &uncertainty.all());
        }
    }
    for (function, error) in functions.iter_mut().zip(errors) {
        function.error = error.standard_error();
    }
    functions.sort_by_key(|f| Reverse((f.code.category.0.is_own(), f.bytes)));
    functions
}
