/* Writes and reads compact backtraces, and prints the unwind table of a file as objdump does:
 *     formats FILE     its functions and rows
 *     formats          checks of compact backtraces and of errors */
#include <backtrail.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

static int print_row(void *closure, const struct backtrail_row *row)
{
    const struct backtrail_function *function = closure;
    uint64_t start = function->repeat ? row->start - function->start : row->start;
    printf("%016" PRIx64 " %d%+" PRId64 "\n", start, row->cfa.base, row->cfa.offset);
    return 0;
}

struct walk {
    struct backtrail_table *table;
    uint64_t rows;
};

static int print_function(void *closure, const struct backtrail_function *function)
{
    struct walk *walk = closure;
    walk->rows += function->rows;
    printf("pc = 0x%" PRIx64 ", size = %" PRIu64 " bytes\n", function->start, function->bytes);
    return backtrail_table_rows(walk->table, function->start, print_row, (void *)function);
}

static int print(const char *path)
{
    struct walk walk = {NULL, 0};
    CHECK(backtrail_table_open(path, &walk.table) == 0);
    CHECK(backtrail_table_functions(walk.table, print_function, &walk) == 0);
    struct backtrail_function function = {.size = sizeof function};
    struct backtrail_row row = {.size = sizeof row};
    printf("rows: %" PRIu64 "\n", walk.rows);
    CHECK(backtrail_table_find(walk.table, 1, &function, &row) == -ENOENT);
    backtrail_table_close(walk.table);
    return 0;
}

struct seen {
    int count;
    struct backtrail_cbf_frame frames[8];
};

static int see(void *closure, const struct backtrail_cbf_frame *frame)
{
    struct seen *seen = closure;
    if (seen->count < 8)
        seen->frames[seen->count++] = *frame;
    return frame->address == 0x666 ? 42 : 0;
}

static int compact(void)
{
    size_t size = sizeof(struct backtrail_cbf_frame);
    struct backtrail_cbf_frame frames[] = {
        {size, BACKTRAIL_FRAME_PC, 0, 0x401136, 1},
        {size, BACKTRAIL_FRAME_RA, 0, 0x401180, 100000},
        {size, BACKTRAIL_FRAME_OMITTED, 0, 7, 1},
        {size, BACKTRAIL_FRAME_RA, 0, 0x7f0000001000, 1},
    };
    unsigned char bytes[64];
    struct seen seen = {0};
    ssize_t length = backtrail_cbf_encode(frames, 4, 0, bytes, sizeof bytes);
    CHECK(length > 4 && length < 32);
    printf("cbf ");
    for (ssize_t at = 0; at < length; at++)
        printf("%02x", bytes[at]);
    printf("\n");
    CHECK(backtrail_cbf_decode(bytes, (size_t)length, see, &seen) == 0);
    CHECK(seen.count == 4 && memcmp(seen.frames, frames, sizeof frames) == 0);

    CHECK(backtrail_cbf_encode(frames, 4, 1, bytes, sizeof bytes) == length);
    CHECK(backtrail_cbf_decode(bytes, (size_t)length, see, &(struct seen){0}) == 1);
    ssize_t part = backtrail_cbf_encode(frames, 4, 0, bytes, 8);
    CHECK(part > 1 && part <= 8 && backtrail_cbf_decode(bytes, (size_t)part, see, &(struct seen){0}) == 1);

    frames[0].address = 0x666;
    length = backtrail_cbf_encode(frames, 4, 0, bytes, sizeof bytes);
    CHECK(backtrail_cbf_decode(bytes, (size_t)length, see, &(struct seen){0}) == 42);
    CHECK(backtrail_cbf_decode("\xff", 1, see, &seen) == -EBADMSG);
    CHECK(backtrail_cbf_decode("", 0, see, &seen) == -EBADMSG);
    CHECK(backtrail_cbf_decode(bytes, (size_t)length, NULL, NULL) == -EINVAL);
    frames[1].repeat = 0;
    CHECK(backtrail_cbf_encode(frames, 4, 0, bytes, sizeof bytes) == -EINVAL);
    frames[1].repeat = 1;
    frames[1].kind = 9;
    CHECK(backtrail_cbf_encode(frames, 4, 0, bytes, sizeof bytes) == -EINVAL);
    CHECK(backtrail_cbf_encode(frames, 1, 0, bytes, 0) == -ENOSPC);
    CHECK(backtrail_cbf_encode(NULL, 0, 0, bytes, sizeof bytes) == 2);
    return 0;
}

int main(int argc, char **argv)
{
    struct backtrail_table *table;
    CHECK(backtrail_table_open("/dev/null/none", &table) == -ENOTDIR);
    CHECK(backtrail_table_open(NULL, &table) == -EINVAL);
    backtrail_table_close(NULL);
    return argc > 1 ? print(argv[1]) : compact();
}
