//! Gives up everything that a worker does not need.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::os::unix::net::UnixStream;

use backtrail_elf::budget;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::sys;

/// The exit status of a worker that could not be isolated.
pub(super) const NO_SANDBOX: i32 = 3;
/// The exit status of this program if an allocation fails.
pub(super) const OUT_OF_MEMORY: i32 = 2;

/// The user without any files.
const NOBODY: u32 = 65534;
/// Open files: some modules, with three files each.
pub(super) const MOST_FILES: u64 = 1024;
/// Memory beside the contents of a module: what is made of them, other modules of the same user.
const MORE_MEMORY: u64 = 2 << 30;
/// Seconds of processor time, in all threads. A worker that is still needed ends long before.
const MOST_SECONDS: u64 = 7200;

/// Isolates this process, which has no other thread yet. Returns its socket, which was its standard
/// input and is now its only descriptor.
pub(super) fn enter() -> Result<UnixStream, Box<dyn Error>> {
    let socket = sys::only_standard_input()?;
    // If memory becomes short, this process goes first.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    limit();
    be_nobody()?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    for filter in filters()? {
        seccompiler::apply_filter_all_threads(&filter)?;
    }
    Ok(UnixStream::from(socket))
}

fn limit() {
    let (bytes, longest) = budget::most_bytes();
    let memory = bytes.saturating_add(MORE_MEMORY);
    for (resource, most) in [
        (Resource::Data, memory),
        // Room is reserved for a whole file, of which only parts are read.
        (Resource::As, memory.saturating_add(longest.saturating_mul(2))),
        (Resource::Cpu, MOST_SECONDS.saturating_mul(budget::factor().into())),
        (Resource::Nofile, MOST_FILES),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
    ] {
        let now = rustix::process::getrlimit(resource);
        let lower = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
        let limit = Rlimit {
            current: lower(now.current),
            maximum: lower(now.maximum),
        };
        let _ = rustix::process::setrlimit(resource, limit);
    }
}

/// Gives up user, groups and capabilities.
fn be_nobody() -> Result<(), Box<dyn Error>> {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        // In a user namespace without this user, what is left is a root without capabilities.
        let changed = rustix::thread::set_thread_groups(&[])
            .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
            .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid));
        match changed {
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, none)?)
}

/// Two filters, of which the stricter one decides about each system call: the first one makes some
/// fail, the second one kills the process at all others but those that it needs.
fn filters() -> Result<[BpfProgram; 2], Box<dyn Error>> {
    let arch = std::env::consts::ARCH.try_into()?;
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    allowed.extend(NEEDED.iter().chain(&FAILING).map(|call| (*call, Vec::new())));
    let flags = |argument, mask: i32, value: i32| {
        let operator = SeccompCmpOp::MaskedEq(mask as u64);
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value as u64)
    };
    let not_executable = || flags(2, libc::PROT_EXEC, 0);
    let anonymous = flags(3, libc::MAP_ANONYMOUS, libc::MAP_ANONYMOUS)?;
    let thread = flags(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?;
    allowed.insert(
        libc::SYS_mmap,
        vec![SeccompRule::new(vec![not_executable()?, anonymous])?],
    );
    allowed.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![not_executable()?])?]);
    allowed.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    let naming = SeccompCmpOp::Eq;
    let naming = SeccompCondition::new(0, SeccompCmpArgLen::Dword, naming, libc::PR_SET_NAME as u64)?;
    allowed.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![naming])?]);
    let failing = FAILING.iter().map(|call| (*call, Vec::new())).collect();
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    Ok([
        SeccompFilter::new(failing, SeccompAction::Allow, unknown, arch)?.try_into()?,
        SeccompFilter::new(allowed, SeccompAction::KillProcess, SeccompAction::Allow, arch)?.try_into()?,
    ])
}

/// Reading files that were received, answering, memory, threads.
const NEEDED: [i64; 28] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_gettid,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The standard library continues without these: it creates threads by the older call, and does not
/// know how many processors a container may use.
const FAILING: [i64; 7] = [
    libc::SYS_clone3,
    libc::SYS_openat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_fcntl,
    libc::SYS_prlimit64,
    libc::SYS_ioctl,
];
