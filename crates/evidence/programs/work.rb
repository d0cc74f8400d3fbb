# Recursion, blocks, strings, regular expressions, sorting and threads, for the given number of seconds.
def fib(n) = n < 2 ? n : fib(n - 1) + fib(n - 2)
def tree(d) = d == 0 ? [] : [tree(d - 1), tree(d - 1)]
def count(t) = 1 + t.sum { |c| count(c) }
def words(n) = (1..n).map { |i| "word#{i % 97}" }.sort_by { |w| w }.join(' ').gsub(/w(\w+)/) { $1.upcase }.size
def fibre = Fiber.new { 10.times { |i| Fiber.yield fib(12 + i % 2) } }
stop = Time.now + (ARGV[0] || 5).to_i
sum = 0
other = Thread.new { n = 0; n += words(500) while Time.now < stop; n }
while Time.now < stop
  f = fibre
  sum += fib(18) + count(tree(9)) + words(1000) + (1..5).sum { f.resume } + (2**500).to_s.size
end
puts sum + other.value
