/* Times libsframe's look-up: SECTION PCS ROUNDS; prints the nanoseconds of a look-up of each round's best batch.
   PCS holds native 64-bit offsets from the section's start. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 10000 };

/* As sframe-api.h declares them; a row is smaller than this in every release. */
void *sframe_decode(const char *bytes, size_t size, int *error);
int sframe_find_fre(void *decoder, int64_t pc, void *row);
static union { char bytes[1024]; int64_t align; } row;

static char *whole(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        exit(2);
    *size = ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    if (!bytes || fread(bytes, 1, *size, file) != *size)
        exit(2);
    fclose(file);
    return bytes;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int count, char **arguments)
{
    size_t size, pcs_size;
    int error = 0;
    if (count != 4)
        return 2;
    char *section = whole(arguments[1], &size);
    int64_t *pcs = (int64_t *)whole(arguments[2], &pcs_size);
    void *decoder = sframe_decode(section, size, &error);
    if (!decoder)
        return 3;
    size_t batches = pcs_size / sizeof *pcs / BATCH;
    for (int round = atoi(arguments[3]); round > 0; round--) {
        double best = 1e18;
        for (size_t batch = 0; batch < batches; batch++) {
            double begin = now();
            for (size_t index = 0; index < BATCH; index++)
                if (sframe_find_fre(decoder, pcs[batch * BATCH + index], &row))
                    return 4;
            double each = (now() - begin) / BATCH;
            if (each < best)
                best = each;
        }
        printf("%.2f\n", best);
    }
    return 0;
}
