//! The cache belongs to one user: nobody else's folder is used, and nobody else's link followed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{scratch, skip};

use crate::common::LIMIT;

fn cache(home: &Path, arguments: &[&str], user: Option<u32>) -> Finished {
    let binary = env!("CARGO_BIN_EXE_backtrail");
    let mut run = match user {
        None => Command::new(binary),
        Some(user) => {
            let mut run = Command::new("setpriv");
            run.arg(format!("--reuid={user}")).args(["--clear-groups", binary]);
            run
        }
    };
    run.arg("cache").args(arguments).env("XDG_CACHE_HOME", home);
    command::run(&mut run, LIMIT).unwrap()
}

#[test]
fn the_cache_is_shown_and_cleared() {
    let folder = scratch();
    let home = folder.path();
    let empty = cache(home, &["info"], None);
    assert!(empty.stdout.contains("total: 0 entries"), "{}", empty.describe());
    assert!(!home.join("backtrail").exists(), "looking creates nothing");
    let entries = home.join("backtrail/sframe-v19");
    fs::create_dir_all(&entries).unwrap();
    for path in [home.join("backtrail"), entries.clone()] {
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    }
    fs::write(entries.join("00"), [0; 3000]).unwrap();
    fs::write(home.join("backtrail/mine"), "not ours").unwrap();
    let info = cache(home, &["info"], None);
    assert!(
        info.stdout.contains("sframe-v19: 1 entry, 3 KiB\n"),
        "{}",
        info.describe()
    );
    let json: serde_json::Value = serde_json::from_str(&cache(home, &["info", "--json"], None).stdout).unwrap();
    assert_eq!(
        (json["entries"].as_u64(), json["bytes"].as_u64()),
        (Some(1), Some(3000))
    );
    assert!(json["not_used"].is_null() && json["limit_bytes"].as_u64().is_some_and(|limit| limit > 1 << 20));
    let cleared = cache(home, &["clear"], None);
    assert!(
        cleared.stdout.starts_with("removed 1 entry, 3 KiB"),
        "{}",
        cleared.describe()
    );
    assert!(!entries.exists() && home.join("backtrail/mine").exists());
}

#[test]
fn a_folder_of_somebody_else_is_not_used() {
    let folder = scratch();
    let home = folder.path().join("home");
    fs::create_dir_all(home.join("backtrail")).unwrap();
    let refused = |finished: &Finished, why: &str| {
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        let lines: Vec<&str> = finished.stderr.lines().collect();
        assert!(
            lines[0].contains("not used: ") && lines[0].contains(why),
            "{}",
            finished.describe()
        );
        assert!(
            lines.len() == 2 && lines[1].starts_with("help: "),
            "{}",
            finished.describe()
        );
    };
    fs::set_permissions(home.join("backtrail"), Permissions::from_mode(0o777)).unwrap();
    refused(&cache(&home, &["info"], None), "others can write to");
    fs::set_permissions(home.join("backtrail"), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(cache(&home, &["info"], None).code(), 0);
    if chown(home.join("backtrail"), Some(65534), None).is_err() {
        skip("only root can give a folder away");
        return;
    }
    refused(&cache(&home, &["info"], None), "belongs to user 65534");
    refused(&cache(&home, &["clear"], None), "belongs to user 65534");
    chown(home.join("backtrail"), Some(0), None).unwrap();
    // A link that another user has put on the way.
    let link = folder.path().join("link");
    symlink(&home, &link).unwrap();
    assert_eq!(cache(&link, &["info"], None).code(), 0);
    std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
    refused(&cache(&link, &["info"], None), "belongs to user 65534");
    // The second user does not use the folder of the first one either.
    for path in [folder.path(), &home, &home.join("backtrail")] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    refused(&cache(&home, &["info"], Some(65534)), "belongs to user 0");
}
