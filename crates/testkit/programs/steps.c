/* steps [ROUNDS]
 *
 * Goes once through what C programs do to a stack: text, numbers and files, sorting with callbacks, frames of every form, tail calls, jumps out of
 * many frames, threads that wait for each other, and children. Meant to be stepped: a round is some hundred thousand instructions. */
#include "common.h"
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile uint64_t sink;

static FRAME int compare_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static FRAME int compare_numbers(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static FRAME void text(int round) {
    char *lines[40], line[200];
    for (int i = 0; i < 40; i++) {
        snprintf(line, sizeof line, "%d %s %5.3f %x %-8s| %e", (i * 37 + round) % 41, "word", i / 7.0, i * 7919, "left", 1e10 / (i + 1));
        lines[i] = strdup(line);
    }
    qsort(lines, 40, sizeof lines[0], compare_text);
    for (int i = 0; i < 40; i++) {
        char *rest = lines[i], *word;
        while ((word = strtok_r(rest, " |", &rest)) != NULL) sink += strlen(word) + (uint64_t)strtod(word, NULL) + (uint64_t)strtol(word, NULL, 0);
        free(lines[i]);
    }
    memset(line, 'x', sizeof line);
    line[150] = 0;
    memmove(line + 3, line, 100);
    sink += (uint64_t)(strchr(line, 'y') != NULL) + (uint64_t)memcmp(line, line + 3, 50) + (strstr(line, "xxy") != NULL);
}

static FRAME void numbers(int round) {
    uint64_t some[150];
    for (unsigned i = 0; i < 150; i++) some[i] = (i * 2654435761u + (unsigned)round) % 1009;
    qsort(some, 150, sizeof some[0], compare_numbers);
    uint64_t wanted = some[70];
    sink += bsearch(&wanted, some, 150, sizeof some[0], compare_numbers) != NULL;
}

static FRAME void files(void) {
    FILE *file = tmpfile();
    if (!file) return;
    for (int i = 0; i < 30; i++) fprintf(file, "%d;%s;%g\n", i, "field", i * 0.1);
    rewind(file);
    char line[100], field[20];
    int number;
    double real;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%d;%19[^;];%lf", &number, field, &real) == 3) sink += (uint64_t)number + (uint64_t)real;
    fclose(file);
}

static FRAME uint64_t variable(int depth) {
    volatile char *space = alloca(16 + (size_t)depth * 24);
    space[0] = (char)depth;
    return depth ? variable(depth - 1) + (uint64_t)space[0] : 1;
}
static FRAME uint64_t aligned(int depth) {
    __attribute__((aligned(64))) volatile char space[64];
    space[depth % 64] = 1;
    return depth ? aligned(depth - 1) + (uint64_t)space[depth % 64] : 1;
}
/* Realigned, and of no fixed size: its frame is found by a register of its own. */
static FRAME uint64_t both(int depth) {
    __attribute__((aligned(64))) volatile char space[64];
    volatile char *more = alloca(8 + (size_t)depth * 8);
    space[depth % 64] = 1;
    more[0] = 2;
    return depth ? both(depth - 1) + (uint64_t)space[depth % 64] + (uint64_t)more[0] : 1;
}
static FRAME uint64_t large(int depth) {
    volatile char space[6000];
    space[depth * 10] = 1;
    return depth ? large(depth - 1) + (uint64_t)space[depth * 10] : 1;
}
static FRAME uint64_t last(uint64_t x) { return x * 3; }
static FRAME uint64_t tail(uint64_t x) { return x % 3 ? last(x + 1) : last(x - 1); }
static FRAME uint64_t many(int a, int b, int c, int d, int e, int f, int g, int h, int i, ...) {
    va_list more;
    va_start(more, i);
    int j = va_arg(more, int);
    va_end(more);
    return tail((uint64_t)(a + b + c + d + e + f + g + h + i + j));
}

static jmp_buf out;
static FRAME int jumps(int depth) {
    if (depth > 0) return jumps(depth - 1) + 1;
    if (sink) longjmp(out, 1);
    return 0;
}
static FRAME int jumped(int depth) { return setjmp(out) ? 1 : jumps(depth); }

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn;
static pthread_key_t key;
static void forget(void *value) { free(value); }
static void *taking_turns(void *number) {
    pthread_setspecific(key, malloc(10));
    for (int i = 0; i < 4; i++) {
        pthread_mutex_lock(&mutex);
        while (turn % 3 != (int)(intptr_t)number) pthread_cond_wait(&turned, &mutex);
        turn++;
        sink += aligned(3);
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&mutex);
    }
    return number;
}
static FRAME void threads(void) {
    pthread_t all[3];
    turn = 0;
    pthread_key_create(&key, forget);
    for (intptr_t i = 0; i < 3; i++)
        if (pthread_create(&all[i], NULL, taking_turns, (void *)i)) exit(2);
    for (int i = 0; i < 3; i++) pthread_join(all[i], NULL);
    pthread_key_delete(key);
}

static FRAME pid_t vforked(void) {
    pid_t child = vfork();
    if (child == 0) _exit(0);
    return child;
}

static FRAME void children(const char *itself) {
    pid_t child = fork();
    if (child == 0) {
        sink += variable(5);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    char *arguments[] = {(char *)itself, (char *)"-", NULL};
    if (posix_spawn(&child, itself, NULL, NULL, arguments, environ) == 0) waitpid(child, NULL, 0);
    child = vforked();
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') return 0;
    int rounds = (int)argument(argc, argv, 1, 1);
    for (int round = 0; round < rounds; round++) {
        text(round);
        numbers(round);
        files();
        sink += variable(20) + aligned(20) + both(20) + large(6) + many(1, 2, 3, 4, 5, 6, 7, 8, 9, round);
        for (int depth = 0; depth < 12; depth += 3) sink += (uint64_t)jumped(depth);
        threads();
    }
    children(argv[0]);
    printf("{\"result\": %llu}\n", (unsigned long long)(sink != 0));
    return 0;
}
