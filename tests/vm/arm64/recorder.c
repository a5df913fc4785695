/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Loads the network recorder's BPF programs and attaches those of each source in turn: packets, then system calls. This process
 * has both ends of TCP connections over loopback, one end in a control group: the node. The records of that end must have every
 * byte that moved, in every call that moves bytes, at its offset, and how the connection began and ended.
 */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conversation.h"
#include "guest.h"
#include "recorder.h"

static const char *const of_packets[] = { "state_changes", "packet_sent", "packet_received", NULL };
static const char *const of_calls[] = { "call_states", "call_returns", "call_ends", "process_forks", "process_exits", NULL };

static struct bpf_object *object;
static struct ring_buffer *ring;

/* The connection, and what its records say. */
static struct conversation now;
static int listens, opened, closed;
/* True if there are also records of the peer's end: calls are chosen by the process, which has both. */
static int peers_too;
/* Bytes that the records had, by the side that sent them. */
static __u8 seen[SIDE_REMOTE + 1][TOTAL];

static void check_data(const struct record *record)
{
	const __u8 *bytes = (const void *)(record + 1);
	__u64 end = record->offset + record->length;

	if ((record->sender != SIDE_LOCAL && record->sender != SIDE_REMOTE) || end < record->offset || end > TOTAL)
		fail("%s: %u bytes of side %u at %llu", now.name, record->length, record->sender, record->offset);
	for (__u32 i = 0; i < record->length; i++)
		if (bytes[i] != byte_of(record->sender, record->offset + i))
			fail("%s: side %u sent another byte at %llu", now.name, record->sender, record->offset + i);
	memset(seen[record->sender] + record->offset, 1, record->length);
}

static void check_addresses(const struct record *record)
{
	__u8 loopback[16] = { 127, 0, 0, 1 };

	if (now.family == AF_INET6)
		memcpy(loopback, &in6addr_loopback, sizeof(loopback));
	if (record->address_size != (now.family == AF_INET ? 4 : 16) || record->remote_port != now.peer_port ||
	    memcmp(record->local_address, loopback, record->address_size) ||
	    memcmp(record->remote_address, loopback, record->address_size))
		fail("%s: a record with other addresses", now.name);
}

/* Checks a record. */
static int take(void *context, void *data, size_t size)
{
	struct record *record = data;

	(void)context;
	if (record->local_port != now.node_port) {
		if (!peers_too)
			fail("%s: a record of port %u", now.name, record->local_port);
		return 0;
	}
	if (size < sizeof(*record) + record->length)
		fail("%s: a record of %zu bytes", now.name, size);
	if (record->kind == RECORD_LISTENS) {
		if (record->process != (__u32)getpid())
			fail("%s: process %u listens", now.name, record->process);
		listens++;
		return 0;
	}
	check_addresses(record);
	if (record->initiator != (now.opens ? SIDE_LOCAL : SIDE_REMOTE))
		fail("%s: side %u has opened the connection", now.name, record->initiator);
	if (record->kind == RECORD_DATA)
		check_data(record);
	else if (record->kind == RECORD_OPENED)
		opened++;
	else if (record->kind != RECORD_CLOSED)
		fail("%s: a record of kind %u", now.name, record->kind);
	else if (record->offset != TOTAL || record->in_order != TOTAL)
		fail("%s: ended after %llu and %llu bytes", now.name, record->offset, record->in_order);
	else
		closed++;
	return 0;
}

static int map_of(const char *name)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, name);

	if (!map)
		fail("the recorder has no map %s", name);
	return bpf_map__fd(map);
}

static void check_counters(void)
{
	int processors = libbpf_num_possible_cpus();
	struct counters *each = calloc(processors, sizeof(*each));
	__u32 zero = 0;

	if (!each || bpf_map_lookup_elem(map_of("counted"), &zero, each))
		fail("the recorder's counters cannot be read");
	for (int i = 0; i < processors; i++)
		if (each[i].lost_records || each[i].unreadable_bytes || each[i].missed_calls || each[i].extended_packets)
			fail("%s: %llu records lost, %llu bytes not readable, %llu calls missed, %llu packets not read", now.name,
			     each[i].lost_records, each[i].unreadable_bytes, each[i].missed_calls, each[i].extended_packets);
	free(each);
}

/* Records a connection, number N. */
static void record_one(const char *source, int n, int family, int opens)
{
	static char name[64];
	__u8 yes = 1;

	snprintf(name, sizeof(name), "%s, IPv%d, %s", source, family == AF_INET ? 4 : 6, opens ? "opened" : "accepted");
	now = (struct conversation){ name, family, opens, 9700 + n, 9800 + n };
	listens = opened = closed = 0;
	memset(seen, 0, sizeof(seen));
	if (bpf_map_update_elem(map_of("ports"), &now.node_port, &yes, BPF_ANY))
		fail("a port cannot be asked for");
	converse(&now);
	/* The end of a connection may come later. */
	for (int tries = 0; !closed && tries < 1000; tries++, usleep(10000))
		if (ring_buffer__consume(ring) < 0)
			fail("the recorder's ring cannot be read");
	check_counters();
	if (listens != !opens || opened != 1 || closed != 1)
		fail("%s: listens %d times, opened %d, closed %d", name, listens, opened, closed);
	for (int sender = SIDE_LOCAL; sender <= SIDE_REMOTE; sender++)
		if (memchr(seen[sender], 0, TOTAL))
			fail("%s: bytes of side %d are missing", name, sender);
	printf("recorded: %s\n", name);
}

/* Attaches programs, records connections of every kind, and detaches the programs. */
static void record_by(const char *source, const char *const *names, int first)
{
	int group = open("/sys/fs/cgroup/node", O_RDONLY | O_DIRECTORY), attached = 0;
	struct bpf_link *links[8];

	for (; names[attached]; attached++) {
		struct bpf_program *program = bpf_object__find_program_by_name(object, names[attached]);
		int is_of_group = program && strstr(bpf_program__section_name(program), "cgroup_skb/");

		if (!program)
			fail("the recorder has no program %s", names[attached]);
		links[attached] = is_of_group ? bpf_program__attach_cgroup(program, group) : bpf_program__attach(program);
		if (!links[attached])
			fail("%s cannot be attached", names[attached]);
	}
	for (int i = 0; i < 4; i++)
		record_one(source, first + i, i & 1 ? AF_INET6 : AF_INET, i / 2);
	while (attached > 0)
		bpf_link__destroy(links[--attached]);
	close(group);
}

static void start_loopback(void)
{
	struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &loopback))
		fail("the loopback interface cannot be started");
	close(fd);
}

const char *check_recorder(void)
{
	static char found[256];
	struct bpf_program *program;
	__u32 pid = getpid();
	int programs = 0;
	__u8 yes = 1;

	start_loopback();
	if (mkdir("/sys/fs/cgroup/node", 0755))
		fail("no control group can be made");
	object = bpf_object__open_file("/recorder.bpf.o", NULL);
	if (!object || bpf_object__load(object))
		fail("the kernel refused the recorder's programs");
	bpf_object__for_each_program(program, object)
		programs++;
	ring = ring_buffer__new(map_of("records"), take, NULL, NULL);
	if (!ring)
		fail("the recorder's ring cannot be opened");
	record_by("packets", of_packets, 0);
	if (bpf_map_update_elem(map_of("processes"), &pid, &yes, BPF_ANY))
		fail("the own process cannot be asked for");
	peers_too = 1;
	record_by("calls", of_calls, 4);
	ring_buffer__free(ring);
	bpf_object__close(object);
	snprintf(found, sizeof(found),
		 "%d programs accepted; from packets and from system calls, each byte of 4 connections of %d MiB is right", programs,
		 2 * TOTAL >> 20);
	return found;
}
