//! Options of an export, and the check that a format supports them.

use std::fmt;
use std::sync::Arc;

use super::{Exporter, FORMATS};
use memprof_profile::tree::Direction;
use memprof_profile::{FrameFilter, Kind, Report};

/// The options of an export. The default is the complete report with the defaults of the format.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// The end of a stack at the root; `None` for the format's default.
    pub direction: Option<Direction>,
    /// The kind of bytes to count.
    pub kind: Kind,
    /// Minimum size of a node in bytes; smaller nodes are aggregated. `None` for the format's default.
    pub threshold: Option<u64>,
    /// The frames to show of interpreted programs; `None` for those that are usual in the format.
    pub frames: Option<FrameFilter>,
    /// Whether functions that the compiler inlined are no frames of their own.
    pub no_inline: bool,
    /// The earlier report, for a diff.
    pub baseline: Option<Arc<Report>>,
}

/// The options that a format supports beyond the export of one complete report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supports {
    /// The choice of the end of a stack at the root.
    pub direction: bool,
    /// A single [`Kind`].
    pub kind: bool,
    /// Aggregation of small nodes.
    pub threshold: bool,
    /// A diff against an earlier report.
    pub difference: bool,
    /// An alternative if one of these options is not supported; may be empty.
    pub instead: &'static str,
}

impl Supports {
    pub(crate) const NOTHING: Supports = Supports {
        direction: false,
        kind: false,
        threshold: false,
        difference: false,
        instead: "",
    };
    pub(super) const EVERYTHING: Supports = Supports {
        direction: true,
        kind: true,
        threshold: true,
        difference: true,
        instead: "",
    };
}

impl ExportOptions {
    /// Checks that the format supports these options.
    ///
    /// # Errors
    /// If the format does not support one of the options.
    ///
    /// # Examples
    ///
    /// ```
    /// use memprof::export::ExportOptions;
    /// use memprof::http::exporters;
    ///
    /// let options = ExportOptions { threshold: Some(64 << 10), ..ExportOptions::default() };
    /// let format = |name| exporters::by_name(name).unwrap();
    /// assert_eq!(options.check(format("svg")), Ok(()));
    /// let error = options.check(format("csv")).unwrap_err();
    /// assert!(error.to_string().starts_with("the format csv does not support a threshold"));
    /// ```
    pub fn check(&self, format: &Exporter) -> Result<(), Unsupported> {
        self.check_with(format, self.baseline.is_some())
    }

    /// Checks that the format supports a diff with these options, before there is a baseline.
    ///
    /// # Errors
    /// As for [`check`](ExportOptions::check).
    pub fn check_difference(&self, format: &Exporter) -> Result<(), Unsupported> {
        self.check_with(format, true)
    }

    fn check_with(&self, format: &Exporter, difference: bool) -> Result<(), Unsupported> {
        let asked = [
            (ExportOption::Direction, self.direction.is_some()),
            (ExportOption::Kind, self.kind != Kind::All),
            (ExportOption::Threshold, self.threshold.is_some()),
            (ExportOption::Difference, difference),
        ];
        let mut refused = asked
            .into_iter()
            .filter(|(wish, asked)| *asked && !wish.held_by(format));
        match refused.next() {
            None => Ok(()),
            Some((wish, _)) => Err(Unsupported {
                format: format.name,
                wish,
                instead: format.supports.instead,
            }),
        }
    }
}

/// An option that not every format supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExportOption {
    Direction,
    Kind,
    Threshold,
    Difference,
}

impl ExportOption {
    fn name(self) -> &'static str {
        match self {
            ExportOption::Direction => "a direction",
            ExportOption::Kind => "a single kind of memory",
            ExportOption::Threshold => "a threshold",
            ExportOption::Difference => "a difference",
        }
    }

    fn held_by(self, format: &Exporter) -> bool {
        let can = &format.supports;
        match self {
            ExportOption::Direction => can.direction,
            ExportOption::Kind => can.kind,
            ExportOption::Threshold => can.threshold,
            ExportOption::Difference => can.difference,
        }
    }
}

/// Error: a requested option is not supported by the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    format: &'static str,
    wish: ExportOption,
    instead: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the format {} does not support {}",
            self.format,
            self.wish.name()
        )?;
        let others = FORMATS.iter().filter(|e| self.wish.held_by(e));
        for (at, other) in others.enumerate() {
            f.write_str(if at == 0 { "; these do: " } else { ", " })?;
            f.write_str(other.name)?;
        }
        if !self.instead.is_empty() {
            write!(f, ". {}", self.instead)?;
        }
        Ok(())
    }
}

impl std::error::Error for Unsupported {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::testing::by_name;
    use crate::testing::profile;

    fn refused(format: &str, options: &ExportOptions) -> Option<String> {
        let checked = options.check(by_name(format).unwrap());
        checked.err().map(|e| e.to_string())
    }

    #[test]
    fn every_format_takes_the_default() {
        for format in FORMATS {
            assert_eq!(ExportOptions::default().check(format), Ok(()));
        }
    }

    #[test]
    fn what_cannot_be_held_is_refused() {
        let report = Report {
            profile: Arc::new(profile(&[], &[])),
            symbols: Arc::default(),
            sequence: 1,
        };
        let difference = ExportOptions {
            baseline: Some(Arc::new(report.clone())),
            ..ExportOptions::default()
        };
        let why = refused("json", &difference).unwrap();
        assert!(
            why.starts_with("the format json does not support a difference"),
            "{why}"
        );
        let swap = ExportOptions {
            kind: Kind::Swap,
            ..ExportOptions::default()
        };
        let why = refused("json", &swap).unwrap();
        let wanted = "the format json does not support a single kind of memory; these do: folded";
        assert!(why.starts_with(wanted), "{why}");
        assert_eq!(refused("folded", &swap), None);
        let json = by_name("json").unwrap();
        let e = crate::export::write(json, &report, &swap, &mut Vec::new()).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::InvalidInput);
    }
}
