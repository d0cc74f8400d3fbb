/* count_instructions,number=NUMBER
 *
 * A plugin of qemu's user emulation: at the system call NUMBER, which no system has, it writes the number of instructions that have run so far to
 * the address in the call's first argument. For one thread. */
#include "qemu_plugin.h"
#include <inttypes.h>
#include <stdio.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = 1;

static uint64_t count;
static int64_t asks;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
        qemu_plugin_register_vcpu_insn_exec_inline(qemu_plugin_tb_get_insn(tb, i), QEMU_PLUGIN_INLINE_ADD_U64, &count, 1);
}

static void called(qemu_plugin_id_t id, unsigned int cpu, int64_t number, uint64_t to, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                   uint64_t g, uint64_t h) {
    (void)id, (void)cpu, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    /* The emulator has the program's memory at the same addresses. */
    if (number == asks) *(volatile uint64_t *)(uintptr_t)to = count;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    (void)info;
    if (argc != 1 || sscanf(argv[0], "number=%" SCNd64, &asks) != 1) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
