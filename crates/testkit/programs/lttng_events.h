/* The tracepoints of lttng_events.c. LTTng includes this file several times. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER kit

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./lttng_events.h"

#if !defined(KIT_LTTNG_EVENTS_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define KIT_LTTNG_EVENTS_H

#include <lttng/tracepoint.h>
#include <stddef.h>
#include <stdint.h>

LTTNG_UST_TRACEPOINT_ENUM(kit, direction,
    LTTNG_UST_TP_ENUM_VALUES(
        lttng_ust_field_enum_value("up", 0)
        lttng_ust_field_enum_range("sideways", 1, 2)
        lttng_ust_field_enum_value("down", 3)))

LTTNG_UST_TRACEPOINT_EVENT(kit, empty, LTTNG_UST_TP_ARGS(), LTTNG_UST_TP_FIELDS())

LTTNG_UST_TRACEPOINT_EVENT(kit, numbers,
    LTTNG_UST_TP_ARGS(int, a, uint64_t, b),
    LTTNG_UST_TP_FIELDS(
        lttng_ust_field_integer(int, a, a)
        lttng_ust_field_integer_hex(uint64_t, b, b)
        lttng_ust_field_integer_network(uint16_t, net, (uint16_t)a)
        lttng_ust_field_enum(kit, direction, int, way, a % 5)
        lttng_ust_field_float(float, half, a * 0.5f)
        lttng_ust_field_float(double, third, a / 3.0)))

LTTNG_UST_TRACEPOINT_EVENT(kit, text,
    LTTNG_UST_TP_ARGS(int, a, const char *, s, size_t, length),
    LTTNG_UST_TP_FIELDS(
        lttng_ust_field_integer(int, a, a)
        lttng_ust_field_string(s, s)
        lttng_ust_field_array_text(char, five, s, 5)
        lttng_ust_field_sequence_text(char, all, s, size_t, length)))

LTTNG_UST_TRACEPOINT_EVENT(kit, stack,
    LTTNG_UST_TP_ARGS(const uint64_t *, ips, size_t, n),
    LTTNG_UST_TP_FIELDS(lttng_ust_field_sequence_hex(uint64_t, ips, ips, size_t, n)))

#endif

#include <lttng/tracepoint-event.h>
