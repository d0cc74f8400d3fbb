// Goroutines, maps, sorting, garbage and C-less system calls, for the given number of seconds.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

type node struct{ left, right *node }

func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{tree(depth - 1), tree(depth - 1)}
}

func (n *node) count() int {
	if n == nil {
		return 0
	}
	return 1 + n.left.count() + n.right.count()
}

func words(n int) int {
	counts := map[string]int{}
	for i := 0; i < n; i++ {
		counts["word"+strconv.Itoa(i%97)]++
	}
	keys := make([]string, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return len(strings.Join(keys, " "))
}

func grow(n int) int {
	var room [256]byte
	if n == 0 {
		return int(room[n])
	}
	room[n%256] = byte(n)
	return grow(n-1) + int(room[n%256])
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var group sync.WaitGroup
	results := make(chan int, 8)
	for worker := 0; worker < 4; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(end) {
				hash := sha256.Sum256([]byte(strings.Repeat("x", 4096)))
				results <- fib(20) + tree(10).count() + words(2000) + int(hash[0]) + grow(500)
			}
		}()
	}
	go func() { group.Wait(); close(results) }()
	sum := 0
	for result := range results {
		sum += result
		done := make(chan bool)
		go func() { done <- grow(200) > 0 }()
		<-done
	}
	fmt.Println(sum)
}
