//! Decoders of what stores receive. They check what a store relies on: each index leads somewhere.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development::ProfilesDictionary;
use prost::Message;
use serde_json::Value;

use crate::common::store::Received;
use crate::exports::readers::{self, Sums};

/// What a store receives with a request.
#[derive(Debug)]
pub struct Pushed {
    /// Attributes or labels.
    pub about: BTreeMap<String, String>,
    /// Sums by sample type.
    pub sums: Sums,
    /// Durations by sample type, in nanoseconds.
    pub durations: BTreeMap<String, u64>,
    /// Units by sample type.
    pub units: BTreeMap<String, String>,
    /// All functions by name, and the build ids and the files of mappings.
    pub functions: Vec<String>,
    pub files: Vec<String>,
    pub build_ids: Vec<String>,
}

pub fn decode(protocol: &str, request: &Received) -> Pushed {
    match protocol {
        "otlp" => otlp(request),
        "pyroscope" => pyroscope(request),
        "parca" => parca(request),
        other => panic!("{other}"),
    }
}

fn text(value: &Option<AnyValue>) -> String {
    match value.as_ref().and_then(|v| v.value.as_ref()).unwrap() {
        any_value::Value::StringValue(text) => text.clone(),
        any_value::Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn otlp(request: &Received) -> Pushed {
    assert_eq!(request.path, "/v1development/profiles");
    assert_eq!(
        request.header("content-type"),
        Some("application/x-protobuf")
    );
    assert_eq!(request.header("content-encoding"), Some("gzip"));
    let message = ExportProfilesServiceRequest::decode(&*request.content()).unwrap();
    let tables = message.dictionary.unwrap();
    check(&tables);
    let string = |at: i32| tables.string_table[at as usize].clone();
    let [of_resource] = &message.resource_profiles[..] else {
        panic!("one resource is expected");
    };
    let attributes = &of_resource.resource.as_ref().unwrap().attributes;
    let about = attributes.iter().map(|a| (a.key.clone(), text(&a.value)));
    let about: BTreeMap<_, _> = about.collect();
    assert_eq!(about.len(), attributes.len(), "an attribute is repeated");
    let [scope] = &of_resource.scope_profiles[..] else {
        panic!("one scope is expected");
    };
    assert_eq!(scope.scope.as_ref().unwrap().name, "memprof");
    let mut pushed = Pushed {
        about,
        sums: Sums::new(),
        durations: BTreeMap::new(),
        units: BTreeMap::new(),
        functions: tables
            .function_table
            .iter()
            .map(|f| string(f.name_strindex))
            .collect(),
        files: tables
            .mapping_table
            .iter()
            .map(|m| string(m.filename_strindex))
            .collect(),
        build_ids: Vec::new(),
    };
    for mapping in &tables.mapping_table {
        for at in &mapping.attribute_indices {
            let attribute = &tables.attribute_table[*at as usize];
            assert_eq!(
                string(attribute.key_strindex),
                "process.executable.build_id.gnu"
            );
            pushed.build_ids.push(text(&attribute.value));
        }
    }
    for profile in &scope.profiles {
        let sample_type = profile.sample_type.unwrap();
        let name = string(sample_type.type_strindex);
        assert!(profile.time_unix_nano > 0 && profile.profile_id.len() == 16);
        let mut sum = 0;
        for sample in &profile.samples {
            let stack = &tables.stack_table[sample.stack_index as usize];
            assert!(!stack.location_indices.is_empty());
            let [value] = sample.values[..] else {
                panic!("one value is expected");
            };
            assert!(value > 0);
            assert!(
                sample
                    .attribute_indices
                    .iter()
                    .all(|at| tables.attribute_table.get(*at as usize).is_some())
            );
            sum += value as u64;
        }
        let before = pushed.sums.insert(name.clone(), sum);
        assert_eq!(before, None, "{name} is repeated");
        pushed.durations.insert(name.clone(), profile.duration_nano);
        pushed.units.insert(name, string(sample_type.unit_strindex));
    }
    pushed
}

/// Every index leads into its table, the first entries are empty, and no stack is there twice.
fn check(tables: &ProfilesDictionary) {
    assert_eq!(tables.string_table[0], "");
    assert_eq!(tables.mapping_table[0], Default::default());
    assert_eq!(tables.location_table[0], Default::default());
    assert_eq!(tables.function_table[0], Default::default());
    assert_eq!(tables.attribute_table[0], Default::default());
    assert_eq!(tables.link_table[0], Default::default());
    assert_eq!(tables.stack_table[0], Default::default());
    let within = |at: i32, length: usize| assert!(at >= 0 && (at as usize) < length, "{at}");
    for function in &tables.function_table {
        within(function.name_strindex, tables.string_table.len());
        within(function.filename_strindex, tables.string_table.len());
    }
    for location in &tables.location_table[1..] {
        within(location.mapping_index, tables.mapping_table.len());
        for line in &location.lines {
            within(line.function_index, tables.function_table.len());
        }
        for at in &location.attribute_indices {
            within(*at, tables.attribute_table.len());
        }
    }
    let mut stacks = std::collections::BTreeSet::new();
    for stack in &tables.stack_table {
        for at in &stack.location_indices {
            within(*at, tables.location_table.len());
            assert!(*at > 0);
        }
        assert!(stacks.insert(&stack.location_indices));
    }
    let strings: std::collections::BTreeSet<_> = tables.string_table.iter().collect();
    assert_eq!(strings.len(), tables.string_table.len());
}

/// The fields of a message, by Python: (number, value) for those with a length.
const FIELDS: &str = "
import sys, json, base64
def varint(b, at):
    n = s = 0
    while True:
        n |= (b[at] & 127) << s
        s += 7
        at += 1
        if b[at - 1] < 128:
            return n, at
def fields(b):
    at = 0
    while at < len(b):
        key, at = varint(b, at)
        assert key & 7 == 2, key
        size, at = varint(b, at)
        assert at + size <= len(b)
        yield key >> 3, b[at:at + size]
        at += size
out = []
for number, series in fields(sys.stdin.buffer.read()):
    assert number == 1
    labels, samples = {}, []
    for number, part in fields(series):
        part = dict(fields(part))
        if number == 1:
            name = part[1].decode()
            assert name not in labels, name
            labels[name] = part[2].decode()
        else:
            assert number == 2
            samples.append({'profile': base64.b64encode(part[1]).decode(), 'id': part[2].decode()})
    out.append({'labels': labels, 'samples': samples})
print(json.dumps(out))
";

fn pyroscope(request: &Received) -> Pushed {
    assert_eq!(request.path, "/push.v1.PusherService/Push");
    assert_eq!(request.header("content-type"), Some("application/proto"));
    assert_eq!(request.header("connect-protocol-version"), Some("1"));
    let read = readers::piped(
        std::process::Command::new("python3").args(["-c", FIELDS]),
        &request.body,
    );
    let series: Value = serde_json::from_slice(&read).unwrap();
    let mut profiles = Vec::new();
    let mut about = BTreeMap::new();
    for one in series.as_array().unwrap() {
        let labels = one["labels"].as_object().unwrap().iter();
        about = labels
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect();
        for sample in one["samples"].as_array().unwrap() {
            assert_eq!(sample["id"].as_str().unwrap().len(), 36);
            profiles.push(sample["profile"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(about["__name__"], "memory");
    assert_eq!(about["__delta__"], "false");
    pprof(about, &profiles)
}

fn parca(request: &Received) -> Pushed {
    assert_eq!(request.path, "/api/profiles/writeraw");
    assert_eq!(request.header("content-type"), Some("application/json"));
    let request: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(request["normalized"], true);
    let mut profiles = Vec::new();
    let mut about = BTreeMap::new();
    for one in request["series"].as_array().unwrap() {
        let labels = one["labels"]["labels"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        about = labels
            .iter()
            .map(|label| (text(&label["name"]), text(&label["value"])))
            .collect();
        assert_eq!(about.len(), labels.len(), "a label is repeated");
        let samples = one["samples"].as_array().unwrap();
        profiles.extend(samples.iter().map(|sample| text(&sample["rawProfile"])));
    }
    assert_eq!(about["__name__"], "memory");
    pprof(about, &profiles)
}

/// The profiles, read by `go tool pprof`.
fn pprof(about: BTreeMap<String, String>, profiles: &[String]) -> Pushed {
    let mut pushed = Pushed {
        about,
        sums: Sums::new(),
        durations: BTreeMap::new(),
        units: BTreeMap::new(),
        functions: Vec::new(),
        files: Vec::new(),
        build_ids: Vec::new(),
    };
    for profile in profiles {
        let read = readers::pprof(&BASE64_STANDARD.decode(profile).unwrap());
        let duration = read.raw.lines().find_map(|l| l.strip_prefix("Duration: "));
        let seconds = duration.map_or(0.0, |text| text.trim().parse().unwrap());
        for (name, sum) in read.sums {
            let nanos = (seconds * 1e9) as u64;
            pushed.durations.insert(name.clone(), nanos);
            assert_eq!(pushed.sums.insert(name, sum), None);
        }
        let types = read.raw.lines().skip_while(|l| *l != "Samples:").nth(1);
        for word in types.unwrap().split_whitespace() {
            let word = word.strip_suffix("[dflt]").unwrap_or(word);
            let (name, unit) = word.split_once('/').unwrap();
            pushed.units.insert(name.to_owned(), unit.to_owned());
        }
        let lines = read.raw.lines().skip_while(|l| *l != "Locations");
        let names = lines.skip(1).take_while(|l| *l != "Mappings");
        // `  1: 0x1139 M=1 hold source.c:9:0 s=0`
        pushed
            .functions
            .extend(names.flat_map(|l| l.split_whitespace().map(str::to_owned)));
        let lines = read.raw.lines().skip_while(|l| *l != "Mappings").skip(1);
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            pushed.files.extend(words.get(2).map(|w| (*w).to_owned()));
            pushed
                .build_ids
                .extend(words.get(3).map(|w| (*w).to_owned()));
        }
    }
    pushed
}
