//! The two text formats of metrics: OpenMetrics, and the Prometheus text format.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::http::api::ApiError;
use crate::http::api::reply::internal;

/// OpenMetrics, which the client library writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The Prometheus text format, for clients that request it.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Plain,
}

impl Format {
    /// The format's MIME type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => OPEN_METRICS,
            Format::Plain => PLAIN,
        }
    }

    /// The registry's text, without the end marker.
    pub(super) fn write(self, registry: &Registry) -> Result<String, ApiError> {
        let mut text = String::new();
        encode(&mut text, registry).map_err(internal)?;
        text.truncate(text.trim_end_matches("# EOF\n").len());
        Ok(match self {
            Format::OpenMetrics => text,
            Format::Plain => plain(&text),
        })
    }

    /// The end marker.
    pub(super) fn end(self) -> &'static str {
        match self {
            Format::OpenMetrics => "# EOF\n",
            Format::Plain => "",
        }
    }
}

/// Rewrites OpenMetrics as the Prometheus format. In the latter, `_total` is also part of a counter's name in the HELP
/// and TYPE lines, and there is no end marker.
fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 256);
    // The TYPE line follows the HELP line and determines the name in both.
    let mut held = None;
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        let help = line.strip_prefix("# HELP ").and_then(|r| r.split_once(' '));
        let kind = line.strip_prefix("# TYPE ").and_then(|r| r.split_once(' '));
        match (help, kind) {
            (Some(help), _) => held = Some(help),
            (_, Some((name, kind))) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some((name, help)) = held.take() {
                    text += &format!("# HELP {name}{suffix} {help}\n");
                }
                text += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_counters_have_the_names_of_their_samples() {
        let open = "# HELP a_bytes Bytes of a.\n# TYPE a_bytes gauge\na_bytes{b=\"# HELP c d\"} 1\n\
                    # HELP e Events.\n# TYPE e counter\ne_total 2\ne_total{f=\"g\"} 3\n# EOF\n";
        let wanted = "# HELP a_bytes Bytes of a.\n# TYPE a_bytes gauge\na_bytes{b=\"# HELP c d\"} 1\n\
                      # HELP e_total Events.\n# TYPE e_total counter\ne_total 2\ne_total{f=\"g\"} 3\n";
        assert_eq!(plain(open), wanted);
        assert_eq!(plain(""), "");
    }
}
