//! What is done to a packet's content before it is stored (RFC 5): compressed, then encrypted, then a checksum made.
//!
//! The RFC names the algorithms and leaves the rest open. The reading: a checksum is over the stored content, CRC-32 is that of
//! Ethernet and zlib, of MD5 and SHA-1 the first four bytes are kept. Encrypted content is a nonce of 12 bytes, the ciphertext
//! of AES-256 in GCM mode and its tag of 16; the packet header belongs to what is authenticated, with zeros for the size of the
//! content and the checksum, which are known later only.

use crate::constants::{MAX_UNPACK_RATIO, RFC_CHECKSUM, RFC_CONTENT_SIZE, UNPACK_ALLOWANCE};
use crate::description::Role;
use crate::error::DecodeErrorKind;
use crate::plan::Roles;
use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit};
use md5::Md5;
use sha1::{Digest, Sha1};
use std::io::Read;

/// A key for encrypted packets: 32 bytes, for AES-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// A key is not 32 bytes long, but so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError(pub usize);

impl std::fmt::Display for KeyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a key has 32 bytes, not {}", self.0)
    }
}

impl std::error::Error for KeyError {}

impl TryFrom<&[u8]> for Key {
    type Error = KeyError;

    fn try_from(bytes: &[u8]) -> Result<Key, KeyError> {
        bytes.try_into().map(Key).map_err(|_| KeyError(bytes.len()))
    }
}

/// What a packet header says was done to the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Schemes {
    compression: u64,
    encryption: u64,
    checksum: u64,
    /// As a number in the packet's byte order.
    stored: u32,
}

const NONCE_BYTES: usize = 12;

impl Schemes {
    pub(super) fn of(roles: &Roles) -> Schemes {
        let get = |role| roles.get(role).unwrap_or(0);
        Schemes {
            compression: get(Role::CompressionScheme),
            encryption: get(Role::EncryptionScheme),
            checksum: get(Role::ChecksumScheme),
            stored: get(Role::Checksum) as u32,
        }
    }

    /// Whether the content is stored as it is, without a checksum.
    pub(super) fn are_none(&self) -> bool {
        (self.compression, self.encryption, self.checksum) == (0, 0, 0)
    }

    /// Checks the stored content and undoes what was done to it; `None` where it is as it is stored.
    pub(super) fn unpack(
        &self,
        header: &[u8],
        stored: &[u8],
        key: Option<Key>,
    ) -> Result<Option<Vec<u8>>, DecodeErrorKind> {
        self.verify(header, stored)?;
        let compressed = match self.encryption {
            0 => None,
            1 => Some(decrypt(header, stored, key.ok_or(DecodeErrorKind::NoKey)?)?),
            other => return Err(DecodeErrorKind::EncryptionScheme(other)),
        };
        let bytes = compressed.as_deref().unwrap_or(stored);
        match self.compression {
            0 => Ok(compressed),
            1 => inflate(bzip2::bufread::MultiBzDecoder::new(bytes), bytes.len()).map(Some),
            2 => inflate(flate2::bufread::MultiGzDecoder::new(bytes), bytes.len()).map(Some),
            other => Err(DecodeErrorKind::CompressionScheme(other)),
        }
    }

    fn verify(&self, header: &[u8], stored: &[u8]) -> Result<(), DecodeErrorKind> {
        // Digests are bytes, not numbers.
        let first = |digest: &[u8]| digest.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let written = header.get(RFC_CHECKSUM).map_or(0, first);
        let (stored, computed) = match self.checksum {
            0 => return Ok(()),
            1 => (written, first(&Md5::digest(stored))),
            2 => (written, first(&Sha1::digest(stored))),
            3 => (self.stored, crc32fast::hash(stored)),
            other => return Err(DecodeErrorKind::ChecksumScheme(other)),
        };
        match stored == computed {
            true => Ok(()),
            false => Err(DecodeErrorKind::Checksum { stored, computed }),
        }
    }
}

fn decrypt(header: &[u8], stored: &[u8], key: Key) -> Result<Vec<u8>, DecodeErrorKind> {
    let (nonce, ciphertext) = stored
        .split_first_chunk::<NONCE_BYTES>()
        .ok_or(DecodeErrorKind::Decrypt)?;
    let mut authenticated = header.to_vec();
    for later in [RFC_CONTENT_SIZE, RFC_CHECKSUM] {
        if let Some(bytes) = authenticated.get_mut(later) {
            bytes.fill(0);
        }
    }
    let payload = Payload {
        msg: ciphertext,
        aad: &authenticated,
    };
    Aes256Gcm::new(&key.0.into())
        .decrypt(&(*nonce).into(), payload)
        .map_err(|_| DecodeErrorKind::Decrypt)
}

fn inflate(decoder: impl Read, stored: usize) -> Result<Vec<u8>, DecodeErrorKind> {
    let most = UNPACK_ALLOWANCE.saturating_add(MAX_UNPACK_RATIO.saturating_mul(stored as u64));
    let mut content = Vec::new();
    decoder
        .take(most + 1)
        .read_to_end(&mut content)
        .map_err(|_| DecodeErrorKind::Decompress)?;
    match content.len() as u64 <= most {
        true => Ok(content),
        false => Err(DecodeErrorKind::Bomb),
    }
}
