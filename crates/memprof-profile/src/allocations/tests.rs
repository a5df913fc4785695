use super::*;
use crate::UncertaintyOf;
use crate::symbol::{Language, Symbols};
use crate::testing::{at, kib, profile, symbols};

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
        missing: 0,
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

/// What a filter cannot look at is among the losses of its result.
#[test]
fn what_is_kept_no_longer_is_said() {
    let losses = |named: &NamedAllocations| {
        let filter = Filter::parse("live").unwrap();
        let report = filter.choose(named, None, &[]).unwrap();
        report.profile.losses.lost().cloned().collect::<Vec<_>>()
    };
    let mut named = named();
    assert_eq!(losses(&named), []);
    let all = Arc::make_mut(&mut named.allocations);
    (all.missing, all.missing_until_ns, all.without_stack) = (7, Some(3 * SECOND / 2), 2);
    let losses = losses(&named);
    assert_eq!(losses.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [7, 2]);
    assert!(
        losses[0].0.contains("freed in the first 1.5 s"),
        "{losses:?}"
    );
    assert!(losses[1].0.contains("stack was lost"), "{losses:?}");
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
        .uncertainties
        .iter()
        .map(|one| (one.parts[0].sample, one.of, one.parts[0].variance));
    let variances: Vec<_> = variances.collect();
    let of = |column, variance| (Some(0), UncertaintyOf::Column(column), variance);
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

/// The groups with their keys, as text, largest first by allocated bytes.
fn groups_of(named: &NamedAllocations, by: GroupBy) -> Vec<(String, Group)> {
    let groups = Groups::new(named, &named.of_process(None), by);
    let of = groups.keys.iter().zip(&groups.groups);
    let mut of: Vec<_> = of
        .map(|(key, group)| (format!("{key:?}"), *group))
        .collect();
    of.sort_by(|a, b| b.1.all.space.total_cmp(&a.1.all.space));
    of
}

#[test]
fn each_grouping_puts_every_allocation_where_it_belongs() {
    let named = named();
    let figures = |by| {
        let groups = groups_of(&named, by).into_iter();
        let figures = groups.map(|(_, g)| (g.samples, g.all.space, g.live.space));
        figures.collect::<Vec<_>>()
    };
    // main is on all stacks, parse on that of the first two.
    let by_function = groups_of(&named, GroupBy::Function);
    assert!(by_function[0].0.contains("main") && by_function[1].0.contains("parse"));
    assert_eq!(
        figures(GroupBy::Function),
        [(4, 3600.0, 1000.0), (2, 1500.0, 1000.0)]
    );
    assert_eq!(
        figures(GroupBy::Stack),
        [(2, 2100.0, 0.0), (2, 1500.0, 1000.0)]
    );
    assert_eq!(figures(GroupBy::Thread), figures(GroupBy::Stack));
    let keys = |by| {
        let mut keys: Vec<_> = groups_of(&named, by).into_iter().map(|(k, _)| k).collect();
        keys.sort();
        keys
    };
    assert_eq!(
        keys(GroupBy::Size),
        ["Size(128)", "Size(32)", "Size(64)", "Size(8)"]
    );
    // Two lived for two seconds, one was freed at once, one lives.
    assert_eq!(
        keys(GroupBy::Lifetime),
        [
            "Lifetime(None)",
            "Lifetime(Some(0))",
            "Lifetime(Some(1000000000))"
        ]
    );
}

#[test]
fn averages_are_of_allocations_not_of_samples() {
    let mut named = named();
    let all = Arc::make_mut(&mut named.allocations);
    // One sample of 100 bytes stands for 10 allocations, one of 4000 bytes for itself.
    all.all = vec![one(0, 100, 1, Some(3)), one(0, 4000, 2, Some(8))];
    all.all[1].weight = 4000;
    let total = Groups::new(&named, &[0, 1], GroupBy::Size).total;
    let size = total.average_size().unwrap();
    let mean = (10.0 * 100.0 + 4000.0) / 11.0;
    assert!((size.value - mean).abs() < 1e-9);
    // Only the number of the small ones is uncertain: 10 · 9 of variance.
    let error = (90.0f64).sqrt() * (mean - 100.0) / 11.0;
    assert!((size.error - error).abs() < 1e-6, "{size:?} {error}");
    let lifetime = total.average_lifetime().unwrap();
    assert!((lifetime.value - (10.0 * 2e9 + 6e9) / 11.0).abs() < 1.0);
    assert_eq!(total.average_age(), None);
}

/// Over many draws, the stated error of an average covers the truth about as often as it should.
#[test]
fn errors_of_averages_are_true() {
    let mut seed = 7u64;
    let mut random = move || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    let sizes: Vec<u64> = (0..4000).map(|n| 16 << (n % 6)).collect();
    let truth = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
    let interval = 2048.0;
    let (mut covered, runs) = (0, 500);
    for _ in 0..runs {
        let mut named = named();
        let all = Arc::make_mut(&mut named.allocations);
        all.all.clear();
        for size in &sizes {
            let p = 1.0 - (-(*size as f64) / interval).exp();
            if random() < p {
                all.all.push(Allocation {
                    weight: (*size as f64 / p).round() as u64,
                    ..one(0, *size, 1, None)
                });
            }
        }
        let chosen = named.of_process(None);
        let average = Groups::new(&named, &chosen, GroupBy::Thread)
            .total
            .average_size();
        let average = average.unwrap();
        covered += u32::from((average.value - truth).abs() <= 1.96 * average.error);
    }
    let share = f64::from(covered) / f64::from(runs);
    assert!((0.90..=0.98).contains(&share), "covered in {share}");
}

#[test]
fn courses_say_what_was_allocated_and_lived_when() {
    let named = named();
    let groups = Groups::new(&named, &named.of_process(None), GroupBy::Stack);
    // Ten seconds in five parts: allocations at 1, 2, 3 and 6 s; frees at 4, 5 and 6 s.
    let (total, of) = groups.courses(&[0], 5);
    assert_eq!(total.allocated, [1000.0, 2500.0, 0.0, 100.0, 0.0]);
    assert_eq!(total.live, [1000.0, 3500.0, 1000.0, 1000.0, 1000.0]);
    assert_eq!(of.len(), 1);
    let sum: f64 = of[0].allocated.iter().sum();
    assert_eq!(sum, groups.groups[0].all.space);
    // Neither a moment without length nor no part is a failure.
    let mut empty = named.clone();
    Arc::make_mut(&mut empty.allocations).now_ns = 0;
    let groups = Groups::new(&empty, &empty.of_process(None), GroupBy::Thread);
    assert_eq!(groups.courses(&[], 0).0.live.len(), 1);
}
