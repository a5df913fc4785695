//! Names of frames, compared with the sources of programs built here and with binutils.

mod debuginfod;
mod fixture;
mod forms;
mod hostile;
mod live;
mod names;
mod sources;
mod starts;
mod system;
