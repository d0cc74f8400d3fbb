proc fib n {expr {$n < 2 ? $n : [fib [expr {$n - 1}]] + [fib [expr {$n - 2}]]}}
while 1 {
    fib 15
    set all {}
    for {set i 0} {$i < 2000} {incr i} {lappend all [expr {$i * 7919 % 10007}]}
    lsort -integer $all
}
