// Go that calls C, which calls Go, on every kind of stack that Go's run time has: a goroutine's, the thread's own, the
// signal handlers'. Each leaf function touches LEAF bytes. Also a C library for other programs.
package main

/*
#cgo CFLAGS: -O2 -fomit-frame-pointer
#cgo LDFLAGS: -lpthread
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>

enum { PAGE = 4096, LEAF = 16 * PAGE };
#define NOINLINE static __attribute__((noinline, noclone))
// After a call: prevents a tail call, and that the compiler merges functions.
#define STAY(name) __asm__ volatile("# " name ::: "memory")

extern void goBack(char *);
extern void goFromThread(char *);

static char *pages(void)
{
	return mmap(0, LEAF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

NOINLINE void touch(char *at) { for (size_t i = 0; i < LEAF; i += PAGE) at[i] = 1; STAY("touch"); }
NOINLINE void c_leaf(void) { touch(pages()); STAY("c_leaf"); }
NOINLINE void nested_leaf(void) { touch(pages()); STAY("nested_leaf"); }
NOINLINE void handler_leaf(void) { touch(pages()); STAY("handler_leaf"); }
static void c_fill(void) { c_leaf(); STAY("c_fill"); }
static void c_fill_nested(void) { nested_leaf(); STAY("c_fill_nested"); }
static void c_back(char *at) { goBack(at); STAY("c_back"); }

NOINLINE void *c_thread(void *at) { goFromThread(at); STAY("c_thread"); return 0; }

static void c_start(char *at)
{
	pthread_t thread;

	pthread_create(&thread, 0, c_thread, at);
	pthread_join(thread, 0);
}

// Go's own handler is put aside: this one, on the stack that Go has for handlers, interrupts Go.
static void on_fault(int signal, siginfo_t *info, void *context)
{
	mprotect((void *)((size_t)info->si_addr & -PAGE), PAGE, PROT_READ | PROT_WRITE);
	handler_leaf();
	STAY("on_fault");
}

static char *c_trap(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	sigaction(SIGSEGV, &action, 0);
	return mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
*/
import "C"

import "unsafe"

const page, leaf = 4096, 16 * 4096

//go:linkname systemstack runtime.systemstack
//go:noescape
func systemstack(fn func())

//go:nosplit
func fill(at *C.char) {
	for i := 0; i < leaf; i += page {
		*(*byte)(unsafe.Add(unsafe.Pointer(at), i)) = 1
	}
}

//go:noinline
//go:nosplit
func goLeaf(at *C.char) { fill(at) }

//go:noinline
func backLeaf(at *C.char) { fill(at) }

//go:noinline
func threadLeaf(at *C.char) { fill(at) }

//go:noinline
func sharedLeaf(at *C.char) { fill(at) }

//go:noinline
//go:nosplit
func systemLeaf(at *C.char) { fill(at) }

//go:noinline
//export goBack
func goBack(at *C.char) {
	backLeaf(at)
	callNested()
}

//go:noinline
//export goFromThread
func goFromThread(at *C.char) { threadLeaf(at) }

//go:noinline
//export goShared
func goShared() {
	sharedLeaf(C.pages())
	callFill()
}

//go:noinline
func callFill() { C.c_fill() }

//go:noinline
func callNested() { C.c_fill_nested() }

//go:noinline
func callBack() { C.c_back(C.pages()) }

//go:noinline
func callThread() { C.c_start(C.pages()) }

//go:noinline
func callSystem(at *C.char) { systemstack(func() { systemLeaf(at) }) }

//go:noinline
func trap(at *C.char) { *(*byte)(unsafe.Pointer(at)) = 1 }

// The goroutine's stack grows to more than a MiB.
//
//go:noinline
func deep(n int) byte {
	var room [16384]byte
	room[n%16384] = byte(n)
	if n > 0 {
		return room[(n+1)%16384] + deep(n-1)
	}
	return room[0]
}

func main() {
	callFill()
	callBack()
	callThread()
	callSystem(C.pages())
	done := make(chan byte)
	at := C.pages()
	go func() {
		goLeaf(at)
		done <- deep(80)
	}()
	<-done
	trap(C.c_trap())
}
