//! A connection from its handshake to its end.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt::Linger};
use nix::unistd::{ForkResult, Pid, fork};
use tezos_recorder::p2p::base58::PeerId;
use tezos_recorder::p2p::chunk::HEADER;
use tezos_recorder::p2p::handshake::ConnectionMessage;
use tezos_recorder::side::Both;

use crate::Result;
use crate::channel::{Chunks, Receiver};
use crate::forms::CloseForm;
use crate::handshake::Parties;
use crate::log::{ConnectionLog, Counts};
use crate::node::Node;
use crate::open::addresses;
use crate::receive::Reader;
use crate::rpc::Peer;
use crate::send::Writer;
use crate::sender::Sender;
use crate::turns::Turns;

/// Runs a connection to its end. With `--fork` a child does so after the handshake; returns its id.
pub fn run(node: &Node, fd: OwnedFd, index: u64, initiator: bool) -> Result<Option<Pid>> {
    let (local, remote) = addresses(&fd)?;
    let mut log = ConnectionLog::new(&node.log, local, remote);
    log.opened(initiator);
    println!("opened {}", log.addresses());
    let options = &node.options;
    let number = index << 1 | u64::from(initiator);
    let mut rng = Rng::with_seed(options.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let fd = Arc::new(fd);
    let mut writer = Writer::new(fd.clone(), &options.io, options.handshake.cut, rng.fork());
    let mut chunks = Chunks::new(Reader::new(fd.clone(), &options.io, rng.fork()));
    let mut parties = Parties {
        writer: &mut writer,
        chunks: &mut chunks,
        log: &mut log,
        options: &options.handshake,
    };
    let (openers, message) = match parties.shake(&node.keys, node.port, initiator, &mut rng) {
        Ok(Some(shaken)) => shaken,
        refused => {
            let _ = shutdown(fd.as_raw_fd(), Shutdown::Write);
            chunks.drain();
            let sent = Counts {
                bytes: writer.bytes(),
                chunks: log.sent,
                messages: log.sent,
            };
            let received = chunks.counts(log.received);
            end(log, sent, received, refused.err().map(|e| e.to_string()));
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
    let _listed = node.rpc.list(peer(&message, remote, !initiator, &fd)?);
    let Both { local, remote } = openers;
    let receiver = Receiver::new(chunks, remote, options.handshake.layer(), log.clone());
    let sender = Sender::new(writer, local, options, log.clone(), rng);
    Conversation::new(node, fd).run(sender, receiver, log)?;
    if options.io.fork {
        std::process::exit(0);
    }
    Ok(None)
}

fn peer(message: &[u8], remote: SocketAddr, incoming: bool, fd: &Arc<OwnedFd>) -> Result<Peer> {
    let message = &message[HEADER..];
    let key = ConnectionMessage::public_key(message).ok_or("no public key")?;
    Ok(Peer {
        id: PeerId::from_public_key(key).to_string(),
        incoming,
        remote,
        listens: u16::from_be_bytes([message[0], message[1]]),
        fd: fd.clone(),
    })
}

fn end(log: ConnectionLog<'_>, sent: Counts, received: Counts, error: Option<String>) {
    let addresses = log.addresses();
    log.closed(sent, received, error.as_deref());
    println!("closed {addresses}");
}

/// State that the threads of a connection share.
struct Conversation<'a> {
    node: &'a Node,
    fd: Arc<OwnedFd>,
    /// The other node sends nothing more.
    ended: AtomicBool,
    /// Messages that were permitted before the connection began.
    before: u64,
    error: Mutex<Option<String>>,
    deadline: Option<Instant>,
}

impl<'a> Conversation<'a> {
    fn new(node: &'a Node, fd: Arc<OwnedFd>) -> Self {
        let duration = node.options.messages.duration;
        Self {
            node,
            fd,
            ended: AtomicBool::new(false),
            before: node.gate.permitted(),
            error: Mutex::default(),
            deadline: duration.map(|secs| Instant::now() + Duration::from_secs_f64(secs)),
        }
    }

    /// Sends and receives until both nodes have shut down.
    fn run(self, sender: Sender<'_>, receiver: Receiver<'_>, log: ConnectionLog<'_>) -> Result<()> {
        let io = &self.node.options.io;
        let threads = io.threads.max(1);
        let (sender, receiver) = (Turns::new(sender, threads), Turns::new(receiver, threads));
        std::thread::scope(|scope| {
            for me in 0..threads {
                let (conversation, sender, receiver) = (&self, &sender, &receiver);
                scope.spawn(move || receiver.take(me, |receiver| conversation.receive(receiver)));
                scope.spawn(move || sender.take(me, |sender| conversation.send(sender)));
            }
        });
        let (sent, received) = (sender.into_inner().finish(), receiver.into_inner().finish());
        if io.close == CloseForm::Reset {
            let linger = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            setsockopt(&self.fd, Linger, &linger)?;
        }
        let error = self.error.into_inner();
        end(
            log,
            sent,
            received,
            error.unwrap_or_else(PoisonError::into_inner),
        );
        Ok(())
    }

    /// Receives a chunk; returns false at the end.
    fn receive(&self, receiver: &mut Receiver<'_>) -> bool {
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

    /// Waits until messages may be sent, and returns their number; 0 if there are none to come.
    fn permitted(&self, sender: &Sender<'_>) -> u64 {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return 0;
        }
        let options = &self.node.options;
        let own = options.messages.messages.unwrap_or(match self.deadline {
            Some(_) => u64::MAX,
            None if options.control => 0,
            None => 10,
        });
        let left = |permitted: u64| {
            let all = own.saturating_add(permitted - self.before);
            all.saturating_sub(sender.sent())
        };
        let idle = || println!("sent {} {}", sender.sent(), sender.addresses());
        self.node.gate.next(left, idle, &self.ended)
    }

    /// Sends a batch; returns false if there is nothing more to send.
    fn send(&self, sender: &mut Sender<'_>) -> bool {
        let max = self.permitted(sender);
        let result = if max == 0 { Ok(()) } else { sender.step(max) };
        let failed = result.is_err();
        match result {
            Ok(()) if max > 0 => return true,
            Ok(()) => {}
            Err(e) => self.fail(&e.to_string()),
        }
        if failed || self.node.options.io.close == CloseForm::First {
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
