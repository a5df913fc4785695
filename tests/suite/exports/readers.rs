//! Readers of the formats: the sums of memory in each file.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::tree::Node;
use memprof_profile::Kind;

/// Bytes by the format's name for the kind.
pub type Sums = BTreeMap<String, u64>;

/// The expected sums of a file in this format, for the given bytes of each kind.
pub fn wanted(format: &str, bytes: impl Fn(Kind) -> u64) -> Sums {
    let sums = |kinds: &[(&str, Kind)]| {
        let sum = |(name, kind): &(&str, Kind)| (name.to_string(), bytes(*kind));
        kinds.iter().map(sum).collect()
    };
    match format {
        "json" => sums(&[("value", Kind::All), ("cacheValue", Kind::Cache)]),
        "pprof" => sums(&[
            ("resident_space", Kind::Resident),
            ("page_cache_space", Kind::Cache),
            ("swapped_space", Kind::Swap),
        ]),
        // Of measures that were not counted, a profile has what it holds, and a table has no columns.
        "profile" | "csv" => {
            let stated = |kind: &Kind| {
                kind.measure().always_stated || (format == "profile" && bytes(*kind) > 0)
            };
            let kinds = Kind::single().filter(stated);
            sums(&kinds.map(|kind| (kind.name(), kind)).collect::<Vec<_>>())
        }
        "speedscope" => {
            let mut kinds = Kind::ALL.map(|kind| (kind.label(), kind)).to_vec();
            kinds.retain(|(_, kind)| bytes(*kind) > 0);
            sums(&kinds)
        }
        "html" => {
            let mut kinds = Kind::ALL.map(|kind| (kind.name(), kind)).to_vec();
            // Those of other measures are there if they were counted.
            kinds.retain(|(_, kind)| !matches!(kind, Kind::Column(_)));
            kinds.retain(|(_, kind)| *kind == Kind::All || bytes(*kind) > 0);
            sums(&kinds)
        }
        "heaptrack" => {
            let of = |name| Kind::by_name(name).unwrap();
            sums(&[
                ("live", of("inuse_space")),
                ("temporary", of("temporary_space")),
            ])
        }
        "folded" | "svg" | "functions" | "text" => sums(&[("all", Kind::All)]),
        other => panic!("no reader for the format {other}"),
    }
}

/// The sums of the file.
pub fn read(format: &str, bytes: &[u8]) -> Sums {
    match format {
        "json" => json(bytes),
        "profile" => profile(bytes),
        "folded" => one(folded(bytes)),
        "svg" => one(svg(bytes)),
        "html" => html(bytes),
        "pprof" => pprof(bytes).sums,
        "speedscope" => speedscope(bytes),
        "heaptrack" => heaptrack(bytes),
        "csv" => csv(bytes),
        "functions" => one(functions(bytes)),
        "text" => one(text(bytes)),
        other => panic!("no reader for the format {other}"),
    }
}

fn one(bytes: u64) -> Sums {
    Sums::from([("all".to_owned(), bytes)])
}

/// What is allocated and never freed, and what is freed before anything else happens.
fn heaptrack(bytes: &[u8]) -> Sums {
    let text = std::str::from_utf8(bytes).unwrap();
    let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
    let (mut strings, mut frames, mut traces) = (0, 0, 0);
    let mut sizes = Vec::new();
    let (mut live, mut temporary, mut last) = (0, 0, None);
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| hex(words[at]);
        match words[0] {
            "v" => assert_eq!(line, "v 10400 2"),
            "X" | "I" | "R" | "c" => {}
            "s" => strings += 1,
            "i" => {
                assert!(number(2) <= strings && number(3) <= strings, "{line}");
                frames += 1;
            }
            "t" => {
                assert!(number(1) <= frames && number(2) <= traces, "{line}");
                traces += 1;
            }
            "a" => {
                assert!(number(2) <= traces, "{line}");
                sizes.push(number(1));
            }
            "+" => {
                live += sizes[number(1) as usize];
                last = Some(number(1));
            }
            "-" => {
                let size = sizes[number(1) as usize];
                live -= size;
                if last.take() == Some(number(1)) {
                    temporary += size;
                }
            }
            _ => panic!("{line}"),
        }
    }
    Sums::from([
        ("live".to_owned(), live),
        ("temporary".to_owned(), temporary),
    ])
}

fn json(bytes: &[u8]) -> Sums {
    let root = Node::parse(bytes);
    Sums::from([
        ("value".to_owned(), root.value << 10),
        ("cacheValue".to_owned(), root.cache_value << 10),
    ])
}

/// The sum of all rows, which must equal the total in the file.
fn profile(bytes: &[u8]) -> Sums {
    let whole: Value = serde_json::from_slice(bytes).unwrap();
    let mut sums = Sums::new();
    let frames = whole["frames"].as_array().unwrap().len() as u64;
    for row in ["stacks", "notObserved"]
        .map(|k| whole[k].as_array().unwrap())
        .into_iter()
        .flatten()
    {
        for (kind, bytes) in row["bytes"].as_object().unwrap() {
            *sums.entry(kind.clone()).or_default() += bytes.as_u64().unwrap();
        }
        let places = row["frames"].as_array().into_iter().flatten();
        places.for_each(|place| assert!(place.as_u64().unwrap() < frames));
    }
    for frame in whole["frames"].as_array().unwrap() {
        let module = frame.get("module").map(|m| m.as_u64().unwrap() as usize);
        assert!(module.is_none_or(|m| whole["modules"].get(m).is_some()));
    }
    for (kind, total) in whole["total"].as_object().unwrap() {
        assert_eq!(
            sums.get(kind).copied().unwrap_or_default(),
            total.as_u64().unwrap()
        );
        sums.entry(kind.clone()).or_default();
    }
    sums
}

/// The sums of the trees of each kind of resident memory, in both directions.
fn html(bytes: &[u8]) -> Sums {
    let data: Value = serde_json::from_slice(&html_data(bytes)).unwrap();
    let mut sums = Sums::new();
    for (key, tree) in data.as_object().unwrap() {
        let words: Vec<&str> = key.split(' ').collect();
        let ["tree", kind, _] = words[..] else {
            continue;
        };
        let column = |name: &str| tree["nodes"][name].as_array().unwrap().iter();
        let own: u64 = column("self").map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(column("total").next().unwrap(), own, "{key}");
        if kind != "kernel" {
            assert_eq!(*sums.entry(kind.to_owned()).or_insert(own), own, "{key}");
        }
    }
    sums
}

/// The data in the document, as JSON; Python decodes it.
pub fn html_data(bytes: &[u8]) -> Vec<u8> {
    const DECODE: &str = "import sys, base64, gzip
text = sys.stdin.buffer.read().split(b'id=\"saved\"', 1)[1].split(b'>', 1)[1].split(b'<', 1)[0]
sys.stdout.buffer.write(gzip.decompress(base64.b64decode(text, validate=True)))";
    piped(Command::new("python3").args(["-c", DECODE]), bytes)
}

/// What a command prints when it is given this.
pub fn piped(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let feeding = std::thread::spawn(move || stdin.write_all(&input));
    let out = child.wait_with_output().unwrap();
    feeding.join().unwrap().unwrap();
    assert!(out.status.success());
    out.stdout
}

/// The width of the flame graph that inferno makes of the lines.
fn folded(bytes: &[u8]) -> u64 {
    let mut options = inferno::flamegraph::Options::default();
    options.count_name = "bytes".to_owned();
    options.min_width = 0.0;
    let mut out = Vec::new();
    let made = inferno::flamegraph::from_reader(&mut options, bytes, &mut out);
    made.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(bytes)));
    let text = String::from_utf8(out).unwrap();
    let titles = text.split("<title>all (").nth(1).unwrap();
    let count = titles.split(" bytes").next().unwrap();
    count.replace(',', "").parse().unwrap()
}

/// Read by an XML parser. Every frame must lie within its parent, and the children of a frame must not be wider than
/// the frame.
pub fn svg(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).unwrap();
    let document = roxmltree::Document::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let frames = document
        .descendants()
        .find(|n| n.attribute("id") == Some("frames"))
        .unwrap();
    let number =
        |n: roxmltree::Node<'_, '_>, name| n.attribute(name).unwrap().parse::<u64>().unwrap();
    let mut rows: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut root = None;
    for frame in frames
        .children()
        .filter(|n| n.has_tag_name("g") || n.attribute("class") == Some("f"))
    {
        let (start, size) = (number(frame, "data-s"), number(frame, "data-b"));
        let child = |name| {
            frame
                .children()
                .find(|c| c.tag_name().name() == name)
                .unwrap()
        };
        let title = child("title").text().unwrap();
        let figures = [format!(" ({size} bytes), "), format!(": {size} objects, ")];
        assert!(figures.iter().any(|f| title.contains(f)), "{title}");
        let top = number(child("rect"), "y");
        let (root_top, _) = *root.get_or_insert((top, size));
        rows.entry(root_top.abs_diff(top))
            .or_default()
            .push((start, start + size));
    }
    let mut below: Option<&Vec<(u64, u64)>> = None;
    for row in rows.values() {
        assert!(
            row.is_sorted() && row.windows(2).all(|w| w[0].1 <= w[1].0),
            "frames overlap"
        );
        if let Some(below) = below {
            let inside =
                |(start, end): &(u64, u64)| below.iter().any(|(s, e)| s <= start && end <= e);
            assert!(row.iter().all(inside), "a frame is outside its parent");
        }
        below = Some(row);
    }
    root.unwrap().1
}

/// The sum that a reader shows of a file about this kind, and the kind of which it is the sum.
pub fn shown(format: &str, bytes: &[u8], kind: Kind) -> (u64, Kind) {
    match (format, kind) {
        // It has no value for all memory.
        ("pprof", Kind::All) => (pprof(bytes).shown, Kind::Resident),
        ("pprof", _) => (pprof(bytes).shown, kind),
        _ => {
            let sums = read(format, bytes);
            let names = ["all", kind.label(), kind.name()];
            let sum = names.iter().find_map(|name| sums.get(*name));
            (*sum.unwrap_or_else(|| panic!("{sums:?}")), kind)
        }
    }
}

/// pprof's view of a file.
pub struct Pprof {
    pub sums: Sums,
    /// The sum of the value that it shows unless told otherwise.
    pub shown: u64,
    /// Its `-raw` form.
    pub raw: String,
}

/// Read by Go's pprof.
pub fn pprof(bytes: &[u8]) -> Pprof {
    let raw = pprof_says(&["-raw"], bytes);
    let mut lines = raw.lines().skip_while(|line| *line != "Samples:").skip(1);
    let types: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let names: Vec<&str> = types
        .iter()
        .map(|name| name.split('/').next().unwrap())
        .collect();
    let mut sums: Sums = names.iter().map(|name| ((*name).to_owned(), 0)).collect();
    for line in lines.take_while(|line| *line != "Locations") {
        // A sample is `VALUES: LOCATIONS`; its labels are in separate lines.
        let Some((values, places)) = line.split_once(':') else {
            continue;
        };
        let values: Result<Vec<u64>, _> = values.split_whitespace().map(str::parse).collect();
        let (Ok(values), false) = (values, places.trim_start().starts_with('[')) else {
            continue;
        };
        assert_eq!(values.len(), names.len(), "{line}");
        for (name, value) in names.iter().zip(values) {
            *sums.get_mut(*name).unwrap() += value;
        }
    }
    let default = types.iter().position(|name| name.ends_with("[dflt]"));
    let shown = sums[names[default.unwrap()]];
    Pprof { sums, shown, raw }
}

/// The output of `go tool pprof`.
pub fn pprof_says(args: &[&str], file: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.pb.gz");
    std::fs::write(&path, file).unwrap();
    let out = Command::new("go")
        .args(["tool", "pprof", "-symbolize=none", "-nodefraction=0"])
        .args(args)
        .arg(&path)
        .env("HOME", dir.path())
        .env("PPROF_TMPDIR", dir.path())
        .output()
        .expect("go is needed for these tests (Debian: golang-go)");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    String::from_utf8(out.stdout).unwrap()
}

/// Validated with speedscope's schema, then summed.
pub fn speedscope(bytes: &[u8]) -> Sums {
    let schema: Value = serde_json::from_str(include_str!("speedscope-schema.json")).unwrap();
    let file: Value = serde_json::from_slice(bytes).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    if let Err(e) = validator.validate(&file) {
        panic!("{e} at {}", e.instance_path());
    }
    let frames = file["shared"]["frames"].as_array().unwrap().len() as u64;
    let sum = |profile: &Value| {
        let (samples, weights) = (&profile["samples"], &profile["weights"]);
        let (samples, weights) = (samples.as_array().unwrap(), weights.as_array().unwrap());
        assert_eq!(samples.len(), weights.len());
        for stack in samples {
            let stack = stack.as_array().unwrap();
            assert!(!stack.is_empty());
            assert!(stack.iter().all(|n| n.as_u64().unwrap() < frames));
        }
        let sum: u64 = weights.iter().map(|w| w.as_u64().unwrap()).sum();
        assert_eq!(profile["endValue"], sum);
        (profile["name"].as_str().unwrap().to_owned(), sum)
    };
    file["profiles"]
        .as_array()
        .unwrap()
        .iter()
        .map(sum)
        .collect()
}

/// The rows of a table, read by Python's csv module in strict mode.
pub fn table(bytes: &[u8]) -> Vec<BTreeMap<String, String>> {
    const SCRIPT: &str = "import csv, io, json, sys
text = io.TextIOWrapper(sys.stdin.buffer, encoding='utf-8', newline='')
print(json.dumps(list(csv.DictReader(text, strict=True))))";
    let mut python = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed for these tests");
    python.stdin.take().unwrap().write_all(bytes).unwrap();
    let out = python.wait_with_output().unwrap();
    assert!(out.status.success());
    serde_json::from_slice(&out.stdout).unwrap()
}

fn csv(bytes: &[u8]) -> Sums {
    let mut sums = Sums::new();
    for row in table(bytes) {
        for (column, cell) in &row {
            let kind = column.strip_suffix("_bytes");
            if let Some(kind) = kind.or_else(|| column.strip_suffix("_objects")) {
                *sums.entry(kind.to_owned()).or_default() += cell.parse::<u64>().unwrap();
            }
        }
    }
    sums
}

fn functions(bytes: &[u8]) -> u64 {
    let rows = table(bytes);
    let own = |row: &BTreeMap<String, String>| {
        let cell = row.get("self_bytes").or_else(|| row.get("self_objects"));
        cell.unwrap().parse::<u64>().unwrap()
    };
    rows.iter().map(own).sum()
}

/// The tree's first line.
fn text(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).unwrap();
    let line = text.lines().find(|line| line.ends_with("%  all")).unwrap();
    let mut words = line.split_whitespace();
    let figure: u64 = words.next().unwrap().parse().unwrap();
    match words.next() {
        Some("KiB") => figure << 10,
        Some("objects") => figure,
        other => panic!("{other:?} in {line}"),
    }
}
