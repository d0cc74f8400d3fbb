//! Small traces that are accepted or refused, held against babeltrace2 2.1.

use super::text_of;
use backtrail_testkit::peers::{Peer, babeltrace2_2_1};

/// Whether we, and babeltrace2 if it is there, accept the trace has to be `accepted`. Where both
/// do, their texts are equal.
#[track_caller]
pub(crate) fn expect(peer: Option<&Peer>, what: &str, metadata: &[u8], stream: &[u8], accepted: bool) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("metadata"), metadata).unwrap();
    std::fs::write(directory.path().join("s"), stream).unwrap();
    let ours = text_of(directory.path());
    let error = ours.as_ref().err().map(ToString::to_string);
    assert_eq!(ours.is_ok(), accepted, "{what}: {error:?}");
    let Some(peer) = peer else { return };
    let mut theirs = peer.command();
    let theirs = theirs.arg("--clock-seconds").arg(directory.path()).output().unwrap();
    assert_eq!(theirs.status.success(), accepted, "babeltrace2 differs: {what}");
    if let Ok(ours) = ours {
        let [ours, theirs] = [&ours, &theirs.stdout].map(|text| String::from_utf8_lossy(text));
        assert_eq!(ours, theirs, "{what}");
    }
}

/// Checks all cases of a file. They are separated by empty lines: the first line contains the
/// verdict (`accept` or `refuse`, followed by `alone` if babeltrace2 disagrees) and the subject,
/// the other lines form the metadata. Every stream is 24 bytes of 1.
pub(crate) fn expect_all(cases: &str, metadata: impl Fn(&str) -> String) {
    let peer = babeltrace2_2_1();
    let mut count = 0;
    for case in cases.split("\n\n") {
        let (head, lines) = case.split_once('\n').unwrap();
        let (verdict, what) = head.split_once(": ").unwrap();
        let peer = peer.as_ref().filter(|_| !verdict.ends_with("alone"));
        expect(
            peer,
            what,
            metadata(lines).as_bytes(),
            &[1; 24],
            verdict.starts_with("accept"),
        );
        count += 1;
    }
    assert!(count > 300, "{count}");
}
