use super::*;
use crate::symbol::{Language, Symbols};
use crate::tree::testing::{at, kib, profile, symbols};

const SECOND: u64 = 1_000_000_000;

fn one(stack: u32, size: u64, born: u64, freed: Option<u64>) -> Allocation {
    Allocation {
        stack,
        pid: Some(Pid(42)),
        thread: 42 + stack,
        size,
        weight: size * 10,
        born_ns: born * SECOND,
        freed_ns: freed.map(|freed| freed * SECOND),
        inherited: false,
    }
}

/// Two stacks, parse and main, and what they allocated.
fn named() -> NamedAllocations {
    let names: Symbols = symbols(&[
        (at(0, 0x10), "parse", Language::Other),
        (at(0, 0x20), "main", Language::Other),
    ]);
    let profile = profile(
        &[
            (&[at(0, 0x10), at(0, 0x20)], kib(4, 0)),
            (&[at(0, 0x20)], kib(8, 0)),
        ],
        &[],
    );
    let stacks = profile.samples.iter().map(|s| Arc::clone(&s.stack));
    let allocations = Allocations {
        stacks: stacks.collect(),
        all: vec![
            one(0, 100, 1, None),
            one(0, 50, 2, Some(4)),
            one(1, 200, 3, Some(5)),
            one(1, 10, 6, Some(6)),
        ],
        without_stack: 0,
        began_ns: 100 * SECOND,
        now_ns: 10 * SECOND,
        missing_until_ns: None,
        temporary_ns: 1_000,
    };
    NamedAllocations {
        report: Report {
            profile: Arc::new(profile),
            symbols: Arc::new(names),
            sequence: 1,
        },
        allocations: Arc::new(allocations),
    }
}

/// The bytes of each column that the filter chooses, of both stacks.
#[track_caller]
fn chosen(filter: &str) -> [[u64; 3]; 2] {
    let report = Filter::parse(filter)
        .unwrap()
        .choose(&named(), None, &[])
        .unwrap();
    let columns = [ALLOC_SPACE, INUSE_SPACE, TEMPORARY_SPACE];
    let samples = &report.profile.samples;
    assert_eq!(samples.len(), 2);
    assert_eq!(report.profile.total.usage.value(), 0);
    [0, 1].map(|at| columns.map(|id| samples[at].amounts.column(id)))
}

#[test]
fn allocations_are_chosen_by_size_time_and_place() {
    let all = [[1500, 1000, 0], [2100, 0, 100]];
    assert_eq!(chosen("true"), all);
    assert_eq!(chosen("false"), [[0; 3]; 2]);
    assert_eq!(chosen("live"), [[1000, 1000, 0], [0; 3]]);
    assert_eq!(chosen("size >= 100"), [[1000, 1000, 0], [2000, 0, 0]]);
    assert_eq!(chosen("lifetime < 2.5"), [[500, 0, 0], [2100, 0, 100]]);
    assert_eq!(chosen("temporary"), [[0; 3], [100, 0, 100]]);
    assert_eq!(
        chosen("born >= 2.0 && died < now"),
        [[500, 0, 0], [2100, 0, 100]]
    );
    // Live between the third and the fourth second: the first three, which are the peak, too.
    let third = [[1500, 1000, 0], [2000, 0, 0]];
    assert_eq!(chosen("born <= 3.5 && died > 3.5"), third);
    assert_eq!(chosen("at_peak"), third);
    assert_eq!(chosen("thread == 43"), [[0; 3], all[1]]);
    assert_eq!(chosen("process == 42"), all);
    assert_eq!(chosen("'parse' in functions"), [all[0], [0; 3]]);
    assert_eq!(chosen("functions.exists(f, f.startsWith('ma'))"), all);
    assert_eq!(chosen("functions[0] == 'main'"), [[0; 3], all[1]]);
    assert_eq!(chosen("modules.exists(m, m == 'nowhere')"), [[0; 3]; 2]);
}

#[test]
fn the_chosen_have_their_errors() {
    let report = Filter::parse("live")
        .unwrap()
        .choose(&named(), None, &[])
        .unwrap();
    let variances = report
        .profile
        .borders
        .iter()
        .map(|b| (b.sample, b.of, b.variance));
    let variances: Vec<_> = variances.collect();
    let of = |column, variance| (Some(0), BorderOf::Column(column), variance);
    let space = [of(ALLOC_SPACE, 900_000.0), of(INUSE_SPACE, 900_000.0)];
    assert!(
        space.iter().all(|one| variances.contains(one)),
        "{variances:?}"
    );
    assert_eq!(variances.len(), 4);
}

#[test]
fn a_filter_that_cannot_be_used_says_why() {
    let parse = |text: &str| Filter::parse(text).unwrap_err();
    assert!(matches!(parse("size >"), FilterError::Syntax(_)));
    assert!(matches!(parse(""), FilterError::Syntax(_)));
    assert_eq!(
        parse("siz > 5"),
        FilterError::Unknown { name: "siz".into() }
    );
    assert!(parse("siz > 5").to_string().contains("lifetime"));
    assert_eq!(parse(&"(".repeat(13)), FilterError::TooLong);
    assert_eq!(parse(&"!".repeat(501)), FilterError::TooLong);
    let choose = |text: &str| {
        Filter::parse(text)
            .unwrap()
            .choose(&named(), None, &[])
            .unwrap_err()
    };
    assert!(matches!(choose("size"), FilterError::NotBoolean(_)));
    assert!(matches!(choose("size > 'a'"), FilterError::Evaluation(_)));
    assert!(matches!(
        choose("functions[99] == ''"),
        FilterError::Evaluation(_)
    ));
    for text in ["size >", "siz > 1", "size"] {
        let error = Filter::parse(text)
            .and_then(|f| f.choose(&named(), None, &[]))
            .unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn marks_are_moments() {
    let mark = |id, name: Option<&str>, at: Option<u64>| MarkTime {
        id,
        name: name.map(str::to_owned),
        at_ns: at.map(|at| at * SECOND),
    };
    let marks = [
        mark(1, Some("load"), Some(104)),
        // Before the first sample.
        mark(2, None, Some(50)),
        mark(3, Some("load"), Some(102)),
        mark(4, Some("file"), None),
    ];
    let choose = |filter: &str| {
        Filter::parse(filter)
            .unwrap()
            .choose(&named(), None, &marks)
    };
    let bytes = |filter: &str| {
        let report = choose(filter).unwrap();
        report.profile.total.column(ALLOC_SPACE)
    };
    assert_eq!(bytes("born > mark('load')"), 2100);
    assert_eq!(bytes("born > mark(1)"), 100);
    assert_eq!(bytes("born < mark(1) && live"), 1000);
    assert_eq!(bytes("born > mark(2)"), 3600);
    assert_eq!(bytes("[mark(2), mark(1)].exists(m, born == m - 2.0)"), 500);
    let missing = choose("live || born > mark('x')").unwrap_err().to_string();
    assert!(
        missing.contains("the mark 'x'") && missing.contains("'load', 2, 'load'"),
        "{missing}"
    );
    let file = choose("born > mark('file')").unwrap_err();
    assert_eq!(file, FilterError::MarkOfFile("'file'".into()));
    for text in [
        "born > mark()",
        "born > mark(1, 2)",
        "born > mark(size)",
        "born > mark(1.0)",
    ] {
        assert_eq!(
            Filter::parse(text).unwrap_err(),
            FilterError::MarkName,
            "{text}"
        );
    }
}

/// Parsing is recursive, and runs on threads with 2 MiB of stack.
#[test]
fn no_text_exhausts_the_stack() {
    let texts = [
        "!", "-", "a?", "a.", "a(", "[", "(", "{1:", "a?b:", "a[", "1+", "a||", "a in ", "'a'+",
        "a&&!",
    ];
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let parse = move || {
        for text in texts {
            for end in ["", "1", "a", "true"] {
                let long = text.repeat(LONGEST_TEXT / text.len() - 1);
                let _ = Filter::parse(&format!("{long}{end}"));
            }
        }
    };
    thread.spawn(parse).unwrap().join().unwrap();
}

/// As long as a filter may be.
const LONGEST_TEXT: usize = 490;
