/* Walks the user stack of a sampled thread by fixed rows, at the moment of the sample.
 *
 * It decides nothing: it copies the words that a walk by the rows reads, and the recorder, which
 * proves each step, walks again over these words. If the walk reaches the outermost frame, they
 * take the place of the sample; otherwise the sample is written with its copy of the stack.
 *
 * Layouts are those of `layout.rs`. No loop depends on data, and searches do not branch, so that
 * the verifier follows one path. */

#ifdef AARCH64
#include "aarch64.h"
#else
#include "x86_64.h"
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline))

/* The kernel's helpers (enum bpf_func_id). */
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u32 (*const this_cpu)(void) = (void *)8;
static long (*const tail_call)(void *context, void *programs, u32 index) = (void *)12;
static u64 (*const pid_tgid)(void) = (void *)14;
static long (*const output)(void *context, void *events, u64 flags, void *data, u64 size) = (void *)25;
static long (*const get_stack)(void *context, void *buffer, u32 size, u64 flags) = (void *)67;
static long (*const read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*const read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static void *(*const current_task)(void) = (void *)158;
static void *(*const task_registers)(void *task) = (void *)175;

#define THIS_CPU 0xffffffffULL

/* Programs to continue with. */
#define COPIER 1
#define WALKER 2
#define OTHERS 3
#define TASKS 4

/* Frames of one run of the walker, of which the kernel permits 33 in a row. */
#define FRAMES 256

#define ROWS 512
#define DIRECTORY 1024
#define RANGES 128
#define WORDS 1024
#define PIECE 256
#define CHAIN 128

/* The mark of our records, where samples have the upper half of their chain's length. */
#define MARK 0x4b574c4b
#define RECORD_CHAIN 1
#define RECORD_WORDS 2
#define FLAG_FIRST 1
#define FLAG_LAST 2

enum rule {
    NO_RULE,
    FROM_SP,
    FROM_FP,
    OUTERMOST,
    SIGNAL,
    FROM_SP_ALONE, /* with a link register: only the return address is saved */
    BY_WORD,       /* a word of the frame leads to another stack */
    BY_WORD_OF_WORD,
};

struct row {
    u32 pc; /* from the table's first address */
    u32 rule;
};

struct range {
    u64 start, end;
    u64 base; /* where the table's first address is */
    u32 table;
    u32 reserved;
};

struct process {
    u64 address_mask; /* the other bits of a return address are its signature */
    struct range ranges[RANGES];
};

struct word {
    u64 address, value;
};

struct chain {
    u32 mark;
    u16 kind, flags;
    u64 walk;
    u32 bytes;
    u32 reserved;
    u64 addresses[CHAIN];
};

struct words {
    u32 mark;
    u16 kind, flags;
    u64 walk; /* the same in all records of a walk */
    u32 count;
    u32 piece;
    u64 registers[REGISTERS];
    u8 bytes[PIECE];
    struct word words[WORDS];
};

struct state {
    u64 walks;
    u64 pc, sp, fp, link;
    u32 is_return; /* whether `pc` is a return address */
    u32 part;
    struct chain chain;
    struct words words;
};

/* The loader makes the maps; here they are names to be replaced. */
struct map {
    u32 unused;
};
struct map SECTION("maps") processes, tables, states, events, programs;

/* 1 if `a` is at most `b`, for values below 2^63; the compiler must not make a branch of it. */
INLINE u64 at_most(u64 a, u64 b) {
    u64 difference = a - b - 1;
    asm volatile("" : "+r"(difference));
    difference >>= 63;
    asm volatile("" : "+r"(difference));
    return difference;
}

INLINE void keep(struct state *state, u64 address, u64 value) {
    u32 at = state->words.count & (WORDS - 1);
    state->words.words[at].address = address;
    state->words.words[at].value = value;
    state->words.count = at + 1;
}

/* The rule for the frame; 0 without one. */
INLINE u32 find(struct process *process, u64 address) {
    u64 index = 0;
#pragma unroll
    for (u32 step = RANGES / 2; step; step /= 2)
        index += step * at_most(process->ranges[(index + step) & (RANGES - 1)].start, address);
    struct range *range = &process->ranges[index & (RANGES - 1)];
    if (address < range->start || address >= range->end)
        return NO_RULE;
    u64 pc = address - range->base;
    if (pc >> 32)
        return NO_RULE;
    u32 key = range->table;
    void *table = map_lookup(&tables, &key);
    if (!table)
        return NO_RULE;
    u32 first = 0;
    u32 *directory = map_lookup(table, &first);
    if (!directory)
        return NO_RULE;
    index = 0;
#pragma unroll
    for (u32 step = DIRECTORY / 2; step; step /= 2)
        index += step * at_most(directory[(index + step) & (DIRECTORY - 1)], pc);
    u32 page = index + 1;
    struct row *rows = map_lookup(table, &page);
    if (!rows)
        return NO_RULE;
    index = 0;
#pragma unroll
    for (u32 step = ROWS / 2; step; step /= 2)
        index += step * at_most(rows[(index + step) & (ROWS - 1)].pc, pc);
    struct row *row = &rows[index & (ROWS - 1)];
    return row->pc <= pc ? row->rule : NO_RULE;
}

/* Reads a word, and keeps it. */
INLINE int read_word(struct state *state, u64 address, u64 *word) {
    if (read_user(word, sizeof(*word), (void *)address))
        return 0;
    keep(state, address, *word);
    return 1;
}

/* What the kernel has saved of the interrupted code. */
INLINE int leave_signal(struct state *state) {
    u64 saved[SAVED];
    u64 at = state->sp + SAVED_AT;
    if (read_user(saved, sizeof(saved), (void *)at))
        return 0;
#pragma unroll
    for (u32 i = 0; i < SAVED; i++)
        keep(state, at + 8 * i, saved[i]);
    state->pc = saved[SAVED_PC];
    state->sp = saved[SAVED_SP];
    state->fp = saved[SAVED_FP];
#ifdef AARCH64
    state->link = saved[SAVED_LINK];
#endif
    state->is_return = 0;
    return 1;
}

/* Reads the frame's return address, and its caller's frame pointer if it is saved `below` the CFA. */
#ifdef AARCH64
INLINE int read_saved(struct state *state, u32 kind, u64 cfa, u64 below, u64 *ra) {
    if (!below) {
        *ra = state->link;
        return !state->is_return && cfa >= state->sp;
    }
    u64 slot = cfa - below;
    if (slot < state->sp || cfa <= state->sp)
        return 0;
    if (kind == FROM_SP_ALONE)
        return read_word(state, slot, ra);
    return read_word(state, slot, &state->fp) && read_word(state, slot + 8, ra);
}
#else
INLINE int read_saved(struct state *state, u32 kind, u64 cfa, u64 below, u64 *ra) {
    u64 slot = cfa - below, fp;
    if (cfa <= state->sp || kind == FROM_SP_ALONE)
        return 0;
    /* Below the red zone the slot may have been overwritten since it was popped; the register is
       the caller's then. */
    if (below && slot + RED_ZONE >= state->sp) {
        if (read_word(state, slot, &fp))
            state->fp = fp;
        else if (slot >= state->sp)
            return 0;
    }
    return read_word(state, cfa - 8, ra);
}
#endif

/* Goes to the stack to which a word of the frame leads. */
INLINE int change_stack(struct state *state, u32 kind, u64 slot, u64 *to) {
    if (!read_word(state, state->sp + slot, to))
        return 0;
    if (kind == BY_WORD_OF_WORD && !read_word(state, *to, to))
        return 0;
    state->sp = *to;
    return 1;
}

enum step { FAILED, DONE, GO_ON };

INLINE enum step step(struct state *state, struct process *process) {
    u32 rule = find(process, state->pc - state->is_return);
    u32 kind = rule & 7;
    u64 cfa = (u64)(rule >> 3 & 0xffff) << 3, below = (u64)(rule >> 19) << 3;
    u64 ra = 0;
    if (kind == OUTERMOST)
        return DONE;
    if (kind == SIGNAL)
        return leave_signal(state) ? GO_ON : FAILED;
    if (kind >= BY_WORD) {
        u64 slot = (u64)(rule >> 3 & 0xff) << 3, to;
        if (!change_stack(state, kind, slot, &to))
            return FAILED;
        cfa = to + ((u64)(rule >> 11 & 0xff) << 3);
    } else if (kind == FROM_FP)
        cfa += state->fp;
    else if (kind != NO_RULE)
        cfa += state->sp;
    else
        return FAILED;
    if (!read_saved(state, kind, cfa, below, &ra))
        return FAILED;
    if (!ra)
        return DONE;
    state->pc = ra & process->address_mask;
    state->sp = cfa;
    state->is_return = 1;
    return GO_ON;
}

INLINE struct state *own_state(void) {
    u32 cpu = this_cpu();
    return map_lookup(&states, &cpu);
}

/* The sample is written as it is, with what the copiers add: those of other stacks, which continue
 * with the copier of the rest, or are not there. */
INLINE int fall_back(void *context) {
    tail_call(context, &programs, OTHERS);
    tail_call(context, &programs, TASKS);
    tail_call(context, &programs, COPIER);
    return 1;
}

SECTION("perf_event/begin") int begin(void *context) {
    struct state *state = own_state();
    u32 tgid = pid_tgid() >> 32;
    if (!state || !map_lookup(&processes, &tgid))
        return fall_back(context);
    u64 *registers = state->words.registers;
    if (read_kernel(registers, sizeof(state->words.registers), task_registers(current_task())))
        return fall_back(context);
    if (!IS_OURS(registers))
        return fall_back(context);
    state->pc = registers[PC];
    state->sp = registers[SP];
    state->fp = registers[FP];
#ifdef AARCH64
    state->link = registers[LINK];
#endif
    state->is_return = 0;
    state->part = 0;
    state->words.mark = state->chain.mark = MARK;
    state->words.kind = RECORD_WORDS;
    state->chain.kind = RECORD_CHAIN;
    state->words.walk = state->chain.walk = ++state->walks;
    state->words.count = 0;
    state->words.piece = PIECE;
    if (read_user(state->words.bytes, PIECE, (void *)state->sp))
        state->words.piece = 0;
    tail_call(context, &programs, WALKER);
    return fall_back(context);
}

SECTION("perf_event/walk") int walk(void *context) {
    struct state *state = own_state();
    u32 tgid = pid_tgid() >> 32;
    if (!state)
        return fall_back(context);
    struct process *process = map_lookup(&processes, &tgid);
    if (!process)
        return fall_back(context);
    enum step stepped = GO_ON;
    for (u32 frame = 0; frame < FRAMES; frame++) {
        stepped = step(state, process);
        if (stepped != GO_ON)
            break;
        /* Signal frames take more room than others. */
        if (state->words.count > WORDS - SAVED - 8)
            break;
    }
    if (stepped == FAILED)
        return fall_back(context);
    if (state->part == 0) {
        long bytes = get_stack(context, state->chain.addresses, sizeof(state->chain.addresses), 0);
        if (bytes > 0 && bytes <= (long)sizeof(state->chain.addresses)) {
            state->chain.bytes = bytes;
            if (output(context, &events, THIS_CPU, &state->chain, sizeof(state->chain)))
                return 0;
        }
    }
    state->words.flags = (state->part == 0 ? FLAG_FIRST : 0) | (stepped == DONE ? FLAG_LAST : 0);
    u64 count = state->words.count;
    if (count > WORDS)
        count = WORDS;
    u64 size = sizeof(state->words) - sizeof(state->words.words) + count * sizeof(struct word);
    if (output(context, &events, THIS_CPU, &state->words, size))
        return 0;
    if (stepped == DONE)
        return 0;
    state->part = 1;
    state->words.count = 0;
    tail_call(context, &programs, WALKER);
    return fall_back(context);
}

