//! How long replies for a large report take compared with the `/v1` tree, and how long they block the
//! server's event loop.
//!
//! cargo bench --bench api [-- STACKS]

#[path = "../tests/common/random.rs"]
mod random;
#[path = "../tests/common/report.rs"]
mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memprof::collect::ProviderError;
use memprof::http::api::{Api, ApiOptions, BoxFuture, Provider, RequestParts, Route};
use memprof_profile::symbol::{Function, Language, Symbol, Symbols};
use memprof_profile::*;
use memprof_sys::ids::Pid;
use memprof_sys::usage::Usage;
use random::Random;
use report::{module, profile};

const STACKS: u64 = 100_000;
/// Frames per stack; many stacks share the outer half.
const DEPTH: u64 = 32;
const FUNCTIONS: u64 = 20_000;
const ROUNDS: usize = 5;
/// The aim for a tree of 100,000 stacks.
const TREE_MS: f64 = 250.0;

/// Provides the same memory always as a new report, so that no reply comes from the cache.
struct Fresh {
    report: Report,
    number: AtomicU64,
}

impl Provider for Fresh {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        let sequence = self.number.fetch_add(1, Ordering::Relaxed);
        let report = Report {
            sequence,
            ..self.report.clone()
        };
        Box::pin(async { Ok(Arc::new(report)) })
    }

    fn pid(&self) -> Option<Pid> {
        None
    }
}

/// Each level has more functions to choose from than the next outer level. Each function has three call
/// sites.
fn frame(level: u64, numbers: &mut Random) -> Frame {
    let choices = (1 + level * level / 2).min(FUNCTIONS / DEPTH);
    let function = level * (FUNCTIONS / DEPTH) + numbers.below(choices);
    Frame::code(
        ModuleId((function % 2) as u16),
        function * 256 + 8 * numbers.below(3),
    )
}

fn report(stacks: u64) -> Report {
    let mut numbers = Random(0x9e37_79b9_7f4a_7c15);
    let mut samples = Vec::new();
    for _ in 0..stacks {
        let frames: Box<[Frame]> = (0..DEPTH)
            .rev()
            .map(|level| frame(level, &mut numbers))
            .collect();
        let usage = Usage {
            anon: 4096 * (1 + numbers.below(64)),
            cache: 4096 * numbers.below(4),
            ..Usage::default()
        };
        samples.push(Sample {
            stack: Arc::new(Stack {
                frames,
                outcome: Outcome::Complete,
            }),
            amounts: usage.into(),
        });
    }
    let mut symbols = Symbols::default();
    for frame in samples.iter().flat_map(|s| s.stack.frames.iter().copied()) {
        if symbols.get(frame).is_none() {
            symbols.insert(frame, Arc::new(name(frame)));
        }
    }
    let modules = [module("server", true), module("plugin.so", true)];
    let profile = profile(samples, Vec::new(), modules);
    Report {
        profile: Arc::new(profile),
        symbols: Arc::new(symbols),
        sequence: 0,
    }
}

fn name(frame: Frame) -> Symbol {
    let FrameKind::Code(_, offset) = frame.kind() else {
        unreachable!("every frame is code");
    };
    Symbol::Known(Function {
        name: format!(
            "server::module_{}::function_{}",
            offset / 4096,
            offset / 256
        ),
        language: Language::Rust,
        offset_in_function: offset % 256,
        first_line: None,
        inlined: Vec::new(),
        location: None,
    })
}

/// The best time of a request, the size of its reply, and the longest time that the event loop did not
/// run a task that is always ready.
async fn measure(api: &Api, target: &str) -> (Duration, usize, Duration) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (mut best, mut size, mut kept) = (Duration::MAX, 0, Duration::ZERO);
    for _ in 0..ROUNDS {
        let given = RequestParts {
            query,
            ..RequestParts::default()
        };
        let (route, name) = Route::at(path).next().expect("a path that is answered");
        let request = route.request(name, given).expect("a good request");
        let start = Instant::now();
        let mut answer = Box::pin(api.answer(request));
        let mut last = Instant::now();
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut answer => break reply,
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
            // The timer itself is at most a millisecond late.
            kept = kept.max(last.elapsed().saturating_sub(Duration::from_millis(2)));
            last = Instant::now();
        };
        best = best.min(start.elapsed());
        size = reply.expect("an answer").bytes().len();
    }
    (best, size, kept)
}

fn main() {
    let wanted = std::env::args().find_map(|arg| arg.parse().ok());
    let stacks = wanted.unwrap_or(STACKS);
    let api = Api::new(
        Arc::new(Fresh {
            report: report(stacks),
            number: AtomicU64::new(1),
        }),
        ApiOptions::default(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    println!("{stacks} stacks of {DEPTH} frames");
    println!(
        "{:<52} {:>8} {:>6} {:>9} {:>9}",
        "request", "ms", "ratio", "KiB", "loop ms"
    );
    let mut old = None;
    for target in [
        "/v1/tree",
        "/v1/tree?reverse=true",
        "/v2/tree",
        "/v2/tree?direction=callees",
        "/v2/tree?merge=site&direction=callees",
        "/v2/tree?search=function_77",
        "/v2/tree?threshold=262144",
        "/v2/tree?max_nodes=200000",
        "/v2/functions",
        "/v2/summary",
    ] {
        let (best, size, kept) = runtime.block_on(measure(&api, target));
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let ratio = ms(best) / *old.get_or_insert(ms(best));
        let missed = if target.starts_with("/v2/tree") && ms(best) > TREE_MS {
            "  MISSED"
        } else {
            ""
        };
        println!(
            "{target:<52} {:>8.1} {ratio:>6.2} {:>9} {:>9.1}{missed}",
            ms(best),
            size >> 10,
            ms(kept)
        );
    }
    println!("aim: a tree in at most {TREE_MS} ms; ratios are to the first row");
}
