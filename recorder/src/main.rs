//! The `tezos-recorder` command.
fn main() {}
