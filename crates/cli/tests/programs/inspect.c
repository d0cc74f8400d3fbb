/* Looks at itself as loaders, debuggers and unwinders do, and prints what it sees. Nothing of it may change when a table is added.
   With the argument "sframe" it prints instead where PT_GNU_SFRAME leads: "table" where a table's magic number is there. */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define PT_SFRAME 0x6474e554

static __thread int initialized = 41;
static __thread int zeroed;
static int large_bss[50000];
static const char *(*volatile relocated)(const char *) = (const char *(*)(const char *))0;

static const char *identity(const char *text) { return text; }
static const char *(*const table[])(const char *) = { identity, identity };

static void notes(const struct dl_phdr_info *info, const ElfW(Phdr) *segment)
{
    const unsigned char *at = (const unsigned char *)(info->dlpi_addr + segment->p_vaddr);
    size_t align = segment->p_align == 8 ? 8 : 4;
    for (size_t left = segment->p_memsz; left >= sizeof(ElfW(Nhdr));) {
        const ElfW(Nhdr) *note = (const void *)at;
        size_t name = (note->n_namesz + 3) & ~(size_t)3;
        size_t all = (sizeof *note + name + note->n_descsz + align - 1) & ~(align - 1);
        printf("note %u of %.*s:", note->n_type, (int)note->n_namesz, (const char *)(note + 1));
        for (size_t i = 0; i < note->n_descsz; i++)
            printf("%02x", at[sizeof *note + name + i]);
        printf("\n");
        if (all > left)
            break;
        at += all;
        left -= all;
    }
}

static int module(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    int only_table = *(int *)data;
    if (info->dlpi_name && info->dlpi_name[0])
        return 0; /* not the program itself */
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (only_table) {
            if (segment->p_type == PT_SFRAME) {
                uint16_t magic;
                memcpy(&magic, (const void *)(info->dlpi_addr + segment->p_vaddr), sizeof magic);
                puts(magic == 0xdee2 ? "table" : "something else");
            }
            continue;
        }
        if (segment->p_type == PT_NOTE)
            notes(info, segment);
        if (segment->p_type == PT_INTERP)
            printf("interpreter %s\n", (const char *)(info->dlpi_addr + segment->p_vaddr));
        if (segment->p_type == PT_PHDR)
            printf("headers %s\n", (const void *)(info->dlpi_addr + segment->p_vaddr) == info->dlpi_phdr ? "at home" : "astray");
        if (segment->p_type == PT_DYNAMIC)
            printf("dynamic section %s\n", *(const ElfW(Sxword) *)(info->dlpi_addr + segment->p_vaddr) ? "begins" : "is empty");
    }
    if (!only_table)
        printf("AT_PHDR %s\n", (const void *)getauxval(AT_PHDR) == info->dlpi_phdr ? "agrees" : "differs");
    return 1;
}

int main(int argc, char **argv)
{
    int only_table = argc > 1 && strcmp(argv[1], "sframe") == 0;
    dl_iterate_phdr(module, &only_table);
    if (only_table)
        return 0;
    relocated = table[argc & 1];
    zeroed += initialized;
    for (int i = 0; i < 50000; i++)
        zeroed += large_bss[i];
    void *top = sbrk(0);
    char *heap = malloc(1 << 20);
    memset(heap, 1, 1 << 20);
    printf("%s: thread-local %d %d, heap %s\n", relocated("inspected"), initialized, zeroed,
           top > (void *)&large_bss[0] ? "above" : "elsewhere");
    free(heap);
    return 7;
}
