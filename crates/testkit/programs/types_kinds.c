/* Types of every kind that gcc -gctf makes, and symbols of every sort.
 * Compiled for its types only: nobody runs it. */
#include <stdarg.h>
enum colour { RED, GREEN = 5, BLUE = -3 };
enum { ANON_A = 1, ANON_B };
enum later;
struct nested { int a; struct { short x, y; } in; union { int i; float f; }; struct { char c; struct { long deep; } d; }; };
union u { char c; double d; struct nested n; };
struct bits { unsigned a : 3; int b : 5; enum colour c : 7; _Bool d : 1; unsigned long long big : 40; short s : 4; };
struct flex { int n; char data[]; };
struct zero { int z[0]; };
struct empty { };
struct opaque;
union opaque_u;
typedef struct opaque opaque_t;
typedef int (*callback)(void *, const char *, ...);
typedef int matrix[3][4];
typedef int fn_t(int, char);
typedef const volatile char *const cvp;
struct self { struct self *next; struct self **link; callback cb; int (*arr[4])(double); int (*(*fpp)(int))(char); matrix *mp; };
struct packed { char c; int i; } __attribute__((packed));
struct aligned { char c; } __attribute__((aligned(64)));
typedef struct { int anon; } anon_t;
typedef float v4 __attribute__((vector_size(16)));
struct cplx { _Complex float cf; _Complex double cd; _Complex long double cl; __int128 i128; unsigned __int128 u128; long double ld; float f; double d; _Bool b; char c; signed char sc; unsigned char uc; };
struct nested g_nested; union u g_u; struct bits g_bits; struct flex g_flex; struct zero g_zero; struct empty g_empty;
opaque_t *g_op; union opaque_u *g_opu; callback g_cb; matrix g_m; fn_t *g_fn; cvp g_cvp; struct self g_self; struct packed g_p; struct aligned g_al; anon_t g_an; v4 g_v4; struct cplx g_c;
enum colour g_col; 
static int hidden; 
volatile int g_vol; const int g_const = 4; int *restrict g_restrict; const char *const g_names[3];
int g_2d[2][3][4]; struct nested g_arr[5];
_Atomic int g_atomic;
struct arrofp { const char *names[7]; int (*pa)[5]; int *ap[5]; const struct nested *const cn; volatile const int vc; };
struct arrofp g_aop;
int unproto(); int unproto2() { return hidden++; }
int novoid(void) { return 0; }
int vari(const char *f, ...) { return 0; }
void many(int a, int b, struct nested n, union u *u, enum colour c, callback cb, double d[4]) {}
static int stat(int *restrict a) { return *a; }
int (*retfn(int x))(char) { return 0; }
va_list *g_va;
int use(int *a) { return stat(a); }
