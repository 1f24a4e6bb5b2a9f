// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one function for each struct says the order and the sizes of its fields, and
 * packs or unpacks them.  A number that follows from another is not sent.
 */
#include "datapath/graft/standby_record.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"

#define HEADER 4

struct codec {
	uint8_t *at, *end;
	uint64_t now_ns;
	bool packs, is_short;
};

/* Pack the low N bytes of V, or unpack so many. */
static uint64_t record_number(struct codec *c, uint64_t v, int n)
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

#define FIELD(c, x, n) ((x) = (__typeof__(x))record_number(c, x, n))

/* A time, as its age in milliseconds. */
static uint64_t record_moment(struct codec *c, uint64_t ns)
{
	uint64_t age = ns < c->now_ns ? (c->now_ns - ns) / NS_PER_MS : 0;

	age = record_number(c, smaller(age, UINT32_MAX), 4) * NS_PER_MS;
	return age < c->now_ns ? c->now_ns - age : 1;
}

/* Bytes that are in network byte order already. */
static void record_bytes(struct codec *c, void *p, int n)
{
	for (uint8_t *b = p; b < (uint8_t *)p + n; b++)
		FIELD(c, *b, 1);
}

static void record_tuple(struct codec *c, struct graft_tuple *t)
{
	bool ipv6 = graft_addr_is_ipv6(&t->remote);

	FIELD(c, ipv6, 1);
	if (!ipv6)
		t->remote.w[2] = t->local.w[2] = __constant_htonl(0xffff);
	record_bytes(c, &t->remote.w[ipv6 ? 0 : 3], ipv6 ? 16 : 4);
	record_bytes(c, &t->local.w[ipv6 ? 0 : 3], ipv6 ? 16 : 4);
	record_bytes(c, &t->remote_port, 2);
	record_bytes(c, &t->local_port, 2);
}

static void record_side(struct codec *c, struct graft_side *s, bool shifted)
{
	record_tuple(c, &s->tuple);
	FIELD(c, s->way.ttl, 1);
	FIELD(c, s->way.mark, 4);
	FIELD(c, s->timestamps, 1);
	FIELD(c, s->sack, 1);
	FIELD(c, s->ecn, 1);
	FIELD(c, s->tsecr_clamped, 1);
	FIELD(c, s->window_left, 1);
	FIELD(c, s->read_shift, 1);
	FIELD(c, s->fin, 1);
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
	if (shifted) {
		FIELD(c, s->back_read, 4);
		FIELD(c, s->back_write, 4);
		FIELD(c, s->back_ts, 4);
	}
}

static void record_head(struct codec *c, struct graft_head *h)
{
	h->id = record_number(c, h->id, 8);
	h->forward = (uint32_t)record_number(c, h->forward, 4);
}

static void record_tcp(struct codec *c, struct graft_entry *g)
{
	uint64_t active = larger(g->side[0].data_ns, g->side[1].data_ns);

	record_head(c, &g->head);
	FIELD(c, g->shaped, 1);
	g->offered_ns = record_moment(c, g->offered_ns);
	active = record_moment(c, active);
	FIELD(c, g->shifted, 1);
	for (int i = 0; i < 2; i++)
		record_side(c, &g->side[i], g->shifted);
	if (c->packs)
		return;
	for (int i = 0; i < 2; i++) {
		struct graft_side *s = &g->side[i], *o = &g->side[!i];

		s->ipv6 = graft_addr_is_ipv6(&s->tuple.remote);
		s->ack_add = -o->seq_add;
		s->tsecr_add = -o->tsval_add;
		s->window_right = o->read_shift;
		s->fin_end = s->fin ? (__u32)s->end : 0;
		s->acked += 1ULL << 32;
		s->end += 1ULL << 32;
		s->begun = s->end - (s->fin != GRAFT_FIN_NONE); /* nothing was carried here */
		s->heard_ns = s->data_ns = active;
		s->probed_ns = active + 1; /* after heard_ns: the next probe goes out */
	}
}

static void record_udp(struct codec *c, struct udp_flow *f)
{
	uint32_t ago = (uint32_t)(c->now_ns >> UDP_TICK_SHIFT) - f->born; /* ticks wrap */
	uint64_t born = ((c->now_ns >> UDP_TICK_SHIFT) - ago) << UDP_TICK_SHIFT;

	record_head(c, &f->head);
	FIELD(c, f->idle, 4);
	born = record_moment(c, born);
	for (int i = 0; i < 2; i++) {
		record_tuple(c, &f->leg[i].tuple);
		FIELD(c, f->leg[i].way.ttl, 1);
		FIELD(c, f->leg[i].way.mark, 4);
		FIELD(c, f->at[i].path_mtu, 2);
	}
	f->born = (uint32_t)(born >> UDP_TICK_SHIFT);
}

static void record_heard(struct codec *c, struct graft_heard *h)
{
	h->ns = record_moment(c, h->ns);
	FIELD(c, h->end, 4);
	FIELD(c, h->acked, 4);
	FIELD(c, h->flags, 1);
}

static void record_any(struct codec *c, struct graft_record *r)
{
	if (record_is_tcp(r)) {
		record_tcp(c, &r->tcp);
	} else if (record_is_udp(r)) {
		record_udp(c, &r->flow);
	} else if (record_is_short(r)) {
		FIELD(c, r->udp, 1);
		record_tuple(c, &r->client);
		r->id = record_number(c, r->id, 8);
		for (int i = 0; i < 2 && r->kind == RECORD_HEARD; i++)
			record_heard(c, &r->heard[i]);
	} else if (r->kind == RECORD_PORTS) {
		FIELD(c, r->ports[0], 2);
		FIELD(c, r->ports[1], 2);
	} else if (r->kind == RECORD_FORWARD || r->kind == RECORD_RELAY) {
		FIELD(c, r->udp, 1);
		FIELD(c, r->named.tag, 4);
		record_bytes(c, r->named.name, RECORD_NAME_MAX);
		r->named.name[RECORD_NAME_MAX - 1] = '\0';
	}
}

size_t record_pack(struct graft_record *r, uint64_t now_ns, uint8_t buf[RECORD_MAX])
{
	struct codec c = { .at = buf, .end = buf + RECORD_MAX, .now_ns = now_ns, .packs = true };
	size_t len;

	record_number(&c, r->kind, 1);
	record_number(&c, RECORD_VERSION, 1);
	c.at += 2;
	record_any(&c, r);
	len = (size_t)(c.at - buf);
	buf[2] = (uint8_t)(len >> 8);
	buf[3] = (uint8_t)len;
	return len;
}

static bool record_has_tuple(const struct graft_tuple *t)
{
	return t->remote_port && t->local_port &&
	       graft_addr_is_ipv6(&t->remote) == graft_addr_is_ipv6(&t->local);
}

struct graft_leg *record_leg(struct graft_record *r, int i)
{
	return record_is_udp(r) ? &r->flow.leg[i] : &r->tcp.side[i].leg;
}

static const char *record_fault(struct graft_record *r)
{
	const struct graft_side *s = r->tcp.side;
	const struct graft_tuple *a = &record_leg(r, 0)->tuple, *b = &record_leg(r, 1)->tuple;

	if (r->kind == RECORD_NONE)
		return "its kind is 0";
	if (record_is_short(r))
		a = b = &r->client;
	else if (!record_is_tcp(r) && !record_is_udp(r))
		return NULL;
	else if (!memcmp(a, b, sizeof(*a)))
		return "both ends are the same";
	if (!record_has_tuple(a) || !record_has_tuple(b))
		return "a port is 0, or an address is of the other family";
	if (!record_is_tcp(r))
		return NULL;
	if (s[0].timestamps != s[1].timestamps)
		return "one end alone has timestamps";
	for (int i = 0; i < 2; i++)
		if (s[i].window_left > 14 || s[i].read_shift > 14)
			return "a window scale is above 14";
		else if (s[i].fin > GRAFT_FIN_ACKED)
			return "no such state of FIN";
		else if (s[i].timestamps > 1 || s[i].sack > 1 || s[i].ecn > 1 ||
			 s[i].tsecr_clamped > 1 || r->tcp.shifted > 1)
			return "a flag is neither 0 nor 1";
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
	*ret_why = "its length is impossible";
	if (size < HEADER || size > RECORD_MAX)
		return -EPROTO;
	if (len < size)
		return 0;
	ret->kind = (enum record_kind)p[0];
	c.at = (uint8_t *)p + HEADER;
	c.end = (uint8_t *)p + size;
	record_any(&c, ret);
	*ret_why = "it is not as long as its kind";
	if (ret->kind < RECORD_KINDS && (c.is_short || c.at != c.end))
		return -EPROTO;
	*ret_why = record_fault(ret);
	if (*ret_why)
		ret->kind = RECORD_NONE;
	return (int)size;
}
