//! The verdict of `memprof heap`, of programs whose state is known. Each figure in a sentence is also in a table of the report,
//! and is true: it is compared with what the program, the C library or the kernel counts.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::common::allocators::{JEMALLOC, allocator};
use crate::common::binary::memprof;
use crate::common::process::figure;
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::heap::unreachable::nearly_all;
use memprof_sys::text::{grouped, size};

/// The header of glibc's chunks in use, in bytes.
const HEADER: u64 = 8;
/// Bytes that a process may take or return on the side, such as a page of a stack or of stdio.
const ON_THE_SIDE: u64 = 64 << 10;

/// A program in a known state, and what it says of it.
fn in_state<T: DeserializeOwned>(state: &str, variables: &[(&str, &str)]) -> (Workload, T) {
    let mut command = Command::new(program("verdict"));
    // What the user who runs the tests has set would choose another allocator.
    for other in [
        "LD_PRELOAD",
        "MALLOC_CONF",
        "MALLOC_ARENA_MAX",
        "GLIBC_TUNABLES",
    ] {
        command.env_remove(other);
    }
    command.arg(state).envs(variables.iter().copied());
    started(&mut command)
}

/// A program, and what it says first.
fn started<T: DeserializeOwned>(command: &mut Command) -> (Workload, T) {
    let mut workload = Workload::start_as(command.stderr(Stdio::inherit()));
    let said = workload.lines.line();
    let said = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    (workload, said)
}

/// The report of a program that waits.
struct Report(Value);

impl Report {
    /// Takes a snapshot, and checks that each figure of its sentences is in its tables, and that the text begins with them.
    #[track_caller]
    fn of(workload: &Workload) -> Report {
        let pid = workload.pid().to_string();
        let printed = |format| {
            // The limit is long, as the machine may be busy.
            let line = [
                "heap",
                "--pid",
                &pid,
                "--max-stop",
                "10000",
                "--format",
                format,
            ];
            let ended = memprof(&line);
            ended.must(0, &[]);
            ended.stdout
        };
        let report = Report(serde_json::from_str(&printed("json")).unwrap());
        for sentence in report.sentences() {
            assert_eq!(
                figures_in(sentence),
                report.figures_of(sentence),
                "{sentence}"
            );
        }
        // Another snapshot of the same state.
        let text = printed("text");
        let said = format!("\n{}\n", report.sentences().join("\n"));
        assert!(text.contains(&said), "{said}\n{text}");
        report
    }

    fn sentences(&self) -> Vec<&str> {
        let sentences = self.0["verdict"].as_array().unwrap().iter();
        sentences
            .map(|sentence| sentence.as_str().unwrap())
            .collect()
    }

    /// The sentence that contains this.
    #[track_caller]
    fn says(&self, part: &str) -> &str {
        let sentences = self.sentences();
        let found = sentences.iter().find(|sentence| sentence.contains(part));
        found.unwrap_or_else(|| panic!("nothing says {part:?}: {sentences:#?}"))
    }

    #[track_caller]
    fn says_nothing_of(&self, parts: &[&str]) {
        let sentences = self.sentences().join("\n");
        for part in parts {
            assert!(!sentences.contains(part), "{part}: {sentences}");
        }
    }

    fn rows<'r>(&'r self, path: &str) -> impl Iterator<Item = &'r Value> {
        let rows = self.0.pointer(path).and_then(Value::as_array);
        rows.unwrap_or_else(|| panic!("no {path} in {}", self.0))
            .iter()
    }

    /// The resident bytes of the kinds with these names; of a kind that has none, 0.
    fn resident(&self, kinds: &[&str]) -> u64 {
        let rows = self.rows("/rows");
        let rows = rows.filter(|row| kinds.contains(&row["what"].as_str().unwrap()));
        rows.map(|row| number(&row["resident"])).sum()
    }

    fn live(&self) -> u64 {
        self.resident(&[
            "live",
            "live_mapped",
            "jemalloc_live",
            "jemalloc_large",
            "python_live",
        ])
    }

    fn free(&self) -> u64 {
        let overhead = self.resident(&["overhead", "jemalloc_overhead", "python_overhead"]);
        let all: u64 = self.rows("/rows").map(|row| number(&row["resident"])).sum();
        all - self.live() - overhead
    }

    /// The class whose chunks keep the most free bytes in memory.
    fn worst_class(&self) -> &Value {
        let classes = self.rows("/sizes");
        classes
            .max_by_key(|class| number(&class["pinned"]))
            .unwrap()
    }

    /// The figures in the tables that a sentence must have, in its order.
    #[track_caller]
    fn figures_of(&self, sentence: &str) -> Vec<String> {
        let bytes = |path: &str| size(number(self.0.pointer(path).unwrap()));
        let count = |path: &str| grouped(number(self.0.pointer(path).unwrap()));
        let sum = |kinds: &[&str]| vec![size(self.resident(kinds))];
        let has = |part: &str| sentence.contains(part);
        if has(" of anonymous memory is heap in use, ") {
            vec![size(self.live()), bytes("/anonymous"), size(self.free())]
        } else if has("Fragmentation: ") {
            let class = self.worst_class();
            let [from, to, live, pinned] =
                ["from", "to", "live", "pinned"].map(|of| number(&class[of]));
            let mut figures = match to - from < 16 {
                true => vec![format!("{to} bytes")],
                false => vec![from.to_string(), format!("{to} bytes")],
            };
            figures.extend([grouped(live), size(pinned)]);
            figures.extend((number(&self.0["occupancy"][1]) > 0).then(|| count("/occupancy/1")));
            figures
        } else if has("malloc_trim(0) would return") {
            vec![bytes("/trimmable")]
        } else if has("glibc has ") {
            vec![count("/allocator/arenas")]
        } else if has("free at the ends of arenas") {
            sum(&["top"])
        } else if has("pages that jemalloc keeps for reuse") {
            sum(&["jemalloc_dirty", "jemalloc_muzzy"])
        } else if has("free in Python's arenas") {
            sum(&["python_free", "python_pools"])
        } else if has("in the caches of threads") {
            sum(&["thread_cache", "fast", "jemalloc_cache"])
        } else if has(" are lost (nothing refers to them): ") {
            let mut figures = vec![count("/unreachable/chunks"), bytes("/unreachable/bytes")];
            // The sentence has the shapes that are at least a tenth of the loss.
            let shapes = self.rows("/unreachable/shapes");
            let lost = number(&self.0["unreachable"]["bytes"]);
            let large = shapes.filter(|shape| number(&shape["bytes"]) * 10 >= lost);
            for shape in large.take(2) {
                figures.push(grouped(number(&shape["groups"])));
                let parts = shape["parts"].as_array().unwrap().iter();
                figures.extend(parts.map(|part| format!("{} B", part["bytes"])));
                figures.push(size(number(&shape["bytes"])));
            }
            figures
        } else if has("The Python type with the most bytes: ") {
            let named = self.rows("/python/types").find(|row| row["name"] != "");
            let row = named.unwrap();
            vec![size(number(&row["bytes"])), grouped(number(&row["count"]))]
        } else if sentence.starts_with("Which code ") {
            // The commands of this sentence have no measurements.
            figures_in(sentence)
        } else {
            panic!("no test knows this sentence: {sentence}");
        }
    }
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// The numbers in a sentence, with their units. (Those inside a word are part of an option or of a call.)
fn figures_in(sentence: &str) -> Vec<String> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let mut figures = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let word = word.trim_start_matches(['(', '{']);
        let ends = |c: char| [',', '.', ';', ')', '}'].contains(&c);
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let unit = words
            .get(at + 1)
            .map_or("", |unit| unit.trim_end_matches(ends));
        figures.push(match unit {
            "B" | "bytes" | "KiB" | "MiB" | "GiB" => format!("{word} {unit}"),
            _ => word.trim_end_matches(ends).to_owned(),
        });
    }
    figures
}

/// Fails unless a figure is within some percent of the truth, beside what a process has on the side.
#[track_caller]
fn is_near(figure: u64, truth: u64, percent: u64) {
    let most = truth / 100 * percent + ON_THE_SIDE;
    assert!(
        figure.abs_diff(truth) <= most,
        "{figure} instead of {truth}"
    );
}

#[derive(Debug, Deserialize)]
struct Fragments {
    kept: u64,
    size: u64,
    freed: u64,
    beside: u64,
}

#[derive(Debug, Deserialize)]
struct Arenas {
    arenas: u64,
}

#[derive(Debug, Deserialize)]
struct Bytes {
    bytes: u64,
}

/// The class, the number and the bytes are those of the program, and malloc_trim(0) returns what the sentence says.
#[test]
fn a_fragmented_heap() {
    let (mut workload, truth) = in_state::<Fragments>("fragments", &[]);
    let report = Report::of(&workload);
    let class = report.worst_class();
    let [from, to, live, pinned] = ["from", "to", "live", "pinned"].map(|of| number(&class[of]));
    let chunk = truth.size + HEADER;
    assert!((from..=to).contains(&chunk), "{chunk}: {class}");
    assert_eq!(live, truth.kept, "{class}");
    is_near(pinned, truth.beside, 2);
    is_near(report.free(), truth.freed, 3);
    report.says("Fragmentation: chunks of ");
    report.says_nothing_of(&["lost", "arenas", "Python", "jemalloc"]);

    report.says("malloc_trim(0) would return");
    let rollup = format!("/proc/{}/smaps_rollup", workload.pid());
    let anonymous = || figure(&rollup, "Anonymous:");
    let before = anonymous();
    workload.lines.tell("trim");
    let returned = before - anonymous();
    is_near(number(&report.0["trimmable"]), returned, 0);
    // Nothing more can be returned, and the rest is as fragmented as before.
    let after = Report::of(&workload);
    after.says_nothing_of(&["malloc_trim"]);
    after.says("Fragmentation: chunks of ");
    is_near(number(&after.worst_class()["pinned"]), pinned, 0);
    workload.end();
}

/// Sessions that were forgotten are one shape, with their number.
#[test]
fn equal_losses() {
    #[derive(Debug, Deserialize)]
    struct Lost {
        groups: u64,
        chunks: u64,
        bytes: u64,
    }
    let (workload, truth) = in_state::<Lost>("leaks", &[]);
    let report = Report::of(&workload);
    let shape = report.rows("/unreachable/shapes").next().unwrap();
    let [groups, chunks, bytes] = ["groups", "chunks", "bytes"].map(|of| number(&shape[of]));
    assert!(
        nearly_all([chunks, groups], [truth.chunks, truth.groups]),
        "{shape} {truth:?}"
    );
    assert!(bytes <= truth.bytes, "{shape} {truth:?}");
    is_near(bytes, truth.bytes, 1);
    let parts: Vec<&Value> = shape["parts"].as_array().unwrap().iter().collect();
    assert_eq!(
        [&parts[0]["kind"], &parts[1]["kind"]],
        ["unknown", "text"],
        "{shape}"
    );
    assert_eq!(parts.len(), 2, "{shape}");
    report.says(" are lost (nothing refers to them): ");
    report.says("Which code allocated what is lost: memprof heap --by-stack");
    report.says_nothing_of(&["Fragmentation", "malloc_trim", "of it is free", "arenas"]);
    workload.end();
}

/// Nothing is explained where nothing needs an explanation.
#[test]
fn a_heap_in_order() {
    let (workload, truth) = in_state::<Bytes>("fine", &[]);
    let report = Report::of(&workload);
    is_near(report.live(), truth.bytes, 1);
    let sentences = report.sentences();
    assert_eq!(sentences.len(), 2, "{sentences:#?}");
    report.says(" of anonymous memory is heap in use, ");
    report.says("Which code holds it: ");
    workload.end();
}

/// The number of arenas is glibc's, and the advice does what it says.
#[test]
fn many_arenas() {
    // As many as the threads want, however many processors the machine has.
    let (workload, truth) = in_state::<Arenas>("arenas", &[("MALLOC_ARENA_MAX", "64")]);
    let report = Report::of(&workload);
    assert_eq!(number(&report.0["allocator"]["arenas"]), truth.arenas);
    assert!(truth.arenas >= 8, "{truth:?}");
    report.says("MALLOC_ARENA_MAX=2 in its environment limits them.");
    report.says_nothing_of(&["lost"]);
    workload.end();

    let (workload, truth) = in_state::<Arenas>("arenas", &[("MALLOC_ARENA_MAX", "2")]);
    let fewer = Report::of(&workload);
    assert_eq!(number(&fewer.0["allocator"]["arenas"]), truth.arenas);
    assert_eq!(truth.arenas, 2);
    fewer.says_nothing_of(&["MALLOC_ARENA_MAX", "lost"]);
    assert!(fewer.free() < report.free());
    workload.end();
}

/// Free blocks of Python's arenas are not those of malloc, and the most frequent type has the number that the program counts.
#[test]
fn python_s_arenas() {
    const SCRIPT: &str = "\
import gc, json, sys
class Order:
    __slots__ = tuple('abcdefgh')
orders = [Order() for _ in range(300000)]
orders = orders[::15]
gc.collect()
gc.disable()
print(json.dumps({'orders': sum(type(o) is Order for o in gc.get_objects()), 'size': sys.getsizeof(orders[0])}), flush=True)
sys.stdin.read()
";
    #[derive(Debug, Deserialize)]
    struct Objects {
        orders: u64,
        size: u64,
    }
    let Some((_, python)) = pythons().pop_first() else {
        return skip("there is no CPython");
    };
    let mut command = Command::new(&python);
    command.args(["-c", SCRIPT]).env_remove("PYTHONMALLOC");
    let (workload, truth) = started::<Objects>(&mut command);
    let report = Report::of(&workload);
    let orders = report.says("The Python type with the most bytes: ");
    let wanted = format!(" in {} objects of type Order.", grouped(truth.orders));
    assert!(orders.contains(&wanted), "{orders} {truth:?}");
    let row = report.rows("/python/types").next().unwrap();
    is_near(number(&row["bytes"]), truth.orders * truth.size, 1);
    let free = report.resident(&["python_free", "python_pools"]);
    is_near(free, 14 * truth.orders * truth.size, 5);
    report.says("free in Python's arenas, which go back only when all of an arena is free.");
    report.says_nothing_of(&["malloc_trim", "lost", "glibc has", "Fragmentation"]);
    workload.end();
}

/// What glibc's functions would do is not said of a program that does not use them.
#[test]
fn jemalloc_s_slabs() {
    let Some(jemalloc) = allocator(JEMALLOC) else {
        return;
    };
    let (workload, truth) = in_state::<Fragments>("fragments", &[preload(&jemalloc)]);
    let report = Report::of(&workload);
    let class = report.worst_class();
    let [from, to, live, pinned] = ["from", "to", "live", "pinned"].map(|of| number(&class[of]));
    assert!((from..=to).contains(&truth.size), "{} {class}", truth.size);
    assert_eq!(live, truth.kept, "{class}");
    is_near(pinned, truth.beside, 2);
    report.says("Fragmentation: chunks of ");
    report.says_nothing_of(&["malloc_trim", "MALLOC_ARENA_MAX", "glibc", "lost"]);
    workload.end();
}

/// Pages that jemalloc keeps for reuse, and the option that the sentence names.
#[test]
fn jemalloc_s_free_pages() {
    #[derive(Debug, Deserialize)]
    struct Emptied {
        freed: u64,
    }
    let Some(jemalloc) = allocator(JEMALLOC) else {
        return;
    };
    let preload = preload(&jemalloc);
    let never = ("MALLOC_CONF", "dirty_decay_ms:-1");
    let (workload, truth) = in_state::<Emptied>("emptied", &[preload, never]);
    let report = Report::of(&workload);
    is_near(
        report.resident(&["jemalloc_dirty", "jemalloc_muzzy"]),
        truth.freed,
        1,
    );
    let said = report.says("pages that jemalloc keeps for reuse");
    let advice = "dirty_decay_ms:0";
    assert!(said.contains(&format!("MALLOC_CONF={advice}")), "{said}");
    report.says_nothing_of(&["malloc_trim", "lost", "Fragmentation"]);
    workload.end();

    let (workload, _) = in_state::<Emptied>("emptied", &[preload, ("MALLOC_CONF", advice)]);
    let report = Report::of(&workload);
    report.says_nothing_of(&["jemalloc keeps"]);
    assert!(report.free() < truth.freed / 10, "{}", report.free());
    workload.end();
}

fn preload(library: &Path) -> (&'static str, &str) {
    ("LD_PRELOAD", library.to_str().unwrap())
}
