//! The functions of stacks with their places, for the heap by stack.

use std::sync::Arc;

use super::folded;
use super::overview::place;
use memprof_heap::StackNames;
use memprof_profile::tree::{Label, Merge, Naming, frame_labels};
use memprof_profile::{Profile, Report, Sample};

/// The functions of each stack of a report, as the folded format names them; `None` for a stack without bytes.
pub(crate) fn stack_names(report: &Report, inlined: bool) -> Vec<Option<StackNames>> {
    let naming = Naming {
        merge: Merge::Function,
        inlined,
    };
    let rest = Profile {
        samples: Vec::new(),
        not_observed: Vec::new(),
        ..Profile::clone(&report.profile)
    };
    let names_of = |sample: &Sample| {
        let alone = Report {
            profile: Arc::new(Profile {
                samples: vec![sample.clone()],
                ..rest.clone()
            }),
            ..report.clone()
        };
        let (names, _) = folded::lines(&alone, inlined).pop()?;
        let frames = sample.stack.frames.iter();
        let labels = frames.flat_map(|frame| frame_labels(report.side(), *frame, naming));
        let places = labels.map(|label| match label {
            // The name of a function without a symbol is that of its file.
            Label::Code(code) if code.function.is_some() => Some(place(&code)),
            _ => None,
        });
        let mut places: Vec<Option<String>> = places.collect();
        // Where a stack is cut off, a name stands for its callers.
        places.resize(names.split(';').count(), None);
        places.reverse();
        Some(StackNames { names, places })
    };
    report.profile.samples.iter().map(names_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, ended, kib, profile, report};
    use memprof_profile::{Frame, Outcome, PartialReason};

    #[test]
    fn each_name_has_its_place() {
        let stack = [at(0, 2), Frame::unmapped(3), at(1, 4), at(0, 1)];
        let mut profile = profile(&[(&stack, kib(64, 0)), (&[at(0, 1)], kib(8, 0))], &[]);
        ended(&mut profile, 0, Outcome::Partial(PartialReason::NoTable));
        let report = report(profile, &[(at(0, 1), "main"), (at(0, 2), "take")]);
        let [first, second] = &stack_names(&report, true)[..] else {
            panic!("one for each stack");
        };
        let StackNames { names, places } = first.as_ref().unwrap();
        let names: Vec<&str> = names.split(';').collect();
        assert_eq!(names.len(), places.len(), "{names:?} {places:?}");
        let shown: Vec<_> = names
            .iter()
            .zip(places)
            .map(|(name, place)| (*name, place.as_deref()))
            .collect();
        let last = &shown[shown.len() - 4..];
        let wanted = [
            ("main", Some("node")),
            ("libc-2.31.so+0x4", None),
            ("[unknown]", None),
            ("take", Some("node")),
        ];
        assert_eq!(last, wanted);
        assert_eq!(second.as_ref().unwrap().names, "main");
    }
}
