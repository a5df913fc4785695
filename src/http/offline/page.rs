//! The page as a single document with inlined style sheets and scripts.
//!
//! Browsers load no module files next to a local file, so the modules are `data:` URLs, named by an import map.
//! References in the modules are rewritten to these names.

use std::fmt::Write;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::http::web::{ASSETS, Asset, find};

/// The document may use only what it contains, and cannot connect to anything.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; \
                      base-uri 'none'; form-action 'none'";

/// The document of a profile, split before and after the data: the page that memprof serves.
pub(super) fn of_a_report() -> &'static (String, String) {
    static PAGE: LazyLock<(String, String)> =
        LazyLock::new(|| around_data(find("/").map(text).unwrap_or_default()));
    &PAGE
}

/// The document of a heap snapshot, split before and after the data. The main module differs from that of a profile.
pub(super) fn of_a_heap() -> &'static (String, String) {
    static PAGE: LazyLock<(String, String)> =
        LazyLock::new(|| around_data(include_str!("heap.html")));
    &PAGE
}

fn around_data(document: &'static str) -> (String, String) {
    let whole: String = document.lines().map(line).collect();
    match whole.split_once(HERE) {
        Some((head, tail)) => (head.to_owned(), tail.to_owned()),
        None => (whole, String::new()),
    }
}

/// Marks the position of the data.
const HERE: &str = "\u{1}";

fn text(asset: &Asset) -> &'static str {
    std::str::from_utf8(asset.bytes).unwrap_or_default()
}

/// Converts a line of the page's document; inlines the file that it refers to.
fn line(line: &str) -> String {
    if line.contains("<meta charset") {
        return format!(
            "{line}\n<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n"
        );
    }
    let named = |attribute: &str| {
        let (_, rest) = line.split_once(&format!("{attribute}=\"assets/"))?;
        let (name, _) = rest.split_once('"')?;
        find(&format!("/assets/{name}"))
    };
    match (named("href"), named("src")) {
        (Some(_), _) if line.contains("rel=\"icon\"") => String::new(),
        (Some(style), _) => format!("<style>\n{}</style>\n", text(style)),
        (_, Some(module)) if line.contains("type=\"module\"") => modules(module),
        (_, Some(script)) => format!("<script>\n{}</script>\n", text(script)),
        _ => format!("{line}\n"),
    }
}

/// The import map, the position of the data, and the start of the main module.
fn modules(main: &Asset) -> String {
    let mut map = String::new();
    for asset in ASSETS.iter().filter(|asset| is_module(asset)) {
        let separator = if map.is_empty() { "" } else { "," };
        let source = STANDARD.encode(renamed(asset));
        let url = format!("data:text/javascript;base64,{source}");
        // Writing to a string cannot fail.
        let _ = write!(map, "{separator}\n\"{}\": \"{url}\"", asset.path);
    }
    // Names begin with a letter; browsers would resolve a path relative to the document.
    let map = map.replace("\"/assets/", "\"memprof/");
    let main = main.path.replace("/assets/", "memprof/");
    format!(
        "<script type=\"importmap\">{{\"imports\": {{{map}\n}}}}</script>\n{HERE}\
         <script type=\"module\">import \"{main}\";</script>\n"
    )
}

fn is_module(asset: &Asset) -> bool {
    let path = Path::new(asset.path);
    let ends = path.extension().is_some_and(|e| e == "js" || e == "mjs");
    ends && !asset.path.ends_with(".iife.min.js")
}

/// A module with its imports rewritten to names in the import map.
fn renamed(asset: &Asset) -> String {
    let folder = Path::new(asset.path).parent().unwrap_or(Path::new("/"));
    let line = |line: &'static str| -> String {
        let reference = line
            .split_once(" from \"./")
            .or(line.split_once(" from \"../"));
        let Some((before, _)) = reference else {
            return format!("{line}\n");
        };
        let rest = &line[before.len() + " from \"".len()..];
        let Some((name, after)) = rest.split_once('"') else {
            return format!("{line}\n");
        };
        let path = resolved(folder, name);
        let path = path.strip_prefix("/assets").unwrap_or(&path);
        format!("{before} from \"memprof/{}\"{after}\n", path.display())
    };
    text(asset).lines().map(line).collect()
}

/// Resolves a relative path from a folder.
fn resolved(folder: &Path, name: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for part in Path::new(name).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(part) => path.push(part),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_is_found_by_its_importers() {
        for asset in ASSETS.iter().filter(|asset| is_module(asset)) {
            for line in renamed(asset).lines().filter(|l| l.contains(" from \"")) {
                let (_, rest) = line.split_once(" from \"").unwrap();
                let (name, _) = rest.split_once('"').unwrap();
                let path = name.strip_prefix("memprof/").expect(line);
                assert!(find(&format!("/assets/{path}")).is_some(), "{line}");
            }
        }
    }

    #[test]
    fn no_script_ends_its_element() {
        for asset in ASSETS.iter().filter(|asset| asset.path != "/") {
            let text = text(asset).to_lowercase();
            assert!(
                !text.contains("</script") && !text.contains("<!--"),
                "{}",
                asset.path
            );
            assert!(!text.contains("</style"), "{}", asset.path);
        }
        for ((head, tail), main) in [(of_a_report(), "main"), (of_a_heap(), "heap/main")] {
            assert!(head.contains(&format!("\"memprof/js/{main}.js\": \"data:")));
            assert!(tail.contains(&format!("import \"memprof/js/{main}.js\"")));
            assert!(tail.contains("</html>"));
        }
    }
}
