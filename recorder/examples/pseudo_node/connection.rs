//! A connection from its handshake to its end.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt::Linger};
use nix::unistd::{ForkResult, Pid, fork};
use tezos_recorder::side::Both;

use crate::Result;
use crate::channel::{Chunks, Receiver};
use crate::forms::CloseForm;
use crate::handshake::Parties;
use crate::log::{ConnectionLog, Counts};
use crate::node::Node;
use crate::open::addresses;
use crate::receive::Reader;
use crate::send::Writer;
use crate::sender::Sender;

/// Runs a connection to its end. With `--fork` a child does so after the handshake; returns its id.
pub fn run(node: &Node, fd: OwnedFd, index: u64, initiator: bool) -> Result<Option<Pid>> {
    let (local, remote) = addresses(&fd)?;
    let mut log = ConnectionLog::new(&node.log, local, remote);
    log.opened(initiator);
    println!("opened {}", log.addresses());
    let options = &node.options;
    let seed =
        options.seed ^ (index << 1 | u64::from(initiator)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (mut rng, fd) = (Rng::with_seed(seed), Arc::new(fd));
    let mut writer = Writer::new(fd.clone(), &options.io, options.handshake.cut, rng.fork());
    let mut chunks = Chunks::new(Reader::new(fd.clone(), &options.io, rng.fork()));
    let mut parties = Parties {
        writer: &mut writer,
        chunks: &mut chunks,
        log: &mut log,
        options: &options.handshake,
    };
    let shaken = parties.shake(&node.keys, node.port, initiator, &mut rng);
    let openers = match shaken {
        Ok(Some(openers)) => openers,
        refused => {
            let _ = shutdown(fd.as_raw_fd(), Shutdown::Write);
            chunks.drain();
            let sent = Counts {
                bytes: writer.bytes(),
                chunks: log.sent,
                messages: log.sent,
            };
            let received = chunks.counts(log.received);
            let error = refused.err().map(|e| e.to_string());
            end(log, sent, received, error.as_deref());
            return Ok(None);
        }
    };
    if options.io.fork {
        node.log.sync();
        // SAFETY: in the child only this thread goes on. No other thread holds a lock that it needs: with --fork, connections
        // run on the main thread, one at a time until here.
        if let ForkResult::Parent { child } = unsafe { fork() }? {
            return Ok(Some(child));
        }
    }
    let Both { local, remote } = openers;
    let receiver = Receiver::new(chunks, remote, options.handshake.layer(), log.clone());
    let sender = Sender::new(writer, local, options, log.clone(), rng);
    let conversation = Conversation {
        node,
        fd: fd.clone(),
        ended: AtomicBool::new(false),
        done: AtomicBool::new(false),
        before: node.gate.permitted(),
        error: Mutex::default(),
        deadline: options
            .messages
            .duration
            .map(|secs| Instant::now() + Duration::from_secs_f64(secs)),
    };
    let (sent, received) = conversation.run(sender, receiver);
    if options.io.close == CloseForm::Reset {
        let linger = nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&fd, Linger, &linger)?;
    }
    let error = conversation.error.into_inner();
    let error = error.unwrap_or_else(PoisonError::into_inner);
    drop(conversation.fd);
    end(log, sent, received, error.as_deref());
    if options.io.fork {
        drop(fd);
        std::process::exit(0);
    }
    Ok(None)
}

fn end(log: ConnectionLog<'_>, sent: Counts, received: Counts, error: Option<&str>) {
    let addresses = log.addresses();
    log.closed(sent, received, error);
    println!("closed {addresses}");
}

/// What the threads of a connection share.
struct Conversation<'a> {
    node: &'a Node,
    fd: Arc<OwnedFd>,
    /// The other node sends nothing more.
    ended: AtomicBool,
    /// This node sends nothing more.
    done: AtomicBool,
    /// Messages that were permitted before the connection began.
    before: u64,
    error: Mutex<Option<String>>,
    deadline: Option<Instant>,
}

impl Conversation<'_> {
    fn run(&self, sender: Sender<'_>, receiver: Receiver<'_>) -> (Counts, Counts) {
        let (sender, receiver) = (Mutex::new(sender), Mutex::new(receiver));
        std::thread::scope(|scope| {
            for _ in 0..self.node.options.io.threads.max(1) {
                scope.spawn(|| while self.receive(&receiver) {});
                scope.spawn(|| while self.send(&sender) {});
            }
        });
        let sender = sender.into_inner().unwrap_or_else(PoisonError::into_inner);
        let receiver = receiver
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        (sender.finish(), receiver.finish())
    }

    fn receive(&self, receiver: &Mutex<Receiver<'_>>) -> bool {
        let mut receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ended.load(Ordering::Relaxed) {
            return false;
        }
        match receiver.step() {
            Ok(true) => return true,
            Ok(false) => {}
            Err(e) => {
                self.fail(&e.to_string());
                let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
            }
        }
        self.ended.store(true, Ordering::Relaxed);
        self.node.gate.wake();
        false
    }

    fn send(&self, sender: &Mutex<Sender<'_>>) -> bool {
        let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        if self.done.load(Ordering::Relaxed) {
            return false;
        }
        let messages = &self.node.options.messages;
        let own = messages.messages.unwrap_or(match messages.duration {
            Some(_) => u64::MAX,
            None if self.node.options.control => 0,
            None => 10,
        });
        let late = self
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline);
        let left = |permitted: u64| {
            let all = own.saturating_add(permitted - self.before);
            all.saturating_sub(sender.sent())
        };
        let idle = || println!("sent {} {}", sender.sent(), sender.addresses());
        let max = if late {
            0
        } else {
            self.node.gate.next(left, idle, &self.ended)
        };
        let result = if max == 0 { Ok(()) } else { sender.step(max) };
        let mut close = self.node.options.io.close == CloseForm::First;
        match result {
            Ok(()) if max > 0 => return true,
            Ok(()) => {}
            Err(e) => {
                self.fail(&e.to_string());
                close = true;
            }
        }
        self.done.store(true, Ordering::Relaxed);
        if close {
            let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Write);
        }
        false
    }

    /// Keeps the first error.
    fn fail(&self, error: &str) {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| error.to_owned());
    }
}
