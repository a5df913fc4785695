/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The second source of bytes, for hosts where the main one is impossible: the system calls of the recorded processes, at their
 * return. The registers still have the arguments, so nothing is noted when a call begins. The kernel's count of the socket
 * says where the bytes belong: bytes that moved in another way (io_uring, sendfile, splice) are gaps of exact size.
 */
#ifndef RECORDER_CALLS_H
#define RECORDER_CALLS_H

#include "call_numbers.bpf.h"
#include "states.bpf.h"
#include "user.bpf.h"

/* Processes whose calls are recorded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u8);
} processes SEC(".maps");

/* Sockets of these processes, by their address in the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct connection);
} sockets SEC(".maps");

static __always_inline int is_recorded(__u32 process)
{
	return bpf_map_lookup_elem(&processes, &process) != NULL;
}

/* The TCP socket of a descriptor of this process. */
static __always_inline struct sock *socket_of(int descriptor)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *file = NULL;
	struct socket *socket;
	struct sock *sk;
	__u16 family;

	if (descriptor < 0 || (__u32)descriptor >= BPF_CORE_READ(table, max_fds))
		return NULL;
	if (bpf_probe_read_kernel(&file, sizeof(file), files + descriptor) || !file)
		return NULL;
	if ((BPF_CORE_READ(file, f_inode, i_mode) & TYPE_MASK) != TYPE_SOCKET)
		return NULL;
	socket = BPF_CORE_READ((struct file___socket *)file, private_data);
	sk = BPF_CORE_READ(socket, sk);
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (!sk || BPF_CORE_READ(sk, sk_protocol) != PROTOCOL_TCP)
		return NULL;
	return family == FAMILY_IPV4 || family == FAMILY_IPV6 ? sk : NULL;
}

static __always_inline void read_bases_once(struct tcp_sock *tcp, struct connection *to)
{
	to->received_base = BPF_CORE_READ(tcp, rcv_nxt) - (__u32)BPF_CORE_READ(tcp, bytes_received);
	to->sent_base = BPF_CORE_READ(tcp, snd_una) - (__u32)BPF_CORE_READ(tcp, bytes_acked);
	to->based = 1;
}

/* Another processor may change the counts meanwhile, one after the other. Then a second reading differs, and a third is right. */
static __always_inline void read_bases(struct tcp_sock *tcp, struct connection *to)
{
	struct connection again = {};

	read_bases_once(tcp, to);
	read_bases_once(tcp, &again);
	if (again.received_base != to->received_base || again.sent_base != to->sent_base)
		read_bases_once(tcp, to);
}

/* The sequence number after the last byte that the process read. If it read the end, too, that is no byte. */
static __always_inline __u32 read_until(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 end = BPF_CORE_READ(tcp, copied_seq);
	int done = BPF_CORE_READ(sk, __sk_common.skc_flags) & SOCKET_DONE;

	return end - (done && end == BPF_CORE_READ(tcp, rcv_nxt));
}

/* A number for the socket: the cookie that it was given when it was opened. Older ones may have none. */
static __always_inline __u64 number_of(struct sock *sk)
{
	__u64 cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);

	return cookie ? cookie : (__u64)sk;
}

/* The connection of a socket that none is known of. It is new if no byte was moved before the call. */
static __always_inline struct connection *first_call(struct sock *sk, const struct call *call, __u32 length, struct record *head)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct connection connection = {};
	__u32 sends = call->sender == SIDE_LOCAL ? length : 0;
	__u32 receives = length - sends;
	__u64 key = (__u64)sk;

	read_bases(tcp, &connection);
	connection.opened = read_until(sk) - receives == connection.received_base &&
			    BPF_CORE_READ(tcp, write_seq) - sends == connection.sent_base;
	if (bpf_map_update_elem(&sockets, &key, &connection, BPF_NOEXIST) == 0 && connection.opened) {
		struct record opened = *head;

		opened.kind = RECORD_OPENED;
		opened.offset = connection.received_base;
		opened.initiator = SIDE_REMOTE;
		send(&opened, 0);
	}
	return bpf_map_lookup_elem(&sockets, &key);
}

/* Sends the bytes that a call moved. */
static __always_inline void call_moved(struct sock *sk, const struct call *call, __u64 result)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	int sends = call->sender == SIDE_LOCAL;
	struct user_bytes bytes = {
		.messages = call->address,
		.total = result,
		.head = {
			.time = bpf_ktime_get_ns(),
			.kind = RECORD_DATA,
			.socket = number_of(sk),
			.sender = call->sender,
		},
	};
	struct connection *connection;
	__u64 key = (__u64)sk;
	__u32 end, base;

	if (call->form == FORM_MESSAGES) {
		bytes.total = 0;
		bpf_loop(result < MAX_MESSAGES ? result : MAX_MESSAGES, add_message, &bytes, 0);
	}
	if (is_ignored(bytes.head.socket, bytes.total))
		return;
	set_addresses(&bytes.head, sk);
	connection = bpf_map_lookup_elem(&sockets, &key);
	if (!connection)
		connection = first_call(sk, call, bytes.total, &bytes.head);
	if (!connection) {
		COUNT(missed_calls, 1);
		return;
	}
	bytes.head.initiator = initiator_of(connection);
	end = sends ? BPF_CORE_READ(tcp, write_seq) : read_until(sk);
	base = sends ? connection->sent_base : connection->received_base;
	bytes.head.in_order = sends ? acked(connection, BPF_CORE_READ(tcp, bytes_acked)) : BPF_CORE_READ(tcp, bytes_received);
	bytes.head.offset = nearest(bytes.head.in_order, end - base - (__u32)bytes.total);
	if (call->form == FORM_MESSAGES) {
		bpf_loop(result < MAX_MESSAGES ? result : MAX_MESSAGES, send_message, &bytes, 0);
		return;
	}
	bytes.end = bytes.head.offset + result;
	if (call->form == FORM_MESSAGE) {
		set_message(&bytes, call->address);
	} else if (call->form == FORM_VECTORS) {
		set_vectors(&bytes, call->address, call->count);
	} else {
		bytes.address = call->address;
		bytes.part_end = call->address + result;
	}
	send_user_bytes(&bytes);
}

/* Other processes pay for what comes before is_recorded(). */
SEC("tp_btf/sys_exit")
int BPF_PROG(call_returns, struct pt_regs *regs, long result)
{
	__u64 nr = CALL_NR(regs);
	struct call call = { .form = form_of(nr) };
	struct sock *sk;

	if (call.form == FORM_NONE || result <= 0)
		return 0;
	if (!is_recorded(bpf_get_current_pid_tgid() >> 32) || flags_of(nr, regs) & OTHER_FLAGS)
		return 0;
	call.sender = is_sending(nr) ? SIDE_LOCAL : SIDE_REMOTE;
	call.descriptor = CALL_ARG1(regs);
	call.address = CALL_ARG2(regs);
	call.count = CALL_ARG3(regs);
	sk = socket_of(call.descriptor);
	if (sk)
		call_moved(sk, &call, result);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(call_states, struct sock *sk, int old, int new)
{
	struct connection *connection, connects = { .connects = 1 };
	__u64 key = (__u64)sk;

	if (BPF_CORE_READ(sk, sk_protocol) != PROTOCOL_TCP)
		return 0;
	if (new == STATE_LISTEN)
		listens(sk);
	if (new == STATE_SYN_SENT && is_recorded(bpf_get_current_pid_tgid() >> 32))
		bpf_map_update_elem(&sockets, &key, &connects, BPF_ANY);
	/* Gives the socket its cookie, which the program at system calls can only read. */
	if (new == STATE_ESTABLISHED)
		bpf_get_socket_cookie(sk);
	connection = bpf_map_lookup_elem(&sockets, &key);
	if (connection && new == STATE_ESTABLISHED)
		opened(sk, connection, number_of(sk));
	if (connection && new == STATE_CLOSE)
		connection->finished = fin_is_queued(old);
	return 0;
}

/* The socket is freed. Until then, the process may read what came before the connection ended. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(call_ends, struct sock *sk)
{
	struct connection *connection;
	__u64 key = (__u64)sk;

	connection = bpf_map_lookup_elem(&sockets, &key);
	if (!connection)
		return 0;
	if (connection->based)
		closed(sk, connection, number_of(sk));
	bpf_map_delete_elem(&sockets, &key);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_forks, struct task_struct *parent, struct task_struct *child)
{
	__u32 process = BPF_CORE_READ(child, tgid);
	__u8 yes = 1;

	if (is_recorded(BPF_CORE_READ(parent, tgid)) && !is_recorded(process))
		bpf_map_update_elem(&processes, &process, &yes, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exits, struct task_struct *task)
{
	__u32 process = BPF_CORE_READ(task, tgid);

	/* The last thread. */
	if (BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&processes, &process);
	return 0;
}

/* As open_sockets(). Memory of a socket that is gone says that it is closed, or has another number by now. */
SEC("iter/bpf_map_elem")
int open_call_sockets(struct bpf_iter__bpf_map_elem *context)
{
	struct sock *const *key = context->key;
	__u64 number;

	if (!key || BPF_CORE_READ(*key, __sk_common.skc_state) == STATE_CLOSE)
		return 0;
	number = number_of(*key);
	bpf_seq_write(context->meta->seq, &number, sizeof(number));
	return 0;
}

#endif
