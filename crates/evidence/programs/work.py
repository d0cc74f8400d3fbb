# Recursion, dictionaries, strings, regular expressions, sorting and threads, for the given number of seconds.
import hashlib, json, re, sys, threading, time


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def tree(d):
    return [] if d == 0 else [tree(d - 1), tree(d - 1)]


def count(t):
    return 1 + sum(map(count, t))


def words(n):
    text = " ".join(sorted(("word%d" % (i % 97) for i in range(n)), key=lambda w: w[::-1]))
    return len(re.sub(r"w(\w+)", lambda m: m.group(1).upper(), text))


end = time.time() + int(sys.argv[1])
sum_ = 0


def hashes():
    while time.time() < end:
        hashlib.sha256(b"x" * 1000000).digest()


other = threading.Thread(target=hashes)
other.start()
while time.time() < end:
    sum_ += fib(18) + count(tree(9)) + words(2000) + len(json.dumps(list(range(1000))))
other.join()
print(sum_)
