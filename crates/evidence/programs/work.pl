# Recursion, hashes, regular expressions and sorting, for the given number of seconds.
use strict;
use warnings;
sub fib { my $n = shift; return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }
sub tree { my $d = shift; return $d == 0 ? [] : [tree($d - 1), tree($d - 1)]; }
sub count { my $n = 1; $n += count($_) for @{ $_[0] }; return $n; }
sub words { my $n = shift; my $t = join ' ', sort { $a cmp $b } map { "word" . $_ % 97 } 1 .. $n; $t =~ s/w(\w+)/uc $1/ge; return length $t; }
my ($end, $sum) = (time + ($ARGV[0] // 5), 0);
$sum += fib(18) + count(tree(10)) + words(2000) while time < $end;
print "$sum\n";
