//! The web page: files of `src/http/web/`, embedded in the binary. Each file is one line in [`ASSETS`].

pub use memprof_server::Asset;

const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
const JS: &str = "text/javascript; charset=utf-8";

/// Where a page of the guide is served that the page shows a table of.
const CHOICES: &str = "/assets/choose.md";

/// Embeds files of `src/http/web/`; each is served below `/assets/` under its own name.
macro_rules! assets {
    ($($content_type:expr, $file:literal;)*) => {
        &[
            Asset {
                path: "/",
                content_type: "text/html; charset=utf-8",
                bytes: include_bytes!("web/index.html"),
            },
            Asset {
                path: CHOICES,
                content_type: "text/markdown; charset=utf-8",
                bytes: include_bytes!("../../docs/choose.md"),
            },
            $(Asset {
                path: concat!("/assets/", $file),
                content_type: $content_type,
                bytes: include_bytes!(concat!("web/", $file)),
            },)*
        ]
    };
}

/// All files of the page.
pub static ASSETS: &[Asset] = assets! {
    CSS, "base.css";
    SVG, "icon.svg";
    JS, "js/api.js";
    JS, "js/axis.js";
    JS, "js/controls.js";
    JS, "js/choices.js";
    JS, "js/dialogs.js";
    JS, "js/dom.js";
    JS, "js/filter.js";
    JS, "js/format.js";
    JS, "js/glossary.js";
    JS, "js/header.js";
    JS, "js/heap/address_map.js";
    JS, "js/heap/glossary.js";
    JS, "js/heap/main.js";
    JS, "js/heap/stack_tables.js";
    JS, "js/heap/tables.js";
    JS, "js/heap/tree.js";
    JS, "js/kinds.js";
    JS, "js/main.js";
    JS, "js/mark_labels.js";
    JS, "js/offline.js";
    JS, "js/selection.js";
    JS, "js/small_line.js";
    JS, "js/sort.js";
    JS, "js/source.js";
    JS, "js/state.js";
    JS, "js/table.js";
    JS, "js/tabs.js";
    JS, "js/theme.js";
    JS, "js/timeline.js";
    JS, "js/token.js";
    JS, "js/tree/canvas.js";
    JS, "js/tree/colours.js";
    JS, "js/tree/flame.js";
    JS, "js/tree/keys.js";
    JS, "js/tree/legend.js";
    JS, "js/tree/model.js";
    JS, "js/tree/names.js";
    JS, "js/tree/search.js";
    JS, "js/tree/treemap.js";
    JS, "js/tree/treetable.js";
    JS, "js/updates.js";
    JS, "js/upload.js";
    JS, "js/views/address_space.js";
    JS, "js/views/allocations.js";
    JS, "js/views/diff.js";
    JS, "js/views/files.js";
    JS, "js/views/functions.js";
    JS, "js/views/graph.js";
    JS, "js/views/health.js";
    JS, "js/views/growth.js";
    JS, "js/views/heap.js";
    JS, "js/views/list.js";
    JS, "js/views/overview.js";
    JS, "js/views/paged_table.js";
    JS, "js/views/processes.js";
    JS, "js/views/sandwich.js";
    JS, "vendor/d3-hierarchy/d3-hierarchy.min.mjs";
    JS, "vendor/uplot/uPlot.iife.min.js";
    CSS, "vendor/uplot/uPlot.min.css";
    CSS, "views.css";
};

/// The file served at this path.
pub(crate) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/web")
    }

    /// All files below a folder, relative to it.
    fn files(folder: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(folder).unwrap();
                    found.insert(name.to_str().unwrap().to_owned());
                }
            }
        }
        found
    }

    fn served() -> BTreeSet<String> {
        let name = |asset: &Asset| match asset.path.strip_prefix("/assets/") {
            Some(name) => name.to_owned(),
            None => "index.html".to_owned(),
        };
        ASSETS.iter().map(name).collect()
    }

    #[test]
    fn every_file_of_the_page_is_served() {
        let ends = ["html", "css", "js", "mjs", "svg"];
        let wanted = |name: &String| ends.contains(&name.rsplit('.').next().unwrap());
        let mut there: BTreeSet<_> = files(&folder()).into_iter().filter(wanted).collect();
        there.insert(CHOICES.trim_start_matches("/assets/").to_owned());
        assert_eq!(served(), there);
        assert_eq!(served().len(), ASSETS.len());
    }

    /// The quoted strings of a file, among them references such as `"./x.js"` and `"assets/x.css"`.
    fn asked(text: &str) -> impl Iterator<Item = &str> {
        text.split(['"', '\'']).skip(1).step_by(2)
    }

    #[test]
    fn what_the_page_asks_for_is_served() {
        for asset in ASSETS.iter().filter(|asset| !asset.path.contains("vendor")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for name in asked(text).filter(|name| name.starts_with("assets/")) {
                assert!(find(&format!("/{name}")).is_some(), "{name}");
            }
            let folder = Path::new(asset.path).parent();
            let imports = text.lines().filter(|line| line.contains(" from \""));
            for name in imports.filter_map(|line| asked(line).last()) {
                let mut path = folder.unwrap().to_owned();
                for part in Path::new(name).iter().filter(|part| *part != ".") {
                    match part.to_str() {
                        Some("..") => assert!(path.pop()),
                        _ => path.push(part),
                    }
                }
                let found = find(path.to_str().unwrap());
                assert!(found.is_some(), "{}: {name}", asset.path);
            }
        }
    }

    /// js/choices.js reads such rows.
    #[test]
    fn the_table_of_commands_has_the_form_that_the_page_reads() {
        let text = std::str::from_utf8(find(CHOICES).unwrap().bytes).unwrap();
        let mut rows = text.lines().filter(|line| line.starts_with("| "));
        assert_eq!(rows.next(), Some("| my process is … | command |"));
        assert!(rows.clone().count() > 9);
        for row in rows {
            let cells = row
                .strip_prefix("| ")
                .and_then(|row| row.strip_suffix("` |"));
            let (what, command) = cells.and_then(|cells| cells.split_once(" | `")).expect(row);
            assert!(
                !what.contains('|') && command.starts_with("memprof "),
                "{row}"
            );
        }
    }

    #[test]
    fn the_page_names_no_other_server() {
        for asset in ASSETS.iter().filter(|asset| !asset.path.contains("vendor")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("://"), "{}", asset.path);
        }
    }

    #[test]
    fn markup_is_never_made_of_text() {
        let bad = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ];
        for asset in ASSETS.iter().filter(|asset| !asset.path.contains("vendor")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for bad in bad {
                assert!(!text.contains(bad), "{}: {bad}", asset.path);
            }
        }
    }

    #[test]
    fn packages_of_others_are_as_they_were_published() {
        let vendor = folder().join("vendor");
        let sums = fs::read_to_string(vendor.join("SHA256SUMS")).unwrap();
        let listed: BTreeSet<_> = sums
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(_, name)| name.to_owned())
            .collect();
        let mut there = files(&vendor);
        for ours in ["README.md", "SHA256SUMS"] {
            assert!(there.remove(ours), "{ours}");
        }
        assert_eq!(listed, there);
        let check = Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(&vendor)
            .output()
            .unwrap();
        assert!(check.status.success(), "{check:?}");
    }
}
