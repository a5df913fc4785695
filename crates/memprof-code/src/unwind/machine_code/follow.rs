//! Follows the control flow of functions.

use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind,
};

use super::cases::Switch;
use super::function::{Function, Reached, add};
use super::state::FrameState;
use crate::elf::Elf;
use crate::unwind::rule::Rule;
use crate::unwind::scan::MAX_SCANNED;

/// Maximum number of instructions followed in a file, counting repetitions, and in a function.
const MAX_STEPS: usize = 1 << 20;
const MAX_FUNCTION: usize = 128 << 10;
/// The bytes read from a hole in a file, such as a partial copy from memory. No compiler generates them as an instruction.
const HOLE: [u8; 2] = [0, 0];

/// A path to follow.
#[derive(Clone, Copy)]
struct Path {
    at: u64,
    state: FrameState,
    /// What the path has revealed about a jump table.
    switch: Switch,
}

/// Two paths, or a call and a return, contradict each other.
struct Contradiction;

/// Follows the functions of a file.
pub struct Follower<'e> {
    elf: &'e Elf<'e>,
    /// The uncovered code, by address.
    code: BTreeMap<u64, Vec<u8>>,
    /// Start addresses of functions: the certain ones, and all including possible ones.
    starts: HashSet<u64>,
    seen: HashSet<u64>,
    /// Functions to follow.
    waiting: Vec<u64>,
    /// The callers of each function.
    callers: HashMap<u64, Vec<u64>>,
    /// Functions that never return.
    endless: HashSet<u64>,
    info: InstructionInfoFactory,
    left: usize,
}

impl<'e> Follower<'e> {
    /// Creates a follower for the code in these gaps.
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

    /// Adds a function that starts here, or may start here if not `is_certain`.
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

    /// Follows all functions. Returns each instruction that has a rule, sorted by address: its start, its end, and the
    /// rule.
    pub fn rules(mut self) -> Vec<(u64, u64, Rule)> {
        while let Some(start) = self.waiting.pop() {
            self.explore(start);
        }
        self.left = MAX_STEPS;
        // In sorted order, so that the limit always excludes the same functions.
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

    /// Determines the functions that a function calls, and whether it returns.
    fn explore(&mut self, start: u64) {
        let mut function = Function::default();
        let followed = self.follow(start, &mut function);
        for target in function.calls {
            // If the function contradicts itself, it may not be a function, and this may not be a call.
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

    /// The uncovered code from an address on; `None` if the address is covered.
    fn code_at(&self, at: u64) -> Option<&[u8]> {
        let (start, bytes) = self.code.range(..=at).next_back()?;
        let code = bytes.get(usize::try_from(at - start).ok()?..)?;
        (!code.is_empty()).then_some(code)
    }

    /// Follows all paths of the function that starts here.
    fn follow(&mut self, start: u64, function: &mut Function) -> Result<(), Contradiction> {
        let mut paths = vec![Path {
            at: start,
            state: FrameState::ENTRY,
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
        // Covered code belongs to other functions, except after a call, which may not return.
        let is_left = |path: &Path| self.code_at(path.at).is_none();
        let leaves = !calls(&instruction) && paths[known..].iter().any(is_left);
        if path.state.is_outermost() || leaves {
            function.ends.insert(path.at);
        }
        function.returns |= leaves;
        // No call pushes the address after a jump or a return as its return address. If code returns there
        // nevertheless, as at the end of a fiber, the address itself is looked up, unless the last byte before it has a
        // rule. Nothing returns to padding.
        let goes_on = paths[known..].iter().any(|to| to.at == next.at);
        if !goes_on && !calls(&instruction) && !self.is_padding(next.at) {
            function.shorten(path.at);
        }
        let edges = paths[known..].iter().map(|to| (path.at, to.at));
        function.edges.extend(edges);
        Ok(())
    }

    /// Whether the instruction at this address is padding between functions.
    fn is_padding(&self, at: u64) -> bool {
        let decoded = self
            .code_at(at)
            .map(|code| Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode());
        decoded.is_some_and(|i| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
    }

    /// Finds the successors of an instruction that was reached on `path`; `next` directly follows it.
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
            // musl ends a process with corrupted memory in this way.
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

    /// Records a call. Returns whether the called function may return.
    fn call(&self, target: u64, function: &mut Function) -> bool {
        function.calls.push(target);
        !self.endless.contains(&target)
    }

    /// Continues with the next instruction, unless another function starts there. In that case the last call does not
    /// return.
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

/// An address that an instruction computes, which may be a function's.
fn address_taken(instruction: &Instruction) -> Option<u64> {
    let is_address =
        instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand();
    is_address.then(|| instruction.ip_rel_memory_address())
}
