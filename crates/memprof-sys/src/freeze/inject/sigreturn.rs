//! Signal frames below a thread's stack that return the thread to its own code if memprof is killed while the thread makes a call.

use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};

use super::{ALL_BLOCKED, Injector, SYSCALL, Stopped};
use crate::freeze::registers::{NO_CALL, word};

/// Number of bytes below the stack pointer that belong to the running function.
const RED_ZONE: u64 = 128;
/// Size of a signal frame without the extended processor state, in bytes. A multiple of the frame's alignment.
const FRAME: u64 = 320;
/// Alignment of the extended processor state, in bytes.
const XSAVE_ALIGN: u64 = 64;
/// Offset, in bytes, of the list of saved components in the extended state.
const SW_BYTES: usize = 464;
/// Size of the part that every processor has, including the XSAVE header, in bytes.
const XSAVE_HEADER_END: u64 = 576;
/// Components that a process must request from the kernel: the AMX tiles.
const BY_REQUEST: u64 = 3 << 17;

/// Results by which the kernel marks a system call to be restarted (`include/linux/errno.h`).
const ERESTARTSYS: i64 = -512;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

/// The bytes to write below a thread's stack.
#[derive(Debug)]
pub(super) struct WayBack {
    /// The lowest address to write to.
    pub(super) at: u64,
    /// The bytes to write there.
    pub(super) bytes: Vec<u8>,
    /// The address of the thread's signal frame.
    pub(super) frame: u64,
    /// The address of the child's signal frame, which makes the child exit.
    pub(super) child_frame: u64,
    /// The registers in the child's signal frame: those of an `exit_group` call.
    pub(super) child: [u64; word::SS + 1],
}

impl WayBack {
    /// The frames that return a thread to its own code, and make a child exit.
    ///
    /// # Errors
    /// The frames cannot be built.
    pub(super) fn for_thread(thread: &Stopped, injector: &Injector) -> Result<WayBack, String> {
        let tid = thread.tid;
        let size = xsave_size(&thread.xstate).ok_or_else(|| {
            format!(
                "the floating-point state of thread {tid} has a form that memprof does not know"
            )
        })?;
        let top = thread.regs[word::RSP].checked_sub(RED_ZONE + size + 2 * FRAME + 3 * XSAVE_ALIGN);
        // The lowest byte to write, with space for alignment above.
        let at = top.ok_or("its stack pointer is none")? & !(XSAVE_ALIGN - 1);
        let child_frame = at;
        let frame = at + FRAME;
        let xsave = frame + FRAME;
        let mut bytes = vec![0; (xsave + size + 4 - at) as usize];
        let mut child = [0; word::SS + 1];
        child[word::RIP] = injector.call;
        child[word::RAX] = libc::SYS_exit_group.cast_unsigned();
        child[word::RSP] = child_frame;
        child[word::CS] = thread.regs[word::CS];
        child[word::SS] = thread.regs[word::SS];
        let end = signal_frame(injector.sigreturn, &child, ALL_BLOCKED, 0);
        let own = signal_frame(
            injector.sigreturn,
            &restarted(&thread.regs),
            thread.mask,
            xsave,
        );
        for (offset, words) in [(0, end), (FRAME as usize, own)] {
            for (to, word) in bytes[offset..].chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
        }
        let (from, to) = ((xsave - at) as usize, size as usize);
        bytes[from..from + to].copy_from_slice(&thread.xstate[..to]);
        let features = u64::from_le_bytes(
            thread.xstate[SW_BYTES..SW_BYTES + 8]
                .try_into()
                .unwrap_or_default(),
        );
        let said = sw_bytes(size as u32, features & !BY_REQUEST);
        bytes[from + SW_BYTES..from + SW_BYTES + said.len()].copy_from_slice(&said);
        bytes[from + to..].copy_from_slice(&MAGIC2.to_le_bytes());
        Ok(WayBack {
            at,
            bytes,
            frame,
            child_frame,
            child,
        })
    }

    /// Replaces the child's frame, where there is no child, by one that makes a call and then leads to the thread's own frame.
    pub(super) fn lead_by(&mut self, frame: [u64; 39]) {
        for (to, word) in self.bytes.chunks_exact_mut(8).zip(frame) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.frame = self.child_frame;
    }
}

/// The words of a signal frame (`struct rt_sigframe` of x86-64).
pub(super) fn signal_frame(sigreturn: u64, regs: &[u64], mask: u64, xsave: u64) -> [u64; 39] {
    /// An extended state exists. The stack segment is valid, and is restored.
    const FLAGS: u64 = 7;
    /// An impossible flag, which makes the kernel leave the signal stack unchanged.
    const NO_SIGNAL_STACK: u64 = 7;
    const ORDER: [usize; 18] = [
        word::R8,
        word::R9,
        word::R10,
        word::R11,
        word::R12,
        word::R13,
        word::R14,
        word::R15,
        word::RDI,
        word::RSI,
        word::RBP,
        word::RBX,
        word::RDX,
        word::RAX,
        word::RCX,
        word::RSP,
        word::RIP,
        word::EFLAGS,
    ];
    let mut frame = [0; 39];
    frame[0] = sigreturn;
    frame[1] = FLAGS;
    frame[4] = NO_SIGNAL_STACK;
    for (to, from) in frame[6..24].iter_mut().zip(ORDER) {
        *to = regs[from];
    }
    frame[24] = regs[word::CS] | regs[word::SS] << 48;
    frame[29] = xsave;
    frame[38] = mask;
    frame
}

/// The registers with which the program continues if the kernel does not restart the interrupted system call: at the call, or after
/// it with the error for an interrupted call.
fn restarted(regs: &[u64]) -> Vec<u64> {
    let mut regs = regs.to_vec();
    if regs[word::ORIG_RAX] != NO_CALL {
        match regs[word::RAX].cast_signed() {
            ERESTARTNOHAND..=ERESTARTSYS => {
                regs[word::RAX] = regs[word::ORIG_RAX];
                regs[word::RIP] -= SYSCALL;
            }
            ERESTART_RESTARTBLOCK => {
                regs[word::RAX] = i64::from(-libc::EINTR).cast_unsigned();
            }
            _ => {}
        }
    }
    regs
}

const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;

/// The description of the extended state that the kernel expects in a signal frame (`struct _fpx_sw_bytes`).
fn sw_bytes(size: u32, features: u64) -> [u8; 24] {
    let mut said = [0; 24];
    said[..4].copy_from_slice(&MAGIC1.to_le_bytes());
    said[4..8].copy_from_slice(&(size + 4).to_le_bytes());
    said[8..16].copy_from_slice(&features.to_le_bytes());
    said[16..20].copy_from_slice(&size.to_le_bytes());
    said
}

/// The number of bytes of an extended state that a signal frame contains. `None` if the frame would lack a component of the state.
fn xsave_size(xstate: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(*xstate.get(at..)?.first_chunk()?));
    let (there, used) = (word(SW_BYTES)?, word(512)?);
    if used & BY_REQUEST != 0 || __get_cpuid_max(0).0 < 0xd {
        return None;
    }
    let mut size = XSAVE_HEADER_END;
    for part in (2..63).filter(|part| (there & !BY_REQUEST) >> part & 1 == 1) {
        let found = __cpuid_count(0xd, part);
        size = size.max(u64::from(found.eax) + u64::from(found.ebx));
    }
    (size <= xstate.len() as u64).then_some(size)
}
