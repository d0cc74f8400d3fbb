// alternating SHAPE PHASE_MICROSECONDS SECONDS: a program that knows its own stack.
//
// It does the same on two sides in turn, one phase each. Every function of one side has a name that starts with `left_` or
// `right_`, the innermost one too, so a stack that has functions of both sides never was. What both sides share starts
// with `common_`. In a leaf, exactly as many frames of a recursion are on the stack as DEPTH says.
//
// SHAPE is one of
//   six       a few frames, one of them with a buffer of 16 KiB that nobody touches: its pages are not present
//   deep      each side has a recursion of its own, 3,000 frames deep
//   seam      both sides call the same recursion: frames are equal where copies of the stack end
//   alloca    six, with memory of changing size above the buffer, which is not cleared
//   large     six, with a buffer that is larger than all that is copied of a stack
//   threads   five threads that do six, deep, seam, alloca and large
#include "common.h"
#include <alloca.h>
#include <pthread.h>
#include <string.h>

// After a call, so that no caller is left before it returns.
#define STAYS __asm__ volatile("" ::: "memory")
// A recursion is longer than the 60 KiB that the kernel copies of a stack.
enum { DEPTH = 3000, ROOM = 96, UNTOUCHED = 16384, LARGE = 640 << 10 };

static double phase, end;

typedef void leaf(double until);

#define SIDE(side)                                                                                 \
  static FRAME void side##_spin(double until) {                                                    \
    do                                                                                             \
      for (volatile int i = 0; i < 50; i++) STAYS;                                                 \
    while (now() < until);                                                                         \
  }                                                                                                \
  static FRAME void side##_leaf(double until) {                                                    \
    side##_spin(until);                                                                            \
    STAYS;                                                                                         \
  }                                                                                                \
  static FRAME void side##_six(double until) {                                                     \
    common_buffer(side##_leaf, until);                                                             \
    STAYS;                                                                                         \
  }                                                                                                \
  static FRAME int side##_recursion(int depth, double until) {                                     \
    char room[ROOM];                                                                               \
    int below = 0;                                                                                 \
    __asm__ volatile("" ::"r"(room) : "memory");                                                   \
    if (depth == 1)                                                                                \
      side##_leaf(until);                                                                          \
    else                                                                                           \
      below = side##_recursion(depth - 1, until);                                                  \
    /* The way up takes as long as the leaf. */                                                    \
    side##_spin(until + phase * depth / DEPTH);                                                    \
    STAYS;                                                                                         \
    return depth + below;                                                                          \
  }                                                                                                \
  static FRAME void side##_deep(double until) {                                                    \
    side##_recursion(DEPTH, until);                                                                \
    STAYS;                                                                                         \
  }                                                                                                \
  static FRAME void side##_seam(double until) {                                                    \
    common_recursion(DEPTH, side##_leaf, until);                                                   \
    STAYS;                                                                                         \
  }                                                                                                \
  static FRAME void side##_alloca(double until) {                                                  \
    static __thread unsigned size;                                                                 \
    size = (size + 16 * 37) % 4096;                                                                \
    char *memory = alloca(size + 16);                                                              \
    __asm__ volatile("" ::"r"(memory) : "memory");                                                 \
    common_buffer(side##_leaf, until);                                                             \
    STAYS;                                                                                         \
  }                                                                                                \
  static FRAME void side##_large(double until) {                                                   \
    common_large_buffer(side##_leaf, until);                                                       \
    STAYS;                                                                                         \
  }

static FRAME void common_buffer(leaf *leaf, double until) {
  char buffer[UNTOUCHED];
  __asm__ volatile("" ::"r"(buffer) : "memory");
  leaf(until);
  __asm__ volatile("" ::"r"(buffer) : "memory");
}

static FRAME void common_large_buffer(leaf *leaf, double until) {
  char buffer[LARGE];
  buffer[LARGE / 2] = 1;
  __asm__ volatile("" ::"r"(buffer) : "memory");
  leaf(until);
  __asm__ volatile("" ::"r"(buffer) : "memory");
}

static FRAME int common_recursion(int depth, leaf *leaf, double until) {
  char room[ROOM];
  __asm__ volatile("" ::"r"(room) : "memory");
  if (depth == 1)
    leaf(until);
  else
    depth += common_recursion(depth - 1, leaf, until);
  STAYS;
  return depth;
}

SIDE(left)
SIDE(right)

typedef void shape(double until);
static const struct {
  const char *name;
  shape *left, *right;
} shapes[] = {
    {"six", left_six, right_six},
    {"deep", left_deep, right_deep},
    {"seam", left_seam, right_seam},
    {"alloca", left_alloca, right_alloca},
    {"large", left_large, right_large},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static FRAME void alternate(int shape) {
  for (double t = now(); t < end; t = now()) {
    shapes[shape].left(t + phase);
    shapes[shape].right(now() + phase);
  }
}

static void *thread(void *shape) {
  alternate((int)(long)shape);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  // What the loader touched of the stack lies above what follows.
  char touched[20000];
  memset(touched, argc, sizeof touched);
  __asm__ volatile("" ::"r"(touched) : "memory");
  phase = atof(argv[2]) * 1e-6;
  end = now() + atof(argv[3]);
  if (strcmp(argv[1], "threads") == 0) {
    pthread_t threads[SHAPES];
    for (long i = 0; i < SHAPES; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int i = 0; i < SHAPES; i++) pthread_join(threads[i], NULL);
    return 0;
  }
  for (int i = 0; i < SHAPES; i++)
    if (strcmp(argv[1], shapes[i].name) == 0) {
      alternate(i);
      return touched[argc] == 1;
    }
  return 2;
}
