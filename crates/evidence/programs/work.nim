import tables

proc fib(n: int): int = (if n < 2: n else: fib(n - 1) + fib(n - 2))

var counts = initTable[string, int]()
var sum = 0
while sum >= 0:
  sum = (sum + fib(27)) mod 1000
  for i in 0 .. 20000: counts[$(i mod 500)] = i
