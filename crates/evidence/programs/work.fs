: fib dup 2 < if else dup 1- recurse swap 2 - recurse + then ;
: run begin 25 fib drop again ;
run
