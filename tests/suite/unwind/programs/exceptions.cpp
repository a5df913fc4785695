// Touches memory during exception handling, and in a std::thread. Compiled by tests/suite/unwind.
#include <stdexcept>
#include <sys/mman.h>
#include <thread>

#define NOINLINE __attribute__((noinline))
#define STAY() __asm__ volatile("" ::: "memory")

static volatile char *fresh()
{
	return static_cast<volatile char *>(
		mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static inline __attribute__((always_inline)) void touch()
{
	volatile char *p = fresh();
	for (int i = 0; i < 65536; i += 4096)
		p[i] = 1;
}

extern "C" {
NOINLINE void catch_leaf() { touch(); STAY(); }
NOINLINE void destructor_leaf() { touch(); STAY(); }
NOINLINE void std_thread_leaf() { touch(); STAY(); }
NOINLINE void thrower(int n)
{
	if (n > 0)
		throw std::runtime_error("thrown");
	STAY();
}
}

struct Guard {
	NOINLINE ~Guard() { destructor_leaf(); STAY(); }
};

extern "C" {
NOINLINE void guarded(int n)
{
	Guard guard;
	thrower(n);
	STAY();
}
NOINLINE void catching(int n)
{
	try {
		guarded(n);
	} catch (const std::exception &) {
		catch_leaf();
	}
	STAY();
}
NOINLINE void thread_body() { std_thread_leaf(); STAY(); }
}

int main(int argc, char **)
{
	catching(argc);
	std::thread thread(thread_body);
	thread.join();
	return 0;
}
