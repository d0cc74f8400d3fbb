"""bytecode.py SECONDS: what interpreters spend their time with: calls, generators, classes, dictionaries, sorting, recursion, text."""
import functools
import json
import re
import sys
import time


class Node:
    def __init__(self, key):
        self.key, self.left, self.right = key, None, None

    def insert(self, key):
        side = "left" if key < self.key else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, Node(key))
        else:
            child.insert(key)

    def __iter__(self):
        if self.left:
            yield from self.left
        yield self.key
        if self.right:
            yield from self.right


def numbers(count, seed):
    for _ in range(count):
        seed = (seed * 1103515245 + 12345) % 2147483648
        yield seed


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.lru_cache(maxsize=None)
def paths(x, y):
    return 1 if x == 0 or y == 0 else paths(x - 1, y) + paths(x, y - 1)


def trees(seed):
    root = Node(1 << 30)
    for n in numbers(400, seed):
        root.insert(n)
    return sum(root)


def text(seed):
    words = " ".join(str(n) for n in numbers(500, seed))
    found = re.findall(r"\b(\d)\d*(\d)\b", words)
    return len(json.dumps(sorted(found, key=lambda pair: (pair[1], pair[0]))))


def tables(seed):
    counts = {}
    for n in numbers(3000, seed):
        counts[n % 301] = counts.get(n % 301, 0) + 1
    return max(counts.items(), key=lambda item: item[1])[0]


def main():
    # CPU time: beside other programs, what is sampled must not become less.
    end = time.process_time() + float(sys.argv[1])
    result = rounds = 0
    while time.process_time() < end:
        rounds += 1
        paths.cache_clear()
        result += fibonacci(16) + trees(rounds) + text(rounds) + tables(rounds) + paths(30, 30) % 7
    print(json.dumps({"rounds": rounds, "result": result}))


main()
