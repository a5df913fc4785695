//! Names of frames, held against programs built here and against binutils.

mod fixture;
mod hostile;
mod live;
mod names;
mod system;
