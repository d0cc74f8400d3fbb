import std.algorithm, std.array, std.parallelism, std.range;

long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

void main() {
    long sum;
    while (sum >= 0) {
        foreach (i; parallel(iota(8))) {
            auto found = fib(25);
            synchronized { sum = (sum + found) % 1000; }
        }
        auto all = iota(1000).map!(x => (x * 7919) % 1013).array;
        all.sort();
        sum += all[10];
    }
}
