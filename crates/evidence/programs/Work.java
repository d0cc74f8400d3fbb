// Recursion, interfaces, streams, strings and collections, for the given number of seconds.
import java.util.*;
import java.util.stream.*;

public class Work {
    interface Shape { double area(); }
    record Circle(double r) implements Shape { public double area() { return Math.PI * r * r; } }
    record Square(double a) implements Shape { public double area() { return a * a; } }

    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

    static double shapes(int n) {
        List<Shape> list = new ArrayList<>();
        for (int i = 0; i < n; i++) list.add(i % 2 == 0 ? new Circle(i) : new Square(i));
        return list.stream().mapToDouble(Shape::area).sum();
    }

    static int words(int n) {
        Map<String, Integer> counts = new TreeMap<>();
        for (int i = 0; i < n; i++) counts.merge("word" + i % 97, 1, Integer::sum);
        return counts.values().stream().collect(Collectors.summingInt(x -> x));
    }

    static long sorted(int n) {
        Integer[] all = new Integer[n];
        for (int i = 0; i < n; i++) all[i] = (int) ((i * 7919L) % n);
        Arrays.sort(all, (a, b) -> Integer.compare(b, a));
        return all[0];
    }

    public static void main(String[] arguments) throws Exception {
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000_000L;
        Thread other = new Thread(() -> { while (System.nanoTime() < end) words(5000); }, "words");
        other.start();
        double sum = 0;
        while (System.nanoTime() < end) sum += fib(25) + shapes(5000) + words(5000) + sorted(5000);
        other.join();
        System.out.println(sum);
    }
}
