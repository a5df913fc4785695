/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Records and tables that the BPF programs share with user space (src/wire.rs).
 */
#ifndef RECORDER_H
#define RECORDER_H

enum record_kind {
	/* Bytes of a connection follow. */
	RECORD_DATA = 1,
	/* The same before the node's socket exists: they came with the end of the handshake. */
	RECORD_EARLY,
	/* A connection was opened. */
	RECORD_OPENED,
	/* A connection ended. */
	RECORD_CLOSED,
	/* A process listens at a port that user space asked for. */
	RECORD_LISTENS,
};

enum side {
	SIDE_UNKNOWN,
	SIDE_LOCAL,
	SIDE_REMOTE,
};

struct record {
	/* CLOCK_MONOTONIC, in ns. */
	__u64 time;
	/* The socket's cookie; of system calls, a number that the socket was given. 0 for RECORD_EARLY. */
	__u64 socket;
	/*
	 * RECORD_DATA: offset of the first byte in the direction. RECORD_EARLY: sequence number of the first byte.
	 * RECORD_OPENED: sequence number of the first byte that the peer sends. RECORD_CLOSED: bytes that the node sent.
	 */
	__u64 offset;
	/*
	 * RECORD_DATA: bytes of the direction that the kernel had in order. RECORD_CLOSED: those that the node received.
	 */
	__u64 in_order;
	/* Bytes that follow the record. */
	__u32 length;
	/* RECORD_LISTENS: the process. */
	__u32 process;
	__u16 local_port;
	__u16 remote_port;
	/* enum record_kind. */
	__u8 kind;
	/* enum side: who sent the bytes, who opened the connection. */
	__u8 sender;
	__u8 initiator;
	/* Bytes of an address: 4 or 16. */
	__u8 address_size;
	__u8 local_address[16];
	__u8 remote_address[16];
};

/* Sums of a processor. */
struct counters {
	/* Records for which the ring had no room, and the bytes in them. */
	__u64 lost_records;
	__u64 lost_bytes;
	/* Bytes that the kernel did not let the program copy. */
	__u64 unreadable_bytes;
	/* Bytes that were sent or received again, and not copied. */
	__u64 repeated_bytes;
	/* Bytes of ignored sockets. */
	__u64 ignored_bytes;
	/* IPv6 packets whose extension headers are not understood. They are not recorded. */
	__u64 extended_packets;
	/* System calls that moved bytes in a way that is not recorded, or which there was no room to note. */
	__u64 missed_calls;
};

#endif
