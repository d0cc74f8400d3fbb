%% Recursion, processes, maps and binaries of Erlang, for the given number of seconds.
-module(work).
-export([main/1]).
fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).
tree(0) -> leaf;
tree(D) -> {tree(D - 1), tree(D - 1)}.
count(leaf) -> 1;
count({A, B}) -> 1 + count(A) + count(B).
words(N) ->
    M = lists:foldl(fun(I, A) -> maps:update_with("word" ++ integer_to_list(I rem 97), fun(V) -> V + 1 end, 1, A) end, #{}, lists:seq(1, N)),
    length(lists:sort(maps:keys(M))).
worker(End, Sum) ->
    case erlang:monotonic_time(second) < End of
        true -> worker(End, Sum + fib(18) + count(tree(10)) + words(1000) + byte_size(term_to_binary(lists:seq(1, 500))) + erlang:crc32(binary:copy(<<"x">>, 10000)) rem 7);
        false -> Sum
    end.
main([Seconds]) ->
    End = erlang:monotonic_time(second) + list_to_integer(Seconds),
    Self = self(),
    [spawn(fun() -> Self ! worker(End, 0) end) || _ <- lists:seq(1, 4)],
    io:format("~p~n", [lists:sum([receive S -> S end || _ <- lists:seq(1, 4)])]),
    halt().
