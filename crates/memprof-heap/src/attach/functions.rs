//! Functions of the C library that say what a thread does.

/// What is known of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It waits for what the program has asked for.
    Waits,
    /// It does so, or waits for a lock of the program's.
    Locks,
    /// It may hold a lock that `dlopen` needs.
    Unsafe(&'static str),
}

const WAITING: [&str; 20] = [
    "pthread_cond_wait",
    "pthread_cond_timedwait",
    "pthread_cond_clockwait",
    "pthread_join",
    "pthread_timedjoin_np",
    "pthread_clockjoin_np",
    "pthread_barrier_wait",
    "sem_wait",
    "sem_timedwait",
    "sem_clockwait",
    "nanosleep",
    "clock_nanosleep",
    "usleep",
    "sleep",
    "poll",
    "ppoll",
    "select",
    "pselect",
    "epoll_wait",
    "epoll_pwait",
];

const LOCKING: [&str; 11] = [
    "syscall",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_mutex_clocklock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_wrlock",
    "pthread_rwlock_timedrdlock",
    "pthread_rwlock_timedwrlock",
    "pthread_rwlock_clockrdlock",
    "pthread_rwlock_clockwrlock",
    "mtx_lock",
];

const UNSAFE: [&str; 46] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "cfree",
    "malloc_trim",
    "malloc_stats",
    "malloc_info",
    "malloc_usable_size",
    "mallinfo",
    "mallinfo2",
    "mallopt",
    "__libc_malloc",
    "__libc_free",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__libc_freeres",
    "fork",
    "vfork",
    "_Fork",
    "dlopen",
    "dlmopen",
    "dlclose",
    "dlsym",
    "dlvsym",
    "dladdr",
    "dladdr1",
    "dlinfo",
    "dlerror",
    "dl_iterate_phdr",
    "__libc_dlopen_mode",
    "__libc_dlsym",
    "__libc_dlclose",
    "__cxa_thread_atexit_impl",
    "__register_atfork",
    "pthread_create",
    "exit",
    "quick_exit",
    "_exit",
];

/// The names of all of them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let lists: [&[&str]; 3] = [&UNSAFE, &WAITING, &LOCKING];
    lists.into_iter().flatten().copied()
}

/// What is known of the function with this name.
pub(super) fn known(name: &'static str) -> Option<Known> {
    match name {
        name if UNSAFE.contains(&name) => Some(Known::Unsafe(name)),
        name if WAITING.contains(&name) => Some(Known::Waits),
        name if LOCKING.contains(&name) => Some(Known::Locks),
        _ => None,
    }
}
