// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Like sampler.c, with C++'s operators: objects and arrays, aligned ones, sized deletes, and exceptions.
//
//   sampler_operators RUNS [throw]

#include <new>

extern "C" {
#include "sampler_listener.h"
}

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random()
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

struct Plain {
	char bytes[200];
};
struct alignas(64) Aligned {
	char bytes[320];
};

// Something that is allocated, and how it is deleted.
struct Block {
	void *ptr;
	size_t size;
	void (*drop)(void *, size_t);
};

static Block allocate()
{
	size_t size = 1 + next_random() % 800;

	switch (next_random() % 6) {
	case 0:
		return {new Plain, sizeof(Plain), [](void *ptr, size_t) { delete static_cast<Plain *>(ptr); }};
	case 1:
		return {new char[size], size, [](void *ptr, size_t) { delete[] static_cast<char *>(ptr); }};
	case 2:
		return {new Aligned, sizeof(Aligned), [](void *ptr, size_t) { delete static_cast<Aligned *>(ptr); }};
	case 3:
		return {new (std::nothrow) char[size], size, [](void *ptr, size_t) { ::operator delete[](ptr, std::nothrow); }};
	case 4:
		return {::operator new(size), size, [](void *ptr, size_t size) { ::operator delete(ptr, size); }};
	default:
		// libstdc++ allocates a multiple of the alignment.
		size = (size + 127) & -128;
		return {::operator new(size, std::align_val_t(128)), size, [](void *ptr, size_t size) {
				::operator delete(ptr, size, std::align_val_t(128));
			}};
	}
}

static Block blocks[4000];

static void run()
{
	double bytes = 0, live_bytes = 0, live_count = 0;

	listener_reset();
	for (Block &block : blocks) {
		block = allocate();
		bytes += static_cast<double>(block.size);
	}
	for (Block &block : blocks)
		if (next_random() & 1) {
			block.drop(block.ptr, block.size);
			block.ptr = nullptr;
		} else {
			live_bytes += static_cast<double>(block.size);
			live_count++;
		}
	print_run(bytes, 4000, live_bytes, live_count);
	for (Block &block : blocks)
		if (block.ptr)
			block.drop(block.ptr, block.size);
}

int main(int argc, char **argv)
{
	static char out[1 << 16];
	volatile size_t too_many = SIZE_MAX / 4;

	setvbuf(stdout, out, _IOFBF, sizeof out);
	// (mimalloc, which is C, aborts instead.)
	if (argc > 2) {
		try {
			::operator delete(::operator new(too_many));
			return 1;
		} catch (const std::bad_alloc &) {
		}
	}
	if (::operator new(too_many, std::nothrow))
		return 1;
	for (int n = argc > 1 ? atoi(argv[1]) : 1; n > 0; n--)
		run();
	return 0;
}
