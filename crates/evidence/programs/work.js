// Recursion, closures, JSON, regular expressions and sorting, for the given number of seconds.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
function tree(depth) { return depth === 0 ? {} : { left: tree(depth - 1), right: tree(depth - 1) }; }
function count(node) { return node.left ? 1 + count(node.left) + count(node.right) : 1; }
function text(i) { return JSON.parse(JSON.stringify({ i, list: Array.from({ length: 50 }, (_, k) => `item ${k * i}`) })); }
function sorted(n) { return Array.from({ length: n }, (_, k) => (k * 7919) % n).sort((a, b) => a - b); }
function words(n) { return 'the quick brown fox '.repeat(n).replace(/(\w+) (\w+)/g, (_, a, b) => `${b} ${a}`).length; }
async function later(n) { let sum = 0; for (let i = 0; i < n; i++) sum += await i; return sum; }
async function main(seconds) {
  const end = Date.now() + seconds * 1000;
  let sum = 0;
  while (Date.now() < end) {
    sum += fib(22) + count(tree(12)) + text(7).list.length + sorted(2000)[7] + words(200) + await later(500);
  }
  console.log(sum);
}
main(Number(process.argv[2] || 5));
