//! Random sequences of steps, compared with the kernel at checkpoints: the difference is always 0 KiB.
//!
//! - `MEMPROF_TEST_SECS` seconds altogether (default 30);
//! - `MEMPROF_TEST_SEED` is the first sequence's seed (default: the time); each has a seed of its
//!   own, which is printed when it fails;
//! - `MEMPROF_TEST_STEPS` is the maximum length of a sequence (default 400). To find the step that fails, replay the
//!   seed with fewer steps, or with `MEMPROF_TEST_CHECK_EACH=1`, which compares after each step.

use std::time::Instant;

use crate::common::effort;
use crate::common::files;
use crate::common::random::Random;
use crate::run::{MIB, Run};
use crate::{Scenario, Skip, scenario};

pub const SCENARIOS: &[Scenario] = &[scenario!(random), scenario!(random_forks, forks: true)];

fn random(run: &mut Run) -> Result<(), Skip> {
    sequences(run, false)
}

fn random_forks(run: &mut Run) -> Result<(), Skip> {
    sequences(run, true)
}

/// Half of the time with children followed, and half without.
pub fn sequences(run: &mut Run, followed: bool) -> Result<(), Skip> {
    let end = Instant::now() + effort::duration(30) / 2;
    let mut seed = effort::seed();
    let (mut steps, mut checks) = (0, 0);
    loop {
        println!("random: seed {seed}");
        let mut sequence = Sequence::new(run, seed, followed);
        sequence.perform(end);
        (steps, checks) = (steps + sequence.steps, checks + sequence.checks);
        if Instant::now() >= end {
            println!("random: {steps} steps, {checks} comparisons, difference 0 KiB");
            return Ok(());
        }
        // The next sequence runs in a fresh program.
        run.forget_said();
        run.tell(&["exec"]);
        seed = seed.wrapping_add(1);
    }
}

const SLOTS: u64 = 8;
const PAGE: u64 = 4096;
/// Largest mapping: 3 MiB, so that most mappings span several 2 MiB ranges.
const MAX_PAGES: u64 = 768;
const MAX_CHILDREN: u64 = 3;

/// Advice that changes which pages are resident: DONTNEED, FREE, REMOVE, MERGEABLE, UNMERGEABLE, HUGEPAGE,
/// NOHUGEPAGE, COLD, PAGEOUT, POPULATE_READ, POPULATE_WRITE, DONTNEED_LOCKED, COLLAPSE.
const ADVICE: [u64; 13] = [4, 8, 9, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25];

struct Sequence<'r, 'l> {
    run: &'r mut Run<'l>,
    dice: Random,
    seed: u64,
    followed: bool,
    /// Bytes of each slot's mapping, including holes.
    slots: [u64; SLOTS as usize],
    children: u64,
    steps: u64,
    checks: u64,
}

impl<'r, 'l> Sequence<'r, 'l> {
    fn new(run: &'r mut Run<'l>, seed: u64, followed: bool) -> Self {
        let path = run.path("data");
        let _ = std::fs::remove_file(&path);
        let _ = files::written(&path, 2 * MIB);
        Sequence {
            run,
            dice: Random(seed | 1),
            seed,
            followed,
            slots: [0; SLOTS as usize],
            children: 0,
            steps: 0,
            checks: 0,
        }
    }

    fn perform(&mut self, end: Instant) {
        let most = effort::number("MEMPROF_TEST_STEPS").unwrap_or(400);
        let each = effort::number("MEMPROF_TEST_CHECK_EACH").is_some();
        while self.steps < most && Instant::now() < end {
            let command = self.step();
            // Steps may fail, for example because of a hole in the mapping or a kernel without that advice.
            let answer = self.run.ask(&command);
            assert!(
                answer == "ok" || answer.starts_with("error"),
                "seed {}, step {}: {command}: {answer}",
                self.seed,
                self.steps
            );
            self.note(&command, answer == "ok");
            self.steps += 1;
            let due = self.dice.below(20) == 0;
            if each || due {
                self.compare();
            }
        }
        self.compare();
        while self.children > 0 {
            self.run.tell(&["end"]);
            self.children -= 1;
        }
        self.processes();
    }

    fn compare(&mut self) {
        self.processes();
        let (seed, step) = (self.seed, self.steps);
        self.run.sums_at(&format!("seed {seed}, step {step}"));
        self.checks += 1;
    }

    fn processes(&mut self) {
        if self.followed {
            self.run.pids = self.run.family();
            self.run.wait_for_processes();
        }
    }

    fn step(&mut self) -> String {
        let slot = self.dice.below(SLOTS);
        let len = self.slots[slot as usize];
        if len == 0 {
            return self.new_mapping(slot);
        }
        let (off, part) = self.part(len);
        match self.dice.below(30) {
            0..=5 => format!("touch {slot} {off} {part}"),
            6 | 7 => format!("again {slot} {off} {part}"),
            8 => format!("number {slot} {off} {part}"),
            9 => format!("look {slot} {off} {part}"),
            10 => format!("fill {slot} {off} {part}"),
            11..=16 => format!("advise {slot} {off} {part} {}", self.dice.choose(&ADVICE)),
            17 => format!("lock {slot} {off} {part}"),
            18 => format!("unlock {slot} {off} {part}"),
            19 => format!("protect {slot} {off} {part} {}", 1 + 2 * self.dice.below(2)),
            20 => format!("unmap {slot} 0 {len}"),
            21 => format!("move {slot}"),
            22 if len < MAX_PAGES * PAGE => format!("grow {slot} {part}"),
            23 => format!("shrink {slot} {part}"),
            24 if self.children < MAX_CHILDREN => format!("fork {slot} {off} {part}"),
            24 | 25 if self.children > 0 => "end".to_owned(),
            25 => format!("vfork {slot} {off} {part}"),
            26 => format!("clone_vm {slot} {off} {part}"),
            27 => format!("remove_range {slot} {off} {part}"),
            28 => self.on_the_file(),
            _ => format!("realloc {}", 1 + self.dice.below(MAX_PAGES * PAGE)),
        }
    }

    fn new_mapping(&mut self, slot: u64) -> String {
        let len = (1 + self.dice.below(MAX_PAGES)) * PAGE;
        let path = self.run.path("data");
        match self.dice.below(10) {
            0 => format!("shared {slot} {len}"),
            1 => format!("memfd {slot} {len}"),
            2 => format!("memfd_private {slot} {len}"),
            3 => format!("populate {slot} {len}"),
            4 => format!("mapprivate {slot} {}", path.display()),
            5 => format!("mapfile {slot} {}", path.display()),
            _ => format!("anon {slot} {len}"),
        }
    }

    fn on_the_file(&mut self) -> String {
        let path = self.run.path("data");
        let (off, len) = self.part(2 * MIB);
        let what = self.dice.choose(&["read", "write", "punch"]);
        format!("{what} {} {off} {len}", path.display())
    }

    /// Some pages of a mapping.
    fn part(&mut self, len: u64) -> (u64, u64) {
        let pages = len / PAGE;
        let first = self.dice.below(pages);
        let count = 1 + self.dice.below(pages - first);
        (first * PAGE, count * PAGE)
    }

    /// What became of the mappings.
    fn note(&mut self, command: &str, done: bool) {
        let words: Vec<&str> = command.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        if !done {
            return;
        }
        match words[0] {
            "anon" | "shared" | "memfd" | "memfd_private" | "populate" => {
                self.slots[number(1) as usize] = number(2);
            }
            "mapfile" | "mapprivate" => self.slots[number(1) as usize] = 2 * MIB,
            "unmap" => self.slots[number(1) as usize] = 0,
            "grow" => self.slots[number(1) as usize] += number(2),
            "shrink" => self.slots[number(1) as usize] -= number(2),
            "fork" => self.children += 1,
            "end" => self.children -= 1,
            _ => {}
        }
    }
}
