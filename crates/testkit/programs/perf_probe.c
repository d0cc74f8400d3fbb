/* perf_probe
 *
 * May this user sample its own processes by the software clock, with registers and a copy of the stack? Prints `ok` or the error. */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = 1000000;
    attr.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
    attr.sample_regs_user = 1;
    attr.sample_stack_user = 8192;
    attr.exclude_kernel = 1;
    attr.disabled = 1;
    if (syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0) < 0) {
        printf("perf_event_open: %s\n", strerror(errno));
        return 1;
    }
    puts("ok");
    return 0;
}
