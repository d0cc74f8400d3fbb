/* Types that C has and the format can't say, or says in a way of its own. Together with types_kinds.c it makes a library in
 * which no names clash. Compiled for its types only: nobody runs it. */
typedef float v4 __attribute__((vector_size(16)));
#ifndef __aarch64__
typedef _Decimal64 dec;
dec d;
#endif
struct first { v4 v; int a; };
struct middle { int a; v4 v; int b; };
union un { v4 v; int a; };
struct fwd; struct nest { struct middle m; struct first f; int z; };
struct first f; struct middle m; union un u; struct nest n; v4 arr[3];
typedef struct fwd fwd_t; fwd_t *p; 
enum big { A = 0x7fffffff, B = 0x80000000u, C = 1ull << 40 }; enum big e;
enum __attribute__((packed)) tiny { T1, T2 = 100 }; enum tiny t; struct tt { enum tiny t; enum tiny u : 3; typeof(unsigned) w : 9; } tt;
typedef unsigned int u32; struct bb { u32 a : 3, : 0, b : 7; int : 5; volatile u32 c : 9; long l : 33; } bb;
typedef union { struct { int a, b; }; long c; } anonu; anonu au; struct { anonu x; struct { int deep; }; } outer;
int kr(); int (*krp)(); int (*vp)(void); int (*vap)(int, ...); static int sf(); 
int kr(a, b) int a; char b; { return sf(); } static int sf() { return 3; }
void *fp(void); const void *cvp; void f2(const struct middle *restrict a, int b[3], int (*cb)(int)) { }
int l[2][3]; int (*lp)[3]; int *la[3]; int (*(*ff)(int))[4]; const int ca[4]; const volatile struct first cf;
unsigned long long ull; __int128 i128; _Bool b; long double ld; _Complex float cf32; _Float128 f128; 
enum e9 {a0,a1,a2,a3,a4,a5,a6,a7,a8}; enum e10 {b0,b1,b2,b3,b4,b5,b6,b7,b8,b9}; enum e11 {c0,c1,c2,c3,c4,c5,c6,c7,c8,c9,c10}; enum e12{d0,d1,d2,d3,d4,d5,d6,d7,d8,d9,d10,d11};
enum e9 x9; enum e10 x10; enum e11 x11; enum e12 x12;
struct many_valued { enum e12 some_bits : 5; } many_valued;
