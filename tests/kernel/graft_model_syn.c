/* SPDX-License-Identifier: BSD-2-Clause */
/* The model of graft_model.h: sessions that begin with a SYN. */
#include "graft_model_syn.h"

#include <string.h>

#include "graft_decide.h" /* graft_isn(), graft_tsval() */

#define AGAIN_MS 300

/* Read the options of a SYN or its answer.  False: one is not known. */
static bool read_syn(const struct model_parts *p, struct graft_syn *syn)
{
	const uint8_t *at = p->l4 + 20, *end = p->l4 + p->header;

	*syn = (struct graft_syn){
		.mss = 536, .window = (uint16_t)p->window, .flags = p->flags, .ttl = p->ttl
	};
	for (; at < end && at[0]; at += at[0] == 1 ? 1 : at[1]) {
		if (at[0] == 1)
			continue;
		if (end - at < 2 || at[1] < 2 || at[1] > end - at)
			return false;
		if (at[0] == 2 && at[1] == 4) {
			syn->mss = (uint16_t)get16(at + 2);
		} else if (at[0] == 3 && at[1] == 3) {
			syn->shift = at[2] > 14 ? 14 : at[2];
			syn->has |= GRAFT_SYN_SCALED;
		} else if (at[0] == 4 && at[1] == 2) {
			syn->has |= GRAFT_SYN_SACK;
		} else if (at[0] == 8 && at[1] == 10 && !(syn->has & GRAFT_SYN_STAMPS)) {
			syn->tsval = get32(at + 2);
			syn->has |= GRAFT_SYN_STAMPS;
		} else {
			return false;
		}
	}
	return !(p->l4[12] & 1);
}

static const struct model_proof *proof_of(const struct model *m, const struct graft_tuple *tuple,
					  uint32_t forward)
{
	struct graft_proof_key key;

	memset(&key, 0, sizeof(key));
	key.tuple = *tuple;
	*(forward ? &key.tuple.local_port : &key.tuple.remote_port) = 0;
	key.forward = forward;
	for (const struct model_proof *p = m->proofs; p < m->proofs + MODEL_PROOFS; p++)
		if (!memcmp(&p->key, &key, sizeof(key)))
			return p->counts ? p : NULL;
	return NULL;
}

void model_give_up(struct model *m, struct graft_entry *g, enum graft_past why)
{
	g->head.state = GRAFT_GAVE_UP;
	g->why_back = why;
	g->ended_ns = 1;
	m->past[why]++;
	m->events++;
}

/*
 * Has another session, which is not over, the tuple of SLOT's SIDE?  RET: the entry that leads to
 * SLOT, or that may lead there: of a session that is over, or of none; NULL: no such entry.
 */
static bool has_rival(struct model *m, uint32_t slot, uint32_t side, struct model_tuple **ret)
{
	struct model_tuple *own = NULL, *over = NULL, *none = NULL;
	bool rival = false;

	for (struct model_tuple *u = m->tuples; u < m->tuples + MODEL_TUPLES; u++) {
		struct place at;
		uint32_t state;

		if (u->slot == NO_SLOT)
			none = m->room ? u : NULL;
		if (!model_leads(m, u, &m->slots[slot].side[side].tuple, &at))
			continue;
		state = at.g->head.state;
		if (u->slot == slot && u->side == side)
			own = u;
		else if (state == GRAFT_GAVE_UP ||
			 (state != GRAFT_FREE && state != GRAFT_PREPARED && at.g->over))
			over = u;
		else
			rival |= state != GRAFT_FREE && state != GRAFT_PREPARED;
	}
	*ret = own ? own : over ? over : none;
	return rival;
}

static bool leads_alone(struct model *m, uint32_t slot, uint32_t side)
{
	struct model_tuple *u;
	bool rival = has_rival(m, slot, side, &u);

	return !rival && u && u->slot == slot && u->side == side;
}

/* Why P, a SYN that came to the listening socket, may not begin a session; GRAFT_PASTS: it may. */
static enum graft_past hindrance_to_begin(const struct model *m, const struct model_parts *p,
					  struct graft_syn *syn)
{
	const struct model_proof *client;

	if (!read_syn(p, syn))
		return GRAFT_PAST_ODD;
	if (m->auto_set_up && m->hooks)
		return GRAFT_PAST_NETFILTER;
	if (p->odd || p->payload || p->flags & ~(SYN | 0xc0) || m->ifindex == 1 ||
	    p->ipv6 != graft_addr_is_ipv6(&p->from.remote))
		return GRAFT_PAST_ODD;
	if (m->policies)
		return GRAFT_PAST_INTERFACE;
	if (m->half >= m->half_most)
		return GRAFT_PAST_HALF_OPEN;
	client = proof_of(m, &p->from, 0);
	if (!client)
		return GRAFT_PAST_UNPROVEN;
	if (m->auto_set_up && client->hooked)
		return GRAFT_PAST_NETFILTER;
	return model_is_sound(p, false) ? GRAFT_PASTS : GRAFT_PAST_ODD;
}

/* The numbers that a SYN of the client gets on its way to the server. */
static void number_syn(struct model *m, struct graft_entry *g, const struct model_parts *p)
{
	struct graft_side *a = &g->side[0], *b = &g->side[1];
	uint32_t isn = graft_isn(g->syn_flags & GRAFT_SYN_KNOWN_SEQ, (uint32_t)a->end + a->seq_add,
				 p->seq);

	a->base_read = p->seq;
	a->end = a->begun = (1ULL << 32) + p->seq + 1;
	a->seq_add = isn - p->seq;
	b->ack_add = -a->seq_add;
	g->syn_flags |= GRAFT_SYN_KNOWN_SEQ | GRAFT_SYN_BARE;
	if (!(g->syn.has & GRAFT_SYN_STAMPS))
		return;
	b->tsval_sent = graft_tsval(g->syn_flags & GRAFT_SYN_KNOWN_TSVAL, b->tsval_sent, m->syn_ms);
	a->tsval_add = b->tsval_sent - g->syn.tsval;
	b->tsecr_add = -a->tsval_add;
	g->syn_flags |= GRAFT_SYN_KNOWN_TSVAL;
}

bool model_is_same(const struct graft_tuple *a, const struct graft_tuple *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* P, a SYN of no session, takes the next slot of the stock.  False: it goes to the listener. */
bool model_begin(struct model *m, const struct model_parts *p, struct place *ret)
{
	const struct model_proof *server;
	struct graft_syn syn;
	enum graft_past why = hindrance_to_begin(m, p, &syn);
	struct model_tuple *u;
	struct graft_entry *g;
	uint32_t slot = NO_SLOT;

	if (why != GRAFT_PASTS) {
		m->past[why]++;
		return false;
	}
	if (m->taken < MODEL_STOCK_SIZE)
		slot = m->stock[m->taken++];
	else
		m->missed++;
	if (slot == NO_SLOT || m->slots[slot].head.state != GRAFT_PREPARED) {
		m->past[GRAFT_PAST_STOCK]++;
		return false;
	}
	model_set_place(m, slot, 0, ret);
	g = ret->g;
	g->head.worker = 0;
	server = proof_of(m, &ret->other->tuple, g->head.forward);
	why = !server                                          ? GRAFT_PAST_UNPROVEN_SERVER :
	      m->auto_set_up && server->hooked                 ? GRAFT_PAST_NETFILTER :
	      model_is_same(&ret->other->tuple, &m->connected) ? GRAFT_PAST_TUPLE :
								 GRAFT_PASTS;
	if (why != GRAFT_PASTS) {
		model_give_up(m, g, why);
		return false;
	}
	syn.near_us = g->syn.near_us;
	g->syn = syn;
	number_syn(m, g, p);
	ret->mine->tuple = p->from;
	ret->mine->ipv6 = p->ipv6;
	ret->mine->way = proof_of(m, &p->from, 0)->way;
	ret->other->way = server->way;
	ret->mine->from = m->ifindex;
	ret->mine->heard_ns = ret->mine->data_ns = 1;
	g->far = syn.near_us ? GRAFT_NEAR : GRAFT_ANYWHERE;
	g->offered_ns = MODEL_JUST;
	if (has_rival(m, slot, 0, &u) || !u) {
		model_give_up(m, g, GRAFT_PAST_TUPLE);
		return false;
	}
	*u = (struct model_tuple){ p->from, slot, 0 };
	if (!leads_alone(m, slot, 1)) {
		model_give_up(m, g, GRAFT_PAST_TUPLE);
		return false;
	}
	g->head.state = GRAFT_SYN_SENT;
	m->half++;
	m->events += !m->awake;
	return true;
}

/* P is the server's SYN|ACK: both ends' SYNs are known now. */
static bool open_up(struct graft_entry *g, const struct model_parts *p)
{
	struct graft_side *a = &g->side[0], *b = &g->side[1];
	struct graft_syn theirs;
	uint8_t both;

	if (!read_syn(p, &theirs))
		return false;
	both = g->syn.has & theirs.has;
	if (both & GRAFT_SYN_SCALED) {
		a->window_left = a->window_right = b->read_shift = g->syn.shift;
		b->window_left = b->window_right = a->read_shift = theirs.shift;
	} else {
		a->window_left = a->window_right = a->read_shift = 0;
		b->window_left = b->window_right = b->read_shift = 0;
	}
	a->timestamps = b->timestamps = both & GRAFT_SYN_STAMPS ? 1 : 0;
	a->sack = b->sack = both & GRAFT_SYN_SACK ? 1 : 0;
	/* ECE and CWR ask for ECN, ECE alone agrees */
	a->ecn = b->ecn = (g->syn.flags & 0xc0) == 0xc0 && (p->flags & 0xc0) == 0x40;
	a->mss = g->syn.mss;
	b->mss = theirs.mss;
	a->window = g->syn.window;
	b->window = p->window;
	b->end = b->begun = (1ULL << 32) + p->seq + 1;
	a->acked = b->end;
	b->acked = (1ULL << 32) + p->ack;
	a->tsval_sent = theirs.tsval;
	a->frozen_read = (uint32_t)a->end;
	a->frozen_write = b->frozen_read = (uint32_t)b->end;
	b->frozen_write = p->ack;
	a->edge = (uint32_t)a->end + GRAFT_LEASH;
	b->edge = (uint32_t)b->end + GRAFT_LEASH;
	b->from = 0;
	b->heard_ns = b->data_ns = g->stuck_ns = 1;
	g->head.state = GRAFT_ANSWERED;
	return true;
}

/* The packet, whose header is at IP, becomes the client's SYN, as it came. */
void model_remake(struct model_frame *f, uint8_t *ip, const struct graft_entry *g)
{
	const struct graft_side *s = &g->side[0];
	const struct graft_syn *syn = &g->syn;
	uint8_t *tcp;

	put16(f->bytes + 12, s->ipv6 ? ETHERTYPE_IPV6 : ETHERTYPE_IPV4);
	tcp = ip + model_ip(ip, s->ipv6, &s->tuple.remote, &s->tuple.local, TCP, 40, syn->ttl, 0);
	memset(tcp, 0, 20);
	memcpy(tcp, &s->tuple.remote_port, 2);
	memcpy(tcp + 2, &s->tuple.local_port, 2);
	put32(tcp + 4, s->base_read);
	tcp[12] = 40 << 2;
	tcp[13] = syn->flags;
	put16(tcp + 14, syn->window);
	memset(tcp + 20, 1, 20);
	put32(tcp + 20, 2 << 24 | 4 << 16 | syn->mss);
	if (syn->has & GRAFT_SYN_SACK)
		put16(tcp + 24, 4 << 8 | 2);
	if (syn->has & GRAFT_SYN_STAMPS) {
		put16(tcp + 26, 8 << 8 | 10);
		put32(tcp + 28, syn->tsval);
		put32(tcp + 32, 0);
	}
	if (syn->has & GRAFT_SYN_SCALED) {
		put16(tcp + 37, 3 << 8 | 3);
		tcp[39] = syn->shift;
	}
	f->len = (size_t)(tcp - f->bytes) + 40;
	f->sums[0] = s->ipv6 ? 0 : (size_t)(ip + 10 - f->bytes);
	f->sums[1] = (size_t)(tcp + 16 - f->bytes);
	model_sum(f);
	f->mark = 0;
	f->kind = MODEL_REMADE;
}

/* No answer of the server has come.  MODEL_SENT: P is translated, unless F is REMADE. */
enum model_verdict model_half_open(struct model *m, struct model_frame *f, const struct place *at,
				   const struct model_parts *p)
{
	struct graft_entry *g = at->g;
	bool client = at->mine == &g->side[0], syn = p->flags & SYN, ack = p->flags & ACK,
	     rst = p->flags & RST, fin = p->flags & FIN;
	bool answers = !client && ack && p->ack == (uint32_t)at->other->end + at->other->seq_add;
	bool same = p->seq == at->mine->base_read;

	if (client && syn && !ack && !rst && same && g->offered_ns == MODEL_JUST)
		return MODEL_SENT;
	if (p->odd || !model_is_sound(p, false))
		return MODEL_DROP;
	if (client && syn && !ack && !rst) {
		m->half--;
		model_give_up(m, g, same ? GRAFT_PAST_SILENT : GRAFT_PAST_CLIENT);
		return MODEL_PASS; /* to the listener */
	}
	if (client && rst && p->seq == at->mine->base_read + 1) {
		m->half--;
		model_give_up(m, g, GRAFT_PAST_CLIENT);
	}
	if (client || !ack)
		return MODEL_DROP;
	if (answers && syn && !rst)
		return open_up(g, p) ? MODEL_SENT : MODEL_DROP;
	/* a RST; or a challenge: the server still has a connection of that port */
	if (answers ? !rst : syn || rst || fin || p->payload)
		return MODEL_DROP;
	m->half--;
	model_give_up(m, g, answers ? GRAFT_PAST_REFUSED : GRAFT_PAST_CHALLENGED);
	model_remake(f, p->ip, g);
	return MODEL_SENT;
}
