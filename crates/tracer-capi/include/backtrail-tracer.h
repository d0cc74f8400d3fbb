/*
 * backtrail-tracer.h: typed events of C and C++ programs, written as the Common Trace Format.
 *
 *     backtrail_tracer_start(&(struct backtrail_tracer_options){
 *         .size = sizeof(struct backtrail_tracer_options), .directory = "trace" });
 *     BT_EVENT(net, packet, BT_U32(len), BT_STR(peer, address->name));
 *     backtrail_tracer_stop();
 *
 * Link with -lbacktrail_tracer. Requires GNU C11 or GNU C++11 (gcc, clang), and Linux.
 *
 * Events can be recorded in any thread and any signal handler. Recording takes no lock, does not
 * allocate, and makes system calls only for a thread's first event and for the first use of each
 * packet of its ring.
 */
#ifndef BACKTRAIL_TRACER_H
#define BACKTRAIL_TRACER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#define BT_ASSERT_ static_assert
#else
#define BT_ASSERT_ _Static_assert
#endif

/* Contexts: what each event has in addition to its fields. */
enum {
    BT_CONTEXT_PID = 1,
    BT_CONTEXT_TID = 2,
    BT_CONTEXT_CPU = 4,
    BT_CONTEXT_NAME = 8
};

/* Members that are 0 have their defaults, which are in brackets. */
struct backtrail_tracer_options {
    size_t size;                 /* sizeof(struct backtrail_tracer_options) */
    const char *directory;       /* Stream to a trace below this directory. */
    const char *flight_recorder; /* Keep the newest events in this file; "" is in memory. */
    const char *rules;           /* Which classes are on: "net:*,-net:debug_*@info,a:b+stack" */
    size_t threads;              /* Most threads that record at the same time [128] */
    size_t packets;              /* Packets of each thread's ring [16]; set packet_bytes, too */
    size_t packet_bytes;         /* Bytes of a packet [262144] */
    uint32_t contexts;           /* BT_CONTEXT_PID | ... */
    uint32_t without_stacks;     /* Do not prepare for stacks. */
};

/*
 * Starts tracing this process, once in its life. With neither directory nor flight_recorder, and
 * for NULL, events are off until `backtrail trace record` attaches. Returns 0 or a negative error
 * number.
 */
int backtrail_tracer_start(const struct backtrail_tracer_options *options);
/* Switches events off and writes the recorded ones. exit() also does this. */
void backtrail_tracer_stop(void);
/* Writes the newest events as a trace into a new directory, while recording continues. Returns 0 or
 * a negative error number. */
int backtrail_tracer_snapshot(const char *directory);
/* Copies the rings to a file when the process crashes; `backtrail trace recover` reads it. Returns 0
 * or a negative error number. */
int backtrail_tracer_snapshot_on_crash(const char *file);
/* Replaces the rules that switch classes on and off, such as "net:*,-net:debug_*@info,a:b+stack".
 * Returns 0 or a negative error number. */
int backtrail_tracer_switch(const char *rules);

/* The rest is for the macros. */
struct bt_entry {
    uint32_t bytes, ready, on, number;
};
struct bt_class {
    const struct bt_entry *entry;
    uint8_t level, wanted;
    const char *text;
};
struct bt_part {
    const void *data;
    size_t bytes;
};
extern const struct bt_entry backtrail_tracer_new_class;
void backtrail_tracer_record(struct bt_class *event_class, const struct bt_part *parts, size_t count);

#ifdef __cplusplus
}
#endif

/* Levels. */
#define BT_EMERGENCY 0
#define BT_ALERT 1
#define BT_CRITICAL 2
#define BT_ERROR 3
#define BT_WARNING 4
#define BT_NOTICE 5
#define BT_INFO 6
#define BT_DEBUG 14

/*
 * Fields. The first argument is the name; the value is the variable of that name, or the second
 * argument. If a value is wider than its field, or of another kind, the code does not compile.
 */
#define BT_U8(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), uint8_t, "u8")
#define BT_U16(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), uint16_t, "u16")
#define BT_U32(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), uint32_t, "u32")
#define BT_U64(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), uint64_t, "u64")
#define BT_I8(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), int8_t, "i8")
#define BT_I16(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), int16_t, "i16")
#define BT_I32(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), int32_t, "i32")
#define BT_I64(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), int64_t, "i64")
/* Numbers that readers print in base 16. */
#define BT_X32(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), uint32_t, "x32")
#define BT_X64(name, ...) (NUMBER, name, BT_OR_(name, ##__VA_ARGS__), uint64_t, "x64")
#define BT_PTR(name, ...) (POINTER, name, BT_OR_(name, ##__VA_ARGS__), uint64_t, "x64")
#define BT_F32(name, ...) (FLOAT, name, BT_OR_(name, ##__VA_ARGS__), float, "f32")
#define BT_F64(name, ...) (FLOAT, name, BT_OR_(name, ##__VA_ARGS__), double, "f64")
/* Text that ends with a zero byte; a null pointer is "". */
#define BT_STR(name, ...) (STRING, name, BT_OR_(name, ##__VA_ARGS__), char, "s")
/* A 32-bit number with labels: BT_ENUM(state, s->state, "idle=0;busy=1") */
#define BT_ENUM(name, value, labels) (NUMBER, name, value, int32_t, "e(i32;" labels ")")
/* COUNT elements from an address: BT_U32S(sizes, &v[0], n) */
#define BT_U8S(name, data, count) (SEQUENCE, name, data, uint8_t, "[u8]", count)
#define BT_U16S(name, data, count) (SEQUENCE, name, data, uint16_t, "[u16]", count)
#define BT_U32S(name, data, count) (SEQUENCE, name, data, uint32_t, "[u32]", count)
#define BT_U64S(name, data, count) (SEQUENCE, name, data, uint64_t, "[u64]", count)
#define BT_I32S(name, data, count) (SEQUENCE, name, data, int32_t, "[i32]", count)
#define BT_F64S(name, data, count) (SEQUENCE, name, data, double, "[f64]", count)
/* An array of a constant number of elements: BT_ARRAY_U32(quad, address, 4) */
#define BT_ARRAY_U8(name, data, count) (ARRAY, name, data, uint8_t, "[" #count "*u8]", count)
#define BT_ARRAY_U32(name, data, count) (ARRAY, name, data, uint32_t, "[" #count "*u32]", count)
#define BT_ARRAY_U64(name, data, count) (ARRAY, name, data, uint64_t, "[" #count "*u64]", count)
/* The number at an address, or no value if the address is null. */
#define BT_OPT_U32(name, pointer) (OPTIONAL, name, pointer, uint32_t, "?u32")
#define BT_OPT_U64(name, pointer) (OPTIONAL, name, pointer, uint64_t, "?u64")
#define BT_OPT_I32(name, pointer) (OPTIONAL, name, pointer, int32_t, "?i32")
#define BT_OPT_I64(name, pointer) (OPTIONAL, name, pointer, int64_t, "?i64")
/*
 * A packed struct at an address, with the types of its members as in the table of classes:
 * BT_STRUCT(at, &point, struct point, "x:i32,y:i32")
 */
#define BT_STRUCT(name, pointer, type, members) (STRUCT, name, pointer, type, "{" members "}")

/* Records the event PROVIDER:NAME with at most 16 fields. */
#define BT_EVENT(provider, name, ...) BT_EVENT_(BT_INFO, 0, provider, name, ##__VA_ARGS__)
/* The same with a level. */
#define BT_EVENT_AT(level, provider, name, ...) BT_EVENT_(level, 0, provider, name, ##__VA_ARGS__)
/* The same with the stack. */
#define BT_EVENT_STACK(provider, name, ...) BT_EVENT_(BT_INFO, 2, provider, name, ##__VA_ARGS__)

#define BT_EVENT_(level, wanted, provider, name, ...)                                              \
    do {                                                                                           \
        static struct bt_class bt_class_ = {&backtrail_tracer_new_class, (level), (wanted),        \
                                            #provider ":" #name "\t" BT_EACH_(TEXT, ##__VA_ARGS__)}; \
        const struct bt_entry *bt_entry_ = __atomic_load_n(&bt_class_.entry, __ATOMIC_RELAXED);    \
        if (__builtin_expect(__atomic_load_n(&bt_entry_->on, __ATOMIC_RELAXED) != 0, 0)) {         \
            BT_EACH_(LET, ##__VA_ARGS__)                                                           \
            const struct bt_part bt_parts_[] = {BT_EACH_(PART, ##__VA_ARGS__){NULL, 0}};           \
            backtrail_tracer_record(&bt_class_, bt_parts_, sizeof bt_parts_ / sizeof *bt_parts_ - 1); \
        }                                                                                          \
    } while (0)

/* The text of a field. */
#define BT_TEXT_(kind, name, value, type, text, ...) #name ":" text
/* Its value, evaluated once. */
#define BT_LET_(kind, ...) BT_LET_##kind##_(__VA_ARGS__)
#define BT_LET_NUMBER_(name, value, type, text)                                                    \
    BT_ASSERT_(sizeof(value) <= sizeof(type) || __builtin_constant_p(value), #name " is too wide"); \
    BT_ASSERT_((__typeof__((value) + 0))0.5 == 0, #name " is not an integer");                     \
    const type bt_##name = (type)(value);
#define BT_LET_POINTER_(name, value, type, text) const type bt_##name = (uintptr_t)(const volatile void *)(value);
#define BT_LET_FLOAT_(name, value, type, text)                                                     \
    BT_ASSERT_(sizeof(value) <= sizeof(type) || __builtin_constant_p(value), #name " is too wide"); \
    const type bt_##name = (value);
#define BT_LET_STRING_(name, value, type, text)                                                    \
    BT_ASSERT_(sizeof(*(value)) == 1, #name " is not a string");                                   \
    const char *const bt_##name = bt_text_(value);
#define BT_LET_SEQUENCE_(name, value, type, text, count)                                           \
    BT_ASSERT_(sizeof(*(value)) == sizeof(type), #name " has elements of another size");           \
    const uint32_t bt_count_##name = (uint32_t)(count);                                            \
    const void *const bt_##name = (value);
#define BT_LET_ARRAY_(name, value, type, text, count)                                              \
    BT_ASSERT_(sizeof(*(value)) == sizeof(type), #name " has elements of another size");           \
    const void *const bt_##name = (value);
#define BT_LET_OPTIONAL_(name, value, type, text)                                                  \
    BT_ASSERT_(sizeof(*(value)) == sizeof(type), #name " has another size");                       \
    const void *const bt_##name = (value);                                                         \
    const uint8_t bt_is_##name = bt_##name != NULL;
#define BT_LET_STRUCT_(name, value, type, text)                                                    \
    BT_ASSERT_(sizeof(*(value)) == sizeof(type), #name " has another size");                       \
    const void *const bt_##name = (value);
/* Its bytes. */
#define BT_PART_(kind, ...) BT_PART_##kind##_(__VA_ARGS__)
#define BT_PART_NUMBER_(name, ...) {&bt_##name, sizeof bt_##name},
#define BT_PART_POINTER_(name, ...) {&bt_##name, sizeof bt_##name},
#define BT_PART_FLOAT_(name, ...) {&bt_##name, sizeof bt_##name},
#define BT_PART_STRING_(name, ...) {bt_##name, strlen(bt_##name) + 1},
#define BT_PART_SEQUENCE_(name, value, type, text, count)                                          \
    {&bt_count_##name, sizeof bt_count_##name}, {bt_##name, bt_count_##name * sizeof(type)},
#define BT_PART_ARRAY_(name, value, type, text, count) {bt_##name, (count) * sizeof(type)},
#define BT_PART_OPTIONAL_(name, value, type, text)                                                 \
    {&bt_is_##name, 1}, {bt_##name, bt_is_##name ? sizeof(type) : 0},
#define BT_PART_STRUCT_(name, value, type, text) {bt_##name, sizeof(type)},

static inline const char *bt_text_(const void *text) {
    return text != NULL ? (const char *)text : "";
}

/* The second of these, which may be missing, else the first. */
#define BT_OR_(name, ...) BT_SECOND_(~, ##__VA_ARGS__, name)
#define BT_SECOND_(first, second, ...) second

/*
 * Applies BT_WHAT_ to each field; texts are separated by commas. Strict modes of gcc keep the comma
 * before missing arguments of a macro that has no other parameter.
 */
#define BT_COUNT_(what, ...) \
    BT_17TH_(~, ##__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define BT_17TH_(z, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count
#define BT_EACH_(what, ...) BT_JOIN_(BT_EACH_, BT_COUNT_(what, ##__VA_ARGS__))(what, ##__VA_ARGS__)
#define BT_JOIN_(a, b) BT_JOIN2_(a, b)
#define BT_JOIN2_(a, b) a##b
#define BT_COMMA_TEXT_ ","
#define BT_COMMA_LET_
#define BT_COMMA_PART_
#define BT_EACH_0(what)
#define BT_EACH_1(what, f) BT_##what##_ f
#define BT_EACH_2(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_1(what, __VA_ARGS__)
#define BT_EACH_3(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_2(what, __VA_ARGS__)
#define BT_EACH_4(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_3(what, __VA_ARGS__)
#define BT_EACH_5(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_4(what, __VA_ARGS__)
#define BT_EACH_6(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_5(what, __VA_ARGS__)
#define BT_EACH_7(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_6(what, __VA_ARGS__)
#define BT_EACH_8(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_7(what, __VA_ARGS__)
#define BT_EACH_9(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_8(what, __VA_ARGS__)
#define BT_EACH_10(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_9(what, __VA_ARGS__)
#define BT_EACH_11(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_10(what, __VA_ARGS__)
#define BT_EACH_12(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_11(what, __VA_ARGS__)
#define BT_EACH_13(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_12(what, __VA_ARGS__)
#define BT_EACH_14(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_13(what, __VA_ARGS__)
#define BT_EACH_15(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_14(what, __VA_ARGS__)
#define BT_EACH_16(what, f, ...) BT_##what##_ f BT_COMMA_##what##_ BT_EACH_15(what, __VA_ARGS__)

#endif
