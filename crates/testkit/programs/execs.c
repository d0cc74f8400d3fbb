/* Becomes itself again and again while 200 threads wait, which end each time: execs [TIMES] */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *waits(void *nothing) {
    for (;;) pause();
    return nothing;
}

int main(int count, char **arguments) {
    int left = count > 1 ? atoi(arguments[1]) : 1000000;
    if (left == 0) return 0;
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, waits, NULL);
    }
    char number[20];
    snprintf(number, sizeof number, "%d", left - 1);
    execl("/proc/self/exe", arguments[0], number, (char *)NULL);
    return 1;
}
