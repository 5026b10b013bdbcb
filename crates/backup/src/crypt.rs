//! Encryption before the upload: a stream of sealed chunks, after the STREAM construction.
//!
//! Each file has a key of its own, derived (HKDF-SHA-256) from the user's key, a random salt and the file's header. Each
//! chunk of 64 KiB is sealed with AES-256-GCM; its nonce is the number of the chunk and whether it is the last one, so
//! that chunks that are cut off, left out, doubled or moved do not open. The header carries a value that only the right
//! key gives: a wrong key is told apart from a harmed file.

use base64::Engine;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of plain text in a chunk.
pub(crate) const CHUNK: usize = 64 << 10;
/// Bytes that sealing adds.
const TAG: usize = 16;
/// A full chunk as it is stored.
pub(crate) const SEALED: usize = CHUNK + TAG;
pub(crate) const SALT: usize = 32;
pub(crate) const CHECK: usize = 16;

/// The user's key.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is not 32 bytes.
    #[error("the key for encryption is neither 32 bytes nor their base64: make one with `head -c 32 /dev/urandom`")]
    Length,
    /// The machine gives no random numbers, or the library refuses.
    #[error("the key for encryption cannot be used: the system gives no random numbers")]
    Crypto,
}

impl Key {
    /// From the content of the secret's key: 32 bytes, or their base64 with or without a line end.
    pub fn read(content: &[u8]) -> Result<Self, KeyError> {
        if let Ok(bytes) = content.try_into() {
            return Ok(Self(bytes));
        }
        let text = content.trim_ascii();
        let engine = base64::engine::general_purpose::STANDARD;
        let bytes = engine.decode(text).map_err(|_| KeyError::Length)?;
        bytes.try_into().map(Self).map_err(|_| KeyError::Length)
    }

    /// The key of one file and its check value.
    fn derive(&self, salt: &[u8], header: &[u8]) -> Result<(LessSafeKey, [u8; CHECK]), KeyError> {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let pseudo_random = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&self.0);
        let mut both = [0_u8; 32 + CHECK];
        pseudo_random
            .expand(&[b"stateward backup", header], Length(both.len()))
            .and_then(|expanded| expanded.fill(&mut both))
            .map_err(|_| KeyError::Crypto)?;
        let key = UnboundKey::new(&AES_256_GCM, &both[..32]).map_err(|_| KeyError::Crypto)?;
        let mut check = [0; CHECK];
        check.copy_from_slice(&both[32..]);
        Ok((LessSafeKey::new(key), check))
    }
}

fn nonce(number: u64, last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = u8::from(last);
    Nonce::assume_unique_for_key(bytes)
}

/// Seals chunks one after another.
pub(crate) struct Sealer {
    key: LessSafeKey,
    number: u64,
    waiting: Vec<u8>,
}

impl Sealer {
    /// A new file: the sealer, and what belongs behind the header (salt and check value).
    pub(crate) fn new(key: &Key, header: &[u8]) -> Result<(Self, Vec<u8>), KeyError> {
        let mut salt = [0; SALT];
        SystemRandom::new().fill(&mut salt).map_err(|_| KeyError::Crypto)?;
        let (key, check) = key.derive(&salt, header)?;
        let sealer = Self {
            key,
            number: 0,
            waiting: Vec::with_capacity(SEALED),
        };
        Ok((sealer, [&salt[..], &check[..]].concat()))
    }

    /// Takes plain text, and adds to `out` the chunks that are full.
    pub(crate) fn push(&mut self, mut plain: &[u8], out: &mut Vec<u8>) -> Result<(), KeyError> {
        while !plain.is_empty() {
            // A full chunk waits for one more byte: only then it is certain not to be the last.
            if self.waiting.len() == CHUNK {
                self.seal(false, out)?;
            }
            let (fits, rest) = plain.split_at(plain.len().min(CHUNK - self.waiting.len()));
            self.waiting.extend_from_slice(fits);
            plain = rest;
        }
        Ok(())
    }

    /// Adds the last chunk, which may be empty.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), KeyError> {
        self.seal(true, out)
    }

    fn seal(&mut self, last: bool, out: &mut Vec<u8>) -> Result<(), KeyError> {
        let nonce = nonce(self.number, last);
        self.number += 1;
        self.key
            .seal_in_place_append_tag(nonce, Aad::empty(), &mut self.waiting)
            .map_err(|_| KeyError::Crypto)?;
        out.extend_from_slice(&self.waiting);
        self.waiting.clear();
        Ok(())
    }
}

/// Opens chunks one after another.
pub(crate) struct Opener {
    key: LessSafeKey,
    number: u64,
}

/// Why a chunk, or the first of them, does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    WrongKey,
    Harmed,
}

impl Opener {
    pub(crate) fn new(key: &Key, header: &[u8], salt: &[u8], check: &[u8]) -> Result<Self, Closed> {
        let (key, expected) = key.derive(salt, header).map_err(|_| Closed::Harmed)?;
        if expected != check {
            return Err(Closed::WrongKey);
        }
        Ok(Self { key, number: 0 })
    }

    /// Opens the next chunk in place; `last` when nothing follows it.
    pub(crate) fn open<'a>(&mut self, chunk: &'a mut [u8], last: bool) -> Result<&'a [u8], Closed> {
        let nonce = nonce(self.number, last);
        self.number += 1;
        let plain = self.key.open_in_place(nonce, Aad::empty(), chunk);
        plain.map(|plain| &*plain).map_err(|_| Closed::Harmed)
    }
}
