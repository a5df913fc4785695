//! The OpenAPI document of `/v2`. Its paths are written by hand, its schemas are derived from the replies.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value};

use super::common::ReportInfo;
use super::{
    allocations, cgroup, diff, export, files, functions, health, heap, heap_diff, mappings, marks,
    overview, processes, series, source, summary,
};
use crate::export::growth::GrowthTable;
use crate::export::tree::v2;
use memprof_heap::{ByStack, GrownBy, Heap};

/// The OpenAPI document of memprof's own routes.
pub static OPENAPI_V2: LazyLock<String> = LazyLock::new(|| document().to_string());

/// The document without its schemas.
const PATHS: &str = include_str!("../web/openapi-v2.json");

type Derive = fn(&mut SchemaGenerator) -> Schema;

/// The replies in JSON.
const REPLIES: &[Derive] = &[
    SchemaGenerator::subschema_for::<summary::SummaryReply<'_>>,
    SchemaGenerator::subschema_for::<overview::OverviewReply<'_>>,
    SchemaGenerator::subschema_for::<processes::ProcessesReply<'_>>,
    SchemaGenerator::subschema_for::<cgroup::BalanceReply>,
    SchemaGenerator::subschema_for::<v2::TreeReply<'_, ReportInfo, v2::Head, v2::Nodes>>,
    SchemaGenerator::subschema_for::<functions::FunctionsReply<'_>>,
    SchemaGenerator::subschema_for::<allocations::AllocationsReply<'_>>,
    SchemaGenerator::subschema_for::<source::SourceReply>,
    SchemaGenerator::subschema_for::<files::FilesReply<'_>>,
    SchemaGenerator::subschema_for::<mappings::MapsReply<'_>>,
    SchemaGenerator::subschema_for::<series::SeriesReply>,
    SchemaGenerator::subschema_for::<GrowthTable>,
    SchemaGenerator::subschema_for::<marks::ListReply<'_>>,
    SchemaGenerator::subschema_for::<v2::TreeReply<'_, ReportInfo, diff::TreeHead, diff::Nodes>>,
    SchemaGenerator::subschema_for::<diff::FunctionsReply<'_>>,
    SchemaGenerator::subschema_for::<heap::ListReply>,
    SchemaGenerator::subschema_for::<heap::Whole<'_>>,
    SchemaGenerator::subschema_for::<heap_diff::DiffReply>,
    SchemaGenerator::subschema_for::<health::HealthReply>,
    SchemaGenerator::subschema_for::<export::Formats>,
];

/// Objects to which later versions may add tables and fields; in all others, further fields are errors.
const OPEN: &[Derive] = &[
    SchemaGenerator::subschema_for::<Heap>,
    SchemaGenerator::subschema_for::<GrownBy>,
    SchemaGenerator::subschema_for::<ByStack>,
];

fn document() -> Value {
    let mut document: Value = serde_json::from_str(PATHS).expect("the unit test parses it");
    let open = definitions(OPEN);
    let mut schemas = definitions(REPLIES);
    for (name, schema) in &mut schemas {
        join_lines(schema);
        if !open.contains_key(name) {
            close(schema, true);
        }
    }
    document["components"]["schemas"] = schemas.into();
    document
}

/// The schemas of these types and of all types that they contain, by name.
fn definitions(types: &[Derive]) -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    for derive in types {
        derive(&mut generator);
    }
    generator.take_definitions(true)
}

/// Joins the lines of descriptions, which are doc comments.
fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            object.values_mut().for_each(join_lines);
        }
        Value::Array(list) => list.iter_mut().for_each(join_lines),
        _ => {}
    }
}

/// Forbids further fields in objects. `whole` is false for an alternative of a flattened enum, whose fields are only a part
/// of the object's.
fn close(schema: &mut Value, whole: bool) {
    match schema {
        Value::Object(object) => {
            let is_object = object.contains_key("properties");
            let alternatives = |key: &str| matches!(key, "allOf" | "anyOf" | "oneOf");
            if whole && is_object {
                let further = match object.keys().any(|key| alternatives(key)) {
                    true => "unevaluatedProperties",
                    false => "additionalProperties",
                };
                object.insert(further.to_owned(), false.into());
            }
            for (key, part) in object {
                close(part, !(is_object && alternatives(key)));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|part| close(part, whole)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references<'a>(of: &'a Value, found: &mut Vec<&'a str>) {
        match of {
            Value::Object(object) => {
                if let Some(Value::String(to)) = object.get("$ref") {
                    found.push(to);
                }
                object.values().for_each(|part| references(part, found));
            }
            Value::Array(list) => list.iter().for_each(|part| references(part, found)),
            _ => {}
        }
    }

    #[test]
    fn every_schema_has_a_name_of_its_own_and_is_used() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for to in &found {
            assert!(document.pointer(&to[1..]).is_some(), "{to} is missing");
        }
        for name in document["components"]["schemas"]
            .as_object()
            .unwrap()
            .keys()
        {
            // A digit distinguishes types of the same name.
            assert!(!name.ends_with(|c: char| c.is_ascii_digit()), "{name}");
            let to = format!("#/components/schemas/{name}");
            assert!(found.contains(&&*to), "{name} is not used");
        }
    }

    #[test]
    fn descriptions_are_for_readers_without_the_source() {
        let text = document().to_string();
        for link in ["[`", "`]", "crate::", "\\n"] {
            assert!(!text.contains(link), "{link}");
        }
    }
}
