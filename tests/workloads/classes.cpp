// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Objects of known classes, kept in known variables, and some that are forgotten.
//
// Build:
//   c++ -O1 -g -pthread -o classes classes.cpp
//
//   classes
//
// Prints what it has, as JSON: {"classes":[["zoo::Cat",300,5],…],"variables":[["cats",300],…]}: of each class the number of
// objects and how many of them are forgotten; of each variable the number of objects that only it leads to. Then it waits
// for the end of stdin.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#define NOINLINE __attribute__((noinline))

namespace zoo {

struct Animal {
	virtual ~Animal() {}
	virtual int legs() const = 0;
	Animal *next = nullptr;
};

struct Cat : Animal {
	int legs() const override { return 4; }
	char name[40] = {};
};

struct Swimmer {
	virtual ~Swimmer() {}
	long depth = 0;
};

struct Duck : Animal, virtual Swimmer {
	int legs() const override { return 2; }
};

template <typename T> struct Cage : Animal {
	int legs() const override { return 0; }
	T inside[8] = {};
};

} // namespace zoo

namespace {

struct Hidden : zoo::Animal {
	int legs() const override { return 6; }
};

} // namespace

enum { CATS = 300, DUCKS = 200, CAGES = 100, HIDDEN = 50, ERRORS = 20, TEXTS = 70, FORGOTTEN = 5, LISTED = 40 };

// (Volatile: they are only written.)
zoo::Animal *volatile cats[CATS];
static zoo::Animal *volatile ducks[DUCKS];
namespace zoo {
Animal *volatile cages;
}
static zoo::Animal *volatile *volatile hidden;
static std::exception *volatile errors[ERRORS];
static char *volatile texts[TEXTS];
static thread_local zoo::Animal *volatile own;

// What the compiler does not know is kept, it need not write.
template <typename T> static NOINLINE T *made(T *object)
{
	asm volatile("" : : "r"(object) : "memory");
	return object;
}

template <typename T> static NOINLINE void keep(zoo::Animal *volatile *in, int count)
{
	for (int i = 0; i < count; i++)
		in[i] = new T;
}

static NOINLINE void forget()
{
	for (int i = 0; i < FORGOTTEN; i++)
		made(new zoo::Cat);
	// A list: its head is forgotten.
	zoo::Animal *volatile first = nullptr;
	for (int i = 0; i < LISTED; i++) {
		zoo::Animal *animal = made(new zoo::Duck);
		animal->next = first;
		first = animal;
	}
}

// Overwrites what the calls before have left on the stack.
static NOINLINE void clean_stack()
{
	volatile char zero[1 << 16];

	for (size_t i = 0; i < sizeof(zero); i++)
		zero[i] = 0;
}

static NOINLINE void fill()
{
	keep<zoo::Cat>(cats, CATS);
	keep<zoo::Duck>(ducks, DUCKS);
	for (int i = 0; i < CAGES; i++) {
		auto *cage = new zoo::Cage<long>;
		cage->next = zoo::cages;
		zoo::cages = cage;
	}
	// The array is in the heap, too.
	hidden = new zoo::Animal *volatile[HIDDEN]();
	keep<Hidden>(hidden, HIDDEN);
	for (int i = 0; i < ERRORS; i++)
		errors[i] = new std::runtime_error("what this is about is no object of this size");
	for (int i = 0; i < TEXTS; i++) {
		texts[i] = static_cast<char *>(calloc(1, 100));
		sprintf(texts[i], "a text of known length, number %d", i);
	}
	own = new zoo::Cage<char[100]>;
	forget();
}

int main()
{
	static char out[4096];

	setvbuf(stdout, out, _IOLBF, sizeof(out));
	setvbuf(stdin, nullptr, _IONBF, 0);
	fill();
	clean_stack();
	printf("{\"classes\":[[\"zoo::Cat\",%d,%d],[\"zoo::Duck\",%d,%d],[\"zoo::Cage<long>\",%d,0],"
	       "[\"(anonymous namespace)::Hidden\",%d,0],[\"std::runtime_error\",%d,0],[\"zoo::Cage<char [100]>\",1,0]],"
	       "\"variables\":[[\"cats\",\"zoo::Cat\",%d],[\"ducks\",\"zoo::Duck\",%d],[\"zoo::cages\",\"zoo::Cage<long>\",%d],"
	       "[\"hidden\",\"(anonymous namespace)::Hidden\",%d],[\"errors\",\"std::runtime_error\",%d]],\"texts\":%d}\n",
	       CATS + FORGOTTEN, FORGOTTEN, DUCKS + LISTED, LISTED, CAGES, HIDDEN, ERRORS, CATS, DUCKS, CAGES, HIDDEN,
	       ERRORS, TEXTS);
	while (getchar() != EOF)
		;
	return 0;
}
