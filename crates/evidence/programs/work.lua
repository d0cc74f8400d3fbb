-- Recursion, tables, strings and closures, for the given number of seconds.
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local function tree(d) if d == 0 then return {} end return { tree(d - 1), tree(d - 1) } end
local function count(t) local n = 1 for _, v in ipairs(t) do n = n + count(v) end return n end
local function words(n)
  local all = {}
  for i = 1, n do all[#all + 1] = ("word%d"):format(i % 97) end
  table.sort(all, function(a, b) return a < b end)
  return #table.concat(all, " "):gsub("w(%a+)", "%1")
end
local function numbers(n) local s = 0.0 for i = 1, n do s = s + math.sin(i) * i % 7 end return s end
local stop, sum = os.time() + (tonumber(arg[1]) or 5), 0
while os.time() < stop do sum = sum + fib(22) + count(tree(10)) + words(2000) + numbers(100000) end
print(sum)
