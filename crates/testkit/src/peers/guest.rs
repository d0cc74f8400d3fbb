//! Debian's kernels and programs, as a guest machine boots them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::debian::unpacked_for;
use super::{locked_directory, run};
use crate::Missing;
use crate::guest::Cpu;

/// Debian's release whose programs run.
const SUITE: &str = "bookworm";
/// Programs may write this much beside the packages. The file has holes.
const SPARE_MIB: u64 = 6144;

/// What the guest's first process does: unpacks what was added, runs the jobs in sequence, and
/// packs what they left in `/out`. It starts when the kernel has found the first disk, and waits
/// for the others. Newer kernels number disks as they find them.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
# What Debian's packages choose when they are configured.
for name in cc:gcc c++:g++ awk:mawk; do
    [ -e /usr/bin/${name#*:} ] && ln -sf ${name#*:} /usr/bin/${name%:*}
done
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C HOME=/root
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
mount -t tracefs none /sys/kernel/tracing
mount -t tmpfs none /tmp
mkdir -p /dev/shm && mount -t tmpfs none /dev/shm
ip link set lo up 2>/dev/null
ldconfig 2>/dev/null
mkdir -p /out /jobs /root
while set -- /sys/block/nvme0n*; [ $# -lt 3 ]; do
    sleep 0.1
done
for block; do
    disk=/dev/${block##*/}
    [ "$(head -c 2 $disk)" = ./ ] && tar xf $disk -C /
    [ $(cat $block/size) -eq 16777216 ] && results=$disk
done
for job in /jobs/*; do
    name=${job##*/}
    mkdir -p /out/$name && cd /out/$name
    sh $job >stdout 2>stderr </dev/null
    echo $? >status
    echo "$name: $(cat status)" >/dev/console
done
tar cf $results -C /out .
sync
poweroff -f
"#;

/// Debian's name of the architecture.
fn architecture(cpu: Cpu) -> &'static str {
    match cpu {
        Cpu::Aarch64 => "arm64",
        Cpu::X86_64 => "amd64",
    }
}

/// The image of a suite's kernel.
pub(crate) fn kernel(cpu: Cpu, suite: &str) -> Result<PathBuf, Missing> {
    let architecture = architecture(cpu);
    let (name, package) = (
        format!("guest-kernel-{suite}-{architecture}"),
        format!("linux-image-cloud-{architecture}"),
    );
    let root = unpacked_for(&name, suite, architecture, &[&package]).map_err(Missing)?;
    image(&root).ok_or_else(|| Missing("no kernel in Debian's package".to_owned()))
}

/// The kernel in unpacked packages: in `/boot`, or in newer ones beside its modules.
fn image(root: &Path) -> Option<PathBuf> {
    let below = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    let is_image = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz-");
    let beside_modules = || {
        below("usr/lib/modules")
            .map(|folder| folder.join("vmlinuz"))
            .find(|path| path.exists())
    };
    below("boot").find(is_image).or_else(beside_modules)
}

/// Packages of the guest, and all that they need, as the folder that they were unpacked into and as
/// a file system. `name` must differ for different packages.
pub(crate) fn root(cpu: Cpu, name: &str, packages: &[&str]) -> Result<(PathBuf, PathBuf), Missing> {
    let packages = [&["busybox-static", "libc6"], packages].concat();
    let root = unpacked_for(name, SUITE, architecture(cpu), &packages).map_err(Missing)?;
    let (directory, _lock) = locked_directory(name).map_err(|error| Missing(error.to_string()))?;
    let disk = directory.join("disk");
    // A changed first process is written into the file system again.
    let is_current = fs::read_to_string(root.join("init")).is_ok_and(|text| text == INIT);
    if !is_current || !disk.exists() {
        prepare(cpu, &root).map_err(|error| Missing(error.to_string()))?;
        file_system(&root, &disk).map_err(Missing)?;
    }
    Ok((root, disk))
}

fn prepare(cpu: Cpu, root: &Path) -> std::io::Result<()> {
    for folder in ["proc", "sys", "dev", "tmp", "run", "etc", "bin", "out", "jobs", "root"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n")?;
    // Folders that only the dynamic linker's cache would lead to.
    let folder = match cpu {
        Cpu::Aarch64 => "lib/aarch64-linux-gnu",
        Cpu::X86_64 => "lib/x86_64-linux-gnu",
    };
    fs::write(root.join("etc/ld.so.conf"), format!("/{folder}\n/usr/{folder}\n"))?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))
}

fn file_system(root: &Path, disk: &Path) -> Result<(), String> {
    let used = run(Command::new("du").args(["-sm", "--apparent-size"]).arg(root))?;
    let used: u64 = used
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .ok_or("du prints no number")?;
    let partial = disk.with_extension("partial");
    let _ = fs::remove_file(&partial);
    let mut make = Command::new("mke2fs");
    make.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    make.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"])
        .arg(root)
        .arg(&partial)
        .arg(format!("{}M", used + used / 4 + SPARE_MIB));
    run(&mut make)?;
    fs::rename(&partial, disk).map_err(|error| error.to_string())
}
