% Recursion, matrices, transforms and strings of octave, for the given number of seconds.
1;
function r = fib(n) if n < 2 r = n; else r = fib(n - 1) + fib(n - 2); end, end
arguments = argv();
t = time() + str2double(arguments{end});
s = 0;
while time() < t
  a = rand(200);
  s += fib(8) + trace(a * a) + sum(eig(a(1:60, 1:60))) * 0 + sum(abs(fft(a(:))));
  words = cellfun(@(i) sprintf("word%d", mod(i, 97)), num2cell(1:200), "UniformOutput", false);
  s += numel(strjoin(sort(words), " ")) + numel(regexprep(strjoin(words), 'w(\w+)', '$1'));
end
disp(s)
