//! The handshake: connection messages, metadata, and the answers.

use fastrand::Rng;
use tezos_recorder::p2p::chunk::HEADER;
use tezos_recorder::p2p::cipher::{Opener, first_nonces};
use tezos_recorder::p2p::handshake::ConnectionMessage;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::{Both, Side};

use crate::Result;
use crate::arguments::Handshake;
use crate::channel::Chunks;
use crate::forms::HandshakeForm;
use crate::identity::Keys;
use crate::log::{ConnectionLog, Entry, now};
use crate::send::Writer;

const ENDED: &str = "the other node ended the connection during the handshake";

/// Both halves of a connection, before messages.
pub struct Parties<'a, 'b> {
    pub writer: &'b mut Writer,
    pub chunks: &'b mut Chunks,
    pub log: &'b mut ConnectionLog<'a>,
    pub options: &'b Handshake,
}

impl Parties<'_, '_> {
    /// Shakes hands; returns what encrypts and what decrypts, with the other node's connection message, or nothing if a node has refused.
    pub fn shake(
        &mut self,
        keys: &Keys,
        port: u16,
        initiator: bool,
        rng: &mut Rng,
    ) -> Result<Option<(Both<Opener>, Vec<u8>)>> {
        let stranger;
        let keys = if self.options.handshake == HandshakeForm::WrongKey {
            stranger = Keys::random(rng)?;
            &stranger
        } else {
            keys
        };
        let own = self.connection_message(keys, port, rng);
        let message = self.exchange(0, &own, None)?;
        let mut openers = openers(keys, &own, &message, initiator)?;

        let flag = |set| if set { 0xff } else { 0 };
        let metadata = [
            flag(self.options.disable_mempool),
            flag(self.options.private_node),
        ];
        self.exchange(1, &metadata, Some(&mut openers))?;
        let answer = self.answer(rng);
        let theirs = self.exchange(2, &answer, Some(&mut openers))?;
        Ok((answer == [0] && theirs == [0]).then_some((openers, message)))
    }

    /// Sends a part of the handshake and receives the other node's; returns the plain text, of part 0 with its length.
    fn exchange(
        &mut self,
        number: u64,
        plain: &[u8],
        mut openers: Option<&mut Both<Opener>>,
    ) -> Result<Vec<u8>> {
        let sealed = openers.as_mut().map(|both| both.local.seal(number, plain));
        let raw = sealed.flatten().unwrap_or_else(|| plain.to_vec());
        if !self.options.late {
            self.send(number, &raw, plain)?;
        }
        let raw_theirs = self.chunks.next()?.ok_or(ENDED)?.to_vec();
        let theirs = match openers {
            Some(both) => {
                let mut plain = Vec::new();
                if !both.remote.open(number, &raw_theirs[HEADER..], &mut plain) {
                    return Err(format!("chunk {number} cannot be decrypted").into());
                }
                plain
            }
            None => raw_theirs,
        };
        self.note(number, false, &theirs, now());
        if self.options.late {
            self.send(number, &raw, plain)?;
        }
        Ok(theirs)
    }

    fn send(&mut self, number: u64, raw: &[u8], plain: &[u8]) -> Result<()> {
        let time = now();
        self.writer.write_all(raw)?;
        self.note(number, true, plain, time);
        Ok(())
    }

    fn note(&mut self, number: u64, sent: bool, plain: &[u8], time: u64) {
        let (kind, length) = match number {
            0 => (Kind::ConnectionMessage, HEADER),
            1 => (Kind::Metadata, 0),
            _ => (Kind::AckMessage, 0),
        };
        self.log.message(&Entry {
            time,
            sent,
            kind,
            bytes: &plain[length..],
            chunks: (number, number),
            valid: true,
        });
        self.log.flush();
    }

    /// The connection message with its length.
    fn connection_message(&self, keys: &Keys, port: u16, rng: &mut Rng) -> Vec<u8> {
        let mut random = [0; 48];
        rng.fill(&mut random);
        let (nonce, stamp) = random.split_at(24);
        let stamp = match self.options.handshake {
            HandshakeForm::WrongStamp => stamp,
            _ => &keys.stamp,
        };
        let chain = self.options.chain.as_bytes();
        let body = [
            &port.to_be_bytes(),
            &keys.identity.public_key()[..],
            stamp,
            nonce,
            &(chain.len() as u32).to_be_bytes(),
            chain,
            &self.options.db_version.to_be_bytes(),
            &self.options.p2p_version.to_be_bytes(),
        ]
        .concat();
        [&(body.len() as u16).to_be_bytes(), &body[..]].concat()
    }

    /// Whether this node accepts the connection.
    fn answer(&self, rng: &mut Rng) -> Vec<u8> {
        match self.options.handshake {
            HandshakeForm::NackV0 => vec![0xff],
            HandshakeForm::Nack => {
                let points = (0..rng.u8(0..5)).flat_map(|n| {
                    let point = format!("10.0.0.{n}:9732");
                    [&(point.len() as u32).to_be_bytes(), point.as_bytes()].concat()
                });
                let points: Vec<u8> = points.collect();
                let length = (points.len() as u32).to_be_bytes();
                [
                    &[1][..],
                    &self.options.motive.to_be_bytes(),
                    &length,
                    &points,
                ]
                .concat()
            }
            _ => vec![0],
        }
    }
}

/// The keys of both directions; `local` is this node.
fn openers(keys: &Keys, own: &[u8], theirs: &[u8], initiator: bool) -> Result<Both<Opener>> {
    let public = ConnectionMessage::public_key(&theirs[HEADER..]);
    let public = public.ok_or("the other node sent no connection message")?;
    let messages = Both {
        local: own,
        remote: theirs,
    };
    let initiator = if initiator { Side::Local } else { Side::Remote };
    let nonces = first_nonces(&messages, initiator);
    let key = keys.identity.channel_key(public);
    Ok(Both {
        local: Opener::new(key.clone(), nonces.local),
        remote: Opener::new(key, nonces.remote),
    })
}
