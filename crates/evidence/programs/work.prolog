fib(0, 0).
fib(1, 1).
fib(N, F) :- N > 1, A is N - 1, B is N - 2, fib(A, X), fib(B, Y), F is X + Y.
run :- repeat, fib(18, _), numlist(1, 20000, L), foldl([X, A, B]>>(B is A + X), L, 0, _), fail.
