//! The identity of a node: its key pair and the proof of work, from the node's file `identity.json`.

use std::fmt;

use serde::Deserialize;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::base58::PeerId;
use super::cipher::ChannelKey;
use super::pow::Target;

/// The identity of a node. The secret key is erased from memory when it is dropped, and never written.
#[derive(Clone)]
pub struct Identity {
    public: [u8; 32],
    secret: StaticSecret,
    stamp: [u8; 24],
}

/// Why a text is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The text is not JSON with the fields of an identity.
    #[error(
        "it is not the JSON of an identity, at line {line}, column {column}; use the node's own identity.json"
    )]
    Form {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// A field is not hexadecimal digits of the right number.
    #[error("{field} is not {bytes} bytes in hexadecimal; use the node's own identity.json")]
    Digits {
        /// The field.
        field: &'static str,
        /// The expected size.
        bytes: usize,
    },
    /// The keys do not form a pair.
    #[error("the public key does not belong to the secret key; the file is damaged or mixed up")]
    KeyPair,
    /// The identifier is that of another key.
    #[error(
        "peer_id is {found}, but the public key is that of {expected}; the file is damaged or mixed up"
    )]
    PeerId {
        /// The file's identifier.
        found: String,
        /// That of its public key.
        expected: PeerId,
    },
}

/// The fields of `identity.json`. The text is borrowed, so that no copy of the secret is made.
#[derive(Deserialize)]
struct Fields<'a> {
    public_key: &'a str,
    secret_key: &'a str,
    proof_of_work_stamp: &'a str,
    peer_id: Option<String>,
}

impl Identity {
    /// Reads the text of `identity.json`. The field `peer_id` may be absent. The caller erases the text.
    ///
    /// # Errors
    /// If the text is not an identity, or contradicts itself. Errors do not quote secrets.
    pub fn parse(json: &str) -> Result<Self, IdentityError> {
        // The parser's own message could quote a value.
        let fields: Fields<'_> = serde_json::from_str(json).map_err(|e| IdentityError::Form {
            line: e.line(),
            column: e.column(),
        })?;
        let public = bytes("public_key", fields.public_key)?;
        let secret = StaticSecret::from(*bytes("secret_key", fields.secret_key)?);
        if PublicKey::from(&secret).as_bytes() != &*public {
            return Err(IdentityError::KeyPair);
        }
        let expected = PeerId::from_public_key(&public);
        if let Some(found) = fields.peer_id.filter(|id| *id != expected.to_string()) {
            return Err(IdentityError::PeerId { found, expected });
        }
        Ok(Self {
            public: *public,
            secret,
            stamp: *bytes("proof_of_work_stamp", fields.proof_of_work_stamp)?,
        })
    }

    /// The public key.
    pub fn public_key(&self) -> &[u8; 32] {
        &self.public
    }

    /// The node's identifier.
    pub fn peer_id(&self) -> PeerId {
        PeerId::from_public_key(&self.public)
    }

    /// True if the stamp is a proof of work of that difficulty.
    pub fn meets(&self, target: Target) -> bool {
        target.is_met(&self.public, &self.stamp)
    }

    /// The key of a connection with the owner of a public key.
    pub fn channel_key(&self, peer: &[u8; 32]) -> ChannelKey {
        ChannelKey::new(&self.secret, peer)
    }
}

/// Does not write the secret key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.peer_id()).finish()
    }
}

/// Reads hexadecimal digits of a field.
fn bytes<const N: usize>(
    field: &'static str,
    digits: &str,
) -> Result<Zeroizing<[u8; N]>, IdentityError> {
    let error = || IdentityError::Digits { field, bytes: N };
    let value = |digit: u8| char::from(digit).to_digit(16).map(|d| d as u8);
    let mut bytes = Zeroizing::new([0; N]);
    if digits.len() != 2 * N {
        return Err(error());
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let (high, low) = (value(pair[0]), value(pair[1]));
        *byte = high.zip(low).map(|(h, l)| h << 4 | l).ok_or_else(error)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON of an identity, each byte of whose secret key is 0x2a.
    fn json(public: &str, secret: &str, peer_id: &str) -> String {
        let stamp = "00".repeat(24);
        format!(
            r#"{{"peer_id": {peer_id}, "public_key": "{public}", "secret_key": "{secret}", "proof_of_work_stamp": "{stamp}"}}"#
        )
    }

    fn pair() -> (String, String) {
        let public = PublicKey::from(&StaticSecret::from([0x2a; 32]));
        let hex = super::super::json::Hex(public.as_bytes()).to_string();
        (hex, "2a".repeat(32))
    }

    #[test]
    fn the_identifier_may_be_absent_but_not_another() {
        let (public, secret) = pair();
        let identity = Identity::parse(&json(&public, &secret, "null")).unwrap();
        let id = format!("\"{}\"", identity.peer_id());
        assert!(Identity::parse(&json(&public, &secret, &id)).is_ok());
        let error = Identity::parse(&json(
            &public,
            &secret,
            "\"idtuXvNBK1Mwr3E9cnhKcuhXK1JppT\"",
        ));
        assert!(matches!(error, Err(IdentityError::PeerId { .. })));
    }

    #[test]
    fn a_public_key_of_another_secret_is_refused() {
        let (public, _) = pair();
        let error = Identity::parse(&json(&public, &"2b".repeat(32), "null"));
        assert!(matches!(error, Err(IdentityError::KeyPair)));
    }

    #[test]
    fn neither_debug_output_nor_errors_show_the_secret() {
        let (public, secret) = pair();
        let identity = Identity::parse(&json(&public, &secret, "null")).unwrap();
        let shown = format!("{identity:?} {:?}", identity.channel_key(&[9; 32]));
        assert!(
            !shown.contains("2a2a") && !shown.contains("42, 42"),
            "{shown}"
        );
        for bad in [
            json(&public, &secret[2..], "null"),
            json(&public, &format!("x{}", &secret[1..]), "null"),
            json("1", &secret, "null"),
            json(&public, &format!("\\u0032{}", &secret[1..]), "null"),
            format!("\"{secret}\""),
            format!("{{\"secret_key\": {{\"{secret}\": 1}}}}"),
        ] {
            let error = Identity::parse(&bad).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("2a2a"), "{shown}");
        }
    }

    #[test]
    fn digits_must_be_hexadecimal() {
        let (public, secret) = pair();
        let error = Identity::parse(&json(&format!("+{}", &public[1..]), &secret, "null"));
        assert!(matches!(
            error,
            Err(IdentityError::Digits {
                field: "public_key",
                ..
            })
        ));
    }
}
