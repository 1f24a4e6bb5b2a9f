// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one function for each struct says the order and the sizes of its fields, and
 * packs or unpacks them.  Of two numbers of which one follows from the other, one is sent.
 */
#include "datapath/graft_record.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"

#define HEADER 4
#define MAGIC "culvert"

struct codec {
	uint8_t *at, *end;
	uint64_t now_ns;
	bool packs, is_short;
};

/* Pack the low N bytes of V, or unpack so many. */
static uint64_t number(struct codec *c, uint64_t v, int n)
{
	uint64_t is = 0;

	if (c->end - c->at < n) {
		c->is_short = true;
		return 0;
	}
	for (int i = 0; i < n; i++) {
		if (c->packs)
			c->at[i] = (uint8_t)(v >> 8 * (n - 1 - i));
		is = is << 8 | c->at[i];
	}
	c->at += n;
	return is;
}

#define FIELD(c, x, n) ((x) = (__typeof__(x))number(c, x, n))

/* A time, as its age in milliseconds. */
static uint64_t moment(struct codec *c, uint64_t ns)
{
	uint64_t age = ns < c->now_ns ? (c->now_ns - ns) / NS_PER_MS : 0;

	age = number(c, smaller(age, UINT32_MAX), 4) * NS_PER_MS;
	return age < c->now_ns ? c->now_ns - age : 1;
}

/* An address of 4 or 16 bytes. */
static void address(struct codec *c, struct graft_addr *a, bool ipv6)
{
	uint8_t *bytes = (uint8_t *)a;

	if (!ipv6)
		a->w[2] = __constant_htonl(0xffff);
	for (int i = ipv6 ? 0 : 12; i < 16; i++)
		FIELD(c, bytes[i], 1);
}

static void tuple(struct codec *c, struct graft_tuple *t, bool ipv6)
{
	address(c, &t->remote, ipv6);
	address(c, &t->local, ipv6);
	for (int i = 0; i < 2; i++)
		FIELD(c, ((uint8_t *)&t->remote_port)[i], 1);
	for (int i = 0; i < 2; i++)
		FIELD(c, ((uint8_t *)&t->local_port)[i], 1);
}

enum {
	FLAG_IPV6 = 0x01,
	FLAG_TIMESTAMPS = 0x02,
	FLAG_SACK = 0x04,
	FLAG_CLAMPED = 0x08,
	FLAG_FIN_SHIFT = 4, /* 2 bits */
	FLAG_MARK = 0x40,
	FLAG_SHIFTED = 0x80,
};

static void side(struct codec *c, struct graft_side *s)
{
	unsigned int flags = (s->ipv6 ? FLAG_IPV6 : 0) | (s->timestamps ? FLAG_TIMESTAMPS : 0) |
			     (s->sack ? FLAG_SACK : 0) | (s->tsecr_clamped ? FLAG_CLAMPED : 0) |
			     (s->fin & 3) << FLAG_FIN_SHIFT | (s->way.mark ? FLAG_MARK : 0) |
			     (s->back_read || s->back_write || s->back_ts ? FLAG_SHIFTED : 0);
	unsigned int shifts = (unsigned int)s->window_left << 4 | s->read_shift;

	FIELD(c, flags, 1);
	s->ipv6 = flags & FLAG_IPV6;
	s->timestamps = !!(flags & FLAG_TIMESTAMPS);
	s->sack = !!(flags & FLAG_SACK);
	s->tsecr_clamped = !!(flags & FLAG_CLAMPED);
	s->fin = flags >> FLAG_FIN_SHIFT & 3;
	tuple(c, &s->tuple, s->ipv6);
	FIELD(c, shifts, 1);
	s->window_left = (uint8_t)(shifts >> 4);
	s->read_shift = shifts & 15;
	FIELD(c, s->way.ttl, 1);
	FIELD(c, s->mss, 2);
	FIELD(c, s->seq_add, 4);
	FIELD(c, s->tsval_add, 4);
	FIELD(c, s->tsecr_least, 4);
	FIELD(c, s->frozen_write, 4);
	FIELD(c, s->frozen_read, 4);
	FIELD(c, s->acked, 4);
	FIELD(c, s->end, 4);
	FIELD(c, s->window, 4);
	FIELD(c, s->tsval_sent, 4);
	if (flags & FLAG_MARK)
		FIELD(c, s->way.mark, 4);
	if (flags & FLAG_SHIFTED) {
		FIELD(c, s->back_read, 4);
		FIELD(c, s->back_write, 4);
		FIELD(c, s->back_ts, 4);
	}
}

static void entry(struct codec *c, struct graft_entry *g)
{
	uint64_t active = larger(g->side[0].data_ns, g->side[1].data_ns);

	FIELD(c, g->id, 8);
	FIELD(c, g->forward, 4);
	g->offered_ns = moment(c, g->offered_ns);
	active = moment(c, active);
	for (int i = 0; i < 2; i++)
		side(c, &g->side[i]);
	if (c->packs)
		return;
	for (int i = 0; i < 2; i++) {
		struct graft_side *s = &g->side[i], *o = &g->side[!i];

		s->ack_add = -o->seq_add;
		s->tsecr_add = -o->tsval_add;
		s->window_right = o->read_shift;
		s->fin_end = s->fin ? (__u32)s->end : 0;
		s->acked += 1ULL << 32;
		s->end += 1ULL << 32;
		s->begun = s->end - (s->fin != 0); /* nothing was carried here */
		s->heard_ns = s->data_ns = active;
		s->probed_ns = active + 1; /* the next probe gets to the end */
		g->shifted = g->shifted || s->back_read || s->back_write || s->back_ts;
	}
}

static void flow(struct codec *c, struct udp_flow *f)
{
	uint32_t ago = (uint32_t)(c->now_ns >> UDP_TICK_SHIFT) - f->born; /* ticks wrap */
	uint64_t born = ((c->now_ns >> UDP_TICK_SHIFT) - ago) << UDP_TICK_SHIFT;

	FIELD(c, f->id, 8);
	FIELD(c, f->forward, 4);
	FIELD(c, f->idle, 4);
	born = moment(c, born);
	for (int i = 0; i < 2; i++) {
		uint8_t ipv6 = graft_addr_is_ipv6(&f->leg[i].tuple.remote);

		FIELD(c, ipv6, 1);
		tuple(c, &f->leg[i].tuple, ipv6);
		FIELD(c, f->leg[i].way.ttl, 1);
		FIELD(c, f->leg[i].way.mark, 4);
		FIELD(c, f->at[i].path_mtu, 2);
	}
	f->born = (uint32_t)(born >> UDP_TICK_SHIFT);
}

static void gone(struct codec *c, struct graft_record *r)
{
	bool ipv6 = graft_addr_is_ipv6(&r->client.remote);

	FIELD(c, r->udp, 1);
	FIELD(c, ipv6, 1);
	tuple(c, &r->client, ipv6);
}

static void record(struct codec *c, struct graft_record *r)
{
	char magic[] = MAGIC;

	if (r->kind == RECORD_BEGIN)
		for (char *m = magic; *m; m++)
			if ((char)number(c, (uint8_t)*m, 1) != *m)
				c->is_short = true;
	if (r->kind == RECORD_TCP)
		entry(c, &r->tcp);
	else if (r->kind == RECORD_UDP)
		flow(c, &r->flow);
	else if (r->kind == RECORD_GONE || r->kind == RECORD_LEFT)
		gone(c, r);
}

size_t record_pack(struct graft_record *r, uint64_t now_ns, uint8_t buf[RECORD_MAX])
{
	struct codec c = { .at = buf, .end = buf + RECORD_MAX, .now_ns = now_ns, .packs = true };
	size_t len;

	number(&c, r->kind, 1);
	number(&c, RECORD_VERSION, 1);
	c.at += 2;
	record(&c, r);
	len = (size_t)(c.at - buf);
	buf[2] = (uint8_t)(len >> 8);
	buf[3] = (uint8_t)len;
	return len;
}

static bool is_tuple(const struct graft_tuple *t)
{
	return t->remote_port && t->local_port &&
	       graft_addr_is_ipv6(&t->remote) == graft_addr_is_ipv6(&t->local);
}

static const char *fault_of(const struct graft_record *r)
{
	const struct graft_side *s = r->tcp.side;
	const struct graft_tuple *a = &r->client, *b = NULL;

	if (r->kind == RECORD_TCP) {
		a = &s[0].tuple;
		b = &s[1].tuple;
	} else if (r->kind == RECORD_UDP) {
		a = &r->flow.leg[0].tuple;
		b = &r->flow.leg[1].tuple;
	} else if (r->kind != RECORD_GONE && r->kind != RECORD_LEFT) {
		return NULL;
	}
	if (!is_tuple(a) || (b && !is_tuple(b)))
		return "a port is 0, or an address is of the other family";
	if (b && !memcmp(a, b, sizeof(*a)))
		return "both ends are the same";
	if (r->kind != RECORD_TCP)
		return NULL;
	if (s[0].timestamps != s[1].timestamps)
		return "one end alone has timestamps";
	for (int i = 0; i < 2; i++)
		if (graft_addr_is_ipv6(&s[i].tuple.remote) != s[i].ipv6)
			return "a port is 0, or an address is of the other family";
		else if (s[i].window_left > 14 || s[i].read_shift > 14)
			return "a window scale is above 14";
		else if (s[i].fin > 2)
			return "no such state of FIN";
	return NULL;
}

int record_unpack(const uint8_t *p, size_t len, uint64_t now_ns, struct graft_record *ret,
		  const char **ret_why)
{
	struct codec c = { .now_ns = now_ns };
	size_t size;

	memset(ret, 0, sizeof(*ret));
	*ret_why = "it has another version";
	if (len >= 2 && p[1] != RECORD_VERSION)
		return -EPROTO;
	if (len < HEADER)
		return 0;
	size = (size_t)p[2] << 8 | p[3];
	*ret_why = "its length is none";
	if (size < HEADER || size > RECORD_MAX)
		return -EPROTO;
	if (len < size)
		return 0;
	ret->kind = (enum record_kind)p[0];
	c.at = (uint8_t *)p + HEADER;
	c.end = (uint8_t *)p + size;
	record(&c, ret);
	*ret_why = "it is not as long as its kind, or not of culvert";
	if (ret->kind < RECORD_KINDS && (c.is_short || c.at != c.end))
		return -EPROTO;
	*ret_why = fault_of(ret);
	return *ret_why ? -EPROTO : (int)size;
}
