//! Parcels that nobody else can read or forge.

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use std::io;

const NONCE: usize = 24;
const PLAIN: u8 = 0;
const SEALED: u8 = 1;

/// A key that sender and receiver share. Parcels are encrypted and authenticated by
/// XChaCha20-Poly1305, each with a random nonce, together with its session and its number.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The key with these bytes.
    pub fn new(key: [u8; 32]) -> Secret {
        Secret(key)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn place(session: u64, number: u64) -> [u8; 16] {
    let mut place = [0; 16];
    let (first, second) = place.split_at_mut(8);
    first.copy_from_slice(&session.to_le_bytes());
    second.copy_from_slice(&number.to_le_bytes());
    place
}

/// The bytes that are sent of a parcel.
pub(super) fn seal(secret: Option<&Secret>, session: u64, number: u64, parcel: &[u8]) -> io::Result<Vec<u8>> {
    let Some(secret) = secret else {
        return Ok([&[PLAIN], parcel].concat());
    };
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    let payload = Payload {
        msg: parcel,
        aad: &place(session, number),
    };
    let sealed = XChaCha20Poly1305::new(&secret.0.into()).encrypt(&nonce.into(), payload);
    let sealed = sealed.map_err(|_| io::Error::other("packet is too long to be encrypted"))?;
    Ok([&[SEALED], nonce.as_slice(), &sealed].concat())
}

/// Why received bytes are no parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// They are not encrypted, but there is a key.
    Plain,
    /// They are encrypted, but there is no key.
    NoKey,
    /// They were encrypted with another key, or changed.
    Forged,
    Malformed,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OpenError::Plain => "not encrypted, but a key was given",
            OpenError::NoKey => "encrypted, and no key was given",
            OpenError::Forged => "encrypted with another key, or changed on the way",
            OpenError::Malformed => "malformed",
        })
    }
}

/// The parcel in bytes that were received.
pub(super) fn open(secret: Option<&Secret>, session: u64, number: u64, bytes: &[u8]) -> Result<Vec<u8>, OpenError> {
    let (&form, rest) = bytes.split_first().ok_or(OpenError::Malformed)?;
    match (form, secret) {
        (PLAIN, None) => Ok(rest.to_vec()),
        (PLAIN, Some(_)) => Err(OpenError::Plain),
        (SEALED, None) => Err(OpenError::NoKey),
        (SEALED, Some(secret)) => {
            let (nonce, sealed) = rest.split_first_chunk::<NONCE>().ok_or(OpenError::Malformed)?;
            let payload = Payload {
                msg: sealed,
                aad: &place(session, number),
            };
            let opened = XChaCha20Poly1305::new(&secret.0.into()).decrypt(&(*nonce).into(), payload);
            opened.map_err(|_| OpenError::Forged)
        }
        _ => Err(OpenError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_opens_what_was_not_changed() {
        let (secret, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let sealed = seal(Some(&secret), 3, 4, b"parcel").unwrap();
        assert_eq!(open(Some(&secret), 3, 4, &sealed).unwrap(), b"parcel");
        assert_eq!(open(Some(&other), 3, 4, &sealed), Err(OpenError::Forged));
        assert_eq!(open(Some(&secret), 3, 5, &sealed), Err(OpenError::Forged));
        assert_eq!(open(Some(&secret), 2, 4, &sealed), Err(OpenError::Forged));
        assert_eq!(open(None, 3, 4, &sealed), Err(OpenError::NoKey));
        for place in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[place] ^= 1;
            assert!(open(Some(&secret), 3, 4, &changed).is_err(), "{place}");
        }
        let plain = seal(None, 3, 4, b"parcel").unwrap();
        assert_eq!(open(None, 3, 4, &plain).unwrap(), b"parcel");
        assert_eq!(open(Some(&secret), 3, 4, &plain), Err(OpenError::Plain));
        assert_eq!(open(None, 3, 4, b""), Err(OpenError::Malformed));
    }
}
