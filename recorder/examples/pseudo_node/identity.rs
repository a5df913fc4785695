//! Identities: the node's own, and new ones.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fastrand::Rng;
use serde_json::{Value, json};
use tezos_recorder::p2p::base58::PeerId;
use tezos_recorder::p2p::identity::Identity;
use tezos_recorder::p2p::json::Hex;
use tezos_recorder::p2p::pow::Target;
use x25519_dalek::{PublicKey, StaticSecret};

use crate::Result;

/// The keys that a node uses, and the stamp that it sends.
pub struct Keys {
    pub identity: Identity,
    pub stamp: [u8; 24],
}

impl Keys {
    /// Reads an identity.json.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Self::parse(&text)
    }

    /// Keys that nobody knows, without a proof of work.
    pub fn random(rng: &mut Rng) -> Result<Self> {
        let mut secret = [0; 32];
        rng.fill(&mut secret);
        Self::parse(&identity(secret, Target::new(0.0), rng)?)
    }

    fn parse(text: &str) -> Result<Self> {
        let identity = Identity::parse(text)?;
        let fields: Value = serde_json::from_str(text)?;
        let digits = fields["proof_of_work_stamp"].as_str().unwrap_or_default();
        let mut stamp = [0; 24];
        for (at, byte) in stamp.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2).unwrap_or_default(), 16)?;
        }
        Ok(Self { identity, stamp })
    }
}

/// Makes an identity and writes its file, which only the owner can read.
pub fn make(out: &Path, difficulty: f64, seed: Option<u64>) -> Result<()> {
    let mut secret = [0; 32];
    let mut rng = Rng::with_seed(seed.unwrap_or_default());
    match seed {
        Some(_) => rng.fill(&mut secret),
        None => std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?,
    }
    let text = identity(secret, Target::new(difficulty), &mut rng)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options
        .open(out)
        .map_err(|e| format!("cannot write {}: {e}", out.display()))?;
    Ok(file.write_all(text.as_bytes())?)
}

/// The text of an identity whose stamp meets the target.
fn identity(secret: [u8; 32], target: Option<Target>, rng: &mut Rng) -> Result<String> {
    let target = target.ok_or("the difficulty is not between 0 and 256 bits")?;
    let public = *PublicKey::from(&StaticSecret::from(secret)).as_bytes();
    let mut stamp = [0; 24];
    rng.fill(&mut stamp);
    for count in 0u64.. {
        stamp[..8].copy_from_slice(&count.to_be_bytes());
        if target.is_met(&public, &stamp) {
            break;
        }
    }
    let identity = json!({
        "peer_id": PeerId::from_public_key(&public).to_string(),
        "public_key": Hex(&public).to_string(),
        "secret_key": Hex(&secret).to_string(),
        "proof_of_work_stamp": Hex(&stamp).to_string(),
    });
    Ok(serde_json::to_string_pretty(&identity)?)
}
