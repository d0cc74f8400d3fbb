/* waits ROUNDS
 *
 * Threads that wait in known ways, and measure how long: `sleeps` for a timer, `reads` for a pipe that `writes_later` writes to,
 * `locks` for a mutex that `holds` unlocks, a chain of semaphores, in which `first_link` wakes `second_link`, which wakes
 * `third_link`, `conditions` for a condition variable that `signals` signals, `polls` by epoll for an eventfd that `notifies` writes
 * to, and `reaps` for child processes that `child` ends. Prints nanoseconds and how often the kernel says that the thread blocked, by
 * function, and the nanoseconds that the first two threads lived at most, as JSON. */
#define _GNU_SOURCE
#include "common.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int rounds, ends[2], epoll, notice;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t taken, asked, released, first, second, done;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
/* How often, because on a busy machine a second time comes before the first was seen. */
static int signalled;

struct waited {
    uint64_t time;
    long blocked;
};
static struct waited waited_sleeps, waited_reads, waited_locks, waited_second, waited_third, waited_conditions, waited_polls, waited_reaps;

static uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct waited moment(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (struct waited){clock_now(), usage.ru_nvcsw};
}

static void add(struct waited *sum, struct waited begin) {
    struct waited end = moment();
    sum->time += end.time - begin.time;
    sum->blocked += end.blocked - begin.blocked;
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
        struct waited begin = moment();
        while (nanosleep(&left, &left) && errno == EINTR) {}
        add(&waited_sleeps, begin);
    }
    return unused;
}

FRAME void *reads(void *unused) {
    for (int i = 0; i < rounds; i++) {
        char byte;
        struct waited begin = moment();
        if (read(ends[0], &byte, 1) != 1) return NULL;
        add(&waited_reads, begin);
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
        struct waited begin = moment();
        pthread_mutex_lock(&lock);
        add(&waited_locks, begin);
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
        struct waited begin = moment();
        down(&first);
        add(&waited_second, begin);
        sem_post(&second);
    }
    return unused;
}

FRAME void *third_link(void *unused) {
    for (int i = 0; i < rounds; i++) {
        struct waited begin = moment();
        down(&second);
        add(&waited_third, begin);
        sem_post(&done);
    }
    return unused;
}

FRAME void *conditions(void *unused) {
    for (int i = 0; i < rounds; i++) {
        pthread_mutex_lock(&guard);
        struct waited begin = moment();
        while (!signalled) pthread_cond_wait(&condition, &guard);
        add(&waited_conditions, begin);
        signalled--;
        pthread_mutex_unlock(&guard);
    }
    return unused;
}

FRAME void *signals(void *unused) {
    for (int i = 0; i < rounds; i++) {
        pause_ms(28);
        pthread_mutex_lock(&guard);
        signalled++;
        pthread_mutex_unlock(&guard);
        pthread_cond_signal(&condition);
    }
    return unused;
}

FRAME void *polls(void *unused) {
    for (int i = 0; i < rounds; i++) {
        struct epoll_event event;
        struct waited begin = moment();
        uint64_t count;
        while (epoll_wait(epoll, &event, 1, -1) < 0 && errno == EINTR) {}
        add(&waited_polls, begin);
        if (read(notice, &count, sizeof count) != sizeof count) return NULL;
    }
    return unused;
}

FRAME void *notifies(void *unused) {
    for (int i = 0; i < rounds; i++) {
        uint64_t one = 1;
        pause_ms(32);
        if (write(notice, &one, sizeof one) != sizeof one) return NULL;
    }
    return unused;
}

static FRAME void child(void) {
    pause_ms(22);
    _exit(0);
}

/* Forking may wait itself, for memory or for locks of the kernel: that is not measured. */
static FRAME pid_t forks(void) {
    pid_t pid = fork();
    if (!pid) child();
    return pid;
}

FRAME void *reaps(void *unused) {
    for (int i = 0; i < rounds; i++) {
        int status;
        pid_t pid = forks();
        struct waited begin = moment();
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        add(&waited_reaps, begin);
    }
    return unused;
}

int main(int argc, char **argv) {
    void *(*work[])(void *) = {sleeps, reads, writes_later, holds, locks, first_link, second_link, third_link,
                             conditions, signals, polls, notifies, reaps};
    enum { THREADS = sizeof work / sizeof *work };
    pthread_t threads[THREADS];
    rounds = (int)argument(argc, argv, 1, 20);
    sem_t *all[] = {&taken, &asked, &released, &first, &second, &done};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) sem_init(all[i], 0, 0);
    if (pipe(ends)) return 1;
    struct epoll_event event = {EPOLLIN, {0}};
    epoll = epoll_create1(0);
    notice = eventfd(0, 0);
    if (epoll < 0 || notice < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, notice, &event)) return 1;
    uint64_t lives[THREADS];
    for (int i = 0; i < THREADS; i++) {
        lives[i] = clock_now();
        if (pthread_create(&threads[i], NULL, work[i], &ends)) return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        lives[i] = clock_now() - lives[i];
    }
    struct {
        const char *name;
        struct waited *waited;
    } by_name[] = {{"sleeps", &waited_sleeps}, {"reads", &waited_reads}, {"locks", &waited_locks},
                   {"second_link", &waited_second}, {"third_link", &waited_third}, {"conditions", &waited_conditions},
                   {"polls", &waited_polls}, {"reaps", &waited_reaps}};
    enum { NAMES = sizeof by_name / sizeof *by_name };
    for (int i = 0; i < NAMES; i++)
        printf("%c\"%s\": [%llu, %ld]", i ? ',' : '{', by_name[i].name, (unsigned long long)by_name[i].waited->time,
               by_name[i].waited->blocked);
    printf(",\"sleeps lives\": [%llu, 0],\"reads lives\": [%llu, 0]}\n", (unsigned long long)lives[0], (unsigned long long)lives[1]);
    return 0;
}
