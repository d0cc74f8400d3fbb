using System.Linq;

class Work {
    static long Fib(int n) { return n < 2 ? n : Fib(n - 1) + Fib(n - 2); }

    static void Main() {
        long sum = 0;
        for (int i = 0; sum >= 0; i = (i + 1) % 100) {
            sum = (sum + Fib(24)) % 1000;
            sum += Enumerable.Range(0, 1000).Select(x => x * i % 77).OrderBy(x => x).First();
        }
    }
}
