/* How long libctf takes to open the types of a file, and to find structs of it by name.
   libctf_times FILE ROUNDS NAME...: prints the median microseconds of opening and the median nanoseconds of a look-up.
   The header is in a package of its own, so what is used of it is declared here. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct ctf_dict ctf_dict_t;
typedef struct ctf_archive_internal ctf_archive_t;
extern ctf_archive_t *ctf_open(const char *, const char *, int *);
extern void ctf_close(ctf_archive_t *);
extern ctf_dict_t *ctf_dict_open(const ctf_archive_t *, const char *, int *);
extern void ctf_dict_close(ctf_dict_t *);
extern long ctf_lookup_by_name(ctf_dict_t *, const char *);

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e9 + at.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
    int error, rounds = atoi(arguments[2]), names = count - 3;
    double *opening = malloc(rounds * sizeof(double)), *finding = malloc(rounds * sizeof(double));
    for (int round = 0; round < rounds; round++) {
        double start = now();
        ctf_archive_t *archive = ctf_open(arguments[1], NULL, &error);
        ctf_dict_t *dict = archive ? ctf_dict_open(archive, NULL, &error) : NULL;
        if (!dict)
            return 1;
        opening[round] = now() - start;
        start = now();
        for (int name = 0; name < names; name++)
            if (ctf_lookup_by_name(dict, arguments[3 + name]) < 0)
                return 2;
        finding[round] = (now() - start) / (names ? names : 1);
        ctf_dict_close(dict);
        ctf_close(archive);
    }
    qsort(opening, rounds, sizeof(double), by_size);
    qsort(finding, rounds, sizeof(double), by_size);
    printf("%.1f %.1f\n", opening[rounds / 2] / 1e3, finding[rounds / 2]);
    return 0;
}
