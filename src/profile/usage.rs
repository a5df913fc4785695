//! Bytes by category.

use std::ops::AddAssign;

/// Bytes by category. `anon + shmem` is what the kernel calls `RssAnon + RssShmem`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident anonymous memory, in bytes.
    pub anon: u64,
    /// Resident shared memory (shmem, tmpfs, memfd) mapped by the target, in bytes.
    pub shmem: u64,
    /// Resident file mappings, in bytes. `cache` may count the same physical pages.
    pub file: u64,
    /// Swapped-out memory, in bytes; not resident.
    pub swap: u64,
    /// Hugetlb memory, in bytes; the kernel does not count it in RSS.
    pub hugetlb: u64,
    /// Page cache that the target's own I/O brought in and that is still cached, in bytes.
    pub cache: u64,
    /// Kernel memory allocated on behalf of the target, in bytes. Approximate, not part of any sum, and 0
    /// unless [`Profile::kernel_counted`](super::Profile::kernel_counted).
    pub kernel: u64,
}

impl Usage {
    /// Resident anonymous and shared memory: `RssAnon + RssShmem`, in bytes.
    pub fn resident(&self) -> u64 {
        self.anon + self.shmem
    }

    /// What the `/v1` tree counts: resident anonymous and shared memory and page cache, in bytes.
    pub fn value(&self) -> u64 {
        self.resident() + self.cache
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, o: Usage) {
        self.anon += o.anon;
        self.shmem += o.shmem;
        self.file += o.file;
        self.swap += o.swap;
        self.hugetlb += o.hugetlb;
        self.cache += o.cache;
        self.kernel += o.kernel;
    }
}

/// One category of bytes, or a sum of categories. The HTTP API, the command line and the metrics'
/// `kind` label use the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anonymous, shared and page cache together: [`Usage::value`].
    #[default]
    All,
    /// Anonymous and shared memory: [`Usage::resident`].
    Resident,
    /// [`Usage::anon`].
    Anon,
    /// [`Usage::shmem`].
    Shmem,
    /// [`Usage::cache`].
    Cache,
    /// [`Usage::file`].
    File,
    /// [`Usage::swap`].
    Swap,
    /// [`Usage::hugetlb`].
    Hugetlb,
    /// [`Usage::kernel`].
    Kernel,
}

impl Kind {
    /// Every kind, in display order.
    pub const ALL: [Kind; 9] = [
        Kind::All,
        Kind::Resident,
        Kind::Anon,
        Kind::Shmem,
        Kind::Cache,
        Kind::File,
        Kind::Swap,
        Kind::Hugetlb,
        Kind::Kernel,
    ];

    /// The kinds that are not sums of others.
    pub const SINGLE: [Kind; 7] = [
        Kind::Anon,
        Kind::Shmem,
        Kind::Cache,
        Kind::File,
        Kind::Swap,
        Kind::Hugetlb,
        Kind::Kernel,
    ];

    /// Its name: short, lower-case.
    pub fn name(self) -> &'static str {
        match self {
            Kind::All => "all",
            Kind::Resident => "resident",
            Kind::Anon => "anon",
            Kind::Shmem => "shmem",
            Kind::Cache => "cache",
            Kind::File => "file",
            Kind::Swap => "swap",
            Kind::Hugetlb => "hugetlb",
            Kind::Kernel => "kernel",
        }
    }

    /// Its display name, which says that kernel memory is approximate.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Kernel => "kernel (approximate)",
            exact => exact.name(),
        }
    }

    /// Looks up a kind by name.
    pub fn by_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// The bytes of this kind.
    pub fn of(self, usage: &Usage) -> u64 {
        match self {
            Kind::All => usage.value(),
            Kind::Resident => usage.resident(),
            Kind::Anon => usage.anon,
            Kind::Shmem => usage.shmem,
            Kind::Cache => usage.cache,
            Kind::File => usage.file,
            Kind::Swap => usage.swap,
            Kind::Hugetlb => usage.hugetlb,
            Kind::Kernel => usage.kernel,
        }
    }
}
