//! A profile with the names of its frames.

use std::borrow::Cow;
use std::sync::Arc;

use crate::symbol::Symbols;
use crate::{FrameFilter, Profile};

/// A profile with its symbols: the input of every view and every format.
#[derive(Clone, Debug)]
pub struct Report {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The symbols of the frames.
    pub symbols: Arc<Symbols>,
    /// Number of the report. Two reports with the same number are the same report.
    pub sequence: u64,
}

impl Report {
    /// The same report, showing only these frames of interpreted programs. As recorded, a report has all frames.
    pub fn showing(&self, frames: FrameFilter) -> Cow<'_, Report> {
        if !self.profile.has_source() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Report {
            profile: Arc::new(self.profile.showing(frames)),
            symbols: Arc::clone(&self.symbols),
            sequence: self.sequence,
        })
    }

    /// The input of a tree or a function table.
    pub fn side(&self) -> (&Profile, &Symbols) {
        (&self.profile, &self.symbols)
    }
}
