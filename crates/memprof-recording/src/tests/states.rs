//! The state at a moment is the report of that moment.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::made::World;
use super::{assert_same, recorder, saved_text, state_text};
use crate::Recording;
use memprof_profile::symbol::{Symbol, Symbols};
use memprof_profile::{FrameKind, JIT, Report};

/// The best symbol of each position that any report had: earlier moments show it, too.
#[derive(Default)]
struct Best(HashMap<(usize, String, usize, u64), Arc<Symbol>>);

impl Best {
    fn key(
        run: usize,
        report: &Report,
        frame: memprof_profile::Frame,
    ) -> Option<(usize, String, usize, u64)> {
        let FrameKind::Code(module, offset) = frame.kind() else {
            return None;
        };
        let modules = &report.profile.modules;
        let name = modules[usize::from(module.0)].name.clone();
        let before = &modules[..usize::from(module.0)];
        let number = before.iter().filter(|other| other.name == name).count();
        let run = if name == JIT { run } else { 0 };
        Some((run, name, number, offset))
    }

    fn add(&mut self, run: usize, report: &Report) {
        for (frame, symbol) in report.symbols.iter() {
            let key = Best::key(run, report, frame).unwrap();
            let known = self.0.get(&key);
            if known.is_none_or(|known| matches!(**known, Symbol::Unknown(_))) {
                self.0.insert(key, Arc::new(symbol.clone()));
            }
        }
    }

    /// The saved profile that the recording has of a report.
    fn wanted(&self, run: usize, report: &Report) -> String {
        let mut symbols = Symbols::default();
        for sample in report.profile.all_samples() {
            for frame in &sample.stack.frames {
                let key = Best::key(run, report, *frame);
                if let Some(symbol) = key.and_then(|key| self.0.get(&key)) {
                    symbols.insert(*frame, Arc::clone(symbol));
                }
            }
        }
        symbols.set_advice(report.symbols.advice().map(str::to_owned));
        saved_text(&Report {
            symbols: Arc::new(symbols),
            ..report.clone()
        })
    }
}

/// Records reports in several runs, then compares each moment.
fn check(seed: u64, runs: &[usize]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let mut world = World::new(seed);
    let (mut best, mut reports) = (Best::default(), Vec::new());
    for (run, number) in runs.iter().enumerate() {
        let mut recorder = recorder(&path);
        for _ in 0..*number {
            let report = world.report(1000);
            assert!(recorder.record(&report).unwrap());
            // The same report again is no moment.
            assert!(!recorder.record(&report).unwrap());
            best.add(run, &report);
            reports.push((run, report));
        }
        recorder.finish().unwrap();
        world.restart();
        world.set_clock(-500);
    }
    let recording = Recording::open(&path).unwrap();
    let moments = recording.moments().unwrap();
    assert_eq!(moments.len(), reports.len());
    assert!(moments.is_sorted_by_key(|moment| moment.elapsed));
    for (moment, (run, report)) in moments.iter().zip(&reports) {
        let found = state_text(&recording, moment.id);
        assert_same(moment.id, &found, &best.wanted(*run, report));
    }
}

#[test]
fn the_state_at_a_thousand_moments_is_the_report() {
    check(7, &[500, 1, 499]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_state_at_any_moment_is_the_report(
        seed in any::<u64>(),
        runs in prop::collection::vec(1usize..40, 1..4),
    ) {
        check(seed, &runs);
    }
}
