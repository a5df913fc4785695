/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A TCP connection over loopback, one end of which is the node's. */
#ifndef CONVERSATION_H
#define CONVERSATION_H

#include <linux/types.h>

/* Bytes of a connection in each direction. */
#define TOTAL (512 << 10)

struct conversation {
	const char *name;
	/* AF_INET or AF_INET6. */
	int family;
	/* True if the node opens the connection. */
	int opens;
	__u16 node_port;
	__u16 peer_port;
};

/* Opens a connection, lets both ends talk, and closes it. The node's sockets are made in the control group `node`. */
void converse(const struct conversation *of);

/* The byte that a side sends at an offset. */
__u8 byte_of(int sender, __u64 offset);

#endif
