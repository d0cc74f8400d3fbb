/* Frames of every sort that compilers make: realigned, with alloca, with many saved registers, huge, recursive, leaf, shrink-wrapped,
   and with calls through the .plt and the .plt.got. Without headers, so that it compiles where there is no C library. */
typedef __SIZE_TYPE__ size_t;
int rand(void);
int puts(const char *);
void *malloc(size_t);
void free(void *);
void *memset(void *, int, size_t);
void abort(void);

__attribute__((noinline)) int aligned(int n)
{
	char buffer[64] __attribute__((aligned(64)));
	memset(buffer, n, sizeof buffer);
	char *more = __builtin_alloca(n + 1);
	more[n] = 1;
	return buffer[n & 63] + more[n] + puts(more);
}

__attribute__((noinline)) int many(int a, int b, int c, int d, int e, int f, int g, int h)
{
	int x = rand();
	if (a)
		x += many(b, c, d, e, f, g, h, a - 1) * b;
	return x + c * d + e + f * g + h;
}

__attribute__((noinline)) int early(int a)
{
	if (a == 1)
		return 2;
	int *p = malloc(a);
	int r = rand() + *p;
	free(p);
	return r;
}

__attribute__((noinline)) int huge(int n)
{
	char buffer[100000];
	memset(buffer, n, sizeof buffer);
	return buffer[n & 1023] + puts(buffer);
}

__attribute__((noinline)) int variadic(int n, ...)
{
	__builtin_va_list list;
	int all = 0;
	__builtin_va_start(list, n);
	while (n--)
		all += __builtin_va_arg(list, int) + rand();
	__builtin_va_end(list);
	return all;
}

__attribute__((noinline)) double floating(double a, double b)
{
	return a * b + rand();
}

__attribute__((noinline)) int leaf(int a)
{
	return a * 3;
}

typedef void (*function)(void);

__attribute__((noinline)) function address(int a)
{
	/* A call and the address of one function make the linker use .plt.got. */
	if (a == 1000)
		abort();
	return abort;
}

int main(int count, char **arguments)
{
	(void)arguments;
	return aligned(count) + many(count, 2, 3, 4, 5, 6, 7, 8) + early(count) + huge(count) + variadic(3, 1, 2, 3) +
	       (int)floating(count, 2) + leaf(count) + (address(count) == 0);
}
