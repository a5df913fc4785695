//! Code addresses: which file, which unwind rule, which name.

pub(crate) mod layout;
