//! File systems of a test's own. Only root can mount.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::skip;

/// A mount that ends with the test.
#[derive(Debug)]
pub struct Mounted(PathBuf);

impl Mounted {
    /// Ends the mount at this path with the value.
    pub fn new(path: PathBuf) -> Mounted {
        Mounted(path)
    }

    /// Mounts a file system of this size, in mount's notation, in a new folder; `None`, with a
    /// `SKIPPED:` line, without the right to do so.
    ///
    /// # Panics
    /// If the folder cannot be made.
    pub fn tmpfs(path: &Path, size: &str) -> Option<Mounted> {
        fs::create_dir(path).expect("the test's directory can be written");
        let options = CString::new(format!("size={size}")).expect("a size is text");
        if let Err(error) = mount("none", path, "tmpfs", MountFlags::empty(), options.as_c_str()) {
            skip(format_args!("a small file system can't be mounted: {error}"));
            return None;
        }
        Some(Mounted(path.to_owned()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = unmount(&self.0, UnmountFlags::DETACH);
        assert!(
            done.is_ok() || std::thread::panicking(),
            "{}: {done:?}",
            self.0.display()
        );
    }
}
