//! The code that a process has mapped: addresses to frames.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memprof_code::jit::{NamesWritten, Problems, Renamed, RuntimeCode};
use memprof_code::modules::{AddressMap, ModuleTable};
use memprof_profile::{Frame, FrameKind};
use memprof_sys::ids::{Addr, Pid, StackId};

/// Minimum time between two reads of a process's mappings that unknown addresses cause.
const RELOAD_PAUSE: Duration = Duration::from_millis(100);

/// The executable mappings of an address space; read again when stale.
#[derive(Debug)]
pub struct CodeMap {
    pid: Pid,
    map: Arc<AddressMap>,
    stale: bool,
    read: Option<Instant>,
    /// Whether the probe is to be told which code in `map` was moved to other memory.
    moved: bool,
    /// Names of code made at run time; `None` until there is such code.
    jit: Option<Box<RuntimeCode>>,
}

impl CodeMap {
    /// The mappings of a process; read on first use.
    pub fn new(pid: Pid) -> CodeMap {
        CodeMap {
            pid,
            map: Arc::default(),
            stale: true,
            read: None,
            moved: false,
            jit: None,
        }
    }

    /// A copy for a forked child, whose mappings start as its parent's.
    pub fn forked(&self, child: Pid) -> CodeMap {
        CodeMap {
            pid: child,
            map: Arc::clone(&self.map),
            stale: self.stale,
            read: self.read,
            moved: self.moved,
            jit: self.jit.as_ref().map(|jit| Box::new(jit.forked(child))),
        }
    }

    /// Executable memory was mapped or unmapped: the mappings are read again before the next lookup.
    pub fn mark_stale(&mut self) {
        self.stale = true;
    }

    /// Reads the mappings now. If the process has ended, keeps the known ones.
    pub fn reload(&mut self, modules: &mut ModuleTable) {
        self.read = Some(Instant::now());
        match AddressMap::load(self.pid, modules) {
            // It cannot be read now.
            Err(e) if e.kind() == ErrorKind::WouldBlock => return,
            Ok(map) if !map.is_empty() => {
                self.moved |= !map.moved().is_empty() && map.moved() != self.map.moved();
                self.map = Arc::new(map);
            }
            _ => {}
        }
        self.stale = false;
    }

    /// The mappings as they were last read.
    pub fn map(&self) -> Arc<AddressMap> {
        Arc::clone(&self.map)
    }

    /// Looks whether code was moved to other memory.
    pub fn look_for_moved_code(&mut self, modules: &mut ModuleTable) {
        self.stale = true;
        self.reload(modules);
        self.moved |= !self.stale;
    }

    /// The mappings, if the probe is to be told which code in them was moved.
    pub fn take_moved(&mut self) -> Option<Arc<AddressMap>> {
        std::mem::take(&mut self.moved).then(|| self.map())
    }

    pub(super) fn frame(&mut self, addr: Addr, modules: &mut ModuleTable) -> Frame {
        if self.stale {
            self.reload(modules);
        }
        let mut found = self.map.locate(addr.0);
        let open = found.is_none() || self.map.may_be_moved(addr.0);
        if open && self.read.is_none_or(|at| at.elapsed() >= RELOAD_PAUSE) {
            self.reload(modules);
            found = self.map.locate(addr.0);
        }
        match found {
            Some((module, offset)) => {
                let frame = Frame::code(module, offset);
                self.name(frame, modules)
            }
            // The mappings of a process that has ended cannot be read.
            None => {
                let jit = self.jit.as_ref();
                let named = jit.and_then(|jit| jit.frame(addr.0, modules));
                named.unwrap_or(Frame::unmapped(addr.0))
            }
        }
    }

    /// Looks whether the process has memory for code made at run time, before a frame is there: the process may end soon.
    pub fn look_for_runtime_code(&mut self, modules: &mut ModuleTable) {
        let recent = |at: Instant| at.elapsed() < RELOAD_PAUSE;
        if self.jit.is_some() || !self.stale || self.read.is_some_and(recent) {
            return;
        }
        self.reload(modules);
        let map = self.map();
        if map
            .ranges()
            .any(|(start, _, _, id)| modules.is_jit(Frame::code(id, start)))
        {
            self.runtime_code();
        }
    }

    /// The frame with the name that the runtime gave its code, if it is code made at run time and has a name.
    fn name(&mut self, frame: Frame, modules: &mut ModuleTable) -> Frame {
        let FrameKind::Code(_, addr) = frame.kind() else {
            return frame;
        };
        if !modules.is_jit(frame) {
            return frame;
        }
        self.runtime_code().frame(addr, modules).unwrap_or(frame)
    }

    fn runtime_code(&mut self) -> &mut RuntimeCode {
        let new = || Box::new(RuntimeCode::new(self.pid));
        self.jit.get_or_insert_with(new)
    }

    pub(super) fn wait_for_names(
        &mut self,
        stack: StackId,
        frames: &[Frame],
        modules: &ModuleTable,
    ) {
        let nameless = |frame: &Frame| match frame.kind() {
            FrameKind::Code(_, addr) if modules.is_jit(*frame) => Some(addr),
            _ => None,
        };
        let addrs: Vec<u64> = frames.iter().filter_map(nameless).collect();
        if let Some(jit) = self.jit.as_mut().filter(|_| !addrs.is_empty()) {
            jit.wait_for(stack, addrs);
        }
    }

    /// Whether the process has made code at run time, in which a frame was seen.
    pub fn has_jit(&self) -> bool {
        self.jit.is_some()
    }

    /// Reads the names that the process has written; see [`RuntimeCode::written`].
    pub fn names_written(
        &mut self,
        written: &NamesWritten,
        modules: &mut ModuleTable,
    ) -> Vec<Renamed> {
        if self.jit.is_none() {
            self.reload(modules); // for the mappings of code
        }
        let map = self.map();
        self.runtime_code().written(written, &map, modules)
    }

    /// Reads the names that the process has written since the last call. Returns the frames that have a name now, and the
    /// addresses whose code was replaced.
    pub fn update_names(&mut self, modules: &mut ModuleTable) -> (Vec<Renamed>, Vec<Range<u64>>) {
        match &mut self.jit {
            Some(jit) => (jit.update(&self.map, modules), jit.take_replaced()),
            None => Default::default(),
        }
    }

    /// Whether all of the process's stacks should be named again; see [`RuntimeCode::has_forgotten`].
    pub fn has_forgotten(&self) -> bool {
        self.jit.as_ref().is_some_and(|jit| jit.has_forgotten())
    }

    /// All of the process's stacks were named again, which took this long.
    pub fn named_all(&mut self, took: Duration) {
        if let Some(jit) = &mut self.jit {
            jit.looked_at_all(took);
        }
    }

    /// A frame of an old stack, with the name that its code has now if it had none.
    pub(super) fn late_name(&self, frame: Frame, modules: &mut ModuleTable) -> Frame {
        let named = match (frame.kind(), &self.jit) {
            (FrameKind::Code(_, addr), Some(jit)) if modules.is_jit(frame) => {
                jit.late_frame(addr, modules)
            }
            _ => None,
        };
        named.unwrap_or(frame)
    }

    /// Whether the process has trampolines of `python -X perf`.
    pub fn has_trampolines(&self) -> bool {
        self.jit.as_ref().is_some_and(|jit| jit.has_trampolines)
    }

    /// What could not be read of the names.
    pub fn name_problems(&self) -> Problems {
        self.jit
            .as_ref()
            .map(|jit| jit.problems)
            .unwrap_or_default()
    }
}
