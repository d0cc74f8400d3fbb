/* A struct beyond 512 MiB, whose members have offsets of 64 bits. Compiled for its types only: nobody runs it. */
struct large { char pad[0x20000000]; int after; char rest[0x10]; };
struct large *a_large_one;
