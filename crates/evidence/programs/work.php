<?php
// Recursion, arrays, strings, regular expressions and sorting, for the given number of seconds.
function fib($n) { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }
function tree($d) { return $d == 0 ? [] : [tree($d - 1), tree($d - 1)]; }
function count_tree($t) { $n = 1; foreach ($t as $c) $n += count_tree($c); return $n; }
function words($n) {
    $all = array_map(fn($i) => "word" . $i % 97, range(1, $n));
    usort($all, fn($a, $b) => strcmp($a, $b));
    return strlen(preg_replace_callback('/w(\w+)/', fn($m) => strtoupper($m[1]), implode(' ', $all)));
}
$end = microtime(true) + (int)($argv[1] ?? 5);
$sum = 0;
while (microtime(true) < $end) $sum += fib(20) + count_tree(tree(10)) + words(2000) + strlen(json_encode(range(1, 1000))) + ord(md5(str_repeat('x', 10000)));
echo $sum, "\n";
