//! Reports that are made up: a world of processes, stacks, mappings and files that change at random.

use crate::random::Random;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memprof_profile::measure::{HEAP, INUSE_SPACE, RESIDENCY};
use memprof_profile::symbol::{
    Function, InlinedFunction, Language, Location, Symbol, Symbols, UnknownReason, UnnamedFunction,
};
use memprof_profile::{
    Amounts, CachedFile, CgroupMemory, CodeLayout, Ended, EndedProcess, Faults, Frame, FrameKind,
    FreezeOutcome, KnownPath, Losses, MappedBytes, Mapping, Module, ModuleId, NotObserved, OomKill,
    OomKills, Outcome, PathFrom, Peak, Places, ProcessProfile, Profile, Report, Sample, Stack,
    TargetInfo, UncertainPart, Uncertainty, UncertaintyOf, Unobserved,
};
use memprof_sys::file_id::FileId;
use memprof_sys::ids::Pid;
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::process::Container;
use memprof_sys::residency::{Category, PageKind};
use memprof_sys::usage::Usage;

fn peak(rss: u64) -> Peak {
    Peak {
        rss,
        high_water: rss.is_multiple_of(2).then_some(rss + 4096),
        processes: 1,
        after_ms: rss % 1000,
        is_shown: false,
    }
}

pub fn layout(module: &Module) -> Option<Cow<'_, CodeLayout>> {
    module.layout.as_ref().map(Cow::Borrowed)
}

fn module(name: &str, own_executable: bool) -> Arc<Module> {
    Arc::new(Module {
        path: format!("/usr/lib/{name}").into(),
        name: name.to_owned(),
        own_executable,
        layout: own_executable.then(CodeLayout::default),
        ..Module::jit()
    })
}

fn stack_of(frames: &[Frame], outcome: Outcome) -> Arc<Stack> {
    let frames = frames.into();
    Arc::new(Stack { frames, outcome })
}

struct Process {
    pid: u32,
    /// By an id in whose order a report lists stacks.
    stacks: BTreeMap<u32, (Arc<Stack>, Amounts)>,
    mappings: BTreeMap<u64, Usage>,
}

/// A world of which reports are made.
pub struct World {
    random: Random,
    modules: Vec<Arc<Module>>,
    processes: Vec<Process>,
    files: BTreeMap<u64, Vec<u32>>,
    ended: Vec<EndedProcess>,
    kills: OomKills,
    sequence: u64,
    now_ns: u64,
    clock: i64,
}

fn amount(random: &mut Random) -> Amounts {
    let mut amounts = Amounts::from(Usage {
        anon: random.below(1 << 20) * 4096,
        cache: random.below(3) / 2 * 8192,
        ..Usage::default()
    });
    if random.one_in(4) {
        amounts += Amounts::in_column(INUSE_SPACE, random.below(1 << 30));
    }
    amounts
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut world = World {
            random: Random(seed.max(1)),
            modules: Vec::new(),
            processes: Vec::new(),
            files: BTreeMap::new(),
            ended: Vec::new(),
            kills: OomKills::default(),
            sequence: 0,
            now_ns: 1_000,
            clock: 1_700_000_000_000_000_000,
        };
        world.restart();
        world.start_process();
        world
    }

    /// Another run of memprof: it numbers modules and stacks anew.
    pub fn restart(&mut self) {
        let mut modules = vec![
            module("node", true),
            module("libc.so.6", false),
            module("libz.so", false),
        ];
        modules.push(Arc::new(Module::jit()));
        // Two files of the same name and path.
        modules.push(module("libc.so.6", false));
        let by = self.random.below(modules.len() as u64) as usize;
        modules.rotate_left(by);
        self.modules = modules;
        self.sequence = 0;
        self.now_ns = 5_000_000;
        for at in 0..self.processes.len() {
            let number = self.processes[at].stacks.len() as u64;
            self.processes[at].stacks.clear();
            (0..number).for_each(|_| self.start_stack(at));
        }
    }

    fn start_process(&mut self) {
        let pid = 100 + self.random.below(1000) as u32;
        if self.processes.iter().all(|process| process.pid != pid) {
            self.processes.push(Process {
                pid,
                stacks: BTreeMap::new(),
                mappings: BTreeMap::new(),
            });
            let at = self.processes.len() - 1;
            (0..4).for_each(|_| self.start_stack(at));
        }
    }

    fn start_stack(&mut self, process: usize) {
        let random = &mut self.random;
        let depth = random.below(6);
        let frames = (0..depth).map(|_| match random.below(12) {
            0 => Frame::unmapped(random.below(1 << 47)),
            _ => {
                let module = random.below(self.modules.len() as u64) as u16;
                Frame::code(ModuleId(module), random.below(24) * 16)
            }
        });
        let frames: Vec<Frame> = frames.collect();
        let outcome = match random.below(4) {
            0 => Outcome::NotTaken,
            1 => Outcome::Assisted,
            _ => Outcome::Complete,
        };
        let id = random.below(1 << 20) as u32;
        let amounts = amount(random);
        let stack = stack_of(&frames, outcome);
        self.processes[process].stacks.insert(id, (stack, amounts));
    }

    fn change(&mut self) {
        for at in 0..self.processes.len() {
            for _ in 0..self.random.below(4) {
                let number = self.processes[at].stacks.len().max(1) as u64;
                let chosen = self.random.below(number) as usize;
                let new = amount(&mut self.random);
                if let Some((_, amounts)) = self.processes[at].stacks.values_mut().nth(chosen) {
                    *amounts = match self.random.one_in(9) {
                        true => Amounts::default(),
                        false => new,
                    };
                }
            }
            if self.random.one_in(3) {
                self.start_stack(at);
            }
            if self.random.one_in(4) {
                let number = self.processes[at].stacks.len().max(1) as u64;
                let chosen = self.random.below(number) as usize;
                let id = self.processes[at].stacks.keys().nth(chosen).copied();
                id.and_then(|id| self.processes[at].stacks.remove(&id));
            }
            let start = self.random.below(20) << 32;
            let grown = Usage {
                anon: self.random.below(1 << 40),
                ..Usage::default()
            };
            match self.random.below(6) {
                0 | 1 => drop(self.processes[at].mappings.insert(start, grown)),
                2 => drop(self.processes[at].mappings.remove(&start)),
                _ => {}
            }
        }
        if self.random.one_in(15) && self.processes.len() < 5 {
            self.start_process();
        }
        if self.random.one_in(20) && self.processes.len() > 1 {
            let chosen = self.random.below(self.processes.len() as u64) as usize;
            self.end_process(chosen);
        }
        let inode = self.random.below(8);
        match self.random.below(9) {
            0 => drop(self.files.remove(&inode)),
            1 => {
                let sizes = (0..self.random.below(4)).map(|_| self.random.below(100) as u32);
                self.files.insert(inode, sizes.collect());
            }
            _ => {}
        }
        if self.random.one_in(10) && self.modules.len() < 12 {
            let name = format!("lib{}.so", self.modules.len());
            self.modules.push(module(&name, false));
        }
    }

    fn end_process(&mut self, chosen: usize) {
        let process = self.processes.remove(chosen);
        let pid = Pid(process.pid);
        self.ended.push(EndedProcess {
            pid,
            comm: format!("ended {pid}"),
            container: None,
            total: Amounts::default(),
            scanned: self.time(),
            peak: Some(peak(self.random.below(1 << 30))),
            ended: self.time(),
        });
        if self.random.one_in(3) {
            self.kills = self.kills.with(OomKill {
                pid,
                comm: "x".into(),
                container: None,
                killed: self.time(),
                last: None,
            });
        }
    }

    fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.clock as u64)
    }

    /// Sets the clock.
    pub fn set_clock(&mut self, by_seconds: i64) {
        self.clock += by_seconds * 1_000_000_000;
    }

    /// The report after this many milliseconds.
    pub fn report(&mut self, passed_ms: u64) -> Report {
        self.change();
        self.sequence += 1;
        self.now_ns += passed_ms * 1_000_000;
        self.clock += (passed_ms * 1_000_000) as i64 + 17;
        let profile = self.profile();
        let symbols = self.symbols(&profile);
        Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols),
            sequence: self.sequence,
        }
    }

    fn share(&mut self, at: usize) -> ProcessProfile {
        let process = &self.processes[at];
        let mut samples = Vec::new();
        let mut total = Amounts::default();
        for (stack, amounts) in process.stacks.values() {
            total += *amounts;
            samples.push(Sample {
                stack: Arc::clone(stack),
                amounts: *amounts,
            });
        }
        let mut not_observed = Vec::new();
        for (number, mapping) in ["[heap]", "[anon]", "[heap]"].into_iter().enumerate() {
            let amounts = Amounts::from(Usage {
                anon: 4096 * (number as u64 + 1),
                ..Usage::default()
            });
            total += amounts;
            let reason = match number {
                1 => Unobserved::NoEvent,
                _ => Unobserved::BeforeAttach,
            };
            not_observed.push(NotObserved {
                amounts,
                mapping: mapping.into(),
                reason,
            });
        }
        let kernel = KernelFigures {
            anonymous: self.random.one_in(2).then_some(total.usage.anon),
            rss_anon: total.usage.anon,
            ..KernelFigures::default()
        };
        let part = |sample: u32| UncertainPart {
            sample: Some(sample),
            share: 0.25,
            variance: f64::from(sample) * 1e9 / 3.0,
            single: 0.1,
        };
        let parts = (0..samples.len() as u32).map(part);
        let uncertainty = Uncertainty {
            of: UncertaintyOf::Pages(PageKind::Anon),
            parts: parts.collect(),
        };
        let pid = process.pid;
        ProcessProfile {
            pid: Pid(pid),
            comm: format!("comm{pid}"),
            container: pid.is_multiple_of(2).then(|| Container {
                group: format!("/g{pid}"),
                ..Container::default()
            }),
            samples,
            not_observed,
            total,
            uncertainties: if pid.is_multiple_of(3) {
                vec![uncertainty]
            } else {
                vec![]
            },
            kernel_before: kernel,
            kernel_after: kernel,
            freeze: FreezeOutcome::Ran,
            peak: (!pid.is_multiple_of(3)).then(|| peak(total.usage.anon * 2)),
        }
    }

    fn profile(&mut self) -> Profile {
        let shares: Vec<ProcessProfile> =
            (0..self.processes.len()).map(|at| self.share(at)).collect();
        let pids: Vec<Pid> = shares.iter().map(|share| share.pid).collect();
        let mut samples = Vec::new();
        let (mut total, mut kernel) = (Amounts::default(), KernelFigures::default());
        let mut not_observed = Vec::new();
        for share in &shares {
            samples.extend(share.samples.iter().cloned());
            not_observed.extend(share.not_observed.iter().cloned());
            total += share.total;
            kernel += share.kernel_before;
        }
        let places = self.places(&shares);
        let mut losses = Losses::default();
        losses.add("events: lost", self.random.below(3));
        losses.add(Losses::BLOCK_DEVICE, self.random.below(2) * 4096);
        let first = &shares[0];
        Profile {
            taken: self.time(),
            taken_ns: self.now_ns,
            observed: Duration::from_nanos(self.now_ns),
            target: TargetInfo {
                pid: first.pid,
                comm: first.comm.clone(),
                pids,
                alive: true,
            },
            samples,
            not_observed,
            total,
            uncertainties: first.uncertainties.clone(),
            kernel_before: kernel,
            kernel_after: kernel,
            losses,
            faults: (!self.random.one_in(9)).then(|| Faults {
                all: self.sequence * 7,
                unwalked: 3,
            }),
            modules: self.modules.clone().into(),
            places: Arc::new(places),
            ended: Ended {
                processes: self.ended.clone(),
                unscanned: self.ended.len() as u64 / 3,
            },
            oom_kills: self.kills.clone(),
            freeze: match self.random.below(4) {
                0 => FreezeOutcome::Still {
                    lasted: Duration::from_nanos(self.random.below(999_999)),
                },
                1 => FreezeOutcome::Failed {
                    why: "no".into(),
                    stood: Duration::ZERO,
                },
                _ => FreezeOutcome::Ran,
            },
            measures: vec![&RESIDENCY, &HEAP],
            peak: self.random.one_in(2).then(|| Peak {
                rss: self.random.below(1 << 30),
                high_water: self.random.one_in(2).then_some(1 << 30),
                processes: self.random.below(3) as u32,
                after_ms: self.random.below(1 << 20),
                is_shown: false,
            }),
            cgroup: self.random.one_in(2).then(|| {
                Arc::new(CgroupMemory {
                    dir: "/sys/fs/cgroup/x".into(),
                    charged: Err("why".into()),
                })
            }),
            own_peak: (shares.len() == 1).then(|| peak(shares[0].total.usage.anon)),
            processes: if shares.len() > 1 { shares } else { Vec::new() },
        }
    }

    fn places(&mut self, shares: &[ProcessProfile]) -> Places {
        let stacks: Vec<Arc<Stack>> = shares
            .iter()
            .flat_map(|s| &s.samples)
            .map(|s| Arc::clone(&s.stack))
            .collect();
        let mut places = Places {
            other_files: self.random.below(2) * 4096,
            ..Places::default()
        };
        for process in &self.processes {
            for (start, usage) in &process.mappings {
                let bytes = MappedBytes {
                    attributed: *usage,
                    not_observed: Usage::default(),
                    huge: 4096,
                };
                places.mappings.push(Mapping {
                    pid: Pid(process.pid),
                    // As high as `[vsyscall]`.
                    start: start | 0xff00_0000_0000_0000,
                    end: (start | 0xff00_0000_0000_0000) + (usage.anon & 0xffff_f000),
                    permissions: "rw-p".into(),
                    name: "[anon]".into(),
                    category: Category::guess("[anon]", "rw-p"),
                    bytes,
                });
            }
        }
        for (inode, sizes) in &self.files {
            let path = KnownPath {
                path: format!("/data/{inode}"),
                deleted: inode % 2 == 0,
                from: PathFrom::OpenFile,
                // As saved profiles have it.
                seen: UNIX_EPOCH + Duration::from_millis(self.sequence / (1 + inode % 3)),
            };
            // Each stack once, in the order of the report, besides one that only the file has.
            let mut samples: Vec<Sample> = stacks
                .iter()
                .zip(sizes)
                .map(|(stack, size)| Sample {
                    stack: Arc::clone(stack),
                    amounts: Amounts::from(Usage {
                        cache: u64::from(*size) * 4096,
                        ..Usage::default()
                    }),
                })
                .collect();
            if inode % 3 == 0 {
                samples.push(Sample {
                    stack: stack_of(&[], Outcome::NotTaken),
                    amounts: Amounts::from(Usage {
                        cache: 4096,
                        ..Usage::default()
                    }),
                });
            }
            places.files.push(CachedFile {
                id: FileId {
                    dev: (8, 1),
                    ino: *inode,
                },
                path: (inode % 4 != 1).then_some(path),
                samples,
                lost: inode * 4096,
            });
        }
        places
    }

    fn symbols(&mut self, profile: &Profile) -> Symbols {
        let mut symbols = Symbols::default();
        for frame in profile.all_samples().flat_map(|s| &s.stack.frames) {
            if symbols.get(*frame).is_some() {
                continue;
            }
            let FrameKind::Code(module, offset) = frame.kind() else {
                continue;
            };
            let name = &profile.modules[usize::from(module.0)].name;
            let symbol = match self.random.below(6) {
                0 => None,
                1 => Some(Symbol::Unknown(UnknownReason::Unreadable("EIO".into()))),
                _ => Some(final_symbol(name, offset)),
            };
            if let Some(symbol) = symbol {
                symbols.insert(*frame, Arc::new(symbol));
            }
        }
        if self.random.one_in(2) {
            symbols.set_advice(Some(format!("advice {}", self.sequence / 10)));
        }
        symbols
    }
}

fn final_symbol(module: &str, offset: u64) -> Symbol {
    let place = |line| {
        Some(Location {
            file: format!("{module}.c"),
            line: Some(line),
        })
    };
    match offset % 64 {
        0 => Symbol::Unnamed(UnnamedFunction {
            name: format!("{module}+{offset:#x}"),
            offset_in_function: 2,
        }),
        16 => Symbol::Known(Function {
            name: format!("interpreted_{offset}"),
            language: Language::Python,
            offset_in_function: 0,
            first_line: Some(7),
            inlined: Vec::new(),
            location: None,
        }),
        _ => Symbol::Known(Function {
            name: format!("{module}::f{offset}"),
            language: Language::Rust,
            offset_in_function: offset,
            first_line: None,
            inlined: vec![InlinedFunction {
                name: "inner".into(),
                location: place(3),
            }],
            location: place(offset as u32),
        }),
    }
}
