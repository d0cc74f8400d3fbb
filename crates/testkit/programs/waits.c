/* waits ROUNDS
 *
 * Threads that wait in known ways, and measure how long: `sleeps` for a timer, `reads` for a pipe that `writes_later` writes to,
 * `locks` for a mutex that `holds` unlocks, and a chain of semaphores, in which `first_link` wakes `second_link`, which wakes
 * `third_link`. Prints nanoseconds by function as JSON. */
#include "common.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

static int rounds, ends[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t taken, asked, released, first, second, done;
static uint64_t waited_sleeps, waited_reads, waited_locks, waited_second, waited_third;

static uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The threads that let others wait do so here, not in what is measured. */
static FRAME void pause_ms(unsigned ms) {
    struct timespec left = {0, ms * 1000000l};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

static void down(sem_t *sem) {
    while (sem_wait(sem) && errno == EINTR) {}
}

FRAME void *sleeps(void *unused) {
    for (int i = 0; i < rounds; i++) {
        struct timespec left = {0, 20000000};
        uint64_t begin = clock_now();
        while (nanosleep(&left, &left) && errno == EINTR) {}
        waited_sleeps += clock_now() - begin;
    }
    return unused;
}

FRAME void *reads(void *unused) {
    for (int i = 0; i < rounds; i++) {
        char byte;
        uint64_t begin = clock_now();
        if (read(ends[0], &byte, 1) != 1) return NULL;
        waited_reads += clock_now() - begin;
    }
    return unused;
}

FRAME void *writes_later(void *unused) {
    for (int i = 0; i < rounds; i++) {
        pause_ms(30);
        if (write(ends[1], "x", 1) != 1) return NULL;
    }
    return unused;
}

FRAME void *holds(void *unused) {
    for (int i = 0; i < rounds; i++) {
        pthread_mutex_lock(&lock);
        sem_post(&taken);
        pause_ms(25);
        pthread_mutex_unlock(&lock);
        down(&released);
    }
    return unused;
}

FRAME void *locks(void *unused) {
    for (int i = 0; i < rounds; i++) {
        down(&taken);
        uint64_t begin = clock_now();
        pthread_mutex_lock(&lock);
        waited_locks += clock_now() - begin;
        pthread_mutex_unlock(&lock);
        sem_post(&released);
    }
    return unused;
}

FRAME void *first_link(void *unused) {
    for (int i = 0; i < rounds; i++) {
        pause_ms(35);
        sem_post(&first);
        down(&done);
    }
    return unused;
}

FRAME void *second_link(void *unused) {
    for (int i = 0; i < rounds; i++) {
        uint64_t begin = clock_now();
        down(&first);
        waited_second += clock_now() - begin;
        sem_post(&second);
    }
    return unused;
}

FRAME void *third_link(void *unused) {
    for (int i = 0; i < rounds; i++) {
        uint64_t begin = clock_now();
        down(&second);
        waited_third += clock_now() - begin;
        sem_post(&done);
    }
    return unused;
}

int main(int argc, char **argv) {
    void *(*work[])(void *) = {sleeps, reads, writes_later, holds, locks, first_link, second_link, third_link};
    enum { THREADS = sizeof work / sizeof *work };
    pthread_t threads[THREADS];
    rounds = (int)argument(argc, argv, 1, 20);
    sem_t *all[] = {&taken, &asked, &released, &first, &second, &done};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) sem_init(all[i], 0, 0);
    if (pipe(ends)) return 1;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work[i], &ends)) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("{\"sleeps\": %llu, \"reads\": %llu, \"locks\": %llu, \"second_link\": %llu, \"third_link\": %llu}\n",
           (unsigned long long)waited_sleeps, (unsigned long long)waited_reads, (unsigned long long)waited_locks,
           (unsigned long long)waited_second, (unsigned long long)waited_third);
    return 0;
}
