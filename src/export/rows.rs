//! The rows of formats that list samples with their frames: pprof and OTLP.

use super::mappings::Mappings;
use memprof_profile::symbol::{Location, Symbols};
use memprof_profile::tree::Label;
use memprof_profile::{Amounts, Frame, FrameKind, Profile};

/// Memory with its stack, or memory of one mapping without a stack.
pub(crate) struct ExportRow<'a> {
    /// The frames, innermost first; never empty.
    pub places: Vec<RowFrame<'a>>,
    /// The unwind outcome, or the reason why there is no stack: (name, value).
    pub about: (&'static str, &'static str),
    /// The figures of the row.
    pub amounts: &'a Amounts,
}

/// A frame of a row.
#[derive(Clone, Copy)]
pub(crate) enum RowFrame<'a> {
    /// Code in a file: the frame, the number of the file's mapping, and the address in the file.
    Code(Frame, u64, u64),
    /// A label for frames that are not code in a file.
    Pseudo(Label<'a>),
}

/// All rows of a profile.
pub(crate) fn rows<'a>(
    profile: &'a Profile,
    mappings: &'a Mappings,
) -> impl Iterator<Item = ExportRow<'a>> {
    let with_stack = profile.samples.iter().map(|sample| {
        let frames = sample.stack.frames.iter();
        let mut places: Vec<_> = frames.map(|frame| place(*frame, mappings)).collect();
        match sample.stack.outcome.cut_off() {
            _ if places.is_empty() => places.push(RowFrame::Pseudo(Label::NoStack)),
            Some(reason) => places.push(RowFrame::Pseudo(Label::CutOff(reason))),
            None => {}
        }
        ExportRow {
            places,
            about: ("outcome", sample.stack.outcome.label()),
            amounts: &sample.amounts,
        }
    });
    let without = profile.not_observed.iter().map(|row| ExportRow {
        places: vec![RowFrame::Pseudo(Label::NotObserved(
            &row.mapping,
            row.reason,
        ))],
        about: ("reason", row.reason.label()),
        amounts: &row.amounts,
    });
    with_stack.chain(without)
}

fn place<'a>(frame: Frame, mappings: &Mappings) -> RowFrame<'a> {
    let found = match frame.kind() {
        FrameKind::Code(module, offset) => mappings.place(module, offset),
        FrameKind::Unmapped(_) => None,
    };
    match found {
        Some((mapping, address)) => RowFrame::Code(frame, mapping, address),
        None => RowFrame::Pseudo(Label::Unmapped),
    }
}

/// The functions at a frame with their source positions, innermost first: inlined functions, then the function that
/// contains them. Empty if the frame has no name.
pub(crate) fn functions(symbols: &Symbols, frame: Frame) -> Vec<(&str, Option<&Location>)> {
    let Some(function) = symbols.function(frame) else {
        let unnamed = symbols.name(frame);
        return unnamed.iter().map(|name| (*name, None)).collect();
    };
    let inlined = function.inlined.iter().map(|f| (&f.name, &f.location));
    inlined
        .chain([(&function.name, &function.location)])
        .map(|(name, location)| (symbols.shown(name), location.as_ref()))
        .collect()
}
