/* A plugin of qemu's user emulation of AArch64 (-singlestep), for programs with steps_inside.c: from the system call BEGIN on, the first thread gets
 * SIGPROF after each instruction, so that its handler sees every one. What the handler itself runs is left out.
 *
 * The signal is pending when a block of code begins, and with -singlestep each instruction is a block of its own. A pending signal would keep a
 * system call from being started, so after one it is sent when the call returns. */
#define _GNU_SOURCE
#include "qemu_plugin.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BEGIN 0x7fff0002
/* asm-generic/unistd.h */
#define RT_SIGPROCMASK 135
#define RT_SIGRETURN 139
#define SVC 0xd4000001u
#define PAGE 4096

QEMU_PLUGIN_EXPORT int qemu_plugin_version = 1;

/* Whether the first thread is stepped, and whether it has been sent a signal whose handler has not ended. */
static volatile int is_stepping, is_sent;

static void send(unsigned int cpu) {
    if (cpu != 0 || !is_stepping || is_sent) return;
    is_sent = 1;
    pthread_kill(pthread_self(), SIGPROF);
}

static void executed(unsigned int cpu, void *argument) {
    (void)argument;
    send(cpu);
}

/* An exception clears the monitor of exclusive accesses, and a loop of them would never end. Programs here have atomic instructions instead. */
static void executed_exclusive(unsigned int cpu, void *argument) {
    (void)argument;
    if (cpu != 0 || !is_stepping || is_sent) return;
    fprintf(stderr, "steps_plugin: an exclusive load cannot be stepped\n");
    abort();
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        const unsigned char *data = qemu_plugin_insn_data(insn);
        uint32_t word = data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        /* Load exclusive, of a register or a pair; small pairs with bit 21 are CASP. */
        int is_exclusive = (word & 0x3fc00000) == 0x08400000 && (word & 0x80200000) != 0x00200000;
        if (word != SVC)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, is_exclusive ? executed_exclusive : executed, QEMU_PLUGIN_CB_NO_REGS, NULL);
    }
}

static void calls(qemu_plugin_id_t id, unsigned int cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                  uint64_t g, uint64_t h) {
    (void)id, (void)a, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (cpu != 0) return;
    if (number == BEGIN) is_stepping = 1;
    if (number == RT_SIGRETURN) is_sent = 0;
    /* The signal stays unblocked. The emulator has the program's memory at the same addresses; the set may be in a constant. */
    if (number == RT_SIGPROCMASK && is_stepping && !is_sent && b != 0) {
        uint64_t *set = (uint64_t *)(uintptr_t)b, bit = 1ull << (SIGPROF - 1);
        if (!(*set & bit)) return;
        if (mprotect((void *)(uintptr_t)(b & ~(uint64_t)(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE) != 0) abort();
        *set &= ~bit;
    }
}

static void returns(qemu_plugin_id_t id, unsigned int cpu, int64_t number, int64_t value) {
    (void)id, (void)value;
    if (number != RT_SIGRETURN) send(cpu);
}

static void in_child(void) { is_stepping = 0; }

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    (void)info, (void)argc, (void)argv;
    pthread_atfork(NULL, NULL, in_child);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, calls);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, returns);
    return 0;
}
