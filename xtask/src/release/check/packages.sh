#!/bin/sh
# Runs in a new Debian that has a C compiler, pkg-config and CMake: installs the packages of
# /packages, uses them, and purges them.
set -eu
# Users' caches are theirs.
export XDG_CACHE_HOME=/tmp/cache

files() {
    # Those that apt and its tools write are not the packages'.
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /packages -o -path /tmp \
        -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) -prune -o -print | sort
}

files >/tmp/before
apt-get install -y --no-install-recommends /packages/*.deb

cd /tmp
cat >spin.c <<'C'
volatile unsigned long sum;
void spin(void)
{
    for (unsigned long i = 0; i < 500000000; i++)
        sum += i;
}
int main(void)
{
    spin();
}
C
cc -O1 -fno-inline -o spin spin.c
backtrail --version
backtrail record -o spin.trace -- ./spin
backtrail report spin.trace
backtrail report spin.trace | grep -q 'spin  *spin$'

cat >wait.c <<'C'
#include <unistd.h>
void wait_here(void)
{
    pause();
}
int main(void)
{
    wait_here();
}
C
cc -O1 -fno-inline -fno-optimize-sibling-calls -o wait wait.c
./wait &
sleep 1
backtrail stack $! | tee stack
kill $!
grep -q wait_here stack
grep -q main stack

cat >library.c <<'C'
#include <backtrail.h>
#include <stdio.h>
int main(void)
{
    void *frames[64];
    int count = backtrail_backtrace(frames, 64);
    backtrail_backtrace_symbols_fd(frames, count, 1);
    return count < 2;
}
C
cc -o shared library.c $(pkg-config --cflags --libs backtrail)
./shared
cc -static -o static library.c $(pkg-config --static --cflags --libs backtrail)
./static
cat >CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.10)
project(library C)
find_package(backtrail 0.1 REQUIRED)
find_package(backtrail-tracer 0.1 REQUIRED)
add_executable(by-cmake library.c)
target_link_libraries(by-cmake backtrail::backtrail)
C
cmake -S . -B cmake >/dev/null
cmake --build cmake
./cmake/by-cmake
cc -o fields /usr/share/doc/backtrail/examples/fields.c $(pkg-config --cflags --libs backtrail-tracer)
./fields events
backtrail trace show events | grep -q kinds:stack
preloaded=$(dpkg -L backtrail | grep _preload.so)
LD_PRELOAD=$preloaded ./spin

test -s /usr/share/man/man1/backtrail-record.1.gz
test -s /usr/share/man/man3/backtrail_backtrace.3.gz
test -s /usr/share/bash-completion/completions/backtrail
mkdir -p /var/lib/backtrail/recordings

apt-get purge -y backtrail libbacktrail0 libbacktrail-dev backtrail-doc
files >/tmp/after
diff /tmp/before /tmp/after
test ! -e /var/lib/backtrail
echo the packages leave nothing
