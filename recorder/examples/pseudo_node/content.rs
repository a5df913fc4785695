//! Messages of all kinds that follow the grammar, with random contents.

use fastrand::Rng;
use tezos_recorder::p2p::message::{Category, HEADER, Kind, Layer};

use crate::arguments::Messages;
use crate::forms::Sizes;

/// Maximum number of hashes of a request.
const MAX_REQUESTED: usize = 10;

/// A message.
pub struct Made {
    pub kind: Kind,
    /// False if it breaks the grammar.
    pub valid: bool,
    /// With length and tag.
    pub bytes: Vec<u8>,
}

/// Makes messages.
pub struct Content {
    rng: Rng,
    kinds: Vec<Kind>,
    layer: Layer,
    sizes: Sizes,
    invalid: u8,
}

impl Content {
    /// Messages of a layer. Without chosen kinds, all of them.
    pub fn new(options: &Messages, layer: Layer, rng: Rng) -> Self {
        let mut kinds = options.kinds.0.clone();
        if kinds.is_empty() {
            let all = Kind::ALL.iter().copied();
            kinds = all.filter(|kind| tag(*kind, layer).is_some()).collect();
        }
        Self {
            rng,
            kinds,
            layer,
            sizes: options.size,
            invalid: options.invalid,
        }
    }

    /// The next message.
    pub fn next(&mut self) -> Made {
        let kind = self.rng.choice(&self.kinds).copied();
        let mut kind = kind.unwrap_or(Kind::Bootstrap);
        let tag = tag(kind, self.layer).unwrap_or_else(|| {
            kind = Kind::Unknown;
            0x7777
        });
        let size = self.size().min(kind.max_size()).min(8 << 20);
        let mut body = Body {
            out: vec![0; HEADER],
            rng: &mut self.rng,
            size,
        };
        body.write(kind);
        let mut bytes = body.out;
        let valid = self.rng.u8(0..100) >= self.invalid || !break_grammar(kind, &mut bytes);
        let length = (bytes.len() - HEADER + 2) as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes[4..HEADER].copy_from_slice(&tag.to_be_bytes());
        Made { kind, valid, bytes }
    }

    /// A size, such that each power of two is as likely as the others.
    fn size(&mut self) -> usize {
        let Sizes { min, max } = self.sizes;
        let bits = |n: usize| usize::BITS - n.leading_zeros();
        let bits = self.rng.u32(bits(min)..=bits(max));
        let limit = 1usize.checked_shl(bits).unwrap_or(usize::MAX);
        self.rng.usize(limit / 2..limit.max(1)).clamp(min, max)
    }
}

/// The tag of a kind, if it is one of the layer's.
fn tag(kind: Kind, layer: Layer) -> Option<u16> {
    let known = kind.category() == Category::P2p && kind != Kind::Unknown;
    (0..=0xff).find(|tag| known && Kind::of_tag(*tag, layer) == kind)
}

/// Makes a message end too early or too late; returns false if anything is right for its kind.
fn break_grammar(kind: Kind, bytes: &mut Vec<u8>) -> bool {
    let opaque = kind.name().starts_with("dal_") || kind.name().contains("operation_hashes_for");
    if opaque || kind == Kind::Unknown {
        return false;
    }
    bytes.resize(HEADER + 1, 0);
    true
}

/// Writes the body of a message, about as long as it should be.
struct Body<'a> {
    out: Vec<u8>,
    rng: &'a mut Rng,
    /// Size that the message should have, with length and tag.
    size: usize,
}

impl Body<'_> {
    fn write(&mut self, kind: Kind) {
        match kind {
            Kind::Disconnect | Kind::Bootstrap => {}
            Kind::Advertise => (0..(self.left(0) / 20).min(100)).for_each(|_| self.point()),
            Kind::SwapRequest | Kind::SwapAck => {
                self.point();
                self.random(16);
            }
            Kind::GetCurrentBranch
            | Kind::Deactivate
            | Kind::GetCurrentHead
            | Kind::GetCheckpoint => self.random(4),
            Kind::CurrentBranch => self.branch(4),
            Kind::CurrentHead => self.head(),
            Kind::GetBlockHeaders | Kind::GetOperations | Kind::GetProtocols => self.requests(0),
            Kind::GetOperationsForBlocks => self.requests(1),
            Kind::BlockHeader => self.header(0),
            Kind::Operation => {
                self.random(32);
                self.fill(0);
            }
            Kind::Protocol => self.protocol(),
            Kind::OperationsForBlocks => self.operations(),
            Kind::Checkpoint => {
                self.random(4);
                self.header(0);
            }
            Kind::GetProtocolBranch => self.random(5),
            Kind::ProtocolBranch => self.branch(5),
            Kind::GetPredecessorHeader => self.random(36),
            Kind::PredecessorHeader => {
                self.random(36);
                self.header(0);
            }
            _ => self.fill(0),
        }
    }

    /// Bytes that are missing, if `trailing` ones follow.
    fn left(&self, trailing: usize) -> usize {
        self.size.saturating_sub(self.out.len() + trailing)
    }

    fn random(&mut self, count: usize) {
        let from = self.out.len();
        self.out.resize(from + count, 0);
        self.rng.fill(&mut self.out[from..]);
    }

    /// Random bytes up to the size, less `trailing` ones.
    fn fill(&mut self, trailing: usize) {
        self.random(self.left(trailing));
    }

    /// Something with its length before it.
    fn dynamic(&mut self, write: impl FnOnce(&mut Self)) {
        let from = self.out.len() + 4;
        self.out.extend([0; 4]);
        write(self);
        let length = (self.out.len() - from) as u32;
        self.out[from - 4..from].copy_from_slice(&length.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.dynamic(|body| body.out.extend(text.as_bytes()));
    }

    fn point(&mut self) {
        let (a, b, port) = (self.rng.u8(1..), self.rng.u8(..), self.rng.u16(1..));
        if self.rng.bool() {
            self.text(&format!("{a}.{b}.{b}.{a}:{port}"));
        } else {
            self.text(&format!("[2001:db8::{a:x}:{b:x}]:{port}"));
        }
    }

    /// A list of hashes, each with more bytes behind it.
    fn requests(&mut self, more: usize) {
        let count = (self.left(4) / 32).min(MAX_REQUESTED);
        self.dynamic(|body| body.random(count * (32 + more)));
    }

    fn header(&mut self, trailing: usize) {
        let level = self.rng.u32(1..1 << 24);
        self.out.extend(level.to_be_bytes());
        self.random(1 + 32);
        let timestamp = 1_530_000_000 + u64::from(level) * 15;
        self.out.extend(timestamp.to_be_bytes());
        self.out.push(4);
        self.random(32);
        self.dynamic(|fitness| {
            fitness.dynamic(|version| version.out.push(2));
            fitness.dynamic(|level| level.random(8));
        });
        self.random(32);
        self.fill(trailing);
    }

    /// The head of a branch and its history, after some bytes.
    fn branch(&mut self, before: usize) {
        self.random(before);
        let history = self.rng.usize(0..=20) * 32;
        self.dynamic(|body| body.header(history));
        self.random(history);
    }

    fn head(&mut self) {
        self.random(4);
        // A header has at least 131 bytes.
        let valid = (self.left(150) / 64).min(3000) * 32;
        let pending = self.rng.usize(0..4) * 32;
        self.dynamic(|body| body.header(4 + valid + 8 + pending));
        self.dynamic(|body| body.random(valid));
        self.dynamic(|outer| outer.dynamic(|body| body.random(pending)));
    }

    fn protocol(&mut self) {
        self.random(2);
        self.dynamic(|components| {
            components.text("Module");
            components.out.push(0xff);
            components.text("val x : int\n");
            components.dynamic(|body| {
                let source = b"let x = \"\\\\ \xce\xbb\"\n";
                let whole = body.left(0) / source.len();
                body.out.extend(source.repeat(whole));
                let rest = body.left(0);
                body.out.extend(std::iter::repeat_n(b' ', rest));
            });
        });
    }

    fn operations(&mut self) {
        self.random(32);
        self.out.push(self.rng.u8(0..4));
        let mut right = 0;
        for _ in 0..self.rng.usize(0..=3) {
            if self.rng.bool() {
                self.out.push(0xf0);
                right += 32;
            } else {
                self.out.push(0x0f);
                self.random(32);
            }
        }
        self.out.push(0);
        self.random(right);
        while self.left(0) > 36 {
            let data = self.rng.usize(0..=self.left(36));
            self.dynamic(|body| body.random(32 + data));
        }
    }
}
