//! Follows functions through their instructions.

use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind,
};

use super::cases::Switch;
use super::function::{Function, Reached, add};
use super::state::State;
use crate::elf::Elf;
use crate::unwind::rule::Rule;
use crate::unwind::scan::MAX_SCANNED;

/// Maximum number of instructions that are followed in a file, some of them several times, and in a function.
const MAX_STEPS: usize = 1 << 20;
const MAX_FUNCTION: usize = 128 << 10;
/// What a part of a file reads as that is not there, as in a copy from memory. (An instruction that no compiler uses.)
const HOLE: [u8; 2] = [0, 0];

/// A path that is to be followed.
#[derive(Clone, Copy)]
struct Path {
    at: u64,
    state: State,
    /// What it has said of a table of addresses.
    switch: Switch,
}

/// Paths contradict each other, or what calls and returns do.
struct Contradiction;

/// Follows functions.
pub struct Follower<'e> {
    elf: &'e Elf<'e>,
    /// The uncovered code, by address.
    code: BTreeMap<u64, Vec<u8>>,
    /// Where functions begin: for certain, and perhaps.
    starts: HashSet<u64>,
    seen: HashSet<u64>,
    /// Those that are to be followed.
    waiting: Vec<u64>,
    /// Who calls a function.
    callers: HashMap<u64, Vec<u64>>,
    /// The functions that never return.
    endless: HashSet<u64>,
    info: InstructionInfoFactory,
    left: usize,
}

impl<'e> Follower<'e> {
    /// Nothing is followed yet of this code.
    pub fn new(elf: &'e Elf<'e>, gaps: &[(u64, u64)]) -> Follower<'e> {
        let mut code = BTreeMap::new();
        let mut room = MAX_SCANNED;
        for (start, end) in gaps {
            let Some((segment, inside)) = elf.loaded_at(*start) else {
                continue;
            };
            let mut bytes = vec![0; (end - start).min(room) as usize];
            let offset = segment.offset.saturating_add(inside);
            let got = elf.read_some(&mut bytes, offset).unwrap_or(0);
            bytes.truncate(got);
            room -= bytes.len() as u64;
            code.insert(*start, bytes);
        }
        Follower {
            elf,
            code,
            starts: HashSet::new(),
            seen: HashSet::new(),
            waiting: Vec::new(),
            callers: HashMap::new(),
            endless: HashSet::new(),
            info: InstructionInfoFactory::new(),
            left: MAX_STEPS,
        }
    }

    /// A function begins here, or may do so.
    pub fn begin(&mut self, start: u64, is_certain: bool) {
        if self.code_at(start).is_none() {
            return;
        }
        if is_certain {
            self.starts.insert(start);
        }
        if self.seen.insert(start) {
            self.waiting.push(start);
        }
    }

    /// Follows all functions; returns each instruction that has a rule, by address: where it begins and ends, and the rule.
    pub fn rules(mut self) -> Vec<(u64, u64, Rule)> {
        while let Some(start) = self.waiting.pop() {
            self.explore(start);
        }
        self.left = MAX_STEPS;
        // In order, so that the limit always cuts off the same ones.
        let mut starts: Vec<u64> = self.seen.iter().copied().collect();
        starts.sort_unstable();
        let mut all = HashMap::new();
        for start in starts {
            let mut function = Function::default();
            if let Ok(()) = self.follow(start, &mut function) {
                function.prune();
                add(&mut all, function.reached);
            }
        }
        let certain = all
            .into_iter()
            .filter(|(_, reached)| !reached.disputed && reached.size > 0);
        let ruled = certain.filter_map(|(at, Reached { state, size, .. })| {
            Some((at, at + u64::from(size), state.rule()?))
        });
        let mut ruled: Vec<_> = ruled.collect();
        ruled.sort_unstable_by_key(|(at, ..)| *at);
        ruled
    }

    /// Finds out which functions a function leads to, and whether it returns.
    fn explore(&mut self, start: u64) {
        let mut function = Function::default();
        let followed = self.follow(start, &mut function);
        for target in function.calls {
            // (What contradicts itself may be no function, and this no call.)
            self.begin(target, followed.is_ok());
            self.callers.entry(target).or_default().push(start);
        }
        if followed.is_err() {
            return;
        }
        function
            .takes
            .into_iter()
            .for_each(|start| self.begin(start, false));
        if !function.returns && self.endless.insert(start) {
            self.waiting
                .extend(self.callers.remove(&start).unwrap_or_default());
        }
    }

    /// The uncovered code from an address on; `None` if it is covered.
    fn code_at(&self, at: u64) -> Option<&[u8]> {
        let (start, bytes) = self.code.range(..=at).next_back()?;
        let code = bytes.get(usize::try_from(at - start).ok()?..)?;
        (!code.is_empty()).then_some(code)
    }

    /// Follows the function that begins here.
    fn follow(&mut self, start: u64, function: &mut Function) -> Result<(), Contradiction> {
        let mut paths = vec![Path {
            at: start,
            state: State::ENTRY,
            switch: Switch::default(),
        }];
        while let Some(mut path) = paths.pop() {
            if let Some(known) = function.reached.get(&path.at) {
                let joined = known.state.joined(path.state).ok_or(Contradiction)?;
                if joined == known.state {
                    continue;
                }
                path.state = joined;
            }
            self.step(path, function, &mut paths)?;
        }
        Ok(())
    }

    /// Follows a path over its next instruction.
    fn step(
        &mut self,
        path: Path,
        function: &mut Function,
        paths: &mut Vec<Path>,
    ) -> Result<(), Contradiction> {
        let Some(code) = self.code_at(path.at) else {
            return Ok(());
        };
        let instruction = Decoder::with_ip(64, code, path.at, DecoderOptions::NONE).decode();
        let is_code = !code.starts_with(&HOLE) && !instruction.is_invalid();
        if !is_code || function.reached.len() >= MAX_FUNCTION || self.left == 0 {
            return Err(Contradiction);
        }
        self.left -= 1;
        let reached = Reached {
            state: path.state,
            size: instruction.len() as u8,
            disputed: false,
        };
        function.reached.insert(path.at, reached);
        let next = Path {
            at: instruction.next_ip(),
            state: path.state.after(&instruction, &mut self.info),
            switch: path.switch.after(&instruction),
        };
        if path.state.is_outermost() && !next.state.is_outermost() {
            return Err(Contradiction);
        }
        let known = paths.len();
        self.go_on(&instruction, path, next, function, paths)?;
        // What is covered belongs to other functions, unless it is what a call does not return to.
        let is_left = |path: &Path| self.code_at(path.at).is_none();
        let leaves = !calls(&instruction) && paths[known..].iter().any(is_left);
        if path.state.is_outermost() || leaves {
            function.ends.insert(path.at);
        }
        function.returns |= leaves;
        // No call pushes the address behind a jump or a return. If it is returned to all the same, as at the end of a fiber, it
        // is looked up at itself, unless its last byte has a rule. (Nothing returns to padding.)
        let goes_on = paths[known..].iter().any(|to| to.at == next.at);
        if !goes_on && !calls(&instruction) && !self.is_padding(next.at) {
            function.shorten(path.at);
        }
        let edges = paths[known..].iter().map(|to| (path.at, to.at));
        function.edges.extend(edges);
        Ok(())
    }

    /// Whether there is an instruction with which functions are filled up.
    fn is_padding(&self, at: u64) -> bool {
        let decoded = self
            .code_at(at)
            .map(|code| Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode());
        decoded.is_some_and(|i| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
    }

    /// Where a function goes on after an instruction that was reached on `path`; `next` is right behind it.
    fn go_on(
        &self,
        instruction: &Instruction,
        path: Path,
        next: Path,
        function: &mut Function,
        paths: &mut Vec<Path>,
    ) -> Result<(), Contradiction> {
        let is_near = instruction.op0_kind() == OpKind::NearBranch64;
        let target = Path {
            at: instruction.near_branch_target(),
            ..next
        };
        match instruction.flow_control() {
            // So musl ends a process whose memory is damaged.
            FlowControl::Next if instruction.code() == Code::Hlt => {}
            FlowControl::Next => {
                function.takes.extend(address_taken(instruction));
                self.fall_into(next, paths);
            }
            FlowControl::ConditionalBranch => {
                self.fall_into(next, paths);
                paths.extend(is_near.then_some(target));
            }
            FlowControl::UnconditionalBranch if self.starts.contains(&target.at) => {
                if !path.state.is_entry() {
                    return Err(Contradiction);
                }
                function.ends.insert(path.at);
                function.returns |= self.call(target.at, function);
            }
            FlowControl::UnconditionalBranch => paths.extend(is_near.then_some(target)),
            FlowControl::Call | FlowControl::IndirectCall => {
                if !is_near || self.call(target.at, function) {
                    self.fall_into(next, paths);
                } else {
                    function.ends.insert(path.at);
                }
            }
            FlowControl::Return if !path.state.may_return() => return Err(Contradiction),
            FlowControl::Return => {
                function.ends.insert(path.at);
                function.returns = true;
            }
            FlowControl::IndirectBranch => {
                let cases = path.switch.cases(instruction, self.elf);
                if cases.is_empty() {
                    function.ends.insert(path.at);
                    function.returns = true;
                }
                paths.extend(cases.into_iter().map(|at| Path { at, ..next }));
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes a call; returns whether the called function may return.
    fn call(&self, target: u64, function: &mut Function) -> bool {
        function.calls.push(target);
        !self.endless.contains(&target)
    }

    /// What follows is another function if one begins there: then the last call does not return.
    fn fall_into(&self, next: Path, paths: &mut Vec<Path>) {
        if next.state.is_entry() || !self.starts.contains(&next.at) {
            paths.push(next);
        }
    }
}

fn calls(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

/// The address that an instruction computes, which may be a function's.
fn address_taken(instruction: &Instruction) -> Option<u64> {
    let is_address =
        instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand();
    is_address.then(|| instruction.ip_rel_memory_address())
}
