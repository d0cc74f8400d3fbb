/*
 * Events of a tracer that barectf has made.
 *
 * barectf_events FILE CPU COUNT   COUNT events into a stream: empty ones, numbers, texts, stacks
 */
#include "barectf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKET_BYTES 65536
#define FRAMES 16

static struct barectf_default_ctx context;
static uint8_t packet[PACKET_BYTES];
static uint64_t now;
static uint32_t cpu;
static FILE *file;

static uint64_t clock_value(void *data)
{
    (void)data;
    return now;
}

static int is_full(void *data)
{
    (void)data;
    return 0;
}

static void open_packet(void *data)
{
    (void)data;
    barectf_default_open_packet(&context, cpu);
}

static void close_packet(void *data)
{
    (void)data;
    barectf_default_close_packet(&context);
    fwrite(barectf_packet_buf(&context), 1, barectf_packet_buf_size(&context), file);
}

int main(int argc, char **argv)
{
    if (argc != 4 || !(file = fopen(argv[1], "wb")))
        return 1;
    cpu = strtoul(argv[2], NULL, 10);
    now = 1000 + cpu;
    long count = atol(argv[3]);
    uint64_t ips[FRAMES];
    for (int i = 0; i < FRAMES; i++)
        ips[i] = 0x7f0000001000 + i * 77;
    uint16_t three[3] = {1, 22, 333};
    struct barectf_platform_callbacks callbacks = {
        .monotonic_clock_get_value = clock_value,
        .is_backend_full = is_full,
        .open_packet = open_packet,
        .close_packet = close_packet,
    };
    barectf_init(&context, packet, sizeof packet, callbacks, NULL);
    open_packet(NULL);
    char text[64];
    for (long i = 0; i < count; i++) {
        now += 500 + i % 37;
        switch (i % 4) {
        case 0:
            barectf_trace_empty(&context, i % 2);
            break;
        case 1:
            barectf_trace_numbers(&context, (int)i * (i % 3 ? 1 : -1), (uint64_t)i * 77777, i % 128, i % 5, i * 0.5f, i / 3.0);
            break;
        case 2:
            snprintf(text, sizeof text, "text \"number\" %ld", i % 1000);
            barectf_trace_text(&context, (int)i, text);
            break;
        default:
            barectf_trace_stack(&context, i % 16 == 3 ? FRAMES : 3, ips, three);
        }
    }
    if (barectf_packet_is_open(&context) && !barectf_packet_is_empty(&context))
        close_packet(NULL);
    return fclose(file) ? 1 : 0;
}
