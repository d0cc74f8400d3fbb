/* The header in C++. */
#include "types.c"
