//! Any bytes: a list of modules that can be read survives a round trip unchanged.

use backtrail_cbf::cif;

/// Reads `data` as a Compact ImageMap.
pub fn cif(data: &[u8]) {
    match cif::decode(data) {
        Ok(map) => {
            let again = cif::decode(&cif::encode(&map)).expect("what was written can be read");
            assert_eq!(again.images, map.images);
        }
        Err(error) => assert!(error.offset <= data.len() as u64, "{error}"),
    }
}
