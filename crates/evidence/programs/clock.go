// Goroutines that read the clock, which Go does on the thread's own stack: "work SECONDS".
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

//go:noinline
func poll(end time.Time) int {
	count := 0
	for time.Now().Before(end) {
		count++
	}
	return count
}

//go:noinline
func wait(end time.Time) int {
	return poll(end) + 1
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	counts := make(chan int)
	for range [2]int{} {
		go func() { counts <- wait(end) }()
	}
	fmt.Println(<-counts+<-counts > 0)
}
