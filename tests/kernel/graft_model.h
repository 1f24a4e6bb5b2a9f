/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A model of bpf/graft.bpf.c in user space: what must become of one packet, and of what is
 * remembered of its session.  It is written from the contract (include/graft_contract.h) and the
 * RFCs, byte by byte, and makes its checksums anew from the whole packet.
 *
 * It knows no sockets but a listening one, and both of a connection to it: what depends on others
 * (the first translated packet, the way back) fails as it does where the sockets are gone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graft_contract.h"

#define MODEL_SLOTS 3
#define MODEL_TUPLES (MODEL_SLOTS * 2 + 2)
#define MODEL_PROOFS 2
#define MODEL_STOCK_SIZE 2
#define MODEL_JUST 2 /* offered_ns: less than 300 ms ago */
#define MODEL_HERE 2
#define MODEL_BYTES 2048
#define MODEL_ETHERNET 14

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10

/* What the packet programs have noted in skb->cb. */
enum model_kind { MODEL_OTHER, MODEL_OURS, MODEL_TO_SOCKET, MODEL_TO_NOBODY, MODEL_REMADE };

enum model_verdict { MODEL_PASS = -1, MODEL_DROP = 2, MODEL_SENT = 7 };

struct model_frame {
	uint8_t bytes[MODEL_BYTES]; /* an Ethernet frame */
	size_t len;
	uint32_t mark;
	enum model_kind kind;
	uint32_t ifindex; /* where it arrives; 0: at LO */
	/* Offsets of checksums, of IP and TCP, where 0 is as good as 0xffff; 0: nowhere. */
	size_t sums[2];
	bool any_tcp_sum; /* nobody looks at that one */
};

struct model_tuple {
	struct graft_tuple tuple;
	uint32_t slot, side; /* slot: NO_SLOT: none has the tuple */
};

struct model_proof {
	struct graft_proof_key key;
	struct graft_way way;
	bool counts, hooked;
};

/* All that the programs remember.  Times are 1 once they are set. */
struct model {
	struct graft_entry slots[MODEL_SLOTS];
	struct model_tuple tuples[MODEL_TUPLES];
	unsigned int events;
	uint64_t outside;                   /* packets that were not in the window */
	bool inside;                        /* the last one was */
	uint64_t now_ms;                    /* CLOCK_MONOTONIC, about, */
	uint32_t units;                     /* and in units of graft_clock() */
	uint32_t ways_least;                /* graft_ways_least; graft_ways is 0 */
	struct graft_addr here[MODEL_HERE]; /* addresses of clients' sockets that are here */
	bool unsynced;                      /* an import is not in sync */

	/* of sessions from the SYN on */
	uint32_t ifindex; /* where packets arrive, */
	uint8_t mac[6];   /* and its address */
	uint16_t port;    /* of the listening socket, for all addresses; 0: there is none */
	struct graft_tuple connected; /* of another socket, */
	struct graft_tuple accepted;  /* and of that at its other end */
	bool auto_set_up, hooks;      /* heeds_hooks of the shape; netfilter has hooks */
	struct model_proof proofs[MODEL_PROOFS];
	uint32_t stock[MODEL_STOCK_SIZE]; /* its next slots; NO_SLOT: none */
	uint32_t taken, missed;           /* of the stock */
	uint32_t syn_ms;                  /* the clock that an outgoing SYN gets */
	bool awake, policies;
	bool room; /* in the bucket of the next packet's tuple */
	int64_t half, half_most;
	uint64_t past[GRAFT_PASTS];
};

/* Network byte order, at any address. */
static inline void put16(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static inline void put32(uint8_t *p, uint32_t v)
{
	put16(p, v >> 16);
	put16(p + 2, v);
}

static inline uint32_t get16(const uint8_t *p)
{
	return (uint32_t)p[0] << 8 | p[1];
}

static inline uint32_t get32(const uint8_t *p)
{
	return get16(p) << 16 | get16(p + 2);
}

/* Sum of 16-bit numbers modulo 65535: 0 where a checksum is among them, and right. */
static inline uint32_t sum_of(const uint8_t *p, size_t len)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < len; i++)
		sum += (uint64_t)p[i] << (i & 1 ? 0 : 8);
	return (uint32_t)(sum % 65535);
}

/* Change the checksum at AT, of what has the sum IS, so that it becomes WAS. */
static inline void mend(uint8_t *at, uint32_t is, uint32_t was)
{
	put16(at, (get16(at) + was + 65535 - is) % 65535);
}

/* A packet of TCP or UDP, taken apart. */
struct model_parts {
	uint8_t *ip, *l4;
	bool ipv6, plain, df;    /* PLAIN: no more than an IP header; DF: no router may cut it */
	uint8_t odd, ttl;        /* ODD: enum graft_refusal: why it is not translated; 0: it is */
	uint32_t len;            /* of what is behind the IP header */
	struct graft_tuple from; /* remote: the source */
	/* of TCP: */
	uint32_t header, payload; /* bytes */
	uint32_t seq, ack, window;
	uint8_t flags;
};

/* False: none of PROTOCOL that this host would take, or no first fragment.  Not what is of TCP. */
bool model_take_apart(struct model_frame *f, uint8_t protocol, struct model_parts *p);

/* Of the pseudo header of PROTOCOL, and LEN bytes from AT on. */
static inline uint32_t model_l4_sum(const uint8_t *ip, bool ipv6, uint8_t protocol,
				    const uint8_t *at, uint32_t len)
{
	return (sum_of(ip + (ipv6 ? 8 : 12), ipv6 ? 32 : 8) + len + protocol + sum_of(at, len)) %
	       65535;
}

/* Make an IP header of LEN bytes of payload.  Returns its length. */
uint32_t model_ip(uint8_t *ip, bool ipv6, const struct graft_addr *from,
		  const struct graft_addr *to, uint8_t protocol, uint32_t len, uint8_t ttl,
		  uint32_t traffic);

/* F arrives at an interface, or is about to leave: changes it, and M. */
enum model_verdict model_in(struct model *m, struct model_frame *f);
enum model_verdict model_out(struct model *m, struct model_frame *f);

/* Make the checksums right, if F is an IP packet with TCP. */
void model_sum(struct model_frame *f);
