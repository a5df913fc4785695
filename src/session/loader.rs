//! A stop where a command's dynamic loader has mapped libraries, before their code runs.
//!
//! Loaders call an empty function for debuggers at such moments, `_dl_debug_state`. A hardware
//! breakpoint there changes nothing in the program. It is of the first thread alone; what other
//! threads load is noticed a moment later, as everywhere else.

use nix::sys::ptrace;
use nix::unistd::Pid as NixPid;

use crate::elf::{Elf, SHT_DYNSYM};
use crate::event::Pid;
use crate::modules::{AddressMap, ModuleTable};
use crate::symbolize::address_of_symbol;

/// A program that loads and drops libraries all the time is stopped no more often than this.
const MAX_STOPS: u32 = 2000;

const NOTICE: &[u8] = b"_dl_debug_state";

/// The breakpoint of a traced thread.
#[derive(Default)]
pub struct Breakpoint {
    left: u32,
}

impl Breakpoint {
    /// Sets it in a program that has just been loaded; none without a loader, or where the processor's
    /// debug registers are out of reach.
    pub fn set(&mut self, child: NixPid) {
        let at = notice_address(Pid(child.as_raw() as u32));
        let set = at.is_some_and(|at| write(child, at, true));
        self.left = if set { MAX_STOPS } else { 0 };
    }

    /// Whether a stop by SIGTRAP is one of this breakpoint's.
    pub fn is_hit(&mut self, child: NixPid) -> bool {
        let hit = self.left > 0
            && ptrace::getsiginfo(child).is_ok_and(|info| info.si_code == libc::TRAP_HWBKPT);
        if hit {
            self.left -= 1;
            if self.left == 0 {
                write(child, 0, false);
            }
        }
        hit
    }
}

/// Where the loader of a process calls.
fn notice_address(pid: Pid) -> Option<u64> {
    let mut modules = ModuleTable::new();
    let code = AddressMap::load(pid, &mut modules).ok()?;
    let files = modules.modules();
    code.ranges().find_map(|(start, _, offset, module)| {
        let module = files.get(usize::from(module.0))?;
        if module.own_executable {
            return None;
        }
        let elf = Elf::read(module.file.as_ref()?).ok()?;
        let address = address_of_symbol(&elf, SHT_DYNSYM, NOTICE).ok()??;
        let bias = start.wrapping_sub(elf.address_of(offset)?);
        Some(address.wrapping_add(bias))
    })
}

/// Sets or clears the first debug register.
#[cfg(target_arch = "x86_64")]
fn write(child: NixPid, at: u64, enable: bool) -> bool {
    let register = |n: usize| {
        let offset = std::mem::offset_of!(libc::user, u_debugreg) + n * size_of::<u64>();
        offset as ptrace::AddressType
    };
    // Off first: the address of a breakpoint in use may not be changed to just any. Then bit 0 alone:
    // this thread, on execution of the instruction.
    ptrace::write_user(child, register(7), 0).is_ok()
        && ptrace::write_user(child, register(0), at.cast_signed()).is_ok()
        && (!enable || ptrace::write_user(child, register(7), 1).is_ok())
}

/// Elsewhere the tables of libraries come a moment later.
#[cfg(not(target_arch = "x86_64"))]
fn write(_: NixPid, _: u64, _: bool) -> bool {
    false
}
