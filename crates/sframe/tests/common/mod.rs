//! Helpers of several tests: the corpus, and a second reader.
#![allow(dead_code)]

#[path = "../../../../fuzz/targets/src/differential.rs"]
pub(crate) mod differential;
#[path = "../../../../fuzz/targets/src/naive.rs"]
pub(crate) mod naive;

use std::path::PathBuf;

/// A section with the text that a binutils version prints for it.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) text: String,
}

/// The shared corpus; `None`, with a message, if it isn't there.
pub(crate) fn corpus() -> Option<Vec<Case>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/corpus/sframe"));
    let Ok(entries) = std::fs::read_dir(folder) else {
        backtrail_testkit::skip("the shared SFrame corpus is not there");
        return None;
    };
    let mut cases: Vec<Case> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let bytes = json["content"].as_array().unwrap().iter();
            Case {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                address: json["section_base"].as_u64().unwrap(),
                bytes: bytes.map(|byte| byte.as_u64().unwrap() as u8).collect(),
                text: json["groundtruth"].as_str().unwrap().to_owned(),
            }
        })
        .collect();
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    Some(cases)
}
