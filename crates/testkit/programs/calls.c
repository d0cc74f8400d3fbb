/* calls
 *
 * Calls `paint` 900 times: 300 times each from `wall`, from `door`, and from a thread of a child, with arguments that are the same in each;
 * and `count` 500 times with the numbers below 5. Prints nothing. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLED __attribute__((noipa))

enum shade { RED = 1, GREEN, BLUE = 40 };
struct point { int x, y; };

static volatile long painted;

CALLED void paint(enum shade shade, signed char amount, const char *what, struct point at, double gloss) {
    painted += shade + amount + what[0] + at.x + at.y + (long)gloss;
}

CALLED unsigned count(unsigned number) { return number + 1; }

CALLED void wall(void) {
    for (int i = 0; i < 300; i++) paint(RED, 3, "wall", (struct point){1, -2}, 0.5);
}

CALLED void door(void) {
    for (int i = 0; i < 300; i++) paint(BLUE, -1, "door", (struct point){0, 0}, 1.5);
}

static void *of_child(void *unused) {
    for (int i = 0; i < 300; i++) paint(GREEN, 'c', (const char *)&painted, (struct point){5, 6}, 0);
    return unused;
}

int main(void) {
    wall();
    door();
    for (unsigned i = 0; i < 500; i++) painted += count(i % 5);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        if (pthread_create(&thread, 0, of_child, 0)) _exit(1);
        pthread_join(thread, 0);
        _exit(0);
    }
    int status;
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}
