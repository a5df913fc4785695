/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What is known of each socket, and the changes of its state: opened, ended, listening.
 */
#ifndef RECORDER_STATES_H
#define RECORDER_STATES_H

#include "records.bpf.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

/*
 * A connection of the recorded node. The programs at packets create it, so that sockets of other processes have none. A
 * listening socket has one to hand down to the sockets that it accepts.
 */
struct connection {
	/* Sequence numbers of the first bytes that the node receives and sends. */
	__u32 received_base;
	__u32 sent_base;
	/* Sequence number after the last byte that the node has sent, as far as the programs at packets saw. */
	__u32 sent_until;
	/* True if these are known. */
	__u8 based;
	/* True if the node sent a SYN. */
	__u8 connects;
	/* True if it was opened since the recorder began. */
	__u8 opened;
	/* True if the node's FIN was queued when the connection ended. */
	__u8 finished;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct connection);
} connections SEC(".maps");

/* Ports whose listeners are reported. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u16);
	__type(value, __u8);
} ports SEC(".maps");

static __always_inline __u8 initiator_of(const struct connection *connection)
{
	if (!connection->opened)
		return SIDE_UNKNOWN;
	return connection->connects ? SIDE_LOCAL : SIDE_REMOTE;
}

/* Bytes that the peer has acknowledged. The kernel counts the node's SYN, too. */
static __always_inline __u64 acked(const struct connection *connection, __u64 bytes_acked)
{
	return bytes_acked - (connection->connects && bytes_acked);
}

static __always_inline void set_addresses(struct record *to, struct sock *sk)
{
	/* The first is 0 once the port is free again, the second until a listener has its port. */
	to->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	if (!to->local_port)
		to->local_port = bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
	to->remote_port = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == FAMILY_IPV6) {
		to->address_size = 16;
		BPF_CORE_READ_INTO(&to->local_address, sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr8);
		BPF_CORE_READ_INTO(&to->remote_address, sk, __sk_common.skc_v6_daddr.in6_u.u6_addr8);
	} else {
		to->address_size = 4;
		BPF_CORE_READ_INTO((__be32 *)&to->local_address, sk, __sk_common.skc_rcv_saddr);
		BPF_CORE_READ_INTO((__be32 *)&to->remote_address, sk, __sk_common.skc_daddr);
	}
}

static __always_inline void listens(struct sock *sk)
{
	__u16 port = BPF_CORE_READ(sk, __sk_common.skc_num);
	struct record record = {
		.time = bpf_ktime_get_ns(),
		.kind = RECORD_LISTENS,
		.process = bpf_get_current_pid_tgid() >> 32,
	};

	if (!bpf_map_lookup_elem(&ports, &port))
		return;
	set_addresses(&record, sk);
	send(&record, 1);
}

/* The connection is open; the kernel holds the socket's lock. */
static __always_inline void opened(struct sock *sk, struct connection *connection, __u64 socket)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 received = BPF_CORE_READ(tcp, bytes_received);
	__u64 sent = acked(connection, BPF_CORE_READ(tcp, bytes_acked));
	struct record record = {
		.time = bpf_ktime_get_ns(),
		.kind = RECORD_OPENED,
		.socket = socket,
	};

	connection->received_base = BPF_CORE_READ(tcp, rcv_nxt) - received;
	connection->sent_base = BPF_CORE_READ(tcp, snd_una) - (__u32)sent;
	if (!connection->based)
		connection->sent_until = connection->sent_base;
	connection->based = 1;
	connection->opened = 1;
	record.offset = connection->received_base;
	record.initiator = initiator_of(connection);
	set_addresses(&record, sk);
	send(&record, 0);
}

static __always_inline int fin_is_queued(int state)
{
	return state == STATE_FIN_WAIT1 || state == STATE_FIN_WAIT2 || state == STATE_TIME_WAIT ||
	       state == STATE_LAST_ACK || state == STATE_CLOSING;
}

/* The connection has ended. A FIN has a sequence number, and is no byte. */
static __always_inline void closed(struct sock *sk, struct connection *connection, __u64 socket)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 end = BPF_CORE_READ(tcp, write_seq) - connection->finished;
	__u32 next = BPF_CORE_READ(tcp, snd_nxt);
	__u64 sent = acked(connection, BPF_CORE_READ(tcp, bytes_acked));
	struct record record = {
		.time = bpf_ktime_get_ns(),
		.kind = RECORD_CLOSED,
		.socket = socket,
		.initiator = initiator_of(connection),
	};

	if ((__s32)(next - end) > 0)
		next = end;
	record.offset = nearest(sent, next - connection->sent_base);
	record.in_order = BPF_CORE_READ(tcp, bytes_received);
	if (record.in_order && BPF_CORE_READ(sk, __sk_common.skc_flags) & SOCKET_DONE)
		record.in_order--;
	set_addresses(&record, sk);
	bpf_map_delete_elem(&ignored, &record.socket);
	send(&record, 0);
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(state_changes, struct sock *sk, int old, int new)
{
	struct connection *connection;

	if (BPF_CORE_READ(sk, sk_protocol) != PROTOCOL_TCP)
		return 0;
	if (new == STATE_LISTEN)
		listens(sk);
	if (new != STATE_ESTABLISHED && new != STATE_CLOSE)
		return 0;
	connection = bpf_sk_storage_get(&connections, sk, NULL, 0);
	if (!connection)
		return 0;
	if (new == STATE_ESTABLISHED) {
		opened(sk, connection, bpf_get_socket_cookie(sk));
		return 0;
	}
	connection->finished = fin_is_queued(old);
	if (connection->based)
		closed(sk, connection, bpf_get_socket_cookie(sk));
	bpf_sk_storage_delete(&connections, sk);
	return 0;
}

/* Writes the numbers of the sockets whose connections have not ended, for user space to find those whose end it was not told. */
SEC("iter/bpf_sk_storage_map")
int open_sockets(struct bpf_iter__bpf_sk_storage_map *context)
{
	struct sock *sk = context->sk;
	__u64 number;

	if (!sk || BPF_CORE_READ(sk, __sk_common.skc_state) == STATE_CLOSE)
		return 0;
	number = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	bpf_seq_write(context->meta->seq, &number, sizeof(number));
	return 0;
}

#endif
