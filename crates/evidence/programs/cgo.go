// Goroutines that call C, which uses every register: "work SECONDS".
package main

/*
#include <stdlib.h>

static int compare(const void *a, const void *b) {
	return *(const int *)a - *(const int *)b;
}

static int sorted(int count) {
	int *numbers = malloc(count * sizeof *numbers);
	for (int i = 0; i < count; i++)
		numbers[i] = i * 7919 % count;
	qsort(numbers, count, sizeof *numbers, compare);
	int middle = numbers[count / 2];
	free(numbers);
	return middle;
}

static int nested(int depth, int count) {
	return depth > 0 ? nested(depth - 1, count) + 1 : sorted(count);
}
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

//go:noinline
func call(depth int) int {
	if depth > 0 {
		return call(depth-1) + 1
	}
	return int(C.nested(6, 20000))
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var group sync.WaitGroup
	for worker := 0; worker < 2; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			sum := 0
			for time.Now().Before(end) {
				sum += call(5)
			}
			fmt.Fprintln(os.Stderr, sum)
		}()
	}
	group.Wait()
}
