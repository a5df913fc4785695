//! Names of frames, compared with the sources of programs built here and with binutils.

mod fixture;
mod hostile;
mod live;
mod names;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/random.rs"]
mod random;
mod system;
