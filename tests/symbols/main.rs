//! Names of frames, held against programs built here and against binutils.

mod fixture;
mod hostile;
mod live;
mod names;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/random.rs"]
mod random;
mod system;
