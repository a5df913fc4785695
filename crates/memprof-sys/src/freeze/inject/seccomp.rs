//! Evaluates a thread's seccomp filters for system calls that the thread has not made yet.
//!
//! memprof reads the filters and evaluates them itself, because trying a call is not an option: a filter may kill the process for
//! it. A filter is a classic BPF program over a `struct seccomp_data`. Filters are untrusted, so the evaluator does not rely on the
//! kernel's checks. Evaluation terminates, because jumps only go forward.

use std::io;

use super::ptrace::ptrace;
use super::{ARGS, SYSCALL};
use crate::freeze::registers::word;
use crate::procfs::StatusFile;

const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
/// Maximum number of instructions of one filter.
const MAX_INSTRUCTIONS: usize = libc::BPF_MAXINSNS as usize;
/// Maximum total number of instructions of a thread's filters.
const MAX_TOTAL: usize = 32_768;

/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;
/// Size of `struct seccomp_data`, in 32-bit words.
const WORDS: usize = 16;

/// A system call as filters see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub number: libc::c_long,
    /// The address after the `syscall` instruction.
    pub instruction_pointer: u64,
    pub args: [u64; 6],
}

impl Entry {
    /// The call that a thread with these registers is about to make.
    pub(super) fn from_registers(regs: &[u64]) -> Entry {
        Entry {
            number: regs[word::RAX].cast_signed(),
            instruction_pointer: regs[word::RIP] + SYSCALL,
            args: ARGS.map(|place| regs[place]),
        }
    }

    /// The call as `struct seccomp_data`.
    fn data(&self) -> [u32; WORDS] {
        let mut data = [0; WORDS];
        data[0] = self.number as u32;
        data[1] = ARCH;
        let words = [self.instruction_pointer].into_iter().chain(self.args);
        for (halves, word) in data[2..].chunks_exact_mut(2).zip(words) {
            halves.copy_from_slice(&[word as u32, (word >> 32) as u32]);
        }
        data
    }

    /// The name of the call, for the calls that memprof makes.
    fn name(&self) -> &'static str {
        match self.number {
            libc::SYS_clone => "`clone`",
            libc::SYS_wait4 => "`wait4`",
            libc::SYS_rt_sigreturn => "`rt_sigreturn`",
            libc::SYS_exit_group => "`exit_group`",
            libc::SYS_mmap => "`mmap`",
            libc::SYS_munmap => "`munmap`",
            libc::SYS_mprotect => "`mprotect`",
            libc::SYS_memfd_create => "`memfd_create`",
            libc::SYS_openat => "`openat`",
            libc::SYS_read => "`read`",
            libc::SYS_write => "`write`",
            libc::SYS_pread64 => "`pread64`",
            libc::SYS_newfstatat => "`newfstatat`",
            libc::SYS_fstat => "`fstat`",
            libc::SYS_close => "`close`",
            libc::SYS_futex => "`futex`",
            _ => "the call",
        }
    }
}

/// The filters of a thread.
#[derive(Debug, Default)]
pub(super) struct Filters(Vec<Vec<u64>>);

impl Filters {
    /// Reads the filters of a stopped thread that the current thread of memprof traces and that has filters.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    pub(super) fn read(tid: i32) -> Result<Filters, String> {
        let mut filters = Vec::new();
        let mut left = MAX_TOTAL;
        // The kernel numbers the filters from the oldest, the manual page from the newest. All are evaluated, so the order does not
        // matter.
        for index in 0.. {
            // The buffer has space for the largest filter: another thread may install filters for this one meanwhile, so a length
            // that the kernel returns is valid only for the call that returns it.
            let mut filter = vec![0_u64; MAX_INSTRUCTIONS];
            let at = filter.as_mut_ptr() as u64;
            let len = match ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index, at) {
                Ok(len) => usize::try_from(len).unwrap_or(usize::MAX),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => break,
                Err(e) => return Err(unreadable(tid, &e)),
            };
            if len > filter.len() || len > left {
                return Err(format!(
                    "thread {tid} runs under more seccomp filters than memprof reads"
                ));
            }
            left -= len;
            filter.truncate(len);
            filter.shrink_to_fit();
            filters.push(filter);
        }
        Ok(Filters(filters))
    }

    /// Checks that the thread may make a call.
    ///
    /// # Errors
    /// The reason why the thread may not make it.
    pub(super) fn check(&self, tid: i32, entry: &Entry) -> Result<(), String> {
        let (data, name) = (entry.data(), entry.name());
        for filter in &self.0 {
            let decision = evaluate(filter, &data).ok_or_else(|| {
                format!("thread {tid} runs under a seccomp filter that memprof cannot evaluate")
            })?;
            // The strictest action prevails, and these two are the least strict. The other bits are data.
            let does = match decision & libc::SECCOMP_RET_ACTION_FULL {
                libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG => continue,
                libc::SECCOMP_RET_USER_NOTIF | libc::SECCOMP_RET_TRACE => {
                    "leaves it to another process to decide about"
                }
                _ => "forbids",
            };
            return Err(format!(
                "thread {tid} runs under a seccomp filter that {does} {name}"
            ));
        }
        Ok(())
    }
}

fn unreadable(tid: i32, error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EACCES) if is_filtered() => {
            "memprof runs under a seccomp filter itself, as in most containers".to_owned()
        }
        Some(libc::EACCES) => "that needs CAP_SYS_ADMIN in the initial user namespace".to_owned(),
        Some(libc::EINVAL | libc::EIO) => {
            "the kernel was built without CONFIG_CHECKPOINT_RESTORE".to_owned()
        }
        Some(libc::EMEDIUMTYPE) => "one of them is not classic BPF".to_owned(),
        _ => error.to_string(),
    };
    format!("thread {tid} runs under seccomp filters that memprof cannot read: {why}")
}

/// Whether the current thread runs under seccomp.
fn is_filtered() -> bool {
    let status = StatusFile::for_thread("thread-self").unwrap_or_default();
    status.field("Seccomp").is_some_and(|mode| mode != "0")
}

/// Opcodes of classic BPF that seccomp permits.
#[rustfmt::skip]
mod op {
    pub(super) const LD_IMM: u16 = 0x00; pub(super) const LDX_IMM: u16 = 0x01; pub(super) const ST: u16 = 0x02;
    pub(super) const STX: u16 = 0x03; pub(super) const LD_ABS: u16 = 0x20; pub(super) const LD_MEM: u16 = 0x60;
    pub(super) const LDX_MEM: u16 = 0x61; pub(super) const LD_LEN: u16 = 0x80; pub(super) const LDX_LEN: u16 = 0x81;
    pub(super) const RET_K: u16 = 0x06; pub(super) const RET_A: u16 = 0x16;
    pub(super) const TAX: u16 = 0x07; pub(super) const TXA: u16 = 0x87;
    pub(super) const JA: u16 = 0x05; pub(super) const NEG: u16 = 0x84;
    /// The operand is X instead of the instruction's constant.
    pub(super) const X: u16 = 0x08;
    pub(super) const ADD: u16 = 0x04; pub(super) const SUB: u16 = 0x14; pub(super) const MUL: u16 = 0x24;
    pub(super) const DIV: u16 = 0x34; pub(super) const OR: u16 = 0x44; pub(super) const AND: u16 = 0x54;
    pub(super) const LSH: u16 = 0x64; pub(super) const RSH: u16 = 0x74; pub(super) const XOR: u16 = 0xa4;
    pub(super) const JEQ: u16 = 0x15; pub(super) const JGT: u16 = 0x25; pub(super) const JGE: u16 = 0x35;
    pub(super) const JSET: u16 = 0x45;
}

/// The result of a filter for a call. `None` if the kernel would not have installed the filter.
fn evaluate(filter: &[u64], data: &[u32; WORDS]) -> Option<u32> {
    // The kernel clears both registers.
    let (mut a, mut x) = (0_u32, 0_u32);
    let mut memory = [0_u32; libc::BPF_MEMWORDS as usize];
    let mut at = 0_usize;
    loop {
        // `struct sock_filter`: the opcode, the jump offsets if a condition holds and if it does not, and a constant.
        let instruction = *filter.get(at)?;
        let (code, k) = (instruction as u16, (instruction >> 32) as u32);
        let (if_so, if_not) = ((instruction >> 16) as u8, (instruction >> 24) as u8);
        let index = k as usize;
        at += 1;
        match code {
            op::RET_K => return Some(k),
            op::RET_A => return Some(a),
            op::LD_ABS if k % 4 == 0 => a = *data.get(index / 4)?,
            op::LD_IMM => a = k,
            op::LDX_IMM => x = k,
            op::LD_LEN => a = size_of_val(data) as u32,
            op::LDX_LEN => x = size_of_val(data) as u32,
            op::LD_MEM => a = *memory.get(index)?,
            op::LDX_MEM => x = *memory.get(index)?,
            op::ST => *memory.get_mut(index)? = a,
            op::STX => *memory.get_mut(index)? = x,
            op::TAX => x = a,
            op::TXA => a = x,
            op::NEG => a = a.wrapping_neg(),
            op::JA => at = at.checked_add(index)?,
            _ => {
                let by_x = code & op::X != 0;
                let operand = if by_x { x } else { k };
                let condition = match code & !op::X {
                    op::JEQ => a == operand,
                    op::JGT => a > operand,
                    op::JGE => a >= operand,
                    op::JSET => a & operand != 0,
                    code => {
                        match calculate(code, a, operand, by_x)? {
                            Some(result) => a = result,
                            // The kernel makes the program return 0, which kills the thread.
                            None => return Some(libc::SECCOMP_RET_KILL_THREAD),
                        }
                        continue;
                    }
                };
                at += usize::from(if condition { if_so } else { if_not });
            }
        }
    }
}

/// The result of an arithmetic instruction, `Some(None)` for a division by zero. `None` if the kernel would not have permitted the
/// instruction.
fn calculate(code: u16, a: u32, operand: u32, by_x: bool) -> Option<Option<u32>> {
    Some(Some(match code {
        op::ADD => a.wrapping_add(operand),
        op::SUB => a.wrapping_sub(operand),
        op::MUL => a.wrapping_mul(operand),
        op::OR => a | operand,
        op::AND => a & operand,
        op::XOR => a ^ operand,
        // The kernel rejects constants that are out of range, and uses only the low bits of X.
        op::LSH if by_x || operand < u32::BITS => a.wrapping_shl(operand),
        op::RSH if by_x || operand < u32::BITS => a.wrapping_shr(operand),
        op::DIV if by_x || operand != 0 => return Some(a.checked_div(operand)),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests;
