//! The whole recorder: the program records pseudo nodes that are real processes, and what it serves is what they have written down.

mod endings;
mod handshake;
mod losses;
mod privileges;
mod reconnect;
mod recorder;
mod traffic;
