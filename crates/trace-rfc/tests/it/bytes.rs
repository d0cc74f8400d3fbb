//! Traces of the RFC's dialect, byte by byte: nothing of the crate's own reading is in them.

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit};
use backtrail_wire::Endian;
use std::io::Write;

/// What a packet header says besides sizes and checksum.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) order: Endian,
    pub(crate) session: u32,
    pub(crate) count: u32,
    pub(crate) count_bits: u8,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) discarded: u32,
    pub(crate) compression: u8,
    pub(crate) encryption: u8,
    pub(crate) checksum: u8,
}

pub(crate) const SESSION: u32 = 0x0102_0304;
pub(crate) const KEY: [u8; 32] = *b"0123456789abcdef0123456789ABCDEF";

impl Header {
    pub(crate) fn new(order: Endian) -> Header {
        Header {
            order,
            session: SESSION,
            count: 0,
            count_bits: 32,
            begin: 0,
            end: 0,
            discarded: 0,
            compression: 0,
            encryption: 0,
            checksum: 0,
        }
    }
}

pub(crate) fn u16(order: Endian, value: u16) -> [u8; 2] {
    match order {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

pub(crate) fn u32(order: Endian, value: u32) -> [u8; 4] {
    match order {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

pub(crate) fn u64(order: Endian, value: u64) -> [u8; 8] {
    match order {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

/// A packet with `padding` bytes after its content.
pub(crate) fn packet(header: Header, content: &[u8], padding: usize) -> Vec<u8> {
    let Header { order, .. } = header;
    let head = |content_size: u32, packet_size: u32, checksum: [u8; 4]| {
        let mut bytes = Vec::new();
        for field in [0xc1fc_1fc1, header.session, content_size, packet_size] {
            bytes.extend(u32(order, field));
        }
        bytes.extend(checksum);
        bytes.extend(u32(order, header.count));
        bytes.extend(u64(order, header.begin));
        bytes.extend(u64(order, header.end));
        bytes.extend(u32(order, header.discarded));
        bytes.extend([
            header.count_bits,
            header.compression,
            header.encryption,
            header.checksum,
        ]);
        assert_eq!(bytes.len(), 48);
        bytes
    };
    let mut stored = match header.compression {
        1 => {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        2 => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        _ => content.to_vec(),
    };
    if header.encryption == 1 {
        // The sizes are not known before: the packet's is 12 + 16 bytes more than what is
        // encrypted.
        let size = (48 + stored.len() + 28 + padding) as u32;
        let nonce = [7u8; 12];
        let payload = Payload {
            msg: &stored,
            aad: &head(0, size, [0; 4]),
        };
        let sealed = Aes256Gcm::new(&KEY.into()).encrypt(&nonce.into(), payload).unwrap();
        stored = [nonce.as_slice(), &sealed].concat();
    }
    let checksum = match header.checksum {
        // Of the first four bytes that md5sum and sha1sum print.
        1 => <[u8; 4]>::try_from(&<md5::Md5 as md5::Digest>::digest(&stored)[..4]).unwrap(),
        2 => <[u8; 4]>::try_from(&<sha1::Sha1 as sha1::Digest>::digest(&stored)[..4]).unwrap(),
        3 => u32(order, crc32fast::hash(&stored)),
        _ => [0; 4],
    };
    let content_size = 48 + stored.len() as u32;
    let mut bytes = head(content_size, content_size + padding as u32, checksum);
    bytes.extend(stored);
    bytes.resize(bytes.len() + padding, 0);
    bytes
}

/// A metadata file with all entries in one packet.
pub(crate) fn metadata(order: Endian, entries: &[&str]) -> Vec<u8> {
    let mut content = Vec::new();
    for entry in entries {
        content.extend(entry.as_bytes());
        content.push(0);
    }
    packet(Header::new(order), &content, 16)
}

/// The types of an architecture; `natural`: aligned as they are large.
pub(crate) fn types(natural: bool) -> String {
    let mut text = "trace { major = 1; minor = 1; }\n".to_owned();
    for size in [8, 16, 32, 64] {
        let align = if natural { size } else { 8 };
        text += &format!("type uint{size}_t {{ parent = integer; size = {size}; align = {align}; }}\n");
        text += &format!("type int{size}_t {{ parent = integer; size = {size}; signed = true; align = {align}; }}\n");
    }
    text
}

/// A section.
pub(crate) fn section(name: &str, header_type: u8) -> String {
    format!(
        "section {{ name = {name}; event {{ header_type = type{header_type}; context {{ event_size = false; }} }} }}"
    )
}

/// An event with these fields.
pub(crate) fn event(name: &str, id: u32, section: &str, fields: &str) -> String {
    format!(
        "event {{ name = {name}; id = {id}; section = {section}; fields = type {{ parent = struct; fields = {{ {fields} }}; }}; }}"
    )
}
