/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The main source of bytes: the packets of a control group's sockets, as they are sent (before segmentation) and received
 * (after segments were merged). The programs return 1 in every case: anything else would drop the node's packet.
 */
#ifndef RECORDER_PACKET_H
#define RECORDER_PACKET_H

#include "states.bpf.h"

enum {
	IPV4_HEADER = 20,
	IPV6_HEADER = 40,
	TCP_HEADER = 20,
	/* Parts of one packet: 2 MiB. The kernel's packets have at most 512 KiB. */
	MAX_PARTS = 32,
	TCP_SYN = 2,
	/* Extension headers of IPv6. */
	HOP_BY_HOP = 0,
	ROUTING = 43,
	FRAGMENT = 44,
	AUTHENTICATION = 51,
	DESTINATION = 60,
	MAX_EXTENSIONS = 5,
};

/* A TCP segment in a packet. */
struct segment {
	struct record head;
	__u32 sequence;
	/* Where the data begins in the packet, and its length, in bytes. */
	__u32 start;
	__u32 length;
	__u8 is_syn;
};

/* The packet's parts that are still to be copied: the context of a loop. */
struct rest {
	struct __sk_buff *skb;
	__u32 start;
	__u32 length;
	struct record head;
};

/* Returns where the TCP header begins in an IPv6 packet; 0 for other packets. */
static __always_inline __u32 skip_extensions(struct __sk_buff *skb, __u8 next)
{
	__u32 at = IPV6_HEADER;
	__u8 header[2];

#pragma clang loop unroll(full)
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (next == PROTOCOL_TCP)
			return at;
		/* Packets of more than 64 KiB begin with hop-by-hop options. */
		if (next != HOP_BY_HOP && next != ROUTING && next != DESTINATION)
			break;
		if (bpf_skb_load_bytes(skb, at, header, sizeof(header)))
			return 0;
		next = header[0];
		at += (header[1] + 1) * 8;
	}
	if (next == PROTOCOL_TCP || next == HOP_BY_HOP || next == ROUTING || next == DESTINATION || next == FRAGMENT || next == AUTHENTICATION)
		COUNT(extended_packets, 1);
	return 0;
}

/* Copies the addresses from the IP header. Returns where the TCP header begins, and the packet's length in `total`; 0 for all but TCP. */
static __always_inline __u32 read_ip(struct __sk_buff *skb, struct record *head, __u32 *total)
{
	__u8 ip[IPV6_HEADER];
	int sends = head->sender == SIDE_LOCAL;
	void *source = sends ? head->local_address : head->remote_address;
	void *destination = sends ? head->remote_address : head->local_address;
	__u32 at;

	if (skb->protocol == bpf_htons(ETHERTYPE_IPV4)) {
		if (bpf_skb_load_bytes(skb, 0, ip, IPV4_HEADER) || ip[9] != PROTOCOL_TCP)
			return 0;
		head->address_size = 4;
		__builtin_memcpy(source, ip + 12, 4);
		__builtin_memcpy(destination, ip + 16, 4);
		*total = ip[2] << 8 | ip[3];
		return (ip[0] & 15) * 4;
	}
	if (skb->protocol != bpf_htons(ETHERTYPE_IPV6) || bpf_skb_load_bytes(skb, 0, ip, IPV6_HEADER))
		return 0;
	at = skip_extensions(skb, ip[6]);
	if (!at)
		return 0;
	head->address_size = 16;
	__builtin_memcpy(source, ip + 8, 16);
	__builtin_memcpy(destination, ip + 24, 16);
	*total = ip[4] << 8 | ip[5];
	if (*total)
		*total += IPV6_HEADER;
	return at;
}

/* Returns true if the packet carries data or a SYN. */
static __always_inline int read_segment(struct __sk_buff *skb, struct segment *segment)
{
	__u32 total = 0, at = read_ip(skb, &segment->head, &total);
	struct record *head = &segment->head;
	__u8 tcp[TCP_HEADER];
	__u16 from, to;

	if (!at || bpf_skb_load_bytes(skb, at, tcp, TCP_HEADER))
		return 0;
	/* More than 64 KiB are written as 0; padding of short frames is not the packet's. */
	if (!total || total > skb->len)
		total = skb->len;
	from = tcp[0] << 8 | tcp[1];
	to = tcp[2] << 8 | tcp[3];
	head->local_port = head->sender == SIDE_LOCAL ? from : to;
	head->remote_port = head->sender == SIDE_LOCAL ? to : from;
	segment->sequence = (__u32)tcp[4] << 24 | tcp[5] << 16 | tcp[6] << 8 | tcp[7];
	segment->is_syn = tcp[13] & TCP_SYN;
	segment->start = at + (tcp[12] >> 4) * 4;
	segment->length = total > segment->start ? total - segment->start : 0;
	return segment->length || segment->is_syn;
}

/* Sends a part of at most MAX_PART bytes. */
static long send_part(__u32 index, struct rest *rest)
{
	__u32 length = rest->length > MAX_PART ? MAX_PART : rest->length, last;
	struct sized_record *to;

	if (!length)
		return 1;
	last = opaque(length - 1);
	to = reserve(last);
	length = opaque(last) + 1;
	if (!to) {
		count_lost(length);
	} else {
		to->head = rest->head;
		to->head.length = length;
		if (bpf_skb_load_bytes(rest->skb, rest->start, to->data, length)) {
			COUNT(unreadable_bytes, length);
			bpf_ringbuf_discard(to, BPF_RB_NO_WAKEUP);
		} else {
			submit(to, 0);
		}
	}
	rest->start += length;
	rest->length -= length;
	rest->head.offset += length;
	return 0;
}

static __always_inline void send_data(struct __sk_buff *skb, const struct segment *segment)
{
	struct rest rest = {
		.skb = skb,
		.start = segment->start,
		.length = segment->length,
		.head = segment->head,
	};

	send_part(0, &rest);
	if (rest.length)
		bpf_loop(MAX_PARTS - 1, send_part, &rest, 0);
	if (rest.length)
		count_lost(rest.length);
}

/* The packet begins a connection, or carries data before its socket exists. The socket is the listening one. */
static __always_inline void at_listener(struct __sk_buff *skb, struct bpf_sock *sk, struct segment *segment)
{
	bpf_sk_storage_get(&connections, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!segment->length)
		return;
	segment->head.kind = RECORD_EARLY;
	segment->head.offset = segment->sequence + !!segment->is_syn;
	send_data(skb, segment);
}

/* Sets the offset of received bytes. Returns 0 if the kernel has them. */
static __always_inline int place_received(const struct connection *connection, struct bpf_tcp_sock *tcp, struct segment *segment)
{
	__u32 first = segment->sequence - connection->received_base;

	segment->head.in_order = tcp->bytes_received;
	segment->head.offset = nearest(segment->head.in_order, first);
	return (__s32)(segment->sequence + segment->length - tcp->rcv_nxt) > 0;
}

/*
 * Sets the offset of sent bytes. Returns 0 if they were sent before: as retransmissions, or because the queue of the interface
 * dropped them, which TCP takes back, and may send in other segments. The kernel holds the socket's lock.
 */
static __always_inline int place_sent(struct connection *connection, struct bpf_tcp_sock *tcp, struct segment *segment)
{
	__u32 known = connection->sent_until - segment->sequence;

	if ((__s32)known >= (__s32)segment->length)
		return 0;
	if ((__s32)known > 0) {
		COUNT(repeated_bytes, known);
		segment->sequence += known;
		segment->start += known;
		segment->length -= known;
	}
	connection->sent_until = segment->sequence + segment->length;
	segment->head.in_order = acked(connection, tcp->bytes_acked);
	segment->head.offset = nearest(segment->head.in_order, segment->sequence - connection->sent_base);
	return 1;
}

static __always_inline void at_connection(struct __sk_buff *skb, struct bpf_sock *sk, struct segment *segment)
{
	struct connection *connection = bpf_sk_storage_get(&connections, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(sk);
	int sends = segment->head.sender == SIDE_LOCAL;
	__u32 syn = !!segment->is_syn;

	if (!connection || !tcp) {
		if (segment->length)
			count_lost(segment->length);
		return;
	}
	if (syn && sends)
		connection->connects = 1;
	if (!segment->length || is_ignored(segment->head.socket, segment->length))
		return;
	if (!connection->based) {
		/* Opened before the recorder began: who opened it is unknown, and the node's SYN perhaps counted as a byte. */
		connection->received_base = tcp->rcv_nxt - (__u32)tcp->bytes_received;
		connection->sent_base = tcp->snd_una - (__u32)tcp->bytes_acked + syn;
		connection->sent_until = tcp->snd_nxt + syn;
		connection->based = 1;
	}
	segment->sequence += syn;
	segment->head.kind = RECORD_DATA;
	segment->head.initiator = initiator_of(connection);
	if (sends ? place_sent(connection, tcp, segment) : place_received(connection, tcp, segment))
		send_data(skb, segment);
	else
		COUNT(repeated_bytes, segment->length);
}

static __always_inline int packet(struct __sk_buff *skb, __u8 sender)
{
	struct segment segment = { .head = { .sender = sender } };
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk || !read_segment(skb, &segment))
		return 1;
	segment.head.time = bpf_ktime_get_ns();
	if (sk->state == STATE_LISTEN) {
		at_listener(skb, sk, &segment);
	} else if (sk->state != STATE_CLOSE) {
		segment.head.socket = bpf_get_socket_cookie(skb);
		at_connection(skb, sk, &segment);
	}
	return 1;
}

SEC("cgroup_skb/egress")
int packet_sent(struct __sk_buff *skb)
{
	return packet(skb, SIDE_LOCAL);
}

SEC("cgroup_skb/ingress")
int packet_received(struct __sk_buff *skb)
{
	return packet(skb, SIDE_REMOTE);
}

#endif
