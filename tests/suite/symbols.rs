//! Names of frames, compared with the sources of programs built here and with binutils.

mod debuginfod;
#[path = "../common/debuginfod_server.rs"]
mod debuginfod_server;
mod fixture;
mod forms;
mod hostile;
#[path = "../common/listening.rs"]
mod listening;
mod live;
mod names;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/skip.rs"]
mod skip;
mod sources;
mod starts;
mod system;
