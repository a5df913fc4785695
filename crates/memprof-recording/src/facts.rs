//! Everything in a report that is neither a list nor a figure of a stack, process, mapping or file: leaves of a JSON tree,
//! by path. `target/comm` is the text `"node"`.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use crate::cell::Cell;

/// The name of the list of keys of an object whose keys vary, and of its values.
const KEYS: &str = "*";

/// The leaves of a tree, each with its path below `path`.
pub(crate) fn flatten(path: &str, tree: &Value, leaf: &mut dyn FnMut(String, Cell)) {
    match tree {
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&format!("{path}/{name}"), value, leaf);
            }
        }
        Value::Array(items) => match pairs(items) {
            // Pairs of a name and a figure: a figure that changes does not write all of them again.
            Some(pairs) => {
                let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
                let text = serde_json::to_string(&names).unwrap_or_default();
                leaf(format!("{path}/{KEYS}"), Cell::Text(text));
                for (name, figure) in pairs {
                    leaf(format!("{path}/{KEYS}/{name}"), Cell::Int(figure));
                }
            }
            None => leaf(path.to_owned(), Cell::Text(tree.to_string())),
        },
        Value::Number(number) => match number.as_i64() {
            Some(number) => leaf(path.to_owned(), Cell::Int(number)),
            None => leaf(path.to_owned(), Cell::Text(tree.to_string())),
        },
        other => leaf(path.to_owned(), Cell::Text(other.to_string())),
    }
}

/// The items, if they are pairs of different names and figures.
fn pairs(items: &[Value]) -> Option<Vec<(&str, i64)>> {
    let pairs: Vec<(&str, i64)> = items.iter().map(pair).collect::<Option<_>>()?;
    let names: BTreeSet<&str> = pairs.iter().map(|(name, _)| *name).collect();
    (!pairs.is_empty() && names.len() == pairs.len()).then_some(pairs)
}

fn pair(item: &Value) -> Option<(&str, i64)> {
    match item.as_array()?.as_slice() {
        [Value::String(name), Value::Number(figure)] => Some((name, figure.as_i64()?)),
        _ => None,
    }
}

/// The tree with these leaves; leaves that contradict one another, which memprof never writes, are left out.
pub(crate) fn tree(leaves: &FxHashMap<String, Cell>) -> Value {
    let mut root = Map::new();
    let mut sorted: Vec<_> = leaves.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(b.0));
    for (path, cell) in sorted {
        let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
        let value = match steps.iter().position(|step| *step == KEYS) {
            None => value_of(cell),
            // The values are looked up by the list of keys.
            Some(at) if at + 1 < steps.len() => continue,
            Some(_) => varying(path, cell, leaves),
        };
        let steps: Vec<&str> = steps.into_iter().filter(|step| *step != KEYS).collect();
        insert(&mut root, &steps, value);
    }
    Value::Object(root)
}

fn value_of(cell: &Cell) -> Value {
    match cell {
        Cell::Int(number) => (*number).into(),
        Cell::Text(text) => serde_json::from_str(text).unwrap_or(Value::Null),
        Cell::Null | Cell::Real(_) => Value::Null,
    }
}

fn varying(path: &str, names: &Cell, leaves: &FxHashMap<String, Cell>) -> Value {
    let names: Vec<String> = serde_json::from_value(value_of(names)).unwrap_or_default();
    let pair = |name: String| {
        let value = leaves.get(&format!("{path}/{name}"));
        let value = value.map(value_of).unwrap_or(Value::Null);
        Value::Array(vec![name.into(), value])
    };
    Value::Array(names.into_iter().map(pair).collect())
}

fn insert(fields: &mut Map<String, Value>, steps: &[&str], value: Value) {
    match steps {
        [] => {}
        [name] => {
            fields.entry((*name).to_owned()).or_insert(value);
        }
        [name, rest @ ..] => {
            let next = fields
                .entry((*name).to_owned())
                .or_insert_with(|| Map::new().into());
            if let Value::Object(next) = next {
                insert(next, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tree_comes_back_from_its_leaves() {
        let whole = json!({
            "target": {"pid": 7, "comm": "a/b", "alive": true},
            "faults": null,
            "cgroup": {"path": "/x", "charged": {"Ok": {
                "usage": 18_446_744_073_709_551_615u64,
                "kernelParts": [["slab", 5], ["a/b.c", 6], ["*", 7]],
            }}},
            "measures": ["residency", "heap"],
            "empty": [],
            "odd": [["same", 1], ["same", 2]],
        });
        let mut leaves = FxHashMap::default();
        flatten("", &whole, &mut |path, cell| {
            drop(leaves.insert(path, cell))
        });
        assert_eq!(
            leaves["/cgroup/charged/Ok/kernelParts/*/slab"],
            Cell::Int(5)
        );
        assert_eq!(tree(&leaves), whole);
    }
}
