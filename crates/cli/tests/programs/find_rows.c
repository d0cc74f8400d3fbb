/* Looks up rows with libsframe: SECTION PCS; prints the start of each row in its function, or "none".
   PCS holds native 64-bit offsets from the section's start. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* As sframe-api.h declares them; a row begins with its start, and is smaller than this in every release. */
void *sframe_decode(const char *bytes, size_t size, int *error);
int sframe_find_fre(void *decoder, int64_t pc, void *row);
static union { uint32_t start; char bytes[1024]; int64_t align; } row;

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

int main(int count, char **arguments)
{
    size_t size, pcs_size;
    int error = 0;
    if (count != 3)
        return 2;
    char *section = whole(arguments[1], &size);
    int64_t *pcs = (int64_t *)whole(arguments[2], &pcs_size);
    void *decoder = sframe_decode(section, size, &error);
    if (!decoder)
        return 3;
    for (size_t index = 0; index < pcs_size / sizeof *pcs; index++)
        if (sframe_find_fre(decoder, pcs[index], &row))
            puts("none");
        else
            printf("%u\n", row.start);
    return 0;
}
