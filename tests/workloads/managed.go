// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A Go heap that changes on command, and says what runtime.MemStats has of it.
//
// Build:
//   go build -o managed managed.go
//
//   managed GOROUTINES SEED
//
// Waits for lines on stdin; each character of a line is something that all goroutines do:
//   m   allocate and forget at random, also large objects
//   f   forget every other object
//   a   forget all objects
//   c   collect garbage, and sweep (the main goroutine alone)
// and answers each line with the process id and figures of runtime.MemStats, as JSON. The collector runs only on command, and
// the program
// allocates nothing between the figures and the next line. (The runtime may, for a new thread: an empty line tells.)

package main

import (
	"math/rand"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
)

const slots, steps = 2000, 20000

type worker struct {
	random *rand.Rand
	bytes  [slots][]byte
	links  [slots]*link
}

type link struct {
	next *link
	data [5]uint64
}

func (w *worker) mix() {
	for i := 0; i < steps; i++ {
		slot, kind := w.random.Intn(slots), w.random.Intn(200)
		switch {
		case kind < 60:
			w.links[slot] = &link{next: w.links[w.random.Intn(slots)]}
			if w.random.Intn(8) == 0 {
				w.links[slot].next = nil
			}
		case kind < 170:
			w.bytes[slot] = make([]byte, w.random.Intn(600))
		case kind < 196:
			w.bytes[slot] = make([]byte, w.random.Intn(20000))
		default:
			w.bytes[slot] = make([]byte, w.random.Intn(600000))
		}
	}
}

func (w *worker) drop(step int) {
	for i := 0; i < slots; i += step {
		w.bytes[i], w.links[i] = nil, nil
	}
}

func main() {
	debug.SetGCPercent(-1)
	number, _ := strconv.Atoi(os.Args[1])
	seed, _ := strconv.Atoi(os.Args[2])
	workers := make([]worker, number)
	for i := range workers {
		workers[i].random = rand.New(rand.NewSource(int64(seed*1000 + i)))
	}
	var group sync.WaitGroup
	var stats runtime.MemStats
	in, out := make([]byte, 256), make([]byte, 0, 16384)
	for {
		n, err := syscall.Read(0, in)
		if err != nil || n <= 0 {
			return
		}
		for _, command := range in[:n-1] {
			// (The goroutines' copy is allocated; an empty line allocates nothing.)
			what := command
			if what == 'c' {
				runtime.GC()
				continue
			}
			for i := range workers {
				group.Add(1)
				go func(w *worker) {
					defer group.Done()
					switch what {
					case 'm':
						w.mix()
					case 'f':
						w.drop(2)
					case 'a':
						w.drop(1)
					}
				}(&workers[i])
			}
			group.Wait()
		}
		runtime.ReadMemStats(&stats)
		out = append(out[:0], `{"pid":`...)
		out = strconv.AppendInt(out, int64(os.Getpid()), 10)
		for _, figure := range [...]struct {
			name  string
			value uint64
		}{
			{"alloc", stats.HeapAlloc}, {"objects", stats.HeapObjects}, {"inuse", stats.HeapInuse},
			{"idle", stats.HeapIdle}, {"stacks", stats.StackInuse},
		} {
			out = append(out, `,"`...)
			out = append(out, figure.name...)
			out = append(out, `":`...)
			out = strconv.AppendUint(out, figure.value, 10)
		}
		out = append(out, `,"sizes":[`...)
		for i := 1; i < len(stats.BySize); i++ {
			if i > 1 {
				out = append(out, ',')
			}
			out = append(out, '[')
			out = strconv.AppendUint(out, uint64(stats.BySize[i].Size), 10)
			out = append(out, ',')
			out = strconv.AppendUint(out, stats.BySize[i].Mallocs-stats.BySize[i].Frees, 10)
			out = append(out, ']')
		}
		out = append(out, "]}\n"...)
		syscall.Write(1, out)
	}
}
