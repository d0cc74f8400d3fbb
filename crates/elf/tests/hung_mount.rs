//! A file system of a program that never answers (FUSE).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use backtrail_elf::door;
use backtrail_testkit::{scratch, skip};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{getgid, getuid};

#[test]
fn files_on_it_count_as_missing_after_a_while() {
    let folder = scratch();
    let device = match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device,
        Err(error) => return skip(format!("/dev/fuse: {error}")),
    };
    let (fd, user, group) = (device.as_raw_fd(), getuid().as_raw(), getgid().as_raw());
    let data = format!("fd={fd},rootmode=40000,user_id={user},group_id={group}");
    let data = CString::new(data).expect("no zero");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    if let Err(error) = mount("hung", folder.path(), "fuse", flags, data.as_c_str()) {
        return skip(format!("no FUSE mount: {error}"));
    }
    let opened = door::open(&folder.path().join("library.so"));
    // Its end answers the thread that still waits.
    drop(device);
    unmount(folder.path(), UnmountFlags::DETACH).expect("it was mounted");
    assert_eq!(
        opened.map(drop).map_err(|error| error.kind()),
        Err(io::ErrorKind::TimedOut)
    );
}
