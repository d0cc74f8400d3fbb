//! The cache of tables: nobody else can change what it says.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use backtrail_cfi::cache::{Cache, FileIdentity, Namer, Refused};
use backtrail_cfi::tables::{Table, TableOrigin, Tables};
use backtrail_elf::{FileBytes, Image};
use backtrail_testkit::skip;

use crate::tables::library;

fn load(tables: &Tables, bytes: &[u8]) -> Table {
    tables.load(&Image::parse(bytes).unwrap()).unwrap()
}

/// The C library with other rows, but the same build ID and the same CRC-32 of `.eh_frame`.
fn forged(honest: &[u8]) -> Vec<u8> {
    let section = {
        let image = Image::parse(honest).unwrap();
        let section = image.section_header(".eh_frame").unwrap();
        section.offset as usize..(section.offset + section.size) as usize
    };
    let mut forged = honest.to_vec();
    // Every FDE in the first half loses its rows: its instructions become `DW_CFA_nop`.
    let mut at = section.start;
    while at < section.start + section.len() / 2 {
        let len = u32::from_le_bytes(forged[at..at + 4].try_into().unwrap()) as usize;
        let is_fde = forged[at + 4..at + 8] != [0; 4];
        if is_fde && len > 24 {
            forged[at + 4 + 20..at + 4 + len].fill(0);
        }
        at += 4 + len;
    }
    let crc = crc32fast::hash(&honest[section.clone()]);
    // The last four bytes are the terminator, those before belong to the last FDE.
    let free = section.end - 8;
    force_crc(
        &mut forged[section.start..free + 4],
        crc_before(&honest[section.clone()]),
    );
    assert_eq!(crc32fast::hash(&forged[section.clone()]), crc);
    forged
}

/// The CRC of all but the last four bytes.
fn crc_before(bytes: &[u8]) -> u32 {
    crc32fast::hash(&bytes[..bytes.len() - 4])
}

/// Sets the last four bytes so that the CRC of all is this one: each byte of the register is
/// found from the end, by the table's entry with the right first byte.
fn force_crc(bytes: &mut [u8], wanted: u32) {
    let table: Vec<u32> = (0..256u32)
        .map(|index| {
            (0..8).fold(index, |crc, _| {
                (crc >> 1) ^ (if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
            })
        })
        .collect();
    let split = bytes.len() - 4;
    let mut register = !wanted;
    let mut indices = [0u8; 4];
    for index in indices.iter_mut().rev() {
        let found = table.iter().position(|entry| entry >> 24 == register >> 24).unwrap();
        *index = found as u8;
        register = (register ^ table[found]) << 8;
    }
    let mut now = !crc32fast::hash(&bytes[..split]);
    for (byte, index) in bytes[split..].iter_mut().zip(indices) {
        *byte = (now as u8) ^ index;
        now = (now >> 8) ^ table[usize::from(index)];
    }
    assert_eq!(crc32fast::hash(bytes), wanted);
}

#[test]
fn a_forged_library_gives_its_table_to_no_other() {
    let Some(path) = library() else { return };
    let honest = FileBytes::open(path).unwrap().bytes().to_vec();
    let forged = forged(&honest);
    let dir = tempfile::tempdir().unwrap();
    let tables = Tables::open(Some(dir.path().to_owned()));
    let right = load(&Tables::without_cache(), &honest);
    let wrong = load(&tables, &forged);
    assert_eq!(wrong.origin, TableOrigin::Converted);
    assert_ne!(wrong.bytes, right.bytes, "the forged rows differ");
    for origin in [TableOrigin::Converted, TableOrigin::Cached] {
        let table = load(&tables, &honest);
        assert_eq!(table.origin, origin);
        assert!(table.bytes == right.bytes);
    }
    // Rows are also made from code and symbols.
    let image = Image::parse(&honest).unwrap();
    for section in [".text", ".dynsym"] {
        let mut other = honest.clone();
        other[image.section_header(section).unwrap().offset as usize + 40] ^= 1;
        assert_eq!(load(&tables, &other).origin, TableOrigin::Converted, "{section}");
    }
}

/// What is not hashed has no influence on a table: with it, a table is the same as without.
#[test]
fn tables_are_made_from_what_is_hashed() {
    let mut files: Vec<PathBuf> = ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    let all = std::env::var_os("BACKTRAIL_ALL_FILES").is_some();
    let step = if all { 1 } else { (files.len() / 40).max(1) };
    let mut compared = 0;
    for path in files.into_iter().step_by(step) {
        let Ok(file) = FileBytes::open(&path) else { continue };
        if !all && file.bytes().len() > 8 << 20 {
            continue;
        }
        let Ok(image) = Image::parse(file.bytes()) else {
            continue;
        };
        let Ok(whole) = Tables::without_cache().load(&image) else {
            continue;
        };
        let dir = tempfile::tempdir().unwrap();
        let hashed = Tables::open(Some(dir.path().to_owned())).load(&image).unwrap();
        assert!(whole.bytes == hashed.bytes, "{}", path.display());
        compared += 1;
    }
    println!("{compared} files");
    assert!(compared > 0 || !Path::new("/usr/lib/x86_64-linux-gnu").exists());
}

#[test]
fn only_a_folder_that_nobody_else_can_change_is_used() {
    let outside = tempfile::tempdir().unwrap();
    let name = Namer::new("test").add(b"one").name();
    let kind = "sframe-v19";
    let refuses = |path: &Path| {
        let cache = Cache::new(path.to_owned());
        let refused = cache.contents();
        assert!(cache.write(kind, &name, b"x").is_err() && cache.read(kind, &name, 9).is_none());
        match refused {
            Err(refused) => refused,
            Ok(contents) => panic!("{contents:?}"),
        }
    };
    // Others can write: to the folder, to one above it, to the one with the entries.
    let open = outside.path().join("open");
    fs::create_dir_all(open.join("cache")).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(refuses(&open), Refused::Writable { .. }));
    assert!(matches!(refuses(&open.join("cache")), Refused::Writable { .. }));
    fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(open.join("cache"), Permissions::from_mode(0o755)).unwrap();
    let cache = Cache::new(open.join("cache"));
    cache.write(kind, &name, b"what").unwrap();
    assert_eq!(cache.read(kind, &name, 4).as_deref(), Some(&b"what"[..]));
    assert_eq!(cache.read(kind, &name, 3), None, "longer than expected");
    fs::set_permissions(open.join("cache").join(kind), Permissions::from_mode(0o775)).unwrap();
    assert_eq!(cache.read(kind, &name, 4), None);
    fs::set_permissions(open.join("cache").join(kind), Permissions::from_mode(0o700)).unwrap();

    // What is no file: a FIFO would block, a device would never end.
    let entry = open.join("cache").join(kind).join(name.to_string());
    for replace in [
        fifo,
        |path: &Path| symlink("/dev/zero", path).unwrap(),
        |path: &Path| fs::create_dir(path).unwrap(),
    ] {
        let _ = fs::remove_file(&entry);
        replace(&entry);
        assert_eq!(cache.read(kind, &name, 1 << 40), None);
    }
    fs::remove_dir(&entry).unwrap();

    // A link of our own may lead to the cache, but not to the entries.
    symlink(open.join("cache"), outside.path().join("link")).unwrap();
    assert!(Cache::new(outside.path().join("link")).contents().is_ok());
    fs::remove_dir(open.join("cache").join(kind)).unwrap();
    symlink("/tmp", open.join("cache").join(kind)).unwrap();
    assert!(cache.write(kind, &name, b"x").is_err());

    if chown(&open, Some(65534), None).is_err() {
        skip("only root can give a folder away");
        return;
    }
    assert!(matches!(
        refuses(&open.join("cache")),
        Refused::Owner { uid: 65534, .. }
    ));
    chown(&open, Some(0), None).unwrap();
    chown(open.join("cache"), Some(65534), None).unwrap();
    assert!(matches!(refuses(&open.join("cache")), Refused::Owner { .. }));
    // The link of another user.
    chown(open.join("cache"), Some(0), None).unwrap();
    std::os::unix::fs::lchown(outside.path().join("link"), Some(65534), None).unwrap();
    assert!(matches!(refuses(&outside.path().join("link")), Refused::Owner { .. }));
}

fn fifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
}

#[test]
fn a_file_that_changes_has_another_identity() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "one").unwrap();
    assert_eq!(
        FileIdentity::of(&fs::metadata(&path).unwrap()),
        None,
        "changed just now"
    );
    let Some(settled) = settled(&path) else {
        skip("not on a file system of the system");
        return;
    };
    // Time stamps of the contents can be set to any value, that of the inode cannot.
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "two").unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(times)
        .unwrap();
    assert_ne!(self::settled(&path), Some(settled));
    assert_eq!(FileIdentity::of(&fs::metadata("/proc/self/maps").unwrap()), None);
    assert_eq!(FileIdentity::of(&fs::metadata("/dev/null").unwrap()), None);
}

/// The identity, once enough time has passed.
fn settled(path: &Path) -> Option<FileIdentity> {
    let begin = SystemTime::now();
    while begin.elapsed().is_ok_and(|elapsed| elapsed < Duration::from_secs(4)) {
        if let Some(identity) = FileIdentity::of(&fs::metadata(path).ok()?) {
            return Some(identity);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

#[test]
fn a_known_file_needs_no_hash() {
    let Some(path) = library() else { return };
    let file = File::open(path).unwrap();
    let Some(identity) = FileIdentity::of(&file.metadata().unwrap()) else {
        skip("the C library is not on a file system of the system");
        return;
    };
    let file = FileBytes::from_file(file).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tables = Tables::open(Some(dir.path().to_owned()));
    let first = tables.load_file(&image, Some(&identity)).unwrap();
    // Not even the sections are looked at.
    let nothing = Image::parse(&file.bytes()[..64 + 56 * 16]).unwrap();
    let again = tables.load_file(&nothing, Some(&identity)).unwrap();
    assert!(again.origin == TableOrigin::Cached && again.bytes == first.bytes);
    assert!(tables.load(&nothing).is_err());
}
