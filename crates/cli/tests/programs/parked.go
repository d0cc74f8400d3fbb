// Goroutines that wait: for a channel, a lock, a timer, in a read, and one that computes. Writes "ready" when all do.
package main

import (
	"fmt"
	"os"
	"sync"
	"time"
)

var nothing = make(chan int)
var lock sync.Mutex
var sum uint64

//go:noinline
func wait(kind int) int {
	switch kind {
	case 0:
		return <-nothing
	case 1:
		lock.Lock()
	case 2:
		time.Sleep(time.Hour)
	case 3:
		r, _, _ := os.Pipe()
		f := os.NewFile(r.Fd(), "blocking")
		f.Read(make([]byte, 1))
	}
	return kind
}

//go:noinline
func outer(kind int) int { return wait(kind) + kind }

func main() {
	lock.Lock()
	for kind := 0; kind < 4; kind++ {
		go outer(kind)
	}
	time.Sleep(200 * time.Millisecond)
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
}
