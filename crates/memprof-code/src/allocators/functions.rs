//! The table of allocation functions: their names, and the meaning of their arguments.

/// What a function does besides allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FunctionKind {
    /// Nothing else.
    Plain,
    /// Frees or resizes the block at `pointer`.
    Resizes,
    /// Like `Resizes`, but frees the block even if it fails.
    ResizesOrFrees,
    /// Stores the result in the word at `pointer`.
    Stores,
    /// A C++ operator: an allocator's own, or a wrapper of a function above.
    Operator,
    /// Throws an exception. Its pointer argument is not a block.
    Throws,
}

/// The meaning of a function's arguments, by index from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) kind: FunctionKind,
    /// The size, in bytes; `None` if the function only frees.
    pub(super) size: Option<u8>,
    /// The number of elements, by which the size is multiplied.
    pub(super) count: Option<u8>,
    pub(super) pointer: Option<u8>,
    /// Whether the function throws if it fails. Its return must not have a uretprobe: the unwinder would find the
    /// kernel's return address on the stack instead of the caller's, and end the program. See `exits.rs`.
    pub(super) throws: bool,
}

impl Signature {
    const fn new(
        kind: FunctionKind,
        size: Option<u8>,
        count: Option<u8>,
        pointer: Option<u8>,
    ) -> Self {
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

    pub(super) fn frees(&self) -> bool {
        self.size.is_none()
    }

    /// The indices of the arguments that have a meaning.
    pub(super) fn arguments(&self) -> impl Iterator<Item = u8> + use<> {
        [self.size, self.count, self.pointer].into_iter().flatten()
    }
}

const FIRST: Signature = Signature::new(FunctionKind::Plain, Some(0), None, None);
const SECOND: Signature = Signature::new(FunctionKind::Plain, Some(1), None, None);
const FIRST_TWO: Signature = Signature::new(FunctionKind::Plain, Some(0), Some(1), None);
const LAST_TWO: Signature = Signature::new(FunctionKind::Plain, Some(1), Some(2), None);
const RESIZES: Signature = Signature::new(FunctionKind::Resizes, Some(1), None, Some(0));
const RESIZES_ARRAY: Signature = Signature::new(FunctionKind::Resizes, Some(1), Some(2), Some(0));
const RESIZES_BY_FOURTH: Signature = Signature::new(FunctionKind::Resizes, Some(3), None, Some(0));
const RESIZES_OF_HEAP: Signature = Signature::new(FunctionKind::Resizes, Some(2), None, Some(1));
const RESIZES_ARRAY_OF_HEAP: Signature =
    Signature::new(FunctionKind::Resizes, Some(2), Some(3), Some(1));
const RESIZES_OR_FREES: Signature =
    Signature::new(FunctionKind::ResizesOrFrees, Some(1), None, Some(0));
const RESIZES_OR_FREES_OF_HEAP: Signature =
    Signature::new(FunctionKind::ResizesOrFrees, Some(2), None, Some(1));
const STORES: Signature = Signature::new(FunctionKind::Stores, Some(2), None, Some(0));
const FREES: Signature = Signature::new(FunctionKind::Plain, None, None, Some(0));
const NEW: Signature = Signature::new(FunctionKind::Operator, Some(0), None, None);
const NEW_OR_THROW: Signature = NEW.throwing();
const NEW_OF_HEAP: Signature =
    Signature::new(FunctionKind::Operator, Some(1), None, None).throwing();
const NEW_ARRAY: Signature =
    Signature::new(FunctionKind::Operator, Some(0), Some(1), None).throwing();
const NEW_ARRAY_OF_HEAP: Signature =
    Signature::new(FunctionKind::Operator, Some(1), Some(2), None).throwing();
const DELETE: Signature = Signature::new(FunctionKind::Operator, None, None, Some(0));

/// Functions with the same names in several libraries, except for a prefix.
struct Family {
    prefixes: &'static [&'static str],
    functions: &'static [(&'static str, Signature)],
}

/// All families. Functions built on these (`strdup`, `fopen`, `std::vector`) are counted through them.
const FAMILIES: [Family; 10] = [
    // C: glibc, musl, jemalloc (`je_` as built into Redis, `_rjem_` in the Rust crate), tcmalloc, mimalloc, snmalloc.
    Family {
        prefixes: &["", "__libc_", "je_", "_rjem_", "tc_", "mi_", "sn_"],
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
    // snmalloc's functions for Rust.
    Family {
        prefixes: &["sn_rust_"],
        functions: &[
            ("alloc", SECOND),
            ("alloc_zeroed", SECOND),
            ("dealloc", FREES),
            ("realloc", RESIZES_BY_FOURTH),
        ],
    },
    // jemalloc's additional functions.
    Family {
        prefixes: &["", "je_", "_rjem_"],
        functions: &[
            ("mallocx", FIRST),
            ("rallocx", RESIZES),
            ("dallocx", FREES),
            ("sdallocx", FREES),
        ],
    },
    // tcmalloc's additional functions.
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
    // mimalloc's additional functions.
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
    // mimalloc's functions with a heap as the first argument.
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
    // mimalloc's aliases of functions above.
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
    // The first call of every C++ exception, in libstdc++ and libc++abi.
    Family {
        prefixes: &["__cxa_"],
        functions: &[(
            "throw",
            Signature::new(FunctionKind::Throws, None, None, None),
        )],
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
