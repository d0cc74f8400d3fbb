//! What is done to a packet's content before it is stored (RFC 5): compressed, then encrypted, then
//! a checksum made.
//!
//! The RFC names the algorithms and leaves the rest open. The reading: a checksum is over the
//! stored content, CRC-32 is that of Ethernet and zlib, of MD5 and SHA-1 the first four bytes are
//! kept. Encrypted content is a nonce of 12 bytes, the ciphertext of AES-256 in GCM mode and its
//! tag of 16; the packet header belongs to what is authenticated, with zeros for the size of the
//! content and the checksum, which are known later only.

use crate::constants::{CHECKSUM, CONTENT_SIZE, MAX_UNPACK_RATIO, PACKET_HEADER_BYTES, UNPACK_ALLOWANCE};
use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit};
use backtrail_trace::content::{ContentDecoder, ContentEncoder, PutHeader, StoredPacket};
use backtrail_trace::description::Role;
use backtrail_trace::{DecodeErrorKind, EncodeError};
use backtrail_wire::Endian;
use md5::Md5;
use sha1::{Digest, Sha1};
use std::borrow::Cow;
use std::io::{Read, Write};

/// A key for encrypted packets: 32 bytes, for AES-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The length of a key that is not 32 bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError(pub usize);

impl std::fmt::Display for KeyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a key has 32 bytes, not {}", self.0)
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// Its bytes.
    pub fn bytes(self) -> [u8; 32] {
        self.0
    }
}

impl TryFrom<&[u8]> for Key {
    type Error = KeyError;

    fn try_from(bytes: &[u8]) -> Result<Key, KeyError> {
        bytes.try_into().map(Key).map_err(|_| KeyError(bytes.len()))
    }
}

/// How a packet's content is compressed (RFC 5). The numbers are those of the packet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None = 0,
    /// By bzip2.
    Bzip2 = 1,
    /// By gzip.
    Gzip = 2,
}

/// What shows that a packet's content is what was written (RFC 5). The numbers are those of the
/// packet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Checksum {
    /// Nothing.
    None = 0,
    /// The first four bytes of its MD5 digest.
    Md5 = 1,
    /// The first four bytes of its SHA-1 digest.
    Sha1 = 2,
    /// Its CRC-32.
    #[default]
    Crc32 = 3,
}

/// What is done to the content of the packets that are written: nothing but a CRC-32 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// How it is compressed.
    pub compression: Compression,
    /// The key with which it is encrypted by AES-256; `None`: it is not.
    pub encryption: Option<Key>,
    /// What is kept to check it by.
    pub checksum: Checksum,
}

impl Packing {
    /// Nothing at all is done to the content.
    pub const NONE: Packing = Packing {
        compression: Compression::None,
        encryption: None,
        checksum: Checksum::None,
    };

    /// The content as it is before it is encrypted.
    fn compress<'c>(&self, content: &'c [u8]) -> Result<Cow<'c, [u8]>, EncodeError> {
        let compressed = match self.compression {
            Compression::None => return Ok(Cow::Borrowed(content)),
            Compression::Bzip2 => {
                let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
                encoder.write_all(content).and_then(|()| encoder.finish())
            }
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(content).and_then(|()| encoder.finish())
            }
        };
        compressed.map(Cow::Owned).map_err(|_| EncodeError::Compress)
    }

    /// Bytes that encryption adds.
    fn encryption_bytes(&self) -> usize {
        match self.encryption {
            Some(_) => NONCE_BYTES + TAG_BYTES,
            None => 0,
        }
    }

    /// Encrypts compressed content under a header with all but the size of the content and the
    /// checksum.
    fn encrypt<'c>(&self, header: &[u8], content: Cow<'c, [u8]>) -> Result<Cow<'c, [u8]>, EncodeError> {
        let Some(key) = self.encryption else {
            return Ok(content);
        };
        // A nonce must never come twice with a key, whoever else uses it: nothing but chance can
        // promise that.
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| EncodeError::Random)?;
        let authenticated = authenticated(header);
        let payload = Payload {
            msg: &content,
            aad: &authenticated,
        };
        let sealed = Aes256Gcm::new(&key.0.into()).encrypt(&nonce.into(), payload);
        let sealed = sealed.map_err(|_| EncodeError::TooLarge)?;
        Ok(Cow::Owned([nonce.as_slice(), &sealed].concat()))
    }

    /// The four bytes of the checksum of what is stored, in a packet of this byte order.
    fn sum(&self, stored: &[u8], order: Endian) -> [u8; 4] {
        match (self.checksum, order) {
            (Checksum::None, _) => [0; 4],
            (Checksum::Md5, _) => first(&Md5::digest(stored)),
            (Checksum::Sha1, _) => first(&Sha1::digest(stored)),
            (Checksum::Crc32, Endian::Little) => crc32fast::hash(stored).to_le_bytes(),
            (Checksum::Crc32, Endian::Big) => crc32fast::hash(stored).to_be_bytes(),
        }
    }
}

impl ContentEncoder for Packing {
    fn number(&self, role: Role) -> Option<u64> {
        Some(match role {
            Role::CompressionScheme => self.compression as u64,
            Role::EncryptionScheme => u64::from(self.encryption.is_some()),
            Role::ChecksumScheme => self.checksum as u64,
            _ => return None,
        })
    }

    fn store(
        &self,
        content: &[u8],
        align: usize,
        order: Endian,
        out: &mut Vec<u8>,
        put_header: &mut PutHeader<'_>,
    ) -> Result<(), EncodeError> {
        let compressed = self.compress(content)?;
        let end = PACKET_HEADER_BYTES + compressed.len() + self.encryption_bytes();
        let size = end.next_multiple_of(align.max(1));
        u32::try_from(size).map_err(|_| EncodeError::TooLarge)?;
        out.clear();
        out.reserve(size);
        put_header(out, end as u64, size as u64)?;
        if out.len() != PACKET_HEADER_BYTES {
            return Err(EncodeError::Packing);
        }
        let stored = self.encrypt(out, compressed)?;
        let sum = self.sum(&stored, order);
        out.get_mut(CHECKSUM)
            .ok_or(EncodeError::Unwritable)?
            .copy_from_slice(&sum);
        out.extend_from_slice(&stored);
        out.resize(size, 0);
        Ok(())
    }
}

/// Of a digest its first bytes are kept: they are bytes, not a number.
fn first(digest: &[u8]) -> [u8; 4] {
    digest.first_chunk().copied().unwrap_or_default()
}

const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// Undoes what was done to packets, and checks them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unpacking {
    /// For encrypted packets.
    pub(crate) key: Option<Key>,
}

impl ContentDecoder for Unpacking {
    fn decode(&self, packet: &StoredPacket<'_>) -> Result<Option<Vec<u8>>, DecodeErrorKind> {
        verify(packet)?;
        let (header, stored) = (packet.header(), packet.content());
        let compressed = match packet.number(Role::EncryptionScheme).unwrap_or(0) {
            0 => None,
            1 => Some(decrypt(header, stored, self.key.ok_or(DecodeErrorKind::NoKey)?)?),
            other => return Err(DecodeErrorKind::EncryptionScheme(other)),
        };
        let bytes = compressed.as_deref().unwrap_or(stored);
        match packet.number(Role::CompressionScheme).unwrap_or(0) {
            0 => Ok(compressed),
            1 => inflate(bzip2::bufread::MultiBzDecoder::new(bytes), bytes.len()).map(Some),
            2 => inflate(flate2::bufread::MultiGzDecoder::new(bytes), bytes.len()).map(Some),
            other => Err(DecodeErrorKind::CompressionScheme(other)),
        }
    }
}

fn verify(packet: &StoredPacket<'_>) -> Result<(), DecodeErrorKind> {
    let stored = packet.content();
    let written = packet.header().get(CHECKSUM).map_or([0; 4], first);
    let digests = |digest: [u8; 4]| (u32::from_be_bytes(written), u32::from_be_bytes(digest));
    let (stored, computed) = match packet.number(Role::ChecksumScheme).unwrap_or(0) {
        0 => return Ok(()),
        1 => digests(first(&Md5::digest(stored))),
        2 => digests(first(&Sha1::digest(stored))),
        3 => {
            let number = packet.number(Role::Checksum).unwrap_or(0);
            (number as u32, crc32fast::hash(stored))
        }
        other => return Err(DecodeErrorKind::ChecksumScheme(other)),
    };
    match stored == computed {
        true => Ok(()),
        false => Err(DecodeErrorKind::Checksum { stored, computed }),
    }
}

fn decrypt(header: &[u8], stored: &[u8], key: Key) -> Result<Vec<u8>, DecodeErrorKind> {
    let (nonce, ciphertext) = stored
        .split_first_chunk::<NONCE_BYTES>()
        .ok_or(DecodeErrorKind::Decrypt)?;
    let authenticated = authenticated(header);
    let payload = Payload {
        msg: ciphertext,
        aad: &authenticated,
    };
    Aes256Gcm::new(&key.0.into())
        .decrypt(&(*nonce).into(), payload)
        .map_err(|_| DecodeErrorKind::Decrypt)
}

/// The header as it is authenticated: what is known only later is zero.
fn authenticated(header: &[u8]) -> Vec<u8> {
    let mut authenticated = header.to_vec();
    for later in [CONTENT_SIZE, CHECKSUM] {
        if let Some(bytes) = authenticated.get_mut(later) {
            bytes.fill(0);
        }
    }
    authenticated
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
