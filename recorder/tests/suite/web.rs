//! The files of the page: complete, and safe whatever peers send.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use memprof_server::Asset;
use tezos_recorder::api::ASSETS;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::store::Level;

fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

fn text(asset: &Asset) -> &'static str {
    std::str::from_utf8(asset.bytes).unwrap()
}

/// Files of a folder and of those in it, by the paths at which they are served.
fn files(folder: &Path, below: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{below}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            found.extend(files(&path, &format!("{name}/")));
        } else if name == "/assets/index.html" {
            found.insert("/".to_owned());
        } else {
            found.insert(name);
        }
    }
    found
}

#[test]
fn every_file_is_served() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web");
    let served: BTreeSet<_> = ASSETS.iter().map(|asset| asset.path.to_owned()).collect();
    assert_eq!(served, files(&folder, "/assets/"));
    assert_eq!(served.len(), ASSETS.len());
}

#[test]
fn files_that_are_asked_for_are_served() {
    for asset in ASSETS {
        let folder = Path::new(asset.path).parent();
        for quoted in text(asset).split('"').skip(1).step_by(2) {
            let path = if quoted.starts_with("assets/") {
                format!("/{quoted}")
            } else if quoted.starts_with("./") && quoted.ends_with(".js") {
                let path = folder.unwrap().join(quoted.trim_start_matches("./"));
                path.to_str().unwrap().to_owned()
            } else {
                continue;
            };
            assert!(find(&path).is_some(), "{}: {quoted}", asset.path);
        }
    }
}

#[test]
fn texts_never_become_markup_and_no_other_server_is_named() {
    let bad = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "style=",
        "onclick=",
    ];
    for asset in ASSETS {
        let text = text(asset).replace("http://www.w3.org/2000/svg", "");
        for bad in bad.into_iter().chain(["://"]) {
            assert!(!text.contains(bad), "{}: {bad}", asset.path);
        }
    }
}

/// The strings of an array in `state.js`.
fn listed(name: &str) -> BTreeSet<&'static str> {
    let script = text(find("/assets/js/state.js").unwrap());
    let (_, rest) = script
        .split_once(&format!("export const {name} = ["))
        .unwrap();
    let (array, _) = rest.split_once(']').unwrap();
    array.split('"').skip(1).step_by(2).collect()
}

#[test]
fn the_page_knows_all_kinds_levels_and_categories() {
    let kinds = Kind::ALL.iter();
    assert_eq!(
        listed("KINDS"),
        kinds.clone().map(|kind| kind.name()).collect()
    );
    assert_eq!(
        listed("CATEGORIES"),
        kinds.map(|kind| kind.category().name()).collect()
    );
    assert_eq!(
        listed("LEVELS"),
        Level::ALL.map(Level::name).into_iter().collect()
    );
}
