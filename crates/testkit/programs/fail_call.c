/* fail_call N REPORT COMMAND [ARGUMENT ...]
 *
 * Runs a command, makes the N-th system call of its process fail (those of the processes that it
 * starts succeed), and writes to the file REPORT: the number of calls that were counted, the number
 * of the system call that failed or -1, and the exit status (128 plus the signal's number). Calls
 * are counted from the first poll(2) on, which Rust's start code makes before main. N of 0 fails
 * none. getrandom(2) and getrlimit(2) are left out: they cannot fail. A filter passes the calls to this program (seccomp's user notification). Exits with 77 if
 * that is not possible here. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const int failing[] = {
    SYS_openat, SYS_openat2, SYS_read, SYS_pread64, SYS_readv, SYS_preadv, SYS_write, SYS_pwrite64, SYS_writev,
    SYS_pwritev, SYS_mmap, SYS_fstat, SYS_statx, SYS_newfstatat, SYS_lseek, SYS_renameat, SYS_renameat2, SYS_linkat,
    SYS_unlinkat, SYS_symlinkat, SYS_mkdirat, SYS_ftruncate, SYS_fsync, SYS_fdatasync, SYS_copy_file_range,
    SYS_sendfile, SYS_getdents64, SYS_ioctl, SYS_fcntl, SYS_dup, SYS_dup3, SYS_pipe2, SYS_clone, SYS_clone3,
    SYS_perf_event_open, SYS_ptrace, SYS_process_vm_readv, SYS_wait4, SYS_waitid, SYS_fchown, SYS_fchownat, SYS_fchmod,
    SYS_fchmodat, SYS_fsetxattr, SYS_fgetxattr, SYS_flistxattr, SYS_readlinkat, SYS_eventfd2,
    SYS_signalfd4, SYS_sched_getaffinity, SYS_ppoll, SYS_utimensat, SYS_pidfd_open, SYS_statfs,
    SYS_fstatfs, SYS_mprotect, SYS_madvise, SYS_mremap, SYS_sigaltstack,
#ifdef __x86_64__
    SYS_open, SYS_stat, SYS_lstat, SYS_rename, SYS_link, SYS_unlink, SYS_symlink, SYS_mkdir, SYS_rmdir, SYS_readlink,
    SYS_chmod, SYS_chown, SYS_access, SYS_fork, SYS_vfork, SYS_poll,
#endif
};
#define COUNT (sizeof failing / sizeof *failing)

static int filter(void) {
    struct sock_filter code[2 * COUNT + 8];
    int n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < COUNT; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, failing[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = n, .filter = code};
    if (geteuid() != 0) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static int process_of(int tid) {
    char path[64], line[256];
    int process = -1;
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "Tgid: %d", &process) == 1) break;
    if (status) fclose(status);
    return process;
}

/* The error that each call is likely to meet. */
static int error_of(int call) {
    switch (call) {
    case SYS_write: case SYS_pwrite64: case SYS_writev: case SYS_pwritev: case SYS_ftruncate: case SYS_linkat:
    case SYS_copy_file_range: case SYS_mkdirat: return ENOSPC;
    case SYS_openat: case SYS_openat2: case SYS_pipe2: case SYS_eventfd2: case SYS_signalfd4: case SYS_dup: return EMFILE;
    case SYS_mmap: case SYS_mremap: case SYS_mprotect: return ENOMEM;
    case SYS_clone: case SYS_clone3: return EAGAIN;
    case SYS_ptrace: case SYS_perf_event_open: case SYS_process_vm_readv: case SYS_fchown: return EPERM;
    default: return EIO;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    long wanted = atol(argv[1]), count = 0;
    int failed = -1, pair[2], started = 0, ended = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 77;
    pid_t child = fork();
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec io = {&byte, 1};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int listener = filter();
        if (listener < 0) _exit(77);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &listener, sizeof listener);
        if (sendmsg(pair[1], &message, 0) != 1) _exit(77);
        syscall(SYS_close, listener);
        execvp(argv[3], argv + 3);
        _exit(127);
    }
    close(pair[1]);
    int listener = -1, status = 0;
    if (recvmsg(pair[0], &message, MSG_CMSG_CLOEXEC) == 1) memcpy(&listener, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof listener);
    while (listener >= 0) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        if (poll(&ready, 1, 20) == 0) {
            if (waitpid(child, &status, WNOHANG) == child && (ended = 1)) break;
            continue;
        }
        if (ready.revents & POLLHUP) break;
        struct seccomp_notif notice;
        memset(&notice, 0, sizeof notice);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notice) != 0) continue;
        struct seccomp_notif_resp answer = {.id = notice.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        int call = notice.data.nr;
        int own = (int)notice.pid == child || process_of(notice.pid) == child;
#ifdef __x86_64__
        if (own && call == SYS_poll) started = 1;
#else
        if (own && call == SYS_ppoll) started = 1;
#endif
        /* Memory without a file is what the other program is for. What goes to standard error is
         * how failures are reported. */
        int exempt = ((call == SYS_mmap && (int)notice.data.args[4] < 0) || call == SYS_mprotect || call == SYS_madvise ||
                      call == SYS_mremap || call == SYS_sigaltstack || (call == SYS_write && notice.data.args[0] == 2) ||
#ifdef __x86_64__
                      call == SYS_poll ||
#endif
                      call == SYS_ppoll);
        if (own && started && !exempt && ++count == wanted) {
            failed = call;
            answer.flags = 0;
            answer.error = -error_of(call);
        }
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    if (!ended) waitpid(child, &status, 0);
    if (listener < 0) return 77;
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    FILE *report = fopen(argv[2], "w");
    if (report) fprintf(report, "%ld %d %d\n", count, failed, code), fclose(report);
    return code;
}
