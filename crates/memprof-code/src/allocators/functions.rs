//! The table of allocation functions: their names, and which of their arguments says what.

/// What a function does, beside allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Plain,
    /// Frees or resizes the block that the pointer names.
    Resizes,
    /// As `Resizes`; the block is freed also if that fails.
    ResizesOrFrees,
    /// Stores the result where the pointer points to.
    Stores,
    /// An operator of C++, which may be one of an allocator's own, or call a function above.
    Operator,
    /// Throws an exception. Its pointer is none of a block.
    Throws,
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
    /// It throws if it fails. The return of such a function must not have a probe of the usual kind: the exception would find
    /// the kernel's return address on the stack instead of the caller's, and end the program. See `exits.rs`.
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

    /// Whether it only frees.
    pub(super) fn frees(&self) -> bool {
        self.size.is_none()
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
const RESIZES_ARRAY_OF_HEAP: Signature = Signature::new(Kind::Resizes, Some(2), Some(3), Some(1));
const RESIZES_OR_FREES: Signature = Signature::new(Kind::ResizesOrFrees, Some(1), None, Some(0));
const RESIZES_OR_FREES_OF_HEAP: Signature =
    Signature::new(Kind::ResizesOrFrees, Some(2), None, Some(1));
const STORES: Signature = Signature::new(Kind::Stores, Some(2), None, Some(0));
const FREES: Signature = Signature::new(Kind::Plain, None, None, Some(0));
const NEW: Signature = Signature::new(Kind::Operator, Some(0), None, None);
const NEW_OR_THROW: Signature = NEW.throwing();
const NEW_OF_HEAP: Signature = Signature::new(Kind::Operator, Some(1), None, None).throwing();
const NEW_ARRAY: Signature = Signature::new(Kind::Operator, Some(0), Some(1), None).throwing();
const NEW_ARRAY_OF_HEAP: Signature =
    Signature::new(Kind::Operator, Some(1), Some(2), None).throwing();
const DELETE: Signature = Signature::new(Kind::Operator, None, None, Some(0));

/// Functions that have the same names in several libraries, but for a prefix.
struct Family {
    prefixes: &'static [&'static str],
    functions: &'static [(&'static str, Signature)],
}

/// All of them. What is built on these (`strdup`, `fopen`, `std::vector`) is counted by them.
const FAMILIES: [Family; 9] = [
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
            ("reallocf", RESIZES_OR_FREES),
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
    // What tcmalloc has.
    Family {
        prefixes: &["tc_"],
        functions: &[
            ("malloc_skip_new_handler", FIRST),
            ("new", NEW_OR_THROW),
            ("newarray", NEW_OR_THROW),
            ("new_aligned", NEW_OR_THROW),
            ("newarray_aligned", NEW_OR_THROW),
            ("new_nothrow", NEW),
            ("newarray_nothrow", NEW),
            ("new_aligned_nothrow", NEW),
            ("newarray_aligned_nothrow", NEW),
            ("delete", DELETE),
            ("delete_nothrow", DELETE),
            ("delete_sized", DELETE),
            ("delete_aligned", DELETE),
            ("delete_aligned_nothrow", DELETE),
            ("delete_sized_aligned", DELETE),
            ("deletearray", DELETE),
            ("deletearray_nothrow", DELETE),
            ("deletearray_sized", DELETE),
            ("deletearray_aligned", DELETE),
            ("deletearray_aligned_nothrow", DELETE),
            ("deletearray_sized_aligned", DELETE),
        ],
    },
    // What mimalloc has.
    Family {
        prefixes: &["mi_"],
        functions: &[
            ("zalloc", FIRST),
            ("malloc_small", FIRST),
            ("zalloc_small", FIRST),
            ("mallocn", FIRST_TWO),
            ("malloc_aligned", FIRST),
            ("malloc_aligned_at", FIRST),
            ("zalloc_aligned", FIRST),
            ("zalloc_aligned_at", FIRST),
            ("calloc_aligned", FIRST_TWO),
            ("calloc_aligned_at", FIRST_TWO),
            ("reallocn", RESIZES_ARRAY),
            ("rezalloc", RESIZES),
            ("recalloc", RESIZES_ARRAY),
            ("realloc_aligned", RESIZES),
            ("realloc_aligned_at", RESIZES),
            ("rezalloc_aligned", RESIZES),
            ("rezalloc_aligned_at", RESIZES),
            ("recalloc_aligned", RESIZES_ARRAY),
            ("recalloc_aligned_at", RESIZES_ARRAY),
            ("aligned_recalloc", RESIZES_ARRAY),
            ("aligned_offset_recalloc", RESIZES_ARRAY),
            ("new", NEW_OR_THROW),
            ("new_n", NEW_ARRAY),
            ("new_nothrow", NEW),
            ("new_aligned", NEW_OR_THROW),
            ("new_aligned_nothrow", NEW),
            ("new_realloc", RESIZES.throwing()),
            ("new_reallocn", RESIZES_ARRAY.throwing()),
            ("free_size", FREES),
            ("free_aligned", FREES),
            ("free_size_aligned", FREES),
        ],
    },
    // … with a heap as the first argument.
    Family {
        prefixes: &["mi_heap_"],
        functions: &[
            ("malloc", SECOND),
            ("malloc_small", SECOND),
            ("malloc_aligned", SECOND),
            ("malloc_aligned_at", SECOND),
            ("mallocn", LAST_TWO),
            ("zalloc", SECOND),
            ("zalloc_aligned", SECOND),
            ("zalloc_aligned_at", SECOND),
            ("calloc", LAST_TWO),
            ("calloc_aligned", LAST_TWO),
            ("calloc_aligned_at", LAST_TWO),
            ("realloc", RESIZES_OF_HEAP),
            ("realloc_aligned", RESIZES_OF_HEAP),
            ("realloc_aligned_at", RESIZES_OF_HEAP),
            ("reallocf", RESIZES_OR_FREES_OF_HEAP),
            ("reallocn", RESIZES_ARRAY_OF_HEAP),
            ("rezalloc", RESIZES_OF_HEAP),
            ("rezalloc_aligned", RESIZES_OF_HEAP),
            ("rezalloc_aligned_at", RESIZES_OF_HEAP),
            ("recalloc", RESIZES_ARRAY_OF_HEAP),
            ("recalloc_aligned", RESIZES_ARRAY_OF_HEAP),
            ("recalloc_aligned_at", RESIZES_ARRAY_OF_HEAP),
            ("alloc_new", NEW_OF_HEAP),
            ("alloc_new_n", NEW_ARRAY_OF_HEAP),
        ],
    },
    // Other names of its for functions above.
    Family {
        prefixes: &[""],
        functions: &[
            ("_aligned_malloc", SECOND),
            ("__posix_memalign", STORES),
            ("vfree", FREES),
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
    // What every exception of C++ begins with, in libstdc++ and libc++abi.
    Family {
        prefixes: &["__cxa_"],
        functions: &[("throw", Signature::new(Kind::Throws, None, None, None))],
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
