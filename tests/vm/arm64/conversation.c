/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* TCP connections whose both ends this process has, and every call that moves bytes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "conversation.h"
#include "guest.h"
#include "recorder.h"

enum {
	/* Bytes of an exchange, at most. */
	MAX_SIZE = 100000,
	/* Ways to send, and to receive. */
	FORMS = 5,
};

__u8 byte_of(int sender, __u64 offset)
{
	return ((offset << 1 | (sender == SIDE_LOCAL)) * 0x9e3779b97f4a7c15) >> 56;
}

/* Sockets belong to the group in which they are made. */
static void enter(const char *group)
{
	int fd = open(group, O_WRONLY);

	if (fd < 0 || write(fd, "0", 1) != 1)
		fail("%s cannot be written", group);
	close(fd);
}

static int new_socket(const struct conversation *of, int is_nodes, int port, struct sockaddr_storage *address)
{
	struct sockaddr_in *v4 = (void *)address;
	struct sockaddr_in6 *v6 = (void *)address;
	int fd;

	enter(is_nodes ? "/sys/fs/cgroup/node/cgroup.procs" : "/sys/fs/cgroup/cgroup.procs");
	memset(address, 0, sizeof(*address));
	address->ss_family = of->family;
	if (of->family == AF_INET)
		v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK), v4->sin_port = htons(port);
	else
		v6->sin6_addr = in6addr_loopback, v6->sin6_port = htons(port);
	fd = socket(of->family, SOCK_STREAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)address, sizeof(*address)))
		fail("%s: no socket at port %d", of->name, port);
	return fd;
}

/* Two parts of memory, the first of which has a byte at least. */
static void split(struct iovec parts[2], __u8 *bytes, size_t size)
{
	size_t first = (size + 1) / 2;

	parts[0] = (struct iovec){ bytes, first };
	parts[1] = (struct iovec){ bytes + first, size - first };
}

static ssize_t send_by(int form, int fd, __u8 *bytes, size_t size)
{
	struct iovec parts[2];
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = parts, .msg_iovlen = 1 } },
				       { .msg_hdr = { .msg_iov = parts + 1, .msg_iovlen = 1 } } };

	split(parts, bytes, size);
	switch (form) {
	case 0: return write(fd, bytes, size);
	case 1: return send(fd, bytes, size, MSG_NOSIGNAL);
	case 2: return writev(fd, parts, 2);
	case 3: return sendmsg(fd, &message, MSG_NOSIGNAL);
	}
	if (sendmmsg(fd, messages, 2, MSG_NOSIGNAL) < 1)
		return -1;
	return messages[0].msg_len + messages[1].msg_len;
}

static ssize_t receive_by(int form, int fd, __u8 *bytes, size_t size)
{
	struct iovec parts[2];
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = parts, .msg_iovlen = 1 } },
				       { .msg_hdr = { .msg_iov = parts + 1, .msg_iovlen = 1 } } };

	split(parts, bytes, size);
	switch (form) {
	case 0: return read(fd, bytes, size);
	case 1: return recv(fd, bytes, size, 0);
	case 2: return readv(fd, parts, 2);
	case 3: return recvmsg(fd, &message, 0);
	}
	if (recvmmsg(fd, messages, 2, MSG_WAITFORONE, NULL) < 1)
		return -1;
	memmove(bytes + messages[0].msg_len, parts[1].iov_base, messages[1].msg_len);
	return messages[0].msg_len + messages[1].msg_len;
}

/* Moves bytes from one end to the other. The kernel takes so many before they are received. */
static void move(const char *name, int from, int to, int sender, __u64 offset, size_t size, int form)
{
	static __u8 sent[MAX_SIZE], received[MAX_SIZE];
	ssize_t count;

	for (size_t i = 0; i < size; i++)
		sent[i] = byte_of(sender, offset + i);
	for (size_t done = 0; done < size; done += count) {
		count = send_by(form, from, sent + done, size - done);
		if (count <= 0)
			fail("%s: cannot send by way %d", name, form);
	}
	for (size_t done = 0; done < size; done += count) {
		count = receive_by(form, to, received + done, size - done);
		if (count <= 0)
			fail("%s: cannot receive by way %d", name, form);
	}
	if (memcmp(sent, received, size))
		fail("%s: the peer received other bytes", name);
}

/* Random sizes, small ones as likely as large ones. */
static void talk(const char *name, int node, int peer)
{
	size_t size;

	for (__u64 offset = 0, turn = 0; offset < TOTAL; offset += size, turn++) {
		size = (size_t)random() % (1 << (turn % 4 * 6)) % MAX_SIZE + 1;
		size = size < TOTAL - offset ? size : TOTAL - offset;
		move(name, peer, node, SIDE_REMOTE, offset, size, turn / 4 % FORMS);
		move(name, node, peer, SIDE_LOCAL, offset, size, turn / 4 % FORMS);
	}
}

void converse(const struct conversation *of)
{
	struct sockaddr_storage from, to;
	int listens = new_socket(of, !of->opens, of->opens ? of->peer_port : of->node_port, &to);
	int opens, accepted;

	if (listen(listens, 1))
		fail("%s: cannot listen", of->name);
	opens = new_socket(of, of->opens, of->opens ? of->node_port : of->peer_port, &from);
	if (connect(opens, (struct sockaddr *)&to, sizeof(to)))
		fail("%s: cannot connect", of->name);
	accepted = accept(listens, NULL, NULL);
	if (accepted < 0)
		fail("%s: cannot accept", of->name);
	talk(of->name, of->opens ? opens : accepted, of->opens ? accepted : opens);
	close(opens);
	close(accepted);
	close(listens);
}
