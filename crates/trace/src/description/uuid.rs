//! Converts UUIDs to and from text.

/// A UUID from its usual text, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 {
        return None;
    }
    let mut digits = 0usize;
    let mut uuid = [0u8; 16];
    for (index, &byte) in bytes.iter().enumerate() {
        if matches!(index, 8 | 13 | 18 | 23) {
            if byte != b'-' {
                return None;
            }
            continue;
        }
        let digit = char::from(byte).to_digit(16)? as u8;
        uuid[digits / 2] = uuid[digits / 2] << 4 | digit;
        digits += 1;
    }
    Some(uuid)
}

/// The usual text of a UUID.
pub fn format_uuid(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids() {
        let text = "43011dd4-bab2-40f1-81de-47f9f9f3bd33";
        assert_eq!(format_uuid(&parse_uuid(text).unwrap()), text);
        for bad in [
            "",
            "43011dd4-bab2-40f1-81de-47f9f9f3bd3",
            "43011dd4xbab2-40f1-81de-47f9f9f3bd33",
            "43011dd4-bab2-40f1-81de-47f9f9f3bd3g",
        ] {
            assert_eq!(parse_uuid(bad), None);
        }
    }
}
