(* Recursion, closures, maps, exceptions and C calls, for the given number of seconds. *)
module M = Map.Make (String)

let rec fib n = if n < 2 then n else fib (n - 1) + fib (n - 2)
type t = Leaf | Node of t * t
let rec tree d = if d = 0 then Leaf else Node (tree (d - 1), tree (d - 1))
let rec count = function Leaf -> 1 | Node (a, b) -> 1 + count a + count b

let words n =
  let m = ref M.empty in
  for i = 1 to n do
    let k = Printf.sprintf "word%d" (i mod 97) in
    let old = try M.find k !m with Not_found -> 0 in
    m := M.add k (old + 1) !m
  done;
  List.length (List.sort (fun (a, _) (b, _) -> compare b a) (M.bindings !m))

let () =
  let stop = Unix.gettimeofday () +. float_of_string Sys.argv.(1) in
  let sum = ref 0 in
  while Unix.gettimeofday () < stop do
    sum := !sum + fib 22 + count (tree 12) + words 2000 + Char.code (Digest.string (String.make 10000 'x')).[0]
  done;
  print_int !sum
