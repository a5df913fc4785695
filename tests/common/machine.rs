//! Settings of the whole machine, restored at the end of the test.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A kernel setting whose old value is restored at the end of the test.
pub struct Setting {
    path: PathBuf,
    old: String,
}

impl Setting {
    /// Sets the value; `None` if that is not possible.
    pub fn set(path: &str, value: &str) -> Option<Setting> {
        let old = chosen(path)?;
        fs::write(path, value).ok()?;
        let setting = Setting {
            path: path.into(),
            old,
        };
        (chosen(path)? == value).then_some(setting)
    }
}

/// The value of a setting; in a list of choices, the selected one: `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let marked = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Some(marked.map_or(text.trim(), |(value, _)| value).to_owned())
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.old);
    }
}

/// A compressed RAM disk (zram) used as swap.
pub struct Swap {
    device: String,
    number: String,
}

impl Swap {
    /// Enables swap on a new device; `None` without zram.
    pub fn on(bytes: u64) -> Option<Swap> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add").ok()?;
        let number = number.trim().to_owned();
        let swap = Swap {
            device: format!("/dev/zram{number}"),
            number,
        };
        fs::write(
            format!("/sys/block/zram{}/disksize", swap.number),
            bytes.to_string(),
        )
        .ok()?;
        let made = Command::new("mkswap").arg(&swap.device).output();
        let on = Command::new("swapon").arg(&swap.device).status();
        let done = made.is_ok_and(|o| o.status.success()) && on.is_ok_and(|s| s.success());
        done.then_some(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.device).status();
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.number);
    }
}
