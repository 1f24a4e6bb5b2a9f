/* SPDX-License-Identifier: BSD-2-Clause */
#include <string.h>

#include "graft_model_syn.h"

/* The least that is believed to be a window: those that are told may be old, or have shrunk. */
#define WINDOW_LEAST 65536

/* --- bytes --- */

static void add32(uint8_t *p, uint32_t v)
{
	put32(p, get32(p) + v);
}

/* How far A is ahead of B, as sequence numbers go. */
static int64_t ahead(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b);
}

uint32_t model_ip(uint8_t *ip, bool ipv6, const struct graft_addr *from,
		  const struct graft_addr *to, uint8_t protocol, uint32_t len, uint8_t ttl,
		  uint32_t traffic)
{
	uint32_t l3 = ipv6 ? 40 : 20, size = ipv6 ? 16 : 4;
	uint8_t *at = ip + (ipv6 ? 8 : 12);

	memset(ip, 0, l3);
	put16(ip, ipv6 ? 6 << 12 | traffic << 4 : 0x4500 | traffic);
	len += ipv6 ? 0 : 20;
	put16(ip + (ipv6 ? 4 : 2), len > 65535 ? 0 : len);
	ip[ipv6 ? 6 : 9] = protocol;
	ip[ipv6 ? 7 : 8] = ttl;
	memcpy(at, (const uint8_t *)from + 16 - size, size);
	memcpy(at + size, (const uint8_t *)to + 16 - size, size);
	if (!ipv6) {
		ip[6] = 0x40; /* no fragments, as in IPv6 */
		mend(ip + 10, sum_of(ip, 20), 0);
	}
	return l3;
}

/* --- a frame, taken apart --- */

static uint32_t end_of(const struct model_parts *p)
{
	return p->seq + p->payload + (p->flags & FIN ? 1 : 0);
}

static void address(struct graft_addr *a, const uint8_t *at, bool ipv6)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	if (ipv6) {
		memcpy(a, at, 16);
	} else {
		memcpy(a, mapped, 12);
		memcpy((uint8_t *)a + 12, at, 4);
	}
}

/* Where PROTOCOL begins behind the extension headers of IP, a packet of ROOM bytes; 0: nowhere. */
static size_t skip_extensions(const uint8_t *ip, size_t room, uint8_t protocol, uint8_t *odd)
{
	uint8_t next = ip[6];
	size_t at = 40;

	for (int i = 0; i < 2 && next != protocol; i++) {
		const uint8_t *h = ip + at;
		bool fragment = next == 44;

		if ((next && next != 44 && next != 60) || at + 8 > room || h[1] > 3 ||
		    (fragment && get16(h + 2) & 0xfff8))
			return 0;
		if (fragment)
			*odd = GRAFT_FRAGMENTS;
		else if (!*odd && (protocol != TCP || h[1] || get16(h + 2) != 0xc204))
			*odd = GRAFT_HEADERS; /* but one of a jumbo packet, of TCP */
		at += 8 + (fragment ? 0 : 8 * (size_t)h[1]);
		next = h[0];
	}
	return next == protocol ? at : 0;
}

bool model_take_apart(struct model_frame *f, uint8_t protocol, struct model_parts *p)
{
	size_t room = f->len - MODEL_ETHERNET, l3, total;
	uint32_t type = get16(f->bytes + 12);

	memset(p, 0, sizeof(*p));
	p->ip = f->bytes + MODEL_ETHERNET;
	p->ipv6 = type == ETHERTYPE_IPV6;
	if ((type != ETHERTYPE_IPV4 && !p->ipv6) || room < (p->ipv6 ? 40U : 20U) ||
	    p->ip[0] >> 4 != (p->ipv6 ? 6 : 4))
		return false;
	if (p->ipv6) {
		p->df = true;
		l3 = skip_extensions(p->ip, room, protocol, &p->odd);
		total = get16(p->ip + 4) + 40;
	} else {
		l3 = (p->ip[0] & 15) * 4;
		if (get16(p->ip + 6) & 0x1fff || p->ip[9] != protocol)
			return false;
		p->odd = p->ip[6] & 0x20 ? GRAFT_FRAGMENTS : l3 > 20 ? GRAFT_HEADERS : 0;
		p->df = p->ip[6] & 0x40;
		total = get16(p->ip + 2);
	}
	if (l3 < 20 || room < l3 + (protocol == TCP ? 20 : 8) || total > room || total < l3 + 8)
		return false;
	p->ttl = p->ip[p->ipv6 ? 7 : 8];
	p->plain = l3 == (p->ipv6 ? 40 : 20);
	p->l4 = p->ip + l3;
	p->len = (uint32_t)(total - l3);
	address(&p->from.remote, p->ip + (p->ipv6 ? 8 : 12), p->ipv6);
	address(&p->from.local, p->ip + (p->ipv6 ? 24 : 16), p->ipv6);
	memcpy(&p->from.remote_port, p->l4, 2);
	memcpy(&p->from.local_port, p->l4 + 2, 2);
	return true;
}

static bool take_apart(struct model_frame *f, struct model_parts *p)
{
	if (!model_take_apart(f, TCP, p))
		return false;
	p->header = (p->l4[12] >> 4) * 4U;
	if (p->header < 20 || p->len < p->header)
		return false;
	p->payload = p->len - p->header;
	p->seq = get32(p->l4 + 4);
	p->ack = get32(p->l4 + 8);
	p->flags = p->l4[13];
	p->window = get16(p->l4 + 14);
	return true;
}

static uint32_t tcp_sum(const struct model_parts *p)
{
	return model_l4_sum(p->ip, p->ipv6, TCP, p->l4, p->header + p->payload);
}

static uint32_t ip_sum(const struct model_parts *p)
{
	return p->ipv6 ? 0 : sum_of(p->ip, (p->ip[0] & 15) * 4);
}

/* The whole of a fragment cannot be summed, but its IP header can. */
bool model_is_sound(const struct model_parts *p, bool odd)
{
	return odd ? !ip_sum(p) : !tcp_sum(p);
}

/* What was right is right, and what was not is as wrong as before. */
static void sum_again(struct model_frame *f, const struct model_parts *p, uint32_t ip_was,
		      uint32_t tcp_was)
{
	if (!p->ipv6) {
		mend(p->ip + 10, ip_sum(p), ip_was);
		f->sums[0] = (size_t)(p->ip + 10 - f->bytes);
	}
	mend(p->l4 + 16, tcp_sum(p), tcp_was);
	f->sums[1] = (size_t)(p->l4 + 16 - f->bytes);
}

void model_sum(struct model_frame *f)
{
	struct model_parts p;

	if (take_apart(f, &p))
		sum_again(f, &p, 0, 0);
}

/* --- a session --- */

void model_set_place(struct model *m, uint32_t slot, uint32_t side, struct place *ret)
{
	ret->slot = slot;
	ret->g = &m->slots[slot];
	ret->mine = &ret->g->side[side];
	ret->other = &ret->g->side[!side];
}

/* Does U lead to a session that has TUPLE?  Another session may have had it. */
bool model_leads(struct model *m, const struct model_tuple *u, const struct graft_tuple *tuple,
		 struct place *ret)
{
	if (u->slot == NO_SLOT || memcmp(&u->tuple, tuple, sizeof(*tuple)))
		return false;
	model_set_place(m, u->slot, u->side, ret);
	return !memcmp(&ret->mine->tuple, tuple, sizeof(*tuple));
}

/* TUPLE: as it arrives.  False: of no session. */
static bool find(struct model *m, const struct graft_tuple *tuple, bool ipv6, struct place *ret)
{
	for (const struct model_tuple *u = m->tuples; u < m->tuples + MODEL_TUPLES; u++) {
		if (!model_leads(m, u, tuple, ret) || ret->g->head.state == GRAFT_FREE ||
		    ret->g->head.state == GRAFT_PREPARED || ret->g->head.state == GRAFT_GAVE_UP ||
		    ret->g->over == GRAFT_ANEW)
			continue;
		return ipv6 == ret->mine->ipv6;
	}
	return false;
}

/* P leaves: as if it had arrived from where it goes to. */
static bool find_leaving(struct model *m, const struct model_parts *p, struct place *ret)
{
	struct graft_tuple t;

	memset(&t, 0, sizeof(t));
	t.remote = p->from.local;
	t.local = p->from.remote;
	t.remote_port = p->from.local_port;
	t.local_port = p->from.remote_port;
	return find(m, &t, p->ipv6, ret);
}

/* WAS: of `over`.  If it is another by now, the next packet forgets the session. */
static void forget(const struct place *at, uint32_t was)
{
	if (at->g->over == was)
		at->g->over = GRAFT_ANEW;
}

/* Does a packet fit where the other end is: GOT, what that has acknowledged, and END, what it has sent? */
static bool fits(const struct place *at, const struct model_parts *p, uint32_t got, uint32_t end)
{
	int64_t theirs = at->other->window, ours = at->mine->window, from;
	/* both as on this side's wire */
	uint32_t sent = end + at->other->seq_add;

	got += at->other->ack_add;
	theirs = theirs < WINDOW_LEAST ? WINDOW_LEAST : theirs;
	ours = ours < WINDOW_LEAST ? WINDOW_LEAST : ours;
	from = ahead(p->seq, got);
	if (from > theirs || ahead(end_of(p), got) < -theirs)
		return false;
	if (!(p->flags & ACK))
		return p->flags & RST;
	from = ahead(p->ack, sent);
	/* what a receiver holds behind a hole may have come by the relay before */
	return from <= (at->g->loose ? ours : 0) && from >= -2 * ours;
}

/* A packet of MINE may be one of the connection, as far as we know its windows. */
static bool is_inside(const struct place *at, const struct model_parts *p)
{
	return fits(at, p, (uint32_t)at->other->acked, (uint32_t)at->other->end);
}

/* Bytes that went by elsewhere are not counted here. */
static void move_to(struct graft_side *s, uint32_t end, uint32_t acked)
{
	uint64_t carried = s->end - s->begun;

	if (!s->fin) {
		s->end = (1ULL << 32) + end;
		s->begun = s->end - carried;
	}
	s->acked = (1ULL << 32) + acked;
}

/*
 * May P be sent on?  Of a loose session each packet may, and of one that other relays know.  One
 * that does not fit is remembered, and believed once the other end has said what fits it.
 */
static bool is_welcome(const struct place *at, const struct model_parts *p, bool odd,
		       bool *ret_believed)
{
	struct graft_side *mine = at->mine, *other = at->other;
	bool inside = is_inside(at, p), loose = at->g->loose == GRAFT_LOOSE;

	*ret_believed = inside;
	if (!odd && !inside && p->flags & RST && mine->apart && p->seq == mine->apart_end) {
		mine->apart |= GRAFT_APART_RESET;
		return true;
	}
	if (!loose && (inside || (!at->g->loose && !at->g->head.mirrored)))
		return inside;
	if (p->flags & RST || !(p->flags & ACK))
		return loose;
	*ret_believed = false;
	if (!model_is_sound(p, odd))
		return true;
	if (!inside && !(other->apart && fits(at, p, other->apart_acked, other->apart_end))) {
		if (mine->apart_end != end_of(p))
			mine->apart = 0;
		mine->apart |= GRAFT_APART | (p->flags & FIN ? GRAFT_APART_FIN : 0);
		mine->apart_ms = 1;
		mine->apart_end = end_of(p);
		mine->apart_acked = p->ack;
		return true;
	}
	if (!inside) {
		move_to(other, other->apart_end, other->apart_acked);
		if (other->apart & GRAFT_APART_FIN && !other->fin) {
			other->begun--;
			other->fin_end = other->apart_end;
			other->fin = GRAFT_FIN_SENT;
		}
		other->believed = 1;
	}
	if (!inside || !mine->believed)
		move_to(mine, p->seq, p->ack);
	mine->believed = 1;
	mine->apart = other->apart = 0;
	if (other->believed)
		at->g->loose = GRAFT_FOUND;
	*ret_believed = true;
	return true;
}

/* A packet that ends something, or leaves a hole in its stream, needs a right sum. */
static bool is_believed(const struct place *at, const struct model_parts *p)
{
	return model_is_sound(p, false) ||
	       (!(p->flags & (FIN | RST)) && ahead(p->seq, (uint32_t)at->mine->end) <= 0);
}

static void grow(__u64 *at, uint32_t to)
{
	int64_t more = ahead(to, (uint32_t)*at);

	if (more > 0)
		*at += (uint64_t)more;
}

/* What P tells of both streams.  A reset has no bytes, and may be one that is only challenged. */
static void note(const struct place *at, const struct model_parts *p)
{
	struct graft_side *mine = at->mine;
	uint64_t end = mine->end, acked = mine->acked;

	if (!(p->flags & RST))
		grow(&mine->end, end_of(p));
	if (p->flags & ACK)
		grow(&mine->acked, p->ack);
	if (end != mine->end || acked != mine->acked)
		mine->data_ns = 1;
}

/* The end that gets P, a reset, takes it: it may expect one of these numbers. */
static bool is_reset(const struct place *at, const struct model_parts *p)
{
	uint32_t got = (uint32_t)at->other->acked + at->other->ack_add;
	uint32_t end = (uint32_t)at->mine->end;

	return p->flags & RST &&
	       (p->seq == got || p->seq == end || (at->mine->fin && p->seq == end - 1));
}

static void track_fin(const struct place *at, const struct model_parts *p)
{
	struct graft_side *mine = at->mine, *other = at->other;

	if (p->flags & FIN && !mine->fin) {
		mine->fin = 1;
		mine->fin_end = end_of(p);
	}
	if (other->fin == 1 && p->flags & ACK && ahead(p->ack + mine->ack_add, other->fin_end) >= 0)
		other->fin = 2;
}

static void track(struct model *m, const struct place *at, const struct model_parts *p,
		  uint32_t state)
{
	struct graft_side *mine = at->mine;
	uint32_t window = p->window << mine->window_left;
	bool last = is_reset(at, p);

	mine->heard_ns = 1;
	if (window > mine->window)
		mine->window = window;
	if (state == GRAFT_ANSWERED && mine == &at->g->side[0] && !(p->flags & RST)) {
		/* the client is there */
		at->g->head.state = state = GRAFT_ACTIVE;
		memset(&at->g->syn, 0, sizeof(at->g->syn));
		m->half--;
	}
	note(at, p);
	if (!(p->flags & RST)) {
		track_fin(at, p);
		last = mine->fin == 2 && at->other->fin == 2;
	}
	m->half -= last && state == GRAFT_ANSWERED;
	if (last && (state == GRAFT_ACTIVE || state == GRAFT_RETURNING || state == GRAFT_ANSWERED)) {
		mine->reset = !!(p->flags & RST);
		at->g->head.state = GRAFT_DONE;
		at->g->ended_ns = 1;
		m->events++;
	}
}

/* --- the header --- */

/* What is added, and to what is remembered of the clocks, if anything is. */
struct change {
	uint32_t seq, ack, tsval, tsecr;
	uint32_t mss; /* of a SYN, at most; 0: any */
	struct graft_side *mine, *other;
};

static void change_clocks(uint8_t *option, const struct change *c)
{
	uint32_t tsval = get32(option) + c->tsval, tsecr = get32(option + 4) + c->tsecr;

	if (c->mine && c->mine->tsecr_clamped) {
		if (ahead(tsecr, c->mine->tsecr_least) < 0)
			tsecr = c->mine->tsecr_least;
		else
			c->mine->tsecr_clamped = 0;
	}
	if (c->other && ahead(tsval, c->other->tsval_sent) > 0)
		c->other->tsval_sent = tsval;
	put32(option, tsval);
	put32(option + 4, tsecr);
}

static void change_options(uint8_t *at, const uint8_t *end, const struct change *c)
{
	while (at < end && at[0]) {
		size_t len;

		if (at[0] == 1) {
			at++;
			continue;
		}
		if (end - at < 2)
			return;
		len = at[1];
		if (len < 2 || len > (size_t)(end - at) || (at[0] == 5 && len % 4 != 2))
			return;
		if (at[0] == 8 && len == 10)
			change_clocks(at + 2, c);
		else if (at[0] == 2 && len == 4 && c->mss && get16(at + 2) > c->mss)
			put16(at + 2, c->mss);
		else if (at[0] == 5 && c->other && !c->other->sack)
			memset(at, 1, len);
		else if (at[0] == 5)
			for (size_t i = 2; i + 4 <= len; i += 4)
				add32(at + i, c->ack);
		at += len;
	}
}

static void change_numbers(const struct model_parts *p, const struct change *c)
{
	add32(p->l4 + 4, c->seq);
	if (p->flags & ACK)
		add32(p->l4 + 8, c->ack);
	change_options(p->l4 + 20, p->l4 + p->header, c);
}

static void set_addresses(const struct model_parts *p, const struct graft_tuple *to)
{
	size_t len = p->ipv6 ? 16 : 4, at = p->ipv6 ? 8 : 12;

	memcpy(p->ip + at, (const uint8_t *)&to->local + 16 - len, len);
	memcpy(p->ip + at + len, (const uint8_t *)&to->remote + 16 - len, len);
	memcpy(p->l4, &to->local_port, 2);
	memcpy(p->l4 + 2, &to->remote_port, 2);
}

/* The other IP header, made anew; what stays is the traffic class.  Ethernet's is made later. */
static void change_family(struct model_frame *f, struct model_parts *p,
			  const struct graft_tuple *to)
{
	uint32_t class = p->ipv6 ? get16(p->ip) >> 4 & 0xff : p->ip[1];
	size_t l3 = p->ipv6 ? 20 : 40, rest = f->len - (size_t)(p->l4 - f->bytes);

	memmove(p->ip + l3, p->l4, rest);
	p->ipv6 = !p->ipv6;
	p->l4 = p->ip + model_ip(p->ip, p->ipv6, &to->local, &to->remote, TCP,
				 p->header + p->payload, 0, class);
	f->len = (size_t)(p->l4 - f->bytes) + rest;
}

/* In the other end's IP header. */
static uint32_t size_of(const struct place *at, const struct model_parts *p)
{
	return (at->other->ipv6 ? 40 : 20) + p->header + p->payload;
}

/* F becomes a message to the remote end of S: its segment SEQ is larger than MTU. */
static void tell_too_big(struct model_frame *f, const struct graft_side *s, uint32_t seq,
			 uint32_t mtu)
{
	size_t l3 = s->ipv6 ? 40 : 20, len = 8 + l3 + 20;
	uint8_t *ip = f->bytes + MODEL_ETHERNET, *icmp = ip + l3, *quote = icmp + 8,
		*tcp = quote + l3;

	memset(icmp, 0, len);
	model_ip(ip, s->ipv6, &s->tuple.local, &s->tuple.remote, s->ipv6 ? 58 : 1, (uint32_t)len,
		 64, 0);
	model_ip(quote, s->ipv6, &s->tuple.remote, &s->tuple.local, TCP, mtu + 1 - (uint32_t)l3, 64,
		 0);
	put16(icmp, s->ipv6 ? 2 << 8 : 3 << 8 | 4);
	put32(icmp + 4, mtu);
	memcpy(tcp, &s->tuple.remote_port, 2);
	memcpy(tcp + 2, &s->tuple.local_port, 2);
	put32(tcp + 4, seq);
	mend(tcp + 18, sum_of(tcp, 20), 0); /* so that a device may make a checksum of it */
	mend(icmp + 2,
	     s->ipv6 ? model_l4_sum(ip, true, 58, icmp, (uint32_t)len) : sum_of(icmp, len), 0);
	f->len = MODEL_ETHERNET + l3 + len;
	f->sums[0] = s->ipv6 ? 0 : (size_t)(ip + 10 - f->bytes);
	f->sums[1] = (size_t)(icmp + 2 - f->bytes);
	f->mark = s->way.mark;
	f->kind = MODEL_OURS;
}

static enum model_verdict translate(struct model *m, struct model_frame *f, const struct place *at,
				    struct model_parts *p, uint32_t state)
{
	struct change c = {
		.seq = at->mine->seq_add,
		.ack = at->mine->ack_add,
		.tsval = at->mine->tsval_add,
		.tsecr = at->mine->tsecr_add,
		.mine = at->mine,
		.other = at->other,
	};
	uint32_t ip_was = ip_sum(p), tcp_was = tcp_sum(p), window;
	bool believed = at->g->loose != GRAFT_LOOSE;

	if (p->flags & SYN) { /* the answers must fit into the way to this end */
		c.mss = (uint16_t)(at->mine->way.mtu - (at->mine->ipv6 ? 60 : 40));
		if (state == GRAFT_ANSWERED)
			at->mine->heard_ns = 1;
	}
	if (ahead(at->other->way.ways, m->ways_least) < 0)
		return MODEL_DROP;
	/* one end answers a SYN itself (RFC 5961, 4.2), and that is what the other wants to know */
	if (!(p->flags & SYN)) {
		m->inside = is_welcome(at, p, false, &believed);
		if (!m->inside) {
			m->outside++;
			return MODEL_DROP;
		}
		/* one that is only challenged tells nothing: it may be forged */
		believed = believed && (!(p->flags & RST) || is_reset(at, p));
		if (believed && is_believed(at, p))
			track(m, at, p, state);
	}
	if (!believed)
		c.mine = c.other = NULL;
	change_numbers(p, &c);
	window = p->window << at->mine->window_left >> at->mine->window_right;
	put16(p->l4 + 14, window < 65535 ? window : 65535);
	if (at->other->ipv6 != p->ipv6) {
		change_family(f, p, &at->other->tuple);
		ip_was = 0;
	}
	p->ip[p->ipv6 ? 7 : 8] = at->other->way.ttl;
	set_addresses(p, &at->other->tuple);
	sum_again(f, p, ip_was, tcp_was);
	f->mark = at->other->way.mark;
	f->kind = MODEL_OURS;
	return MODEL_SENT;
}

/* Between the wire and a socket that is at work again. */
static enum model_verdict shift(struct model_frame *f, const struct graft_side *s,
				const struct model_parts *p, bool out)
{
	struct change c = { .seq = -s->back_read, .ack = -s->back_write, .tsecr = -s->back_ts };
	uint32_t ip_was = ip_sum(p), tcp_was = tcp_sum(p);

	if (p->flags & SYN) /* of another connection */
		return MODEL_PASS;
	if (out)
		c = (struct change){ .seq = s->back_write,
				     .ack = s->back_read,
				     .tsval = s->back_ts };
	change_numbers(p, &c);
	sum_again(f, p, ip_was, tcp_was);
	return MODEL_PASS;
}

/* The same in a session that has returned: its socket may have sent less than the end has got. */
static enum model_verdict shift_back(struct model_frame *f, struct graft_side *s,
				     const struct model_parts *p, bool out)
{
	uint32_t most = s->frozen_write + s->back_write, end = end_of(p);

	if (out && ahead(end, s->frozen_write) > 0)
		s->frozen_write = end;
	if (!out && (p->flags & (ACK | SYN)) == ACK && ahead(p->ack, most) > 0) {
		uint32_t ip_was = ip_sum(p), tcp_was = tcp_sum(p);

		put32(p->l4 + 8, most);
		sum_again(f, p, ip_was, tcp_was);
	}
	return shift(f, s, p, out);
}

/* --- what arrives --- */

/* `passed` is in the numbers of the socket. */
static void let_pass(struct graft_side *mine, const struct model_parts *p)
{
	uint32_t end = end_of(p) - mine->back_read;

	if (ahead(end, mine->passed) > 0)
		mine->passed = end;
}

/* There are no sockets, so it is not the first that is translated. */
static enum model_verdict look(struct model_frame *f, struct place *at, const struct model_parts *p)
{
	if ((at->g->head.state & GRAFT_STATE_MASK) == GRAFT_LOCKED) {
		at->g->head.state += GRAFT_PASSED_ONE;
	} else {
		at->g->looks++;
		at->g->why_not = p->flags & (FIN | SYN | RST) || !(p->flags & ACK) ? GRAFT_CLOSING :
				 p->odd                                            ? p->odd :
				 at->mine->way.ways || at->other->way.ways         ? GRAFT_WAY :
										     GRAFT_CLOSING;
	}
	if (!p->odd)
		let_pass(at->mine, p);
	return at->g->shifted ? shift_back(f, at->mine, p, false) : MODEL_PASS;
}

static uint32_t why_not_back(const struct place *at, const struct model_parts *p, bool odd)
{
	if (p->flags & (FIN | SYN | RST) || !(p->flags & ACK) || at->mine->fin || at->other->fin)
		return GRAFT_CLOSING;
	if (odd ? ahead(p->seq, (uint32_t)at->mine->end) > 0 : p->seq != (uint32_t)at->mine->end)
		return GRAFT_ORDER;
	if ((uint32_t)at->other->acked + at->other->ack_add != p->seq ||
	    p->ack + at->mine->ack_add != (uint32_t)at->other->end)
		return GRAFT_IN_HAND;
	return GRAFT_NO_SOCKET;
}

/* Why P is not translated; 0: it is. */
static uint8_t hindrance(const struct place *at, const struct model_parts *p)
{
	if (p->odd)
		return p->odd;
	if (!p->plain && !at->other->ipv6)
		return GRAFT_HEADERS;
	return size_of(at, p) > at->other->way.mtu ? GRAFT_TOO_BIG : 0;
}

/* There are no sockets that the session could go back to. */
static enum model_verdict go_back(struct model *m, struct model_frame *f, const struct place *at,
				  const struct model_parts *p, uint8_t why)
{
	struct graft_entry *g = at->g;
	bool old = g->why_back && g->head.state != GRAFT_ACTIVE, believed;

	if (p->flags & SYN || !is_welcome(at, p, true, &believed) || !model_is_sound(p, true)) {
		m->outside++;
		return MODEL_DROP;
	}
	if (why == GRAFT_TOO_BIG && p->df && p->plain) {
		tell_too_big(f, at->mine, p->seq,
			     at->other->way.mtu + (at->mine->ipv6 ? 20 : 0) -
				     (at->other->ipv6 ? 20 : 0));
		return MODEL_SENT;
	}
	if (!old) {
		g->why_back = why;
		g->stuck_ns = 1;
	}
	if (g->head.state == GRAFT_ACTIVE)
		g->head.state = GRAFT_RETURNING;
	if (g->head.state != GRAFT_RETURNING)
		return MODEL_DROP;
	g->why_not = why_not_back(at, p, true);
	if (old ||
	    (g->why_not == GRAFT_NO_SOCKET && !g->loose && !(g->syn_flags & GRAFT_SYN_BARE))) {
		g->head.state = GRAFT_DONE;
		g->ended_ns = at->mine->heard_ns;
		m->events++;
	}
	return MODEL_DROP;
}

/* The session is over, and a SYN with its tuple is of a new connection. */
static bool is_free(const struct place *at)
{
	return at->g->head.state == GRAFT_DONE || at->g->head.state == GRAFT_CLOSED ||
	       (at->g->head.state == GRAFT_RETURNED && at->g->over);
}

static bool is_here(const struct model *m, const struct graft_addr *a)
{
	return !memcmp(&m->here[0], a, sizeof(*a)) || !memcmp(&m->here[1], a, sizeof(*a));
}

/* --- ICMP errors --- */

/*
 * They quote the beginning of a packet.  If we have sent it on, and it is too big, the end that it
 * came from is told, with the numbers that it knows.  If it is of a socket that is back at work,
 * that is told.  If it is a client's SYN, the listener gets that.
 */
static enum model_verdict complain(struct model *m, struct model_frame *f)
{
	uint8_t *ip = f->bytes + MODEL_ETHERNET, *icmp, *quote, *tcp;
	bool ipv6 = get16(f->bytes + 12) == ETHERTYPE_IPV6, too_big;
	size_t l3 = ipv6 ? 40 : 20, at = ipv6 ? 8 : 12, size = ipv6 ? 16 : 4;
	uint32_t seq, mtu, was;
	struct graft_tuple t;
	struct place p;

	if ((!ipv6 && get16(f->bytes + 12) != ETHERTYPE_IPV4) ||
	    f->len < MODEL_ETHERNET + l3 + 8 + l3 + 8)
		return MODEL_PASS;
	icmp = ip + l3;
	quote = icmp + 8;
	tcp = quote + l3;
	if (ipv6 ? ip[0] >> 4 != 6 || ip[6] != 58 || icmp[0] >= 128 || quote[6] != TCP :
		   ip[0] != 0x45 || get16(ip + 6) & 0x3fff || ip[9] != 1 ||
			    (icmp[0] != 3 && icmp[0] != 11 && icmp[0] != 12) || quote[0] != 0x45 ||
			    quote[9] != TCP)
		return MODEL_PASS;
	memset(&t, 0, sizeof(t));
	address(&t.local, quote + at, ipv6);
	address(&t.remote, quote + at + size, ipv6);
	memcpy(&t.local_port, tcp, 2);
	memcpy(&t.remote_port, tcp + 2, 2);
	if (!find(m, &t, ipv6, &p))
		return MODEL_PASS;
	seq = get32(tcp + 4);
	mtu = ipv6 ? get32(icmp + 4) : get16(icmp + 6);
	too_big = ipv6 ? icmp[0] == 2 : icmp[0] == 3 && icmp[1] == 4;
	if (p.g->head.state == GRAFT_SYN_SENT && !too_big) {
		if (p.mine == &p.g->side[0] || seq + 1 != (uint32_t)p.other->end + p.other->seq_add)
			return MODEL_PASS;
		m->half--;
		model_give_up(m, p.g, GRAFT_PAST_UNREACHABLE);
		model_remake(f, ip, p.g);
		return MODEL_SENT;
	}
	if (p.g->head.state == GRAFT_ACTIVE || p.g->head.state == GRAFT_RETURNING) {
		/* of what is on its way */
		if (!too_big || ahead(seq, (uint32_t)p.mine->acked) < 0 ||
		    ahead(seq, (uint32_t)p.other->end + p.other->seq_add) >= 0)
			return MODEL_PASS;
		tell_too_big(f, p.other, seq - p.other->seq_add,
			     mtu + (p.other->ipv6 ? 20 : 0) - (ipv6 ? 20 : 0));
		return MODEL_SENT;
	}
	if (p.g->head.state != GRAFT_RETURNED && !p.g->shifted)
		return MODEL_PASS;
	was = sum_of(tcp + 4, 4);
	add32(tcp + 4, -p.mine->back_write);
	mend(icmp + 2, sum_of(tcp + 4, 4), was);
	f->sums[1] = (size_t)(icmp + 2 - f->bytes);
	return MODEL_PASS;
}

/* --- all that arrives --- */

/* P finds the session of AT, and goes to its other end, or to its own socket. */
static enum model_verdict at_work(struct model *m, struct model_frame *f, struct place *at,
				  struct model_parts *p)
{
	uint32_t state = at->g->head.state & GRAFT_STATE_MASK;

	if (state != GRAFT_OFFERED && state != GRAFT_LOCKED && state != GRAFT_RETURNED &&
	    hindrance(at, p))
		return state == GRAFT_ANSWERED ? MODEL_DROP : /* nothing to go back to */
						 go_back(m, f, at, p, hindrance(at, p));
	if (state != GRAFT_OFFERED && state != GRAFT_LOCKED && state != GRAFT_RETURNED &&
	    state != GRAFT_ACTIVE && at->g->why_back && !(p->flags & (SYN | RST)) &&
	    ahead(p->seq, (uint32_t)at->mine->end) > 0)
		return MODEL_DROP; /* behind a hole */
	switch (state) {
	case GRAFT_OFFERED:
	case GRAFT_LOCKED:
		return look(f, at, p);
	case GRAFT_LOCKED_2: /* forever, here */
		return MODEL_DROP;
	case GRAFT_RETURNED:
		return shift_back(f, at->mine, p, false);
	case GRAFT_RETURNING:
		at->g->why_not = why_not_back(at, p, false);
		if (!(p->flags & SYN) && is_inside(at, p) && is_believed(at, p))
			/* the next one that looks must know of it, whatever becomes of it */
			note(at, p);
	}
	return translate(m, f, at, p, state);
}

enum model_verdict model_in(struct model *m, struct model_frame *f)
{
	struct model_parts p;
	struct place at;
	uint32_t state;
	bool found;

	m->inside = false;
	if (f->kind == MODEL_TO_SOCKET) {
		f->mark = 0; /* it was for the way out */
		return MODEL_PASS;
	}
	/* TCP takes only what is sent to this host */
	if (memcmp(f->bytes, m->mac, 6) && f->kind != MODEL_REMADE)
		return MODEL_PASS;
	if (!take_apart(f, &p))
		return complain(m, f);
	found = find(m, &p.from, p.ipv6, &at);
	if (found && p.flags & SYN && is_free(&at)) {
		forget(&at, at.g->over);
		found = false;
	}
	if (!found &&
	    (!(p.flags & SYN) || p.flags & ACK || p.from.local_port != m->port ||
	     f->kind == MODEL_REMADE || (!p.ipv6 && model_is_same(&p.from, &m->accepted)) ||
	     !model_begin(m, &p, &at)))
		return MODEL_PASS;
	if (at.g->head.state == GRAFT_STANDBY) {
		if (!is_here(m, &at.mine->tuple.local) && !is_here(m, &at.g->side[0].tuple.local))
			return MODEL_PASS;
		at.g->head.state = GRAFT_ACTIVE;
	}
	if (at.g->head.state == GRAFT_SETTING || at.g->head.state == GRAFT_TAKEN)
		return MODEL_DROP;
	state = at.g->head.state;
	if (state == GRAFT_SYN_SENT) {
		enum model_verdict v = model_half_open(m, f, &at, &p);

		if (v != MODEL_SENT || f->kind == MODEL_REMADE)
			return v;
		return hindrance(&at, &p) ? MODEL_DROP : translate(m, f, &at, &p, GRAFT_ANSWERED);
	}
	if (at.g->killed)
		return shift(f, at.mine, &p, false);
	if (at.g->head.state == GRAFT_CLOSED && !is_inside(&at, &p)) { /* of another session */
		forget(&at, GRAFT_GIVEN_BACK);
		return MODEL_PASS;
	}
	return at_work(m, f, &at, &p);
}

/* --- what leaves --- */

/* NOP, NOP, and a timestamp option. */
static bool begins_with_clocks(const struct model_parts *p)
{
	static const uint8_t usual[4] = { 1, 1, 8, 10 };

	return p->header >= 32 && !memcmp(p->l4 + 20, usual, sizeof(usual));
}

/* F, of a frozen socket, becomes an answer to itself. */
static enum model_verdict give_back(struct model_frame *f, const struct place *at,
				    const struct model_parts *p, uint32_t ack, uint8_t flags)
{
	uint32_t len = p->header == 32 ? 32 : 20;

	if (p->odd || !p->plain)
		return MODEL_DROP;
	model_ip(p->ip, p->ipv6, &at->mine->tuple.remote, &at->mine->tuple.local, TCP, len, 64, 0);
	memcpy(p->l4, &at->mine->tuple.remote_port, 2);
	memcpy(p->l4 + 2, &at->mine->tuple.local_port, 2);
	if (len == 32 && begins_with_clocks(p)) {
		put32(p->l4 + 24, get32(p->l4 + 28));
		put32(p->l4 + 28, 0); /* no round trip is measured */
	} else if (len == 32) {
		memset(p->l4 + 20, 1, 12);
	}
	put32(p->l4 + 4, at->mine->frozen_read);
	put32(p->l4 + 8, ack);
	p->l4[12] = (uint8_t)(len << 2);
	p->l4[13] = flags;
	put16(p->l4 + 18, 0);
	f->len = (size_t)(p->l4 - f->bytes) + len;
	/* our own stack has not made a sum, and does not look at it */
	f->sums[0] = p->ipv6 ? 0 : (size_t)(p->ip + 10 - f->bytes);
	f->sums[1] = (size_t)(p->l4 + 16 - f->bytes);
	f->any_tcp_sum = true;
	f->kind = MODEL_TO_SOCKET;
	return MODEL_PASS; /* out by the loopback device, and in again */
}

/*
 * A keepalive probe, or a reset, of a frozen socket goes to the remote end, with the numbers of the
 * wire.
 */
static enum model_verdict let_out(const struct model *m, struct model_frame *f,
				  const struct place *at, const struct model_parts *p)
{
	uint32_t ip_was = ip_sum(p), tcp_was = tcp_sum(p), tsval = at->mine->tsval_sent;
	struct change c = {
		.seq = (uint32_t)at->other->end + at->other->seq_add - (p->flags & RST ? 0 : 1) -
		       p->seq,
		.ack = (uint32_t)at->mine->end - p->ack,
	};

	if (at->g->loose || at->g->head.mirrored)
		tsval += graft_clock(m->units -
				     (uint32_t)(at->other->heard_ns >> GRAFT_CLOCK_SHIFT));
	if (begins_with_clocks(p) && ahead(tsval, get32(p->l4 + 24)) > 0)
		c.tsval = tsval - get32(p->l4 + 24);
	change_numbers(p, &c);
	sum_again(f, p, ip_was, tcp_was);
	return MODEL_PASS;
}

static enum model_verdict frozen(const struct model *m, struct model_frame *f,
				 const struct place *at, const struct model_parts *p)
{
	uint32_t ack = at->mine->frozen_write;

	if (p->flags & SYN) /* of a new socket */
		return give_back(f, at, p, p->seq + 1, RST | ACK);
	if (p->flags & RST) /* it has died; or the session is over */
		return at->g->ended_ns || at->g->head.mirrored ||
				       at->g->head.worker == GRAFT_NOBODY ?
			       MODEL_DROP :
			       let_out(m, f, at, p);
	if (end_of(p) == p->seq && ahead(p->seq, ack) >= 0) /* nothing to answer */
		return MODEL_DROP;
	if (end_of(p) == p->seq && p->seq + 1 == ack) {
		bool heard = at->mine->heard_ns >= at->mine->probed_ns;

		at->mine->probed_ns = 1;
		if (!heard)
			return let_out(m, f, at, p);
	}
	if (ahead(end_of(p), ack) > 0)
		ack = end_of(p);
	return give_back(f, at, p, ack, p->flags & FIN ? RST | ACK : ACK);
}

/* The right edge of the window stays. */
static void hold(struct model_frame *f, struct graft_side *mine, const struct model_parts *p)
{
	uint32_t ip_was = ip_sum(p), tcp_was = tcp_sum(p);
	int64_t room;

	if (!(p->flags & ACK) || p->flags & (FIN | SYN | RST))
		return;
	if (!mine->has_edge)
		mine->edge = p->ack + (p->window << mine->read_shift);
	mine->has_edge = 1;
	room = ahead(mine->edge, p->ack);
	room = (room > 0 ? room : 0) >> mine->read_shift;
	if (room < p->window) {
		put16(p->l4 + 14, (uint32_t)room);
		sum_again(f, p, ip_was, tcp_was);
	}
}

enum model_verdict model_out(struct model *m, struct model_frame *f)
{
	struct model_parts p;
	struct place at;
	uint32_t end;

	m->inside = false;
	if (f->kind == MODEL_OURS || !take_apart(f, &p))
		return MODEL_PASS;
	if (!find_leaving(m, &p,
			  &at)) /* a socket's reset has an ACK; the stack's tells it knows none */
		return m->unsynced && (p.flags & (SYN | RST | ACK)) == RST ? MODEL_DROP :
									     MODEL_PASS;
	if (p.flags & SYN && (is_free(&at) || at.g->head.state == GRAFT_RETURNED)) {
		forget(&at, at.g->over);
		return MODEL_PASS;
	}
	if (at.g->killed)
		return shift(f, at.mine, &p, true);
	switch (at.g->head.state & GRAFT_STATE_MASK) {
	case GRAFT_LOCKED: /* it acknowledges what the one that looks may not know */
		at.g->head.state += GRAFT_PASSED_ONE;
		/* fall through */
	case GRAFT_OFFERED:
		end = end_of(&p);
		if (!p.payload && end + 1 == at.mine->base_write)
			end++; /* a keepalive probe */
		if (!p.odd && ahead(end, at.mine->left) > 0)
			at.mine->left = end;
		if (at.g->hold && (uint32_t)m->now_ms - at.g->held_ms < GRAFT_HOLD_MS)
			hold(f, at.mine, &p);
		return at.g->shifted ? shift_back(f, at.mine, &p, true) : MODEL_PASS;
	case GRAFT_RETURNED:
		return shift_back(f, at.mine, &p, true);
	case GRAFT_STANDBY: /* nothing of it leaves this relay; its port is taken */
	case GRAFT_SETTING:
	case GRAFT_TAKEN:
	case GRAFT_SYN_SENT:
	case GRAFT_ANSWERED:
		return p.flags & SYN ? frozen(m, f, &at, &p) : MODEL_DROP;
	}
	return frozen(m, f, &at, &p);
}
