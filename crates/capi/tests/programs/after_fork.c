/* Calls every function, prints the number of threads, and forks: the child calls every function
 * again.
 *
 * after_fork FILE-WITH-DEBUG-INFORMATION */
#define _GNU_SOURCE
#include <backtrail.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static int each_type(void *closure, backtrail_type_id id)
{
    (void)closure;
    return id == 0;
}

static int each_part(void *closure, const struct backtrail_type_part *part)
{
    (void)closure;
    return part->size == 0;
}

static int types(const char *path)
{
    struct backtrail_types_options options = { .size = sizeof options, .debug_information = 1 };
    struct backtrail_type info = { .size = sizeof info };
    struct backtrail_types *opened;
    backtrail_type_id id;
    char text[64];
    if (backtrail_types_open(path, &options, &opened))
        return 1;
    if (backtrail_types_find(opened, NULL, "struct foo", &id) || backtrail_type_get(opened, id, &info))
        return 2;
    if (backtrail_types_walk(opened, each_type, NULL) || backtrail_type_parts(opened, id, each_part, NULL))
        return 3;
    if (backtrail_type_text(opened, id, "foo", text, sizeof text) <= 0)
        return 4;
    backtrail_types_close(opened);
    return 0;
}

/* Returns the number of the first call that fails, or 0. */
static int all(const char *path)
{
    static char code[64];
    struct backtrail_crash_options crash = { .size = sizeof crash };
    void *frames[16];
    char cbf[256];
    int null = open("/dev/null", O_WRONLY), failed = types(path);
    if (failed)
        return failed;
    if (backtrail_init(NULL))
        return 5;
    if (backtrail_register_code(code, sizeof code) || backtrail_withdraw_code(code))
        return 6;
    int count = backtrail_backtrace(frames, 16);
    if (count < 2 || backtrail_backtrace_cbf(cbf, sizeof cbf, NULL) <= 0)
        return 7;
    backtrail_backtrace_symbols_fd(frames, count, null);
    if (backtrail_crash_install(&crash) || backtrail_crash_thread())
        return 8;
    close(null);
    return 0;
}

static int listed(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* The kernel lists a thread for a moment after it was joined. */
static int threads(void)
{
    int count = listed();
    for (int round = 0; round < 1000 && count != 1; round++) {
        usleep(10000);
        count = listed();
    }
    return count;
}

int main(int argc, char **argv)
{
    int status, failed = argc > 1 ? all(argv[1]) : 100;
    printf("parent: %d, %d threads\n", failed, threads());
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        failed = all(argv[1]);
        printf("child: %d, %d threads\n", failed, threads());
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("child: signal %d\n", WTERMSIG(status));
    return 0;
}
