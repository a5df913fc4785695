//! Decryption: NaCl's box (X25519, XSalsa20, Poly1305) with one key for both directions and a nonce that counts chunks.

use std::fmt;

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use poly1305::Poly1305;
use poly1305::universal_hash::KeyInit;
use salsa20::cipher::consts::U10;
use salsa20::cipher::{KeyIvInit, StreamCipher};
use salsa20::{Salsa20, hsalsa};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, Zeroizing};

use crate::side::{Both, Side};

/// Bytes of the tag that precedes the cipher text.
pub const TAG: usize = 16;

/// The key of a connection, the same for both directions.
#[derive(Clone)]
pub struct ChannelKey(Zeroizing<[u8; 32]>);

impl ChannelKey {
    /// The key between the owner of a secret key and the owner of a public one.
    pub fn new(secret: &StaticSecret, public: &[u8; 32]) -> Self {
        let shared = secret.diffie_hellman(&PublicKey::from(*public));
        Self(subkey(shared.as_bytes(), &[0; 16]))
    }
}

/// Does not write the key.
impl fmt::Debug for ChannelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelKey")
    }
}

/// HSalsa20.
fn subkey(key: &[u8; 32], input: &[u8; 16]) -> Zeroizing<[u8; 32]> {
    let mut derived = hsalsa::<U10>(key.into(), input.into());
    let copy = Zeroizing::new(derived.into());
    derived.as_mut_slice().zeroize();
    copy
}

/// A nonce: a big-endian number of 192 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; 24]);

impl Nonce {
    /// The nonce that many chunks later; after the last number comes 0.
    #[must_use]
    pub fn plus(self, chunks: u64) -> Self {
        let (high, low) = self.halves();
        let (low, carry) = low.overflowing_add(chunks);
        let high = high.wrapping_add(u128::from(carry));
        let mut sum = [0; 24];
        sum[..16].copy_from_slice(&high.to_be_bytes());
        sum[16..].copy_from_slice(&low.to_be_bytes());
        Self(sum)
    }

    fn halves(self) -> (u128, u64) {
        let (mut high, mut low) = ([0; 16], [0; 8]);
        high.copy_from_slice(&self.0[..16]);
        low.copy_from_slice(&self.0[16..]);
        (u128::from_be_bytes(high), u64::from_be_bytes(low))
    }
}

/// The first nonces with which each side encrypts, from both connection messages with their lengths.
///
/// The labels are the other way round than they read: the initiator encrypts with the one that is called `Resp -> Init`.
pub fn first_nonces(messages: &Both<&[u8]>, initiator: Side) -> Both<Nonce> {
    let (first, second) = (*messages.of(initiator), *messages.of(initiator.other()));
    let nonce = |label: &[u8]| {
        let hash = Blake2b::<U32>::new()
            .chain_update(first)
            .chain_update(second)
            .chain_update(label);
        let hash: [u8; 32] = hash.finalize().into();
        let mut nonce = [0; 24];
        nonce.copy_from_slice(&hash[..24]);
        Nonce(nonce)
    };
    let mut nonces = Both {
        local: nonce(b"Init -> Resp"),
        remote: nonce(b"Init -> Resp"),
    };
    *nonces.of_mut(initiator) = nonce(b"Resp -> Init");
    nonces
}

/// Decrypts the chunks of one direction, of any number and in any order.
pub struct Opener {
    key: ChannelKey,
    first: Nonce,
    /// HSalsa20 of the key and the nonce's first 16 bytes, which change only if its low 64 bits carry.
    subkey: Zeroizing<[u8; 32]>,
    prefix: [u8; 16],
}

impl Opener {
    /// An opener for the direction in which chunk 1 has the nonce `first`.
    pub fn new(key: ChannelKey, first: Nonce) -> Self {
        let mut prefix = [0; 16];
        prefix.copy_from_slice(&first.0[..16]);
        Self {
            subkey: subkey(&key.0, &prefix),
            key,
            first,
            prefix,
        }
    }

    /// The stream cipher for chunk `number`.
    fn stream(&mut self, number: u64) -> Salsa20 {
        let nonce = self.first.plus(number.wrapping_sub(1)).0;
        let (mut prefix, mut suffix) = ([0; 16], [0; 8]);
        prefix.copy_from_slice(&nonce[..16]);
        suffix.copy_from_slice(&nonce[16..]);
        if prefix != self.prefix {
            self.subkey = subkey(&self.key.0, &prefix);
            self.prefix = prefix;
        }
        Salsa20::new((&*self.subkey).into(), &suffix.into())
    }

    /// The authenticator's key for chunk `number`: the first bytes of its key stream.
    pub fn tag_key(&mut self, number: u64) -> TagKey {
        tag_key(&mut self.stream(number))
    }

    /// Decrypts chunk `number`, which is at least 1. `sealed` is the chunk without its length; its plain text replaces `plain`.
    /// Returns false, with `plain` empty, if the tag does not match.
    pub fn open(&mut self, number: u64, sealed: &[u8], plain: &mut Vec<u8>) -> bool {
        plain.clear();
        let mut stream = self.stream(number);
        let Some(encrypted) = tag_key(&mut stream).verify(sealed) else {
            return false;
        };
        plain.extend_from_slice(encrypted);
        stream.apply_keystream(plain);
        true
    }

    /// Encrypts chunk `number`; returns the chunk with its length, or nothing if the plain text is longer than 65,519 bytes. For
    /// tests and pseudo nodes.
    pub fn seal(&mut self, number: u64, plain: &[u8]) -> Option<Vec<u8>> {
        let length = u16::try_from(TAG + plain.len()).ok()?;
        let mut stream = self.stream(number);
        let key = tag_key(&mut stream);
        let mut encrypted = plain.to_vec();
        stream.apply_keystream(&mut encrypted);
        let length = length.to_be_bytes();
        Some([&length[..], &key.tag(&encrypted), &encrypted].concat())
    }
}

/// Does not write keys.
impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

/// The key that authenticates one chunk.
#[derive(Clone)]
pub struct TagKey(Zeroizing<[u8; 32]>);

fn tag_key(stream: &mut Salsa20) -> TagKey {
    let mut key = Zeroizing::new([0; 32]);
    stream.apply_keystream(&mut *key);
    TagKey(key)
}

/// Does not write the key.
impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKey")
    }
}

impl TagKey {
    fn tag(&self, encrypted: &[u8]) -> [u8; TAG] {
        let authenticator = Poly1305::new((&*self.0).into());
        authenticator.compute_unpadded(encrypted).into()
    }

    /// The encrypted bytes, if the tag before them matches.
    pub fn verify<'a>(&self, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (tag, encrypted) = sealed.split_first_chunk::<TAG>()?;
        // A comparison in constant time would protect nothing: nobody who chose the bytes sees how long it takes.
        (self.tag(encrypted) == *tag).then_some(encrypted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn opener(first: Nonce) -> Opener {
        let key = ChannelKey(Zeroizing::new([7; 32]));
        Opener::new(key, first)
    }

    #[test]
    fn the_subkey_follows_a_carry() {
        let mut first = [3; 24];
        first[16..].fill(0xff);
        let (mut receiver, mut plain) = (opener(Nonce(first)), Vec::new());
        for number in [3, 1, 2] {
            // Sealed as the first chunk of an opener that begins with that nonce.
            let mut sender = opener(Nonce(first).plus(number - 1));
            let raw = sender.seal(1, b"text").unwrap();
            assert!(receiver.open(number, &raw[2..], &mut plain));
            assert_eq!(plain, b"text");
            assert!(!receiver.open(number + 1, &raw[2..], &mut plain));
            assert!(plain.is_empty());
        }
    }

    #[test]
    fn secrets_are_not_written() {
        let opener = opener(Nonce([1; 24]));
        let text = format!("{opener:?} {:?}", opener.key);
        assert!(!text.contains('7'), "{text}");
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_noticed(plain: Vec<u8>, number in 1u64..1 << 40, at: usize) {
            let mut opener = opener(Nonce([9; 24]));
            let raw = opener.seal(number, &plain).unwrap();
            let mut opened = Vec::new();
            prop_assert!(opener.open(number, &raw[2..], &mut opened));
            prop_assert_eq!(&opened, &plain);
            let mut damaged = raw[2..].to_vec();
            let bit = at % (8 * damaged.len());
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!opener.open(number, &damaged, &mut opened));
        }
    }
}
