//! Files that shrink while they are mapped.
//!
//! Who reads a mapping behind the end of its file gets SIGBUS, which ends the process. Whoever owns a file may cut it at any
//! moment, so no look at its size helps. The handler puts a page of zeros there instead; what was read is discarded, because
//! the file is shorter than it was when it was mapped.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use memprof_sys::residency::page_size;

/// `BUS_ADRERR`: there is nothing at this address. (Others are faults of the memory itself.)
const NOTHING_THERE: libc::c_int = 2;

/// The size of a page, for the handler.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Has reads behind the end of a mapped file give zeros, in this process.
pub(super) fn survive() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PAGE.store(page_size() as usize, Ordering::Relaxed);
        let handler = SigHandler::SigAction(put_zeros);
        let action = SigAction::new(handler, SaFlags::SA_SIGINFO, SigSet::empty());
        // SAFETY: the handler calls only `mmap` and `signal`, which are async-signal-safe on Linux.
        let _ = unsafe { sigaction(Signal::SIGBUS, &action) };
    });
}

extern "C" fn put_zeros(signal: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure, which has an address for this signal. The new page replaces one that
    // cannot be read; nothing can have been stored in it.
    unsafe {
        if (*about).si_code == NOTHING_THERE {
            let page = PAGE.load(Ordering::Relaxed);
            let at = (*about).si_addr() as usize / page * page;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let zeros = libc::mmap(at as *mut _, page, libc::PROT_READ, flags, -1, 0);
            if zeros != libc::MAP_FAILED {
                return;
            }
        }
        libc::signal(signal, libc::SIG_DFL);
    }
}
