//! Tests of the recorder's library, as one program.

mod api;
mod capture;
#[allow(dead_code)]
#[path = "../../../fuzz/check_recorder.rs"]
mod check;
#[allow(dead_code)]
#[path = "../../../fuzz/check_recorder_text.rs"]
mod check_text;
mod cli;
mod cli_doctor;
mod clocks;
mod codec;
mod common;
mod config;
mod damage;
#[path = "../../../tests/common/effort.rs"]
mod effort;
mod framing;
mod identities;
mod logs;
mod loss;
mod messages;
mod pcapng;
mod play;
mod pseudo;
mod recognition;
mod reconnect;
mod recording;
mod resync;
#[path = "../../../tests/common/skip.rs"]
mod skip;
mod store;
mod stream;
mod web;
mod whole;
mod worked;
mod workers;
