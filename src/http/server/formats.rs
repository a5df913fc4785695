//! Selects the format of metrics that a client prefers.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

const TEXT: &str = "text/plain";
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Whether to reply in plain text: unless the `Accept` header names OpenMetrics and does not prefer plain text. A
/// client that names neither (curl, piped into `promtool check metrics`) understands plain text, in which each counter
/// has its help.
pub(super) fn prefers_text(headers: &HeaderMap) -> bool {
    let (mut text, mut open_metrics) = (0.0, 0.0);
    let values = headers.get_all(ACCEPT).iter();
    for range in values
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
    {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let quality = parts.find_map(|p| p.strip_prefix("q=").or(p.strip_prefix("Q=")));
        let quality: f32 = quality.map_or(1.0, |q| q.parse().unwrap_or(0.0));
        if name.eq_ignore_ascii_case(TEXT) {
            text = quality.max(text);
        } else if name.eq_ignore_ascii_case(OPEN_METRICS) {
            open_metrics = quality.max(open_metrics);
        }
    }
    open_metrics == 0.0 || text > open_metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_for_who_asks_for_it() {
        for (accept, wanted) in [
            (&[][..], true),
            (&["*/*"], true),
            (&["text/html,*/*;q=0.8"], true),
            (&["text/plain"], true),
            (&["Text/Plain; version=0.0.4; q=0.5, */*;q=0.1"], true),
            (&["application/openmetrics-text", "text/plain"], false),
            (&["text/plain;q=x"], true),
            (&["application/openmetrics-text"], false),
            // Prometheus 2.42.
            (
                &[
                    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                   text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ],
                false,
            ),
            (
                &["application/openmetrics-text;q=0.2, text/plain;q=0.3"],
                true,
            ),
        ] {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(ACCEPT, value.parse().unwrap());
            }
            assert_eq!(prefers_text(&headers), wanted, "{accept:?}");
        }
    }
}
