// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Objects without a mark of their own, whose types only debug information declares: in containers, behind pointers, in lists.
//
// Build:
//   c++ -O2 -g -o declared declared.cpp
//
//   declared
//
// Prints what it has, as JSON: {"types":[["shop::Item",10,560],…]}: name, number and usable bytes of each type's chunks. Then it
// waits for the end of stdin.

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <forward_list>
#include <list>
#include <malloc.h>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace shop {

struct Item {
	long price;
	double weights[6];
};

struct Detail {
	double values[12];
};

struct Order {
	std::string name;
	std::vector<Item> items;
	char *note;
};

// The first of many: other structures begin with it.
struct Link {
	Link *next, *previous;
};

struct Entry {
	Link link;
	long numbers[4];
};

struct Message {
	long length;
	char text[];
};

struct Named {
	std::string name;
	~Named() {}
};

struct Task {
	virtual ~Task() {}
	std::unique_ptr<Item> item;
};

struct Timer : Task {
	char padding[24];
};

struct Node {
	Node *next;
	char payload[72];
};

struct Book {
	std::vector<Order> orders;
	std::map<int, Detail> by_number;
	std::set<long> numbers;
	std::unordered_map<long, std::string> names;
	std::unique_ptr<Detail> own;
	std::shared_ptr<Item> shared;
	std::deque<std::unique_ptr<Detail>> queue;
	std::list<Detail> list;
	std::forward_list<Detail> forward;
	Message *messages[8];
	Item *array;
	Named *named;
	std::optional<std::string> maybe, gone;
};

} // namespace shop

static shop::Book book;
static shop::Node *chain;
static shop::Link *links;
shop::Task *tasks[10];

// Usable bytes of the chunk at an address, and the number of chunks, by type.
static std::map<std::string, std::pair<long, long>> &types()
{
	static auto *all = new std::map<std::string, std::pair<long, long>>;
	return *all;
}

static void has(const char *name, const void *at)
{
	auto &sum = types()[name];
	sum.first += 1;
	sum.second += malloc_usable_size(const_cast<void *>(at));
}

// The node of a container, which has an element at an offset.
static void has_node(const char *name, const void *element, size_t offset)
{
	has(name, static_cast<const char *>(element) - offset);
}

static void fill()
{
	using namespace shop;
	for (int i = 0; i < 100; i++) {
		Order order = {std::string(100 + i % 7, 'x'), std::vector<Item>(1 + i % 5), nullptr};
		order.note = static_cast<char *>(calloc(1, 300));
		book.orders.push_back(std::move(order));
	}
	for (int i = 0; i < 50; i++) {
		book.by_number[i].values[0] = i;
		book.numbers.insert(i);
	}
	for (long i = 0; i < 70; i++)
		book.names[i] = std::string(200, 'y');
	book.own = std::make_unique<Detail>();
	book.shared = std::make_shared<Item>();
	for (int i = 0; i < 300; i++)
		book.queue.push_back(std::make_unique<Detail>());
	// The first buffers of the queue are freed, and their places in its table are stale.
	for (int i = 0; i < 100; i++)
		book.queue.pop_front();
	for (int i = 0; i < 33; i++) {
		book.list.push_back(Detail());
		book.forward.push_front(Detail());
	}
	for (auto &message : book.messages) {
		message = static_cast<Message *>(calloc(1, sizeof(Message) + 500));
		message->length = 500;
	}
	book.array = static_cast<Item *>(calloc(20, sizeof(Item)));
	book.named = new Named[5];
	for (int i = 0; i < 5; i++)
		book.named[i].name = std::string(60, 'n');
	book.maybe = std::string(90, 'm');
	book.gone = std::string(90, 'g');
	book.gone.reset();
	for (int i = 0; i < 40; i++) {
		Node *node = static_cast<Node *>(calloc(1, sizeof(Node)));
		node->next = chain;
		chain = node;
		Entry *entry = static_cast<Entry *>(calloc(1, sizeof(Entry)));
		entry->link.next = links;
		links = &entry->link;
	}
	for (auto &task : tasks) {
		task = new Timer;
		task->item = std::make_unique<Item>();
	}
}

static void say()
{
	using namespace shop;
	has("buffer of std::vector<shop::Order> in shop::Book", book.orders.data());
	for (auto &order : book.orders) {
		has("text of std::string in shop::Order", order.name.data());
		has("buffer of std::vector<shop::Item> in shop::Order", order.items.data());
		has("char[] in shop::Order", order.note);
	}
	for (auto &one : book.by_number)
		has_node("node of std::map<int, shop::Detail> in shop::Book", &one, 32);
	for (auto &one : book.numbers)
		has_node("node of std::set<long int> in shop::Book", &one, 32);
	for (auto &one : book.names) {
		has_node("node of std::unordered_map<long int, std::string> in shop::Book", &one, 8);
		has("text of std::string in shop::Book", one.second.data());
	}
	has("text of std::string in shop::Book", book.maybe->data());
	has("shop::Detail", book.own.get());
	for (auto &one : book.queue)
		has("shop::Detail", one.get());
	for (auto &one : book.list)
		has_node("node of std::list<shop::Detail> in shop::Book", &one, 16);
	for (auto &one : book.forward)
		has_node("node of std::forward_list<shop::Detail> in shop::Book", &one, 8);
	for (auto &message : book.messages)
		has("shop::Message", message);
	has("shop::Item[]", book.array);
	has("shop::Named[]", reinterpret_cast<char *>(book.named) - 8);
	for (int i = 0; i < 5; i++)
		has("text of std::string in shop::Named", book.named[i].name.data());
	for (Node *node = chain; node; node = node->next)
		has("shop::Node", node);
	for (auto &task : tasks)
		has("shop::Item", task->item.get());
}

int main()
{
	static char out[4096];

	setvbuf(stdout, out, _IOFBF, sizeof(out));
	fill();
	say();
	const char *before = "{\"types\":[";
	for (auto &type : types()) {
		printf("%s[\"%s\",%ld,%ld]", before, type.first.c_str(), type.second.first, type.second.second);
		before = ",";
	}
	puts("]}");
	fflush(stdout);
	while (getchar() != EOF) {
	}
}
