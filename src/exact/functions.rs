//! The table of allocation functions: their names, and which of their arguments says what.

/// What a function does, beside allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Plain,
    /// Frees or resizes the block that the pointer names.
    Resizes,
    /// Stores the result where the pointer points to.
    Stores,
    /// An operator of C++, which may be one of an allocator's own, or call a function above.
    Operator,
}

/// Which argument is what, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) kind: Kind,
    /// The size in bytes; `None` if the function only frees.
    pub(super) size: Option<u8>,
    /// What it is multiplied with.
    pub(super) count: Option<u8>,
    pub(super) pointer: Option<u8>,
    /// It throws if it fails. The return of such a function must have no probe: the exception would find the kernel's
    /// return address on the stack instead of the caller's, and end the program.
    pub(super) throws: bool,
}

impl Signature {
    const fn new(kind: Kind, size: Option<u8>, count: Option<u8>, pointer: Option<u8>) -> Self {
        Signature {
            kind,
            size,
            count,
            pointer,
            throws: false,
        }
    }

    const fn throwing(self) -> Self {
        Signature {
            throws: true,
            ..self
        }
    }

    /// The arguments that matter.
    pub(super) fn arguments(&self) -> impl Iterator<Item = u8> + use<> {
        [self.size, self.count, self.pointer].into_iter().flatten()
    }
}

const FIRST: Signature = Signature::new(Kind::Plain, Some(0), None, None);
const SECOND: Signature = Signature::new(Kind::Plain, Some(1), None, None);
const FIRST_TWO: Signature = Signature::new(Kind::Plain, Some(0), Some(1), None);
const LAST_TWO: Signature = Signature::new(Kind::Plain, Some(1), Some(2), None);
const RESIZES: Signature = Signature::new(Kind::Resizes, Some(1), None, Some(0));
const RESIZES_ARRAY: Signature = Signature::new(Kind::Resizes, Some(1), Some(2), Some(0));
const RESIZES_OF_HEAP: Signature = Signature::new(Kind::Resizes, Some(2), None, Some(1));
const STORES: Signature = Signature::new(Kind::Stores, Some(2), None, Some(0));
const FREES: Signature = Signature::new(Kind::Plain, None, None, Some(0));
const NEW: Signature = Signature::new(Kind::Operator, Some(0), None, None);
const NEW_OR_THROW: Signature = NEW.throwing();
const DELETE: Signature = Signature::new(Kind::Operator, None, None, Some(0));

/// Functions that have the same names in several libraries, but for a prefix.
struct Family {
    prefixes: &'static [&'static str],
    functions: &'static [(&'static str, Signature)],
}

/// All of them. What is built on these (`strdup`, `fopen`, `std::vector`) is counted by them.
const FAMILIES: [Family; 5] = [
    // C: glibc, musl, jemalloc (its prefix where it is built into Redis, and that of the Rust crate), tcmalloc, mimalloc.
    Family {
        prefixes: &["", "__libc_", "je_", "_rjem_", "tc_", "mi_"],
        functions: &[
            ("malloc", FIRST),
            ("calloc", FIRST_TWO),
            ("realloc", RESIZES),
            ("reallocarray", RESIZES_ARRAY),
            ("free", FREES),
            ("cfree", FREES),
            ("aligned_alloc", SECOND),
            ("memalign", SECOND),
            ("posix_memalign", STORES),
            ("valloc", FIRST),
            ("pvalloc", FIRST),
            ("free_sized", FREES),
            ("free_aligned_sized", FREES),
        ],
    },
    // What jemalloc has beside these.
    Family {
        prefixes: &["", "je_", "_rjem_"],
        functions: &[
            ("mallocx", FIRST),
            ("rallocx", RESIZES),
            ("dallocx", FREES),
            ("sdallocx", FREES),
        ],
    },
    // What tcmalloc and mimalloc have.
    Family {
        prefixes: &[""],
        functions: &[
            ("tc_new", NEW_OR_THROW),
            ("tc_newarray", NEW_OR_THROW),
            ("tc_new_nothrow", NEW),
            ("tc_newarray_nothrow", NEW),
            ("tc_delete", DELETE),
            ("tc_deletearray", DELETE),
            ("tc_delete_sized", DELETE),
            ("tc_deletearray_sized", DELETE),
            ("mi_zalloc", FIRST),
            ("mi_malloc_small", FIRST),
            ("mi_zalloc_small", FIRST),
            ("mi_mallocn", FIRST_TWO),
            ("mi_malloc_aligned", FIRST),
            ("mi_zalloc_aligned", FIRST),
            ("mi_realloc_aligned", RESIZES),
            ("mi_reallocn", RESIZES_ARRAY),
            ("mi_recalloc", RESIZES_ARRAY),
            ("mi_rezalloc", RESIZES),
            ("mi_heap_malloc", SECOND),
            ("mi_heap_zalloc", SECOND),
            ("mi_heap_calloc", LAST_TWO),
            ("mi_heap_realloc", RESIZES_OF_HEAP),
            ("mi_new", NEW_OR_THROW),
            ("mi_new_nothrow", NEW),
            ("mi_new_aligned", NEW_OR_THROW),
            ("mi_new_aligned_nothrow", NEW),
            ("mi_free_size", FREES),
            ("mi_free_aligned", FREES),
            ("mi_free_size_aligned", FREES),
        ],
    },
    // C++'s operators new, new[], delete and delete[].
    Family {
        prefixes: &["_Znw", "_Zna"],
        functions: &[
            ("m", NEW_OR_THROW),
            ("mSt11align_val_t", NEW_OR_THROW),
            ("mRKSt9nothrow_t", NEW),
            ("mSt11align_val_tRKSt9nothrow_t", NEW),
        ],
    },
    Family {
        prefixes: &["_Zdl", "_Zda"],
        functions: &[
            ("Pv", DELETE),
            ("Pvm", DELETE),
            ("PvRKSt9nothrow_t", DELETE),
            ("PvSt11align_val_t", DELETE),
            ("PvmSt11align_val_t", DELETE),
            ("PvSt11align_val_tRKSt9nothrow_t", DELETE),
        ],
    },
];

/// Every name with its signature.
pub(super) fn all() -> impl Iterator<Item = (String, Signature)> {
    FAMILIES.iter().flat_map(|family| {
        let functions = family.functions.iter();
        functions.flat_map(|(name, signature)| {
            let prefixes = family.prefixes.iter();
            prefixes.map(move |prefix| (format!("{prefix}{name}"), *signature))
        })
    })
}
