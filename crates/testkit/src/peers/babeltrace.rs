//! babeltrace2 in the two series that are in use: 2.0 reads CTF 1.8, 2.1 also CTF 2; and babeltrace
//! 1.5, which is older and faster.

use super::debian::Unpacked;
use super::{Peer, locked_directory, run};
use crate::packages::installation;
use crate::skip;

/// babeltrace2 2.0, which Debian bookworm has.
pub fn babeltrace2_2_0() -> Option<Peer> {
    let found = installed_2_0();
    if let Err(why) = &found {
        skip(format_args!("babeltrace2 2.0: {why}"));
    }
    found.ok()
}

/// babeltrace2 2.1, from a later Debian, unpacked beside the system and run by its own loader.
pub fn babeltrace2_2_1() -> Option<Peer> {
    let found = unpacked_2_1();
    if let Err(why) = &found {
        skip(format_args!("babeltrace2 2.1: {why}"));
    }
    found.ok()
}

/// babeltrace 1.5, the C reader before babeltrace2.
pub fn babeltrace1() -> Option<Peer> {
    let found = installed_1();
    if let Err(why) = &found {
        skip(format_args!("babeltrace 1.5: {why}"));
    }
    found.ok()
}

fn installed_1() -> Result<Peer, String> {
    let peer = Peer {
        program: "babeltrace".into(),
        arguments: Vec::new(),
    };
    let works = || run(peer.command().arg("--list"));
    if works().is_err() {
        let (_directory, _lock) = locked_directory("babeltrace-1.5").map_err(|error| error.to_string())?;
        run(&mut installation(&["babeltrace"]))?;
    }
    works().map(|_| peer)
}

fn installed_2_0() -> Result<Peer, String> {
    let peer = Peer {
        program: "babeltrace2".into(),
        arguments: Vec::new(),
    };
    let version = || run(peer.command().arg("--version"));
    if version().is_err() {
        let (_directory, _lock) = locked_directory("babeltrace2-2.0").map_err(|error| error.to_string())?;
        run(&mut installation(&["babeltrace2"]))?;
    }
    match version()?.contains("Babeltrace 2.0.") {
        true => Ok(peer),
        false => Err("the installed one is of another series".to_owned()),
    }
}

fn unpacked_2_1() -> Result<Peer, String> {
    let unpacked = Unpacked::get("babeltrace2-2.1", "trixie", &["babeltrace2"])?;
    let mut peer = unpacked.program("babeltrace2");
    // The system's own plugins are of the other series.
    peer.arguments.push("--omit-system-plugin-path".into());
    peer.arguments.push("--plugin-path".into());
    peer.arguments
        .push(unpacked.libraries().join("babeltrace2/plugins").into());
    let version = run(peer.command().arg("--version"))?;
    match version.contains("Babeltrace 2.1.") {
        true => Ok(peer),
        false => Err(format!("unexpected version: {version}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_is_what_it_says() {
        for (peer, version) in [
            (babeltrace2_2_0(), "Babeltrace 2.0."),
            (babeltrace2_2_1(), "Babeltrace 2.1."),
        ] {
            let Some(peer) = peer else { continue };
            let output = peer.command().arg("--version").output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains(version));
        }
    }
}
