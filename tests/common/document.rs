//! Replies against the OpenAPI document.

use serde_json::{Value, json};

/// A part of the document as a JSON schema, which it is in OpenAPI 3.1.
pub fn schema(document: &Value, part: &Value) -> jsonschema::Validator {
    let root = json!({"allOf": [part], "components": document["components"]});
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .build(&root)
        .unwrap()
}

/// Compares a reply with the document's description of its route.
#[track_caller]
pub fn check(document: &Value, path: &str, method: &str, status: u16, body: &Value) {
    let at = &document["paths"][path][method]["responses"][status.to_string()];
    let part = &at["content"]["application/json"]["schema"];
    assert!(
        part.is_object(),
        "{method} {path} {status} is not described"
    );
    let errors: Vec<String> = schema(document, part)
        .iter_errors(body)
        .map(|e| format!("{} at {}", e, e.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{method} {path}: {errors:?}\n{body}");
}
