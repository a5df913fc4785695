//! Hooks of system calls at their functions by `kprobe.multi`: one program for many functions.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::libbpf_sys;

use super::{ENTERS, RETURNS, function};
use memprof_sys::kernel_version::KernelVersion;

/// First version whose fprobes use the function-graph tracer. Earlier versions miss returns of calls if too many calls are in
/// flight. On 6.12, 100 threads on two processors lost an eighth of the returns, and none with [`UNDER_WAY`].
const HAS_ROOM: KernelVersion = KernelVersion(6, 14);

/// Number of calls in flight on the whole machine whose returns are not missed before [`HAS_ROOM`]. The kernel allocates two
/// entries per processor for each requested address, so the request repeats the addresses.
const UNDER_WAY: usize = 8192;

/// The hooks; dropping them detaches the programs.
pub(in crate::probe) struct MultiHooks {
    links: Vec<OwnedFd>,
    /// Whether the returns of `write`, by which runtimes name their JIT code, are hooked, or hooking them was tried.
    sees_writes: bool,
}

impl MultiHooks {
    /// Attaches these programs to the functions of the system calls.
    pub(in crate::probe) fn attach(
        begin: BorrowedFd<'_>,
        returns: BorrowedFd<'_>,
    ) -> Result<MultiHooks> {
        let begin = link_by_name(begin, &ENTERS, false)?;
        let returns = match KernelVersion::running() < HAS_ROOM {
            true => link_with_room(returns, &RETURNS)?,
            false => link_by_name(returns, &RETURNS, true)?,
        };
        Ok(MultiHooks {
            links: vec![begin, returns],
            sees_writes: false,
        })
    }

    /// Whether the returns of `write` are hooked, or hooking them was tried.
    pub(in crate::probe) fn sees_writes(&self) -> bool {
        self.sees_writes
    }

    /// Also hooks the returns of `write`.
    pub(in crate::probe) fn see_writes(&mut self, returns: BorrowedFd<'_>) -> Result<()> {
        self.sees_writes = true;
        let link = match KernelVersion::running() < HAS_ROOM {
            true => link_with_room(returns, &["write"])?,
            false => link_by_name(returns, &["write"], true)?,
        };
        self.links.push(link);
        Ok(())
    }

    /// Number of calls, of any process, that the kernel did not report to these hooks.
    pub(in crate::probe) fn missed(&self) -> u64 {
        self.links.iter().map(missed_by).sum()
    }
}

fn link_by_name(program: BorrowedFd<'_>, calls: &[&str], returns: bool) -> Result<OwnedFd> {
    let names: Vec<CString> = calls
        .iter()
        .map(|call| CString::new(function(call)))
        .collect::<Result<_, _>>()?;
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let targets = Targets {
        syms: pointers.as_mut_ptr(),
        cnt: pointers.len() as u32,
        ..targets(returns)
    };
    link(program, targets)
        .with_context(|| format!("cannot attach to the system calls {}", calls.join(" ")))
}

/// Attaches to the returns of these calls, with capacity for [`UNDER_WAY`] calls in flight.
fn link_with_room(program: BorrowedFd<'_>, calls: &[&str]) -> Result<OwnedFd> {
    let symbols = std::fs::read("/proc/kallsyms").context("cannot read /proc/kallsyms")?;
    let symbols = String::from_utf8_lossy(&symbols);
    let addresses = addresses(&symbols, calls)?;
    let processors = libbpf_rs::num_possible_cpus().unwrap_or(1).max(1);
    let wanted = UNDER_WAY.div_ceil(2 * processors).max(addresses.len());
    let repeated: Vec<libc::c_ulong> = addresses.iter().copied().cycle().take(wanted).collect();
    let targets = Targets {
        addrs: repeated.as_ptr(),
        cnt: repeated.len() as u32,
        ..targets(true)
    };
    link(program, targets)
        .with_context(|| format!("cannot attach to the system calls {}", calls.join(" ")))
}

/// Looks up the functions of system calls in the text of `/proc/kallsyms`.
fn addresses(symbols: &str, calls: &[&str]) -> Result<Vec<u64>> {
    let functions: Vec<String> = calls.iter().map(|call| function(call)).collect();
    let mut found = vec![0; calls.len()];
    for line in symbols.lines() {
        let mut words = line.split(' ');
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if let Some(at) = functions.iter().position(|function| function == name) {
            found[at] = u64::from_str_radix(address, 16).unwrap_or(0);
        }
    }
    match found.iter().position(|address| *address == 0) {
        Some(at) => Err(anyhow!(
            "/proc/kallsyms does not show the address of {}",
            functions[at]
        )),
        None => Ok(found),
    }
}

type Targets = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2;

fn targets(returns: bool) -> Targets {
    Targets {
        flags: match returns {
            true => libbpf_sys::BPF_F_KPROBE_MULTI_RETURN,
            false => 0,
        },
        ..Default::default()
    }
}

/// Attaches a program to functions of the kernel. The pointers in `targets` must be valid, for `cnt` elements.
fn link(program: BorrowedFd<'_>, targets: Targets) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    options.__bindgen_anon_1.kprobe_multi = targets;
    // SAFETY: the program is open, and the options and everything they point to outlive the call.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_KPROBE_MULTI,
            &raw const options,
        )
    };
    super::owned(fd)
}

/// Checks whether the kernel would attach programs to functions.
pub(super) fn try_hooks() -> io::Result<()> {
    let program = super::load_trial(
        libbpf_sys::BPF_PROG_TYPE_KPROBE,
        libbpf_sys::BPF_TRACE_KPROBE_MULTI,
    )?;
    // The request names no functions, because attached programs take long to detach. A kernel that has such hooks rejects the
    // request as invalid.
    match link(program.as_fd(), targets(false)) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(e) => Err(e),
        Ok(_) => Ok(()),
    }
}

fn missed_by(link: &OwnedFd) -> u64 {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the link is open; the kernel writes at most `size` bytes.
    let failed = unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut size)
    };
    match failed {
        // SAFETY: the link is of this type, and the kernel has filled in its union member.
        0 => unsafe { info.__bindgen_anon_1.kprobe_multi.missed },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_by_the_whole_name() {
        let (mmap, brk) = (function("mmap"), function("brk"));
        let text = format!(
            "ffffffff81000010 T {mmap}_pgoff\nffffffff81000020 T {mmap}\nffffffff81000030 t {brk}\t[module]\n\
             ffffffff81000040 T {brk}\nnonsense\n"
        );
        let found = addresses(&text, &["brk", "mmap"]).unwrap();
        assert_eq!(found, [0xffff_ffff_8100_0040, 0xffff_ffff_8100_0020]);
        let hidden = text.replace("ffffffff81000040", "0000000000000000");
        let error = addresses(&hidden, &["brk"]).unwrap_err().to_string();
        assert!(error.contains(&brk), "{error}");
    }

    #[test]
    fn a_kernel_without_these_hooks_says_so_quickly() {
        // Whatever the result is, nothing stays attached.
        let _ = try_hooks();
    }
}
