/* Walks the user stack of a sampled thread by fixed rows, at the moment of the sample.
 *
 * It decides nothing: it copies the words that a walk by the rows reads, and the recorder, which
 * proves each step, walks again over these words. If the walk reaches the outermost frame, they
 * take the place of the sample; otherwise the sample is written with its copy of the stack.
 *
 * Layouts are those of `layout.rs`. No loop depends on data, and searches do not branch, so that
 * the verifier follows one path. Where ways join again, it must know as much on each: a variable
 * that is 8 on one and unknown on the other takes twice the instructions, for each frame. */

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
static u64 (*const now)(void) = (void *)5;
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
#define FINDER 5

/* Frames of one run of the walker and of the finder: the kernel permits 33 runs in a row, and a
 * million instructions on all paths of a program. */
#define FRAMES 256
#define FOUND_FRAMES 64

#define ROWS 512
#define DIRECTORY 1024
#define RANGES 128
#define WORDS 1024
#define PIECE 256
#define CHAIN 128
#define CACHED 512

/* Words that are read at once, a power of two; and the most between the frames of a program that
 * have rules and the end of its stack. */
#define BLOCK 64

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
    u32 generation;   /* another one whenever the ranges change; never 0 */
    u32 reserved;
    u64 stack_end; /* where the first thread's stack begins to grow */
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

/* Frames of one function return to few addresses. */
struct cached {
    u64 address;
    u32 generation;
    u32 rule;
};

struct state {
    u64 period; /* of the timer, in nanoseconds; 0 without one */
    u64 missed; /* samples that the timer left out during walks that took longer */
    u64 began;
    u64 walks;
    u64 pc, sp, fp, link;
    u32 is_return; /* whether `pc` is a return address */
    u32 part;
    u64 block_at, block_size;
    u64 block[BLOCK];
    struct cached cache[CACHED];
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

/* The rule for the address; 0 without one. */
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

/* Where the rule of the last look-up is, if it was of this address. */
INLINE struct cached *cached_at(struct state *state, u64 address) {
    return &state->cache[(address ^ address >> 9) & (CACHED - 1)];
}

/* Reads a word, and keeps it. */
INLINE int read_word(struct state *state, u64 address, u64 *word) {
    if (read_user(word, sizeof(*word), (void *)address))
        return 0;
    keep(state, address, *word);
    return 1;
}

/* Reads this part of a frame. Reads take most of a walk's time, whatever their size, so that what
 * lies above is read with it. */
INLINE int read_frame(struct state *state, u64 begin, u64 size) {
    u64 offset = begin - state->block_at;
    if (size > sizeof(state->block) || begin % 8)
        return 0;
    if (offset <= sizeof(state->block) && offset + size <= state->block_size)
        return 1;
    state->block_at = begin;
    state->block_size = sizeof(state->block);
    if (!read_user(state->block, sizeof(state->block), (void *)begin))
        return 1;
    state->block_size = size;
    return !read_user(state->block, size, (void *)begin);
}

/* A word of it. */
INLINE u64 word_at(struct state *state, u64 address) {
    u64 word = state->block[(address - state->block_at) / 8 & (BLOCK - 1)];
    keep(state, address, word);
    return word;
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
    if (!read_frame(state, slot, 16))
        return 0;
    state->fp = word_at(state, slot);
    *ra = word_at(state, slot + 8);
    return 1;
}
#else
INLINE int read_saved(struct state *state, u32 kind, u64 cfa, u64 below, u64 *ra) {
    /* Below the red zone the slot may have been overwritten since it was popped; the register is
       the caller's then. */
    if (cfa <= state->sp || kind == FROM_SP_ALONE)
        return 0;
    if (below && cfa - below + RED_ZONE >= state->sp) {
        if (!read_frame(state, cfa - below, below))
            return 0;
        state->fp = word_at(state, cfa - below);
    } else if (!read_frame(state, cfa - 8, 8))
        return 0;
    *ra = word_at(state, cfa - 8);
    return 1;
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

enum step { FAILED, DONE, GO_ON, NOT_CACHED };

INLINE enum step step(struct state *state, struct process *process, u32 rule) {
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
    /* Callers have a rule, but without this check the verifier takes several times as long. */
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

/* Code that starts programs often has no rows: that of musl, for one. The recorder leaves it by its
 * instructions; here its words are read. */
INLINE enum step read_rest(struct state *state, struct process *process) {
    u64 size = process->stack_end - state->sp;
    state->block_size = 0;
    if (size > sizeof(state->block) || read_user(state->block, size, (void *)state->sp))
        return FAILED;
    u32 count = state->words.count;
#pragma unroll
    for (u32 i = 0; i < BLOCK; i++) {
        struct word *word = &state->words.words[(count + i) & (WORDS - 1)];
        word->address = state->sp + 8 * i;
        word->value = state->block[i];
    }
    state->words.count = count + size / 8;
    return DONE;
}

INLINE struct state *own_state(void) {
    u32 cpu = this_cpu();
    return map_lookup(&states, &cpu);
}

INLINE struct process *own_process(void) {
    u32 tgid = pid_tgid() >> 32;
    return map_lookup(&processes, &tgid);
}

/* The timer goes off no more than once while a sample is taken. */
INLINE void end(struct state *state) {
    if (state->period)
        state->missed += (now() - state->began) / state->period;
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
    if (!state || !own_process())
        return fall_back(context);
    u64 *registers = state->words.registers;
    if (read_kernel(registers, sizeof(state->words.registers), task_registers(current_task())))
        return fall_back(context);
    if (!IS_OURS(registers))
        return fall_back(context);
    state->began = now();
    state->block_size = 0;
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

/* Signal frames take more room than others, and the rest of a stack still more. */
INLINE int is_full(struct state *state) {
    return state->words.count > WORDS - BLOCK - 8;
}

/* Writes what was read since the last time. */
INLINE int flush(void *context, struct state *state, int is_last) {
    if (state->part == 0) {
        long bytes = get_stack(context, state->chain.addresses, sizeof(state->chain.addresses), 0);
        if (bytes > 0 && bytes <= (long)sizeof(state->chain.addresses)) {
            state->chain.bytes = bytes;
            if (output(context, &events, THIS_CPU, &state->chain, sizeof(state->chain)))
                return 0;
        }
    }
    state->words.flags = (state->part == 0 ? FLAG_FIRST : 0) | (is_last ? FLAG_LAST : 0);
    u64 count = state->words.count;
    if (count > WORDS)
        count = WORDS;
    u64 size = sizeof(state->words) - sizeof(state->words.words) + count * sizeof(struct word);
    int is_written = !output(context, &events, THIS_CPU, &state->words, size);
    state->part = 1;
    state->words.count = 0;
    return is_written;
}

/* Goes on after some frames. */
INLINE int go_on(void *context, struct state *state, enum step stepped) {
    int is_last = stepped != GO_ON && stepped != NOT_CACHED;
    if (is_last)
        end(state);
    if (stepped == FAILED)
        return fall_back(context);
    if ((is_last || is_full(state)) && !flush(context, state, is_last))
        return 0;
    if (is_last)
        return 0;
    if (stepped == NOT_CACHED)
        tail_call(context, &programs, FINDER);
    else
        tail_call(context, &programs, WALKER);
    end(state);
    return fall_back(context);
}

/* By rules that were looked up before. */
SECTION("perf_event/walk") int walk(void *context) {
    struct state *state = own_state();
    struct process *process = own_process();
    if (!state || !process)
        return fall_back(context);
    enum step stepped = GO_ON;
    for (u32 frame = 0; frame < FRAMES; frame++) {
        u64 address = state->pc - state->is_return;
        struct cached *cached = cached_at(state, address);
        if (cached->address != address || cached->generation != process->generation) {
            stepped = NOT_CACHED;
            break;
        }
        stepped = step(state, process, cached->rule);
        if (stepped != GO_ON || is_full(state))
            break;
    }
    return go_on(context, state, stepped);
}

/* Apart from the walker, since each branch within a loop is another path for each frame. */
SECTION("perf_event/find") int find_rules(void *context) {
    struct state *state = own_state();
    struct process *process = own_process();
    if (!state || !process)
        return fall_back(context);
    enum step stepped = GO_ON;
    for (u32 frame = 0; frame < FOUND_FRAMES; frame++) {
        u64 address = state->pc - state->is_return;
        u32 rule = find(process, address);
        if (rule == NO_RULE) {
            stepped = read_rest(state, process);
            break;
        }
        struct cached *cached = cached_at(state, address);
        cached->address = address;
        cached->generation = process->generation;
        cached->rule = rule;
        stepped = step(state, process, rule);
        if (stepped != GO_ON || is_full(state))
            break;
    }
    return go_on(context, state, stepped);
}
