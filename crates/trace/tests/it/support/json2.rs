//! A trace with the classes of fields that only CTF 2 has.

/// Its metadata: a single event class without a clock.
pub(crate) const METADATA: &str = concat!(
    "\u{1e}",
    r#"{"type": "preamble", "version": 2}"#,
    "\n",
    "\u{1e}",
    r#"{"type": "data-stream-class"}"#,
    "\n",
    "\u{1e}",
    r#"{"type": "event-record-class", "name": "x", "payload-field-class": {"type": "structure", "member-classes": ["#,
    r#"{"name": "v", "field-class": {"type": "variable-length-unsigned-integer"}},"#,
    r#"{"name": "w", "field-class": {"type": "variable-length-signed-integer", "preferred-display-base": 16}},"#,
    r#"{"name": "e", "field-class": {"type": "variable-length-unsigned-integer", "mappings": {"big": [[1000, 2000]]}}},"#,
    r#"{"name": "b", "field-class": {"type": "fixed-length-boolean", "length": 8, "byte-order": "little-endian", "alignment": 8}},"#,
    r#"{"name": "o", "field-class": {"type": "optional", "selector-field-location": {"path": ["b"]}, "field-class": {"type": "fixed-length-unsigned-integer", "length": 16, "alignment": 8, "byte-order": "little-endian"}}},"#,
    r#"{"name": "n", "field-class": {"type": "fixed-length-unsigned-integer", "length": 8, "alignment": 8, "byte-order": "little-endian"}},"#,
    r#"{"name": "p", "field-class": {"type": "optional", "selector-field-location": {"path": ["n"]}, "selector-field-ranges": [[1, 2], [5, 5]], "field-class": {"type": "structure", "member-classes": [{"name": "q", "field-class": {"type": "fixed-length-unsigned-integer", "length": 8, "alignment": 8, "byte-order": "little-endian"}}]}}},"#,
    r#"{"name": "a", "field-class": {"type": "fixed-length-bit-array", "length": 16, "byte-order": "big-endian", "alignment": 8}},"#,
    r#"{"name": "blob", "field-class": {"type": "dynamic-length-blob", "length-field-location": {"path": ["n"]}}},"#,
    r#"{"name": "sblob", "field-class": {"type": "static-length-blob", "length": 3, "media-type": "image/png"}},"#,
    r#"{"name": "ds", "field-class": {"type": "dynamic-length-string", "length-field-location": {"path": ["n"]}}},"#,
    r#"{"name": "da", "field-class": {"type": "dynamic-length-array", "length-field-location": {"path": ["n"]}, "element-field-class": {"type": "variable-length-unsigned-integer"}}},"#,
    r#"{"name": "dopt", "field-class": {"type": "static-length-array", "length": 2, "element-field-class": {"type": "optional", "selector-field-location": {"path": ["b"]}, "field-class": {"type": "fixed-length-unsigned-integer", "length": 8, "alignment": 8, "byte-order": "little-endian"}}}},"#,
    r#"{"name": "s16", "field-class": {"type": "null-terminated-string", "encoding": "utf-16le"}},"#,
    r#"{"name": "d16", "field-class": {"type": "static-length-string", "length": 6, "encoding": "utf-16be"}},"#,
    r#"{"name": "s32", "field-class": {"type": "null-terminated-string", "encoding": "utf-32le"}},"#,
    r#"{"name": "r", "field-class": {"type": "fixed-length-signed-integer", "length": 12, "byte-order": "little-endian", "bit-order": "last-to-first", "alignment": 8}},"#,
    r#"{"name": "t", "field-class": {"type": "fixed-length-unsigned-integer", "length": 4, "byte-order": "little-endian", "preferred-display-base": 2}}"#,
    "]}}\n",
);

/// An event: `b` is the boolean, `n` the length and the tag of what is optional.
pub(crate) fn event(b: u8, n: u8) -> Vec<u8> {
    // 300000 and -129 in LEB128.
    let mut event = vec![0xe0, 0xa7, 0x12, 0xff, 0x7e];
    match b {
        0 => event.push(3),
        _ => event.extend([0xdc, 0x0b]),
    }
    event.push(b);
    if b != 0 {
        event.extend([0x34, 0x12]);
    }
    event.push(n);
    if matches!(n, 1 | 2 | 5) {
        event.push(9);
    }
    event.extend([0x80, 0x01]);
    event.extend(0..n);
    event.extend([0x01, 0xff, 0x10]);
    event.extend(&b"hello world"[..usize::from(n)]);
    for index in 0..u16::from(n) {
        let value = index * 200;
        match value {
            0..128 => event.push(value as u8),
            _ => event.extend([value as u8 | 0x80, (value >> 7) as u8]),
        }
    }
    if b != 0 {
        event.extend([1, 2]);
    }
    event.extend("hé€\0".encode_utf16().flat_map(u16::to_le_bytes));
    event.extend("a😀".encode_utf16().flat_map(u16::to_be_bytes));
    event.extend("z€\0".chars().flat_map(|character| u32::from(character).to_le_bytes()));
    // Twelve bits from the last to the first, and four from the first to the last.
    event.extend([0x12, 0x74]);
    event
}
