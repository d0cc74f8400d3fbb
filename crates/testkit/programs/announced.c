/* announced [WHAT [SECONDS]]
 *
 * Code made at run time that GDB's JIT interface describes: a frame that neither a frame pointer nor the instructions around the
 * return address show, because another piece of code makes it, as in an emulator. WHAT is what is wrong with the list of objects:
 * nothing (good); it is a ring (ring); an object of an exabyte (huge), bytes that are no object and half of one (nonsense), or 100,000
 * entries (many) come before the right one; the object lies about the frame's size (lie); its version is not known (version).
 * Without SECONDS, prints "ready" and waits in the function that the code calls; else it calls for that long a function that computes. */
#include "common.h"
#include <elf.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "no code for this CPU"
#endif

struct entry {
    struct entry *next, *prev;
    const void *object;
    uint64_t size;
};

struct descriptor {
    uint32_t version, action;
    struct entry *relevant, *first;
} __jit_debug_descriptor = {1, 0, NULL, NULL};

__attribute__((noinline)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }

/* Makes the frame, loses the frame pointer, and jumps into the body. */
static const unsigned char prologue[] = {
    0x55,                                     /* push %rbp */
    0x53,                                     /* push %rbx */
    0x48, 0x81, 0xec, 0x88, 0x00, 0x00, 0x00, /* sub $0x88,%rsp */
    0x48, 0x89, 0xd3,                         /* mov %rdx,%rbx */
    0x48, 0x8d, 0xac, 0x24, 0x40, 0xff, 0xff, 0xff, /* lea -0xc0(%rsp),%rbp */
    0xff, 0xe6,                               /* jmp *%rsi */
};
static const unsigned char body[] = {
    0xff, 0xd7, /* call *%rdi */
    0xff, 0xe3, /* jmp *%rbx */
};
static const unsigned char epilogue[] = {
    0x48, 0x81, 0xc4, 0x88, 0x00, 0x00, 0x00, /* add $0x88,%rsp */
    0x5b,                                     /* pop %rbx */
    0x5d,                                     /* pop %rbp */
    0xc3,                                     /* ret */
};

typedef void (*code)(void (*callee)(void), void *body, void *epilogue);

static double end;

static FRAME void leaf(void) {
    if (end == 0) {
        printf("ready\n");
        fflush(stdout);
        pause();
    }
    volatile uint64_t sum = 0;
    for (int i = 0; i < 10000; i++) sum += i;
}

static FRAME void enter(code entry, void *at_body, void *at_epilogue) {
    volatile int kept = 1;
    entry(leaf, at_body, at_epilogue);
    kept++;
}

enum { TEXT = 1, EH_FRAME, SYMTAB, STRTAB, SHSTRTAB, SECTIONS };

static const char names[] = "\0.text\0.eh_frame\0.symtab\0.strtab\0.shstrtab";
static const char symbols[] = "\0announced_body";

struct object {
    Elf64_Ehdr header;
    Elf64_Shdr sections[SECTIONS];
    Elf64_Sym symtab[2];
    char names[sizeof names], strings[sizeof symbols];
    unsigned char eh_frame[64] __attribute__((aligned(8)));
};

static void put_section(struct object *object, int index, int name, int type, const void *bytes, uint64_t size) {
    object->sections[index] = (Elf64_Shdr){
        .sh_name = name,
        .sh_type = type,
        .sh_offset = (const char *)bytes - (const char *)object,
        .sh_size = size,
        .sh_addralign = 1,
    };
}

/* Describes the body; its frame has this size. */
static void make_object(struct object *object, const unsigned char *at, uint64_t size, unsigned char frame) {
    memset(object, 0, sizeof *object);
    memcpy(object->header.e_ident, ELFMAG, SELFMAG);
    object->header.e_ident[EI_CLASS] = ELFCLASS64;
    object->header.e_ident[EI_DATA] = ELFDATA2LSB;
    object->header.e_ident[EI_VERSION] = EV_CURRENT;
    object->header.e_type = ET_REL;
    object->header.e_machine = EM_X86_64;
    object->header.e_version = EV_CURRENT;
    object->header.e_shoff = offsetof(struct object, sections);
    object->header.e_ehsize = sizeof(Elf64_Ehdr);
    object->header.e_shentsize = sizeof(Elf64_Shdr);
    object->header.e_shnum = SECTIONS;
    object->header.e_shstrndx = SHSTRTAB;
    memcpy(object->names, names, sizeof names);
    memcpy(object->strings, symbols, sizeof symbols);
    object->symtab[1] = (Elf64_Sym){
        .st_name = 1,
        .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
        .st_shndx = TEXT,
        .st_size = size,
    };
    const unsigned char cie[] = {
        20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, /* version, augmentation, alignments, return address, absolute */
        0x0c, 7, 8, 0x90, 1, 0, 0,                                  /* CFA is rsp + 8, return address at CFA - 8 */
    };
    unsigned char fde[] = {
        36, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* CIE, start, size, augmentation */
        0x0e, 0x80 | (frame & 0x7f), frame >> 7,                                     /* CFA is rsp + frame */
        0x86, 2, 0x83, 3,                                                            /* rbp at CFA - 16, rbx at CFA - 24 */
        0, 0, 0, 0, 0, 0, 0, 0,
    };
    uint64_t start = (uint64_t)at;
    memcpy(fde + 8, &start, 8);
    memcpy(fde + 16, &size, 8);
    memcpy(object->eh_frame, cie, sizeof cie);
    memcpy(object->eh_frame + sizeof cie, fde, sizeof fde);
    put_section(object, TEXT, 1, SHT_NOBITS, object, size);
    object->sections[TEXT].sh_addr = start;
    object->sections[TEXT].sh_flags = SHF_ALLOC | SHF_EXECINSTR;
    put_section(object, EH_FRAME, 7, SHT_PROGBITS, object->eh_frame, sizeof cie + sizeof fde);
    object->sections[EH_FRAME].sh_flags = SHF_ALLOC;
    put_section(object, SYMTAB, 17, SHT_SYMTAB, object->symtab, sizeof object->symtab);
    object->sections[SYMTAB].sh_link = STRTAB;
    object->sections[SYMTAB].sh_info = 1;
    object->sections[SYMTAB].sh_entsize = sizeof(Elf64_Sym);
    put_section(object, STRTAB, 25, SHT_STRTAB, object->strings, sizeof symbols);
    put_section(object, SHSTRTAB, 33, SHT_STRTAB, object->names, sizeof names);
}

static void announce(const void *object, uint64_t size) {
    struct entry *entry = calloc(1, sizeof *entry);
    entry->next = __jit_debug_descriptor.first;
    entry->object = object;
    entry->size = size;
    if (entry->next) entry->next->prev = entry;
    __jit_debug_descriptor.first = __jit_debug_descriptor.relevant = entry;
    __jit_debug_descriptor.action = 1;
    __jit_debug_register_code();
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "good";
    if (argc > 2) end = now() + atof(argv[2]);
    size_t length = 1 << 16;
    unsigned char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    unsigned char *at_prologue = memory + 0x40, *at_body = memory + 0x4000, *at_epilogue = memory + 0x8000;
    memcpy(at_prologue, prologue, sizeof prologue);
    memcpy(at_body, body, sizeof body);
    memcpy(at_epilogue, epilogue, sizeof epilogue);
    if (mprotect(memory, length, PROT_READ | PROT_EXEC) != 0) return 1;

    struct object *object = calloc(1, sizeof *object), *half = calloc(1, sizeof *half);
    make_object(object, at_body, sizeof body, strcmp(what, "lie") == 0 ? 0xb0 : 0xa0);
    announce(object, sizeof *object);
    if (strcmp(what, "ring") == 0) __jit_debug_descriptor.first->next = __jit_debug_descriptor.first;
    if (strcmp(what, "huge") == 0) announce(object, UINT64_C(1) << 60);
    if (strcmp(what, "version") == 0) __jit_debug_descriptor.version = 2;
    if (strcmp(what, "nonsense") == 0) {
        make_object(half, at_body, sizeof body, 0xa0);
        memset(half->eh_frame, 0x81, sizeof half->eh_frame);
        half->sections[SYMTAB].sh_offset = UINT64_C(1) << 62;
        half->sections[EH_FRAME].sh_size = UINT64_C(1) << 62;
        announce(half, sizeof *half / 2);
        announce(leaf, 4096);
        announce((void *)8, 4096);
    }
    for (int i = 0; strcmp(what, "many") == 0 && i < 100000; i++) announce(leaf, 64);

    code entry;
    memcpy(&entry, &at_prologue, sizeof entry);
    do enter(entry, at_body, at_epilogue);
    while (now() < end);
    return 0;
}
