//! Conversion of a report to an OTLP request: one profile per kind of figures, because each profile has one sample type.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as proto;
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::random_id;
use super::resource::{Attributes, Value};
use crate::export::mappings::{Mapping, Mappings};
use crate::export::pprof::Value as ValueType;
use crate::export::rows::{self, RowFrame};
use memprof_profile::measure::Unit;
use memprof_profile::symbol::{Language, Symbols};
use memprof_profile::{Frame, Report};

/// Converts a report. The figures of `moment` describe the time of the report, and the figures of `interval` cover the time
/// `lasted` before it.
pub(super) fn request(
    report: &Report,
    attributes: &Attributes,
    moment: &[ValueType],
    interval: &[ValueType],
    lasted: Duration,
) -> ExportProfilesServiceRequest {
    let mappings = Mappings::new(&report.profile, &report.symbols);
    let mut dictionary = Dictionary::new(&report.symbols, &mappings);
    let taken = report.profile.taken.duration_since(UNIX_EPOCH);
    let taken = taken.unwrap_or_default();
    let peak = report.profile.peak;
    let peak =
        peak.map(|peak| dictionary.attribute("memprof.peak_rss_bytes", &peak.rss.to_string()));
    let of_moment = moment.iter().map(|value| (value, Duration::ZERO));
    let values = of_moment.chain(interval.iter().map(|value| (value, lasted)));
    let mut profiles: Vec<_> = values
        .map(|((name, kind), lasted)| proto::Profile {
            sample_type: Some(dictionary.value_type(name, kind.unit().pprof())),
            period_type: Some(dictionary.value_type("space", Unit::Bytes.name())),
            period: 1,
            time_unix_nano: nanos(taken.saturating_sub(lasted)),
            duration_nano: nanos(lasted),
            profile_id: random_id().to_vec(),
            attribute_indices: peak.into_iter().collect(),
            ..proto::Profile::default()
        })
        .collect();
    for row in rows::rows(&report.profile, &mappings) {
        let figures = moment.iter().chain(interval);
        let figures: Vec<_> = figures.map(|(_, kind)| kind.figure(row.amounts)).collect();
        if figures.iter().all(|figure| *figure == 0) {
            continue;
        }
        let stack_index = dictionary.stack(&row.places);
        let (name, text) = row.about;
        let about = dictionary.attribute(&format!("memprof.{name}"), text);
        for (profile, figure) in profiles.iter_mut().zip(figures) {
            if figure > 0 {
                profile.samples.push(proto::Sample {
                    stack_index,
                    attribute_indices: vec![about],
                    values: vec![i64::try_from(figure).unwrap_or(i64::MAX)],
                    ..proto::Sample::default()
                });
            }
        }
    }
    profiles.retain(|profile| !profile.samples.is_empty());
    let scope = InstrumentationScope {
        name: "memprof".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let resource = Resource {
        attributes: attributes.iter().map(attribute).collect(),
        ..Resource::default()
    };
    ExportProfilesServiceRequest {
        resource_profiles: vec![proto::ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![proto::ScopeProfiles {
                scope: Some(scope),
                profiles,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
        dictionary: Some(dictionary.tables),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn attribute((name, value): &(String, Value)) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text.clone()),
        Value::Number(number) => any_value::Value::IntValue(*number),
    };
    KeyValue {
        key: name.clone(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// The tables to which samples refer. The first entry of each is empty and means "none".
struct Dictionary<'a> {
    tables: proto::ProfilesDictionary,
    symbols: &'a Symbols,
    strings: HashMap<String, i32>,
    attributes: HashMap<(i32, i32), i32>,
    functions: HashMap<(i32, i32), i32>,
    frames: HashMap<Frame, i32>,
    pseudo: HashMap<String, i32>,
    stacks: HashMap<Vec<i32>, i32>,
}

impl<'a> Dictionary<'a> {
    fn new(symbols: &'a Symbols, mappings: &Mappings) -> Dictionary<'a> {
        let mut dictionary = Dictionary {
            tables: proto::ProfilesDictionary {
                mapping_table: vec![proto::Mapping::default()],
                location_table: vec![proto::Location::default()],
                function_table: vec![proto::Function::default()],
                link_table: vec![proto::Link::default()],
                string_table: vec![String::new()],
                attribute_table: vec![proto::KeyValueAndUnit::default()],
                stack_table: vec![proto::Stack::default()],
            },
            symbols,
            strings: HashMap::from([(String::new(), 0)]),
            attributes: HashMap::new(),
            functions: HashMap::new(),
            frames: HashMap::new(),
            pseudo: HashMap::new(),
            stacks: HashMap::from([(Vec::new(), 0)]),
        };
        // Mapping numbers begin at 1, like the indices of the table after its empty entry.
        for file in mappings.files() {
            let mapping = dictionary.mapping(file);
            dictionary.tables.mapping_table.push(mapping);
        }
        dictionary
    }

    fn mapping(&mut self, file: &Mapping) -> proto::Mapping {
        let build_id = (!file.build_id.is_empty())
            .then(|| self.attribute("process.executable.build_id.gnu", &file.build_id));
        proto::Mapping {
            memory_start: 0,
            memory_limit: u64::MAX,
            file_offset: 0,
            filename_strindex: self.string(&file.module.path.to_string_lossy()),
            attribute_indices: build_id.into_iter().collect(),
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        if let Some(at) = self.strings.get(text) {
            return *at;
        }
        let at = added(&mut self.tables.string_table, text.to_owned());
        self.strings.insert(text.to_owned(), at);
        at
    }

    fn value_type(&mut self, name: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            type_strindex: self.string(name),
            unit_strindex: self.string(unit),
        }
    }

    fn attribute(&mut self, name: &str, text: &str) -> i32 {
        let key = (self.string(name), self.string(text));
        let table = &mut self.tables.attribute_table;
        known_or_added(&mut self.attributes, key, table, || {
            proto::KeyValueAndUnit {
                key_strindex: key.0,
                value: Some(AnyValue {
                    value: Some(any_value::Value::StringValue(text.to_owned())),
                }),
                unit_strindex: 0,
            }
        })
    }

    fn function(&mut self, name: &str, file: &str) -> i32 {
        let key = (self.string(name), self.string(file));
        let table = &mut self.tables.function_table;
        known_or_added(&mut self.functions, key, table, || proto::Function {
            name_strindex: key.0,
            system_name_strindex: key.0,
            filename_strindex: key.1,
            start_line: 0,
        })
    }

    fn stack(&mut self, places: &[RowFrame<'_>]) -> i32 {
        let locations = places.iter().map(|place| self.location(place));
        let locations: Vec<i32> = locations.collect();
        let table = &mut self.tables.stack_table;
        let location_indices = locations.clone();
        known_or_added(&mut self.stacks, locations, table, || proto::Stack {
            location_indices,
        })
    }

    fn location(&mut self, place: &RowFrame<'_>) -> i32 {
        match *place {
            RowFrame::Pseudo(label) => self.pseudo(label.to_string()),
            RowFrame::Code(frame, mapping, address) => match self.frames.get(&frame) {
                Some(at) => *at,
                None => self.code(frame, mapping, address),
            },
        }
    }

    fn code(&mut self, frame: Frame, mapping: u64, address: u64) -> i32 {
        let functions = rows::functions(self.symbols, frame).into_iter();
        let lines = functions.map(|(name, location)| proto::Line {
            function_index: self.function(name, location.map_or("", |l| &l.file)),
            line: location.and_then(|l| l.line).map_or(0, i64::from),
            column: 0,
        });
        let lines = lines.collect();
        let language = self.symbols.function(frame).map(|f| f.language);
        let kind = self.attribute("profile.frame.type", frame_type(language));
        let location = proto::Location {
            mapping_index: i32::try_from(mapping).unwrap_or_default(),
            address,
            lines,
            attribute_indices: vec![kind],
        };
        let at = added(&mut self.tables.location_table, location);
        self.frames.insert(frame, at);
        at
    }

    fn pseudo(&mut self, label: String) -> i32 {
        if let Some(at) = self.pseudo.get(&label) {
            return *at;
        }
        let line = proto::Line {
            function_index: self.function(&label, ""),
            ..proto::Line::default()
        };
        let location = proto::Location {
            lines: vec![line],
            ..proto::Location::default()
        };
        let at = added(&mut self.tables.location_table, location);
        self.pseudo.insert(label, at);
        at
    }
}

/// Frame types of OpenTelemetry's semantic conventions.
fn frame_type(language: Option<Language>) -> &'static str {
    match language {
        Some(Language::Python) => "cpython",
        Some(Language::Ruby) => "ruby",
        Some(Language::JavaScript) => "v8js",
        Some(Language::Rust | Language::Other) | None => "native",
    }
}

fn known_or_added<K: Hash + Eq, T>(
    known: &mut HashMap<K, i32>,
    key: K,
    table: &mut Vec<T>,
    make: impl FnOnce() -> T,
) -> i32 {
    *known.entry(key).or_insert_with(|| added(table, make()))
}

/// Appends an entry and returns its index. A profile has far fewer than 2^31 entries, because stacks and frames are
/// bounded.
fn added<T>(table: &mut Vec<T>, entry: T) -> i32 {
    table.push(entry);
    i32::try_from(table.len() - 1).unwrap_or(i32::MAX)
}
