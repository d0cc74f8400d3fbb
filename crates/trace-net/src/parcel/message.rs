//! Parcels as bytes. Numbers are little-endian; texts have their length in two bytes before them.

use backtrail_wire::{Bytes, Cursor, Endian};

/// What a sender passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parcel {
    /// All of a trace's metadata, as it is now.
    Metadata { directory: String, bytes: Vec<u8> },
    /// A packet of a stream, and its number in it, from 0 on.
    Packet {
        directory: String,
        stream: String,
        count: u64,
        bytes: Vec<u8>,
    },
    /// Nothing more comes: the number of packets of each stream.
    End { streams: Vec<(String, String, u64)> },
}

const METADATA: u8 = 1;
const PACKET: u8 = 2;
const END: u8 = 3;

impl Parcel {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Parcel::Metadata { directory, bytes } => {
                out.push(METADATA);
                put_text(&mut out, directory);
                out.extend(bytes);
            }
            Parcel::Packet {
                directory,
                stream,
                count,
                bytes,
            } => {
                out.push(PACKET);
                put_text(&mut out, directory);
                put_text(&mut out, stream);
                out.extend(count.to_le_bytes());
                out.extend(bytes);
            }
            Parcel::End { streams } => {
                out.push(END);
                for (directory, stream, count) in streams {
                    put_text(&mut out, directory);
                    put_text(&mut out, stream);
                    out.extend(count.to_le_bytes());
                }
            }
        }
        out
    }

    /// `None` if it is not one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Parcel> {
        let mut cursor = Bytes::new(bytes, Endian::Little).cursor(0);
        match cursor.u8().ok()? {
            METADATA => Some(Parcel::Metadata {
                directory: text(&mut cursor)?,
                bytes: bytes.get(cursor.offset()..)?.to_vec(),
            }),
            PACKET => Some(Parcel::Packet {
                directory: text(&mut cursor)?,
                stream: text(&mut cursor)?,
                count: cursor.u64().ok()?,
                bytes: bytes.get(cursor.offset()..)?.to_vec(),
            }),
            END => {
                let mut streams = Vec::new();
                while cursor.offset() < bytes.len() {
                    streams.push((text(&mut cursor)?, text(&mut cursor)?, cursor.u64().ok()?));
                }
                Some(Parcel::End { streams })
            }
            _ => None,
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // No path is longer.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend(length.to_le_bytes());
    out.extend(text.bytes().take(usize::from(length)));
}

fn text(cursor: &mut Cursor<'_>) -> Option<String> {
    let length = cursor.u16().ok()?;
    let bytes = cursor.slice(usize::from(length)).ok()?;
    String::from_utf8(bytes.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let (directory, stream) = ("host/app".to_owned(), "main_0".to_owned());
        let parcels = [
            Parcel::Metadata {
                directory: directory.clone(),
                bytes: b"/* CTF 1.8 */".to_vec(),
            },
            Parcel::Packet {
                directory: directory.clone(),
                stream: stream.clone(),
                count: 7,
                bytes: vec![1, 2, 3],
            },
            Parcel::End {
                streams: vec![(directory, stream, 8), (String::new(), "other".to_owned(), 0)],
            },
        ];
        for parcel in parcels {
            let bytes = parcel.encode();
            assert_eq!(Parcel::decode(&bytes), Some(parcel.clone()));
            for length in 0..bytes.len() {
                assert_ne!(Parcel::decode(&bytes[..length]), Some(parcel.clone()));
            }
        }
    }
}
