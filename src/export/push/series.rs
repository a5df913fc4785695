//! The requests of stores that take pprof: Pyroscope's `push.v1.PushRequest` as protobuf, Parca's
//! `parca.profilestore.v1alpha1.WriteRawRequest` as JSON.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::Message;
use serde_json::json;

use super::random_id;

/// The name of all series, as of other profilers of memory.
const NAME: &str = "memory";

/// A pair of a name and a value.
pub(super) type Labels = Vec<(String, String)>;

#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<RawProfileSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    /// A UUID.
    #[prost(string, tag = "2")]
    id: String,
}

/// Pyroscope's request. The profiles are no sums from the start, so it is told not to take differences itself.
pub(super) fn pyroscope(mut labels: Labels, profiles: Vec<Vec<u8>>) -> Vec<u8> {
    labels.push(("__name__".into(), NAME.into()));
    labels.push(("__delta__".into(), "false".into()));
    let labels = labels.into_iter();
    let labels: Vec<_> = labels
        .map(|(name, value)| LabelPair { name, value })
        .collect();
    let series = profiles.into_iter().map(|raw_profile| RawProfileSeries {
        labels: labels.clone(),
        samples: vec![RawSample {
            raw_profile,
            id: uuid(),
        }],
    });
    let request = PushRequest {
        series: series.collect(),
    };
    request.encode_to_vec()
}

/// Parca's request. `normalized` says that addresses are those in the files.
pub(super) fn parca(mut labels: Labels, profiles: Vec<Vec<u8>>) -> Vec<u8> {
    labels.push(("__name__".into(), NAME.into()));
    let labels = labels.into_iter();
    let labels: Vec<_> = labels
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let series = profiles.into_iter().map(|profile| {
        let sample = json!({"rawProfile": BASE64_STANDARD.encode(profile)});
        json!({"labels": {"labels": labels}, "samples": [sample]})
    });
    let series: Vec<_> = series.collect();
    json!({"series": series, "normalized": true})
        .to_string()
        .into_bytes()
}

/// A random UUID (version 4).
fn uuid() -> String {
    let mut id = random_id();
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    let hex = memprof_sys::text::hex(&id);
    let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|at| &hex[at]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids() {
        let id = uuid();
        let lengths: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(&id[14..15], "4", "{id}");
        assert_ne!(id, uuid());
    }
}
