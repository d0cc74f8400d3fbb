//! Lists of modules: one that Swift wrote, and arbitrary bytes.

use backtrail_cbf::WordSize;
use backtrail_cbf::cif::{self, ErrorKind, Image, ImageMap};
use backtrail_testkit::{available, place};
use serde_json::Value;

fn captured() -> Option<(Vec<u8>, ImageMap)> {
    let shared = available(place::shared())?;
    let text = std::fs::read_to_string(shared.join("formats/cif-vectors.json")).expect("it is there");
    let value: Value = serde_json::from_str(&text).expect("it is JSON");
    let bytes = |text: &str| {
        let digits = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.map(byte).collect::<Vec<u8>>()
    };
    let number = |value: &Value| u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    let decoded = &value["decoded"];
    let images = decoded["images"].as_array().unwrap().iter().map(|image| Image {
        base: number(&image["base"]),
        end_of_text: number(&image["end_of_text"]),
        build_id: bytes(image["build_id"].as_str().unwrap_or_default()),
        path: image["path"].as_str().unwrap_or_default().to_owned(),
    });
    let map = ImageMap {
        word: WordSize::Bits64,
        platform: decoded["platform"].as_str().unwrap().to_owned(),
        images: images.collect(),
    };
    Some((bytes(value["hex"].as_str().unwrap()), map))
}

#[test]
fn what_swift_wrote_is_read_and_written_alike() {
    let Some((bytes, map)) = captured() else { return };
    assert_eq!(map.images.len(), 22);
    assert_eq!(cif::decode(&bytes), Ok(map.clone()));
    assert_eq!(cif::encode(&map), bytes);
}

#[test]
fn every_prefix_of_it_is_an_error_and_no_change_a_panic() {
    let Some((bytes, _)) = captured() else { return };
    for len in 0..bytes.len() {
        let error = cif::decode(&bytes[..len]).expect_err("it is cut off");
        assert!(error.offset <= len as u64, "{error}");
    }
    for at in 0..bytes.len() {
        for change in [1, 0x40, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            if let Ok(map) = cif::decode(&changed) {
                let longest = map.images.iter().map(|image| image.path.len()).sum::<usize>();
                assert!(longest <= 64 * 3 * changed.len());
            }
        }
    }
}

#[test]
fn many_images_with_strange_paths_come_back() {
    let images = (0..500u64).map(|index| Image {
        base: 0x1000 * index + if index > 300 { 0xffff_8000_0000_0000 } else { 0 },
        end_of_text: 0x1000 * index + 0x800 + if index > 300 { 0xffff_8000_0000_0000 } else { 0 },
        build_id: vec![index as u8; (index % 300) as usize],
        path: match index % 4 {
            0 => String::new(),
            1 => format!("/opt/lib/a{index}/b{}/c", index / 7),
            2 => format!("relative{index}/{}", "x".repeat(150)),
            _ => "/".repeat(index as usize % 70),
        },
    });
    let map = ImageMap {
        word: WordSize::Bits64,
        platform: "Linux".to_owned(),
        images: images.collect(),
    };
    assert_eq!(cif::decode(&cif::encode(&map)), Ok(map));
}

#[test]
fn errors_say_where() {
    let kind = |bytes: &[u8]| cif::decode(bytes).map_err(|error| (error.kind, error.offset));
    assert_eq!(kind(&[]), Err((ErrorKind::Truncated, 0)));
    assert_eq!(kind(&[6, 0, 0]), Err((ErrorKind::Version(1), 0)));
    assert_eq!(kind(&[3, 0, 0]), Err((ErrorKind::ReservedWordSize, 0)));
    assert_eq!(
        kind(&[2, 0, 0xff, 0xff, 0xff, 0x7f]),
        Err((ErrorKind::Count((1 << 28) - 1), 2))
    );
    assert_eq!(kind(&[2, 0, 1, 0x40]), Err((ErrorKind::Reserved(0x40), 3)));
    assert_eq!(kind(&[2, 0, 1, 0, 1, 0xff]), Err((ErrorKind::EndOfText, 3)));
    assert_eq!(kind(&[2, 0, 1, 0, 1, 1, 0, 0xa0]), Err((ErrorKind::Prefix(32), 7)));
}
