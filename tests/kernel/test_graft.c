/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The packet programs against the model of graft_model.h: they are run on generated packets
 * (BPF_PROG_TEST_RUN), and each byte that they leave, each verdict and all that they remember must
 * be what the model says.  Entries are written by hand, so there is no traffic, and no socket but
 * one that listens, and one that is connected to it.
 *
 * test_graft [SEED [WORLDS]]: other packets, or more of them.
 */
#include "kt.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "base/clock.h"
#include "bpf/graft.skel.h"
#include "datapath/bpf_ring.h"
#include "datapath/graft/graft_slots.h"
#include "graft_frames.h"
#include "graft_model.h"

#define PER_WORLD 40
#define MAC 2, 0, 0, 0, 0, 1 /* of the interface that is not LO */
#define BUCKETS 4

static struct {
	struct graft_bpf *skel;
	struct graft_entry *slots;    /* mapped */
	struct graft_bucket *buckets; /* mapped; behind them is the seed */
	struct graft_stock *stock;    /* mapped: that of the listening socket */
	uint32_t stock_begins;        /* at this element */
	uint32_t ifindex;             /* of an interface that is not LO */
	int sockets[2];               /* listening, connected to that */
	uint16_t port;                /* of the first one, in network byte order */
	struct graft_tuple connected; /* of the second one, */
	struct graft_tuple accepted;  /* and of the other end, which the first one has made */
	struct ring_buffer *ring;
	unsigned int events;
	uint64_t seed;
	unsigned int worlds;
} t = { .seed = 1, .worlds = 2000 };

/* --- chance --- */

/* Close to where something changes its sign or its size, or anywhere. */
static uint32_t draw_number(void)
{
	static const uint32_t edges[] = { 0, 0x80000000, 0xffff0000, 0x7fffff00 };

	return one_in(2) ? (uint32_t)draw() : edges[below(4)] + below(1000) - 500;
}

/* --- a world: what the programs remember --- */

static uint32_t draw_window(void)
{
	static const uint32_t windows[] = { 0, 1000, 65535, 65536, 65537, 1 << 20, 65535U << 14 };

	return windows[below(7)];
}

/* MINE's remote end has sent a stream up to a number, of which the other has acknowledged most. */
static void draw_stream(struct graft_side *mine, struct graft_side *other)
{
	uint32_t end = draw_number(), flight = one_in(3) ? 0 : below(one_in(2) ? 3000 : 60000);

	mine->seq_add = draw_number();
	other->ack_add = -mine->seq_add;
	mine->end = (1ULL + below(3)) << 32 | end;
	other->acked = (1ULL << 32) | (end - flight + mine->seq_add);
	if (one_in(6)) {
		mine->fin = 1 + below(2);
		mine->fin_end = end;
	}
}

static void draw_side(struct graft_side *s, bool ipv6, bool shifted)
{
	draw_address(&s->tuple.remote, ipv6);
	draw_address(&s->tuple.local, ipv6);
	s->tuple.remote_port = (uint16_t)draw();
	s->tuple.local_port = (uint16_t)draw();
	s->ipv6 = ipv6;
	s->way.ifindex = LO;
	s->way.mark = one_in(2) ? 0 : 1 + below(1000);
	s->tsval_add = draw_number();
	s->tsecr_add = draw_number();
	s->tsecr_least = draw_number();
	s->tsecr_clamped = one_in(3);
	s->tsval_sent = draw_number();
	s->window = draw_window();
	s->window_left = (uint8_t)below(15);
	s->window_right = (uint8_t)below(15);
	s->read_shift = (uint8_t)below(15);
	s->timestamps = one_in(2);
	s->base_write = draw_number();
	s->frozen_write = draw_number();
	s->frozen_read = draw_number();
	if (shifted) {
		s->back_read = draw_number();
		s->back_write = draw_number();
		s->back_ts = draw_number();
	}
	s->heard_ns = one_in(2);
	s->believed = one_in(2);
	s->apart = (uint8_t)(one_in(2) ? 1 + 2 * below(4) : 0);
	s->apart_end = draw_number();
	s->apart_acked = draw_number();
	s->probed_ns = one_in(2);
	s->has_edge = one_in(2);
	s->edge = draw_number();
	s->passed = draw_number();
	s->left = draw_number();
	s->way.ttl = (uint8_t)draw();
	s->way.via = (uint8_t)below(4);
	s->way.mtu = one_in(4) ? 100 + below(1500) : 65535;
	s->way.ways = one_in(16) ? UINT32_MAX : 0;
}

static uint32_t draw_state(void)
{
	uint32_t state = one_in(2) ? GRAFT_ACTIVE : below(GRAFT_STATES);

	return state == GRAFT_LOCKED ? state + GRAFT_PASSED_ONE * below(3) : state;
}

/* G begins from the SYN on: its client's SYN has come, unless it is PREPARED. */
static void draw_half_open(struct model *m, struct graft_entry *g)
{
	g->syn = (struct graft_syn){ .tsval = draw_number(),
				     .mss = (uint16_t)draw(),
				     .window = (uint16_t)draw(),
				     .shift = (uint8_t)below(15),
				     .flags = one_in(2) ? SYN : SYN | 0xc0,
				     .ttl = (uint8_t)draw(),
				     .has = (uint8_t)below(8) };
	g->side[0].base_read = (uint32_t)g->side[0].end - 1;
	g->side[0].fin = g->side[1].fin = 0;
	g->over = GRAFT_KEPT;
	g->side[0].from = LO;
	m->half += g->head.state == GRAFT_SYN_SENT || g->head.state == GRAFT_ANSWERED;
}

static void draw_slot(struct model *m, uint32_t slot)
{
	struct graft_entry *g = &m->slots[slot];
	bool ipv6 = one_in(2), other = one_in(3) ? !ipv6 : ipv6;

	g->head.state = draw_state();
	g->hold = one_in(2);
	g->held_ms = (uint32_t)(m->now_ms - (one_in(3) ? 10 * GRAFT_HOLD_MS : 0));
	g->shifted = one_in(2);
	g->head.mirrored = one_in(4);
	g->loose = one_in(2) ? below(GRAFT_FOUND + 1) : GRAFT_STRICT;
	g->over = one_in(16) ? GRAFT_ANEW : one_in(2) ? GRAFT_GIVEN_BACK : GRAFT_KEPT;
	g->ended_ns = one_in(2);
	g->killed = (g->head.state == GRAFT_DONE || g->head.state == GRAFT_CLOSED) && one_in(2);
	g->stuck_ns = g->why_back = one_in(4); /* long ago */
	g->syn_flags = one_in(2) ? GRAFT_SYN_BARE : 0;
	g->offered_ns = one_in(2) ? 1 : MODEL_JUST;
	g->head.id = slot + 1;
	for (uint32_t side = 0; side < 2; side++) {
		draw_side(&g->side[side], side ? other : ipv6, g->shifted);
		m->tuples[slot * 2 + side] = (struct model_tuple){ g->side[side].tuple, slot,
								   side };
	}
	draw_stream(&g->side[0], &g->side[1]);
	draw_stream(&g->side[1], &g->side[0]);
	if (g->head.state >= GRAFT_PREPARED && g->head.state < GRAFT_STATES)
		draw_half_open(m, g);
}

/* The last two tuples are old: their slots have other owners. */
static void draw_world(struct model *m)
{
	memset(m, 0, sizeof(*m));
	m->now_ms = clock_ms();
	m->ifindex = LO;
	m->port = t.port;
	m->connected = t.connected;
	m->accepted = t.accepted;
	m->half = below(3);
	m->taken = MODEL_STOCK_SIZE;
	for (uint32_t slot = 0; slot < MODEL_SLOTS; slot++)
		draw_slot(m, slot);
	for (uint32_t i = MODEL_SLOTS * 2; i < MODEL_TUPLES; i++) {
		uint32_t slot = below(MODEL_SLOTS), side = below(2);
		struct graft_side old = { 0 };

		draw_side(&old, m->slots[slot].side[side].ipv6, false);
		m->tuples[i] = (struct model_tuple){ old.tuple, slot, side };
	}
	for (uint32_t i = 0; i < MODEL_HERE; i++)
		m->here[i] = m->tuples[below(MODEL_TUPLES)].tuple.local;
	m->unsynced = one_in(2);
}

/* In its bucket, among places of UDP that are none. */
static void put_tuple(const struct model_tuple *u)
{
	uint32_t hash = graft_hash(&u->tuple, t.buckets[BUCKETS].place[0]), i;
	uint32_t *places = t.buckets[hash % BUCKETS].place;

	do
		i = below(GRAFT_PLACES);
	while (places[i] && !(places[i] & 2));
	places[i] = graft_place(false, u->slot, u->side);
}

static void put_syn_world(const struct model *m)
{
	const struct graft_shape shape = { .heeds_hooks = m->auto_set_up, .stock = 1 };
	int proofs = bpf_map__fd(t.skel->maps.proofs), shapes = bpf_map__fd(t.skel->maps.shapes);
	uint64_t now = clock_ns(), forgotten = one_in(2) ? 1000 : 0;
	struct graft_proof_key key;

	while (!bpf_map_get_next_key(proofs, NULL, &key))
		assert_int_equal(bpf_map_delete_elem(proofs, &key), 0);
	for (const struct model_proof *p = m->proofs; p < m->proofs + MODEL_PROOFS; p++) {
		struct graft_proof proof = { .way = p->way,
					     .ns = now - 50 * NS_PER_MS,
					     .hooked = p->hooked };

		if (!p->counts && one_in(2))
			proof.way.ways++;
		else if (!p->counts) /* too old, or from before the last reload */
			proof.ns = now - (forgotten ? 2000 : 11000) * NS_PER_MS;
		assert_int_equal(bpf_map_update_elem(proofs, &p->key, &proof, 0), 0);
	}
	t.skel->bss->graft_proven_from = forgotten ? now - forgotten * NS_PER_MS : 0;
	t.stock_begins = draw_number();
	t.stock->first = t.stock_begins + m->taken;
	t.stock->last = t.stock_begins + MODEL_STOCK_SIZE;
	t.stock->missed = m->missed;
	for (uint32_t i = 0; i < MODEL_STOCK_SIZE; i++)
		t.stock->slot[(t.stock_begins + i) % GRAFT_STOCK] = m->stock[i];
	t.skel->bss->graft_half = m->half;
	t.skel->bss->graft_half_most = m->half_most;
	assert_int_equal(bpf_map_update_elem(shapes, &t.sockets[0], &shape, 0), 0);
	t.skel->bss->graft_hooks = m->hooks;
	t.skel->bss->graft_policies = m->policies;
	t.skel->bss->graft_awake[0] = m->awake;
	memcpy(t.skel->bss->graft_past, m->past, sizeof(m->past));
}

static void put_world(const struct model *m)
{
	struct graft_addr key;
	int addresses = bpf_map__fd(t.skel->maps.addresses);
	uint32_t one = 1;

	while (!bpf_map_get_next_key(addresses, NULL, &key))
		assert_int_equal(bpf_map_delete_elem(addresses, &key), 0);
	for (uint32_t i = 0; i < MODEL_HERE; i++)
		assert_int_equal(bpf_map_update_elem(addresses, &m->here[i], &one, 0), 0);
	memset(t.skel->bss->graft_unsynced, m->unsynced, GRAFT_PORTS); /* GRAFT_PORT_LISTENS */
	for (struct graft_bucket *b = t.buckets; b < t.buckets + BUCKETS; b++)
		for (int i = 0; i < GRAFT_PLACES; i++)
			b->place[i] = one_in(2) ? graft_place(true, below(2), below(2)) : 0;
	t.buckets[BUCKETS].place[0] = (uint32_t)draw();
	for (const struct model_tuple *u = m->tuples; u < m->tuples + MODEL_TUPLES; u++)
		if (u->slot != NO_SLOT)
			put_tuple(u);
	memcpy(t.slots, m->slots, sizeof(m->slots));
	put_syn_world(m);
	t.events = m->events;
	t.skel->bss->graft_outside = m->outside;
}

/* --- a packet --- */

/* One option that fits into ROOM bytes, or nearly. */
static size_t draw_option(uint8_t *p, size_t room)
{
	static const uint8_t stamps[] = { 8, 10 }, aligned[] = { 1, 1, 8, 10 };
	size_t len;

	switch (below(11)) {
	case 0:
	case 1:
		if (room < 12)
			break;
		memcpy(p, aligned, 4);
		put32(p + 4, draw_number());
		put32(p + 8, draw_number());
		return 12;
	case 2:
		if (room < 10)
			break;
		memcpy(p, stamps, 2);
		put32(p + 2, draw_number());
		put32(p + 6, draw_number());
		return 10;
	case 3:
	case 4:
		len = 2 + (one_in(4) ? below(39) : 8 * (1 + below(4)));
		if (len > room)
			break;
		p[0] = 5;
		p[1] = (uint8_t)len;
		draw_bytes(p + 2, len - 2);
		return len;
	case 5: /* of a kind or a length that is none */
		draw_bytes(p, room < 2 ? room : 2);
		if (room > 1 && one_in(2))
			p[1] = (uint8_t)below((uint32_t)room + 2);
		return room < 2 ? room : p[1] && p[1] <= room ? p[1] : 2;
	case 6:
		p[0] = one_in(8) ? 0 : 1;
		return 1;
	case 7: /* the others of a SYN */
		if (room < 4)
			break;
		put16(p, 2 << 8 | 4);
		put16(p + 2, (uint32_t)draw());
		return 4;
	case 8:
		if (room < 3)
			break;
		put16(p, 3 << 8 | 3);
		p[2] = (uint8_t)below(17);
		return 3;
	case 9:
		if (room < 2)
			break;
		put16(p, 4 << 8 | 2);
		return 2;
	}
	p[0] = 1;
	return 1;
}

/* Returns the length of the header. */
static uint32_t draw_options(uint8_t *tcp)
{
	uint32_t len = one_in(3) ? 12 : 4 * below(11);

	draw_bytes(tcp + 20, len);
	if (len == 12 && one_in(2)) {
		while (draw_option(tcp + 20, 12) != 12 || tcp[20] != 1)
			;
		return 32;
	}
	if (!one_in(16))
		for (uint32_t at = 0; at < len;)
			at += (uint32_t)draw_option(tcp + 20 + at, len - at);
	return 20 + len;
}

static uint8_t draw_flags(void)
{
	static const uint8_t flags[] = { ACK,       ACK, ACK, ACK | 8,  ACK | FIN,
					 ACK | RST, RST, SYN, ACK | SYN };

	return one_in(8) ? (uint8_t)draw() : flags[below(9)];
}

/* Numbers that matter to somebody, one more, one less. */
static uint32_t near(const uint32_t *numbers, uint32_t n)
{
	return numbers[below(n)] + (one_in(3) ? 0 : below(3) - 1);
}

static uint32_t draw_seq(const struct graft_side *mine, const struct graft_side *other, bool out)
{
	uint32_t acked = (uint32_t)other->acked + other->ack_add;
	uint32_t window = other->window > 65536 ? other->window : 65536;
	uint32_t in[] = { acked,           (uint32_t)mine->end, acked + window,
			  acked - window,  acked + below(3000), acked - below(3000),
			  (uint32_t)draw() };
	uint32_t frozen[] = { mine->frozen_write, mine->frozen_write - 1,
			      mine->frozen_write - below(2000), mine->base_write - 1,
			      (uint32_t)draw() };

	if (out)
		return near(frozen, 5);
	return one_in(3) ? (uint32_t)mine->end : near(in, 7);
}

static uint32_t draw_ack(const struct graft_side *mine, const struct graft_side *other)
{
	uint32_t sent = (uint32_t)other->end + other->seq_add;
	uint32_t window = mine->window > 65536 ? mine->window : 65536;
	uint32_t numbers[] = { sent,
			       (uint32_t)mine->acked,
			       sent - 2 * window,
			       sent - below(3000),
			       sent - 65536,
			       mine->edge,
			       mine->edge - 65535,
			       (uint32_t)draw() };

	return one_in(3) ? sent : near(numbers, 8);
}

/* F becomes a packet of a handshake, without payload, and with options that a SYN may have. */
static void make_syn(struct model_frame *f, bool ipv6, uint32_t seq, uint32_t ack, uint8_t flags)
{
	static const uint8_t lens[] = { 4, 2, 10, 3 }, kinds[] = { 2, 4, 8, 3 };
	uint8_t *ip = f->bytes + MODEL_ETHERNET, *tcp = ip + (ipv6 ? 40 : 20);
	uint32_t header = 20, first = below(4);

	for (uint32_t n = 0; n < 4; n++) {
		uint32_t i = (first + n) % 4;

		if (one_in(4))
			continue;
		draw_bytes(tcp + header, lens[i]);
		tcp[header] = kinds[i];
		tcp[header + 1] = lens[i];
		header += lens[i];
	}
	while (header % 4)
		tcp[header++] = 1;
	if (one_in(8))
		header = draw_options(tcp);
	put32(tcp + 4, seq);
	put32(tcp + 8, ack);
	tcp[12] = (uint8_t)(header << 2 | one_in(32));
	tcp[13] = flags;
	put16(ip + (ipv6 ? 4 : 2), header + (ipv6 ? 0 : 20));
	f->len = (size_t)(tcp - f->bytes) + header;
	model_sum(f);
}

/* F, a packet of SIDE of G, which is half open, becomes one of the handshake. */
static void make_handshake(const struct graft_entry *g, uint32_t side, struct model_frame *f)
{
	static const uint8_t flags[][8] = { { SYN, SYN, SYN, SYN | 0xc0, RST, RST | ACK, ACK,
					      ACK | 8 },
					    { ACK | SYN, ACK | SYN, ACK | SYN | 0x40, ACK | RST,
					      ACK | RST, RST, ACK, ACK | FIN } };
	uint32_t sent = (uint32_t)g->side[0].end + g->side[0].seq_add;
	uint8_t is = flags[side][below(8)];

	make_syn(f, g->side[side].ipv6,
		 side ? (uint32_t)draw() : g->side[0].base_read + !(is & SYN) + one_in(8),
		 (side ? sent : (uint32_t)g->side[0].acked) + (one_in(4) ? below(3) - 1 : 0), is);
}

/* As it would come from the remote end of U, or, OUT, leave for it. */
static void draw_frame(const struct model *m, const struct model_tuple *u, bool out,
		       struct model_frame *f)
{
	static const uint8_t ttls[] = { 0, 1, 2, 64, 64, 64, 255 };
	const struct graft_entry *g = &m->slots[u->slot];
	const struct graft_side *mine = &g->side[u->side];
	const struct graft_side *other = &g->side[!u->side];
	const struct graft_tuple *to = &u->tuple;
	uint32_t payload = one_in(3) ? 0 : below(one_in(2) ? 8 : 1400), header;
	size_t l3 = mine->ipv6 ? 40 : 20, len = mine->ipv6 ? 16 : 4;
	uint8_t *ip = f->bytes + MODEL_ETHERNET, *tcp = ip + l3, *at = ip + (mine->ipv6 ? 8 : 12);

	memset(f, 0, offsetof(struct model_frame, bytes[MODEL_ETHERNET + 40 + 60]));
	draw_bytes(tcp + 20, 40 + payload);
	header = draw_options(tcp);
	memcpy(f->bytes, m->mac, sizeof(m->mac));
	put16(f->bytes + 12, mine->ipv6 ? 0x86dd : 0x0800);
	if (mine->ipv6) {
		put16(ip, 0x6000 | (uint32_t)draw() >> 20);
		put16(ip + 2, (uint32_t)draw());
		put16(ip + 4, header + payload);
		ip[6] = 6;
		ip[7] = ttls[below(7)];
	} else {
		put16(ip, 0x4500 | below(256));
		put16(ip + 2, 20 + header + payload);
		put16(ip + 4, (uint32_t)draw());
		ip[6] = 0x40;
		ip[8] = ttls[below(7)];
		ip[9] = 6;
	}
	memcpy(at, (const uint8_t *)(out ? &to->local : &to->remote) + 16 - len, len);
	memcpy(at + len, (const uint8_t *)(out ? &to->remote : &to->local) + 16 - len, len);
	memcpy(tcp, out ? &to->local_port : &to->remote_port, 2);
	memcpy(tcp + 2, out ? &to->remote_port : &to->local_port, 2);
	put32(tcp + 4, draw_seq(mine, other, out));
	put32(tcp + 8, draw_ack(mine, other));
	tcp[12] = (uint8_t)(header << 2 | below(16));
	tcp[13] = draw_flags();
	put16(tcp + 14, (uint32_t)draw() >> below(16));
	if (out && one_in(4)) /* the window ends about where it is held */
		put32(tcp + 8, mine->edge - ((((uint32_t)tcp[14] << 8 | tcp[15]) + below(4))
					     << mine->read_shift));
	put16(tcp + 18, one_in(4) ? (uint32_t)draw() : 0);
	f->len = MODEL_ETHERNET + l3 + header + payload;
	if (!one_in(8))
		model_sum(f);
	if (!out && (g->head.state == GRAFT_SYN_SENT || g->head.state == GRAFT_ANSWERED) &&
	    !one_in(4))
		make_handshake(g, u->side, f);
}

/* F, which leaves, becomes the complaint of a router, often that it is too big. */
static void complain(const struct graft_side *mine, const struct graft_side *other,
		     struct model_frame *f)
{
	uint32_t numbers[] = { (uint32_t)mine->acked, (uint32_t)mine->acked + below(3000),
			       (uint32_t)other->end + other->seq_add,
			       (uint32_t)other->end + other->seq_add - 1,
			       (uint32_t)mine->end + mine->seq_add - 1 };
	static const uint8_t types[][4] = { { 3, 3, 11, 12 }, { 2, 1, 3, 4 } };
	static uint8_t was[MODEL_BYTES];
	size_t l3 = mine->ipv6 ? 40 : 20, quoted = f->len - MODEL_ETHERNET;
	uint8_t *ip = f->bytes + MODEL_ETHERNET;

	if (quoted > 576)
		quoted = 576;
	memcpy(was, ip, quoted);
	if (!one_in(8)) /* of what was not acknowledged, or nearly */
		put32(was + l3 + 4, near(numbers, 5));
	memcpy(ip + l3 + 8, was, quoted);
	memset(ip + l3, 0, 8);
	ip[l3] = types[mine->ipv6][below(4)];
	ip[l3 + 1] = one_in(3) ? (uint8_t)below(16) : 4;
	put16(ip + l3 + 6, 1280 + below(200));
	if (mine->ipv6) {
		ip[6] = 58;
		put16(ip + 4, (uint32_t)(8 + quoted));
	} else {
		ip[9] = 1;
		put16(ip + 2, (uint32_t)(28 + quoted));
	}
	draw_bytes(ip + (mine->ipv6 ? 8 : 12), mine->ipv6 ? 16 : 4); /* the router's address */
	f->len = MODEL_ETHERNET + l3 + 8 + quoted - (one_in(8) ? below(80) : 0);
	if (one_in(4))
		ip[below((uint32_t)l3 * 2 + 8)] = (uint8_t)draw();
}

static const struct model_tuple *draw_tuple(const struct model *m)
{
	return &m->tuples[one_in(8) ? below(MODEL_TUPLES) : below(MODEL_SLOTS * 2)];
}

/* --- the comparison --- */

/*
 * A time that is set is 1, as in the model.  No end asks in vain here: each asks once.  BEGAN: the
 * program, in ns.
 */
static void round_times(struct graft_entry *g, uint64_t began)
{
	g->offered_ns = g->offered_ns >= began ? MODEL_JUST : g->offered_ns;
	g->ended_ns = !!g->ended_ns;
	g->stuck_ns = !!g->stuck_ns;
	for (int side = 0; side < 2; side++) {
		g->side[side].heard_ns = !!g->side[side].heard_ns;
		g->side[side].data_ns = !!g->side[side].data_ns;
		g->side[side].probed_ns = !!g->side[side].probed_ns;
		g->side[side].asked_ns = g->side[side].asked_at = 0;
		g->side[side].apart_ms = !!g->side[side].apart_ms;
	}
}

static bool same_slots(struct model *m, uint64_t began)
{
	bool same = true;

	for (uint32_t slot = 0; slot < MODEL_SLOTS; slot++) {
		round_times(&t.slots[slot], began);
		same &= same_bytes(slot, &t.slots[slot], &m->slots[slot], sizeof(m->slots[slot]));
	}
	return same;
}

static int count_event(void *arg, void *data, size_t size)
{
	const struct graft_event *ev = data;

	(void)arg;
	(void)size;
	assert_in_range(ev->slot, 0, MODEL_SLOTS - 1);
	assert_int_equal(ev->id, ev->slot + 1);
	t.events++;
	return 0;
}

static bool same_counts(const struct model *m)
{
	if (t.events != m->events || t.skel->bss->graft_outside != m->outside)
		print_error("other events, or another count of packets outside\n");
	else if (t.skel->bss->graft_half != m->half)
		print_error("half open: %jd, not %jd\n", (intmax_t)t.skel->bss->graft_half,
			    (intmax_t)m->half);
	else if (memcmp(t.skel->bss->graft_past, m->past, sizeof(m->past)))
		print_error("another cause why a SYN has passed by\n");
	else if (t.stock->first != t.stock_begins + m->taken || t.stock->missed != m->missed)
		print_error("other slots taken from the stock\n");
	else
		return true;
	return false;
}

static struct model world;
static struct model_frame frame;
static struct tally {
	unsigned int all, sent, dropped, passed, refused;
	unsigned int answered; /* packets of frozen sockets */
} tallies[2];                  /* in, out */
static bool remade;            /* the frame is a SYN that was made again */

/* Is there an empty place for the frame's tuple? */
static bool has_room(void)
{
	struct model_parts p;
	bool room = false;

	if (frame.len <= MODEL_ETHERNET || !model_take_apart(&frame, IPPROTO_TCP, &p))
		return false;
	for (int i = 0; i < GRAFT_PLACES; i++)
		room |= !t.buckets[graft_hash(&p.from, t.buckets[BUCKETS].place[0]) % BUCKETS]
				 .place[i];
	return room;
}

/*
 * Run a program on IS, a copy of the frame, within so short a time that nothing grows old meanwhile:
 * holds and SYNs are as old as when they were drawn.
 * *RET_BEGAN: when it began, in ns.  Tells the model the clock that a SYN has got.
 */
static int run(bool out, struct model_frame *is, uint64_t *ret_began)
{
	int prog = bpf_program__fd(out ? t.skel->progs.graft_out : t.skel->progs.graft_in);
	uint64_t ended;
	uint32_t ms;
	int r;

	for (;;) {
		is->ifindex = out ? LO : world.ifindex;
		world.room = has_room();
		*ret_began = clock_ns();
		ms = (uint32_t)(*ret_began / NS_PER_MS);
		for (uint32_t slot = 0; slot < MODEL_SLOTS; slot++) {
			if (world.slots[slot].held_ms)
				world.slots[slot].held_ms += ms - (uint32_t)world.now_ms;
			t.slots[slot].held_ms = world.slots[slot].held_ms;
			if (world.slots[slot].offered_ns == MODEL_JUST)
				t.slots[slot].offered_ns = *ret_began;
		}
		world.now_ms = ms;
		r = run_frame(prog, is, 0);
		ended = clock_ns();
		ring_buffer__consume(t.ring);
		if (ended - *ret_began < GRAFT_HOLD_MS / 2 * NS_PER_MS)
			break;
		put_world(&world);
		*is = frame;
	}
	world.syn_ms = ms;
	for (uint32_t slot = 0; slot < MODEL_SLOTS; slot++)
		if (t.slots[slot].side[1].tsval_sent - ms <= (uint32_t)(ended / NS_PER_MS) - ms)
			world.syn_ms = t.slots[slot].side[1].tsval_sent;
	return r;
}

/* Run the program on the frame, and compare it with the model; both change the world. */
static enum model_verdict compare(bool out)
{
	struct tally *tally = &tallies[out];
	struct model was;
	struct model_frame is = frame, want = frame;
	enum model_verdict v;
	uint64_t began;
	bool right;
	int r;

	do /* the program finds the same, if that does not change right now */
		world.units = (uint32_t)(clock_ns() >> GRAFT_CLOCK_SHIFT);
	while (world.units != (uint32_t)((clock_ns() + 5 * NS_PER_MS) >> GRAFT_CLOCK_SHIFT));
	r = run(out, &is, &began);
	was = world;
	v = out ? model_out(&world, &want) : model_in(&world, &want);
	tally->all++;
	if (r == -EINVAL && frame.len < MODEL_ETHERNET + 40) {
		tally->refused++;
		world = was;
		return MODEL_DROP;
	}
	if (out && is.kind == MODEL_TO_NOBODY) /* the socket must not know */
		r = MODEL_DROP;
	right = r == (int)v && (v == MODEL_DROP || same_frame(&is, &want));
	right = same_slots(&world, began) && right;
	right = same_counts(&world) && right;
	if (!right) {
		print_error("seed %#jx, packet %u, %s: verdict %d, not %d\n", (uintmax_t)t.seed,
			    tally->all, out ? "out" : "in", r, (int)v);
		for (uint32_t slot = 0; slot < MODEL_SLOTS; slot++)
			print_error("state of slot %u: %#x\n", slot, was.slots[slot].head.state);
		print_frame("packet", &frame);
		print_frame("the program's", &is);
		print_frame("the model's", &want);
		fail();
	}
	remade = want.kind == MODEL_REMADE && v == MODEL_SENT;
	if (remade)
		frame = is;
	tally->sent += v == MODEL_SENT;
	tally->dropped += v == MODEL_DROP;
	tally->passed += v == MODEL_PASS;
	tally->answered += want.kind == MODEL_TO_SOCKET && frame.kind != MODEL_TO_SOCKET;
	return v;
}

static void print_tally(const char *what, bool out)
{
	const struct tally *y = &tallies[out];

	print_message("%s: %u packets: %u sent on, %u passed, %u dropped, %u not runnable\n", what,
		      y->all, y->sent, y->passed, y->dropped, y->refused);
}

/* --- tests --- */

static int anew(void **state)
{
	(void)state;
	chance = t.seed;
	memset(tallies, 0, sizeof(tallies));
	memset(&frame, 0, sizeof(frame));
	return 0;
}

#define SEEDED(name) TEST_WITH(name, anew, NULL)

/* All states, all kinds of packets, both directions. */
SEEDED(packets_become_what_the_model_says)
{
	unsigned int told = 0;

	for (unsigned int i = 0; i < t.worlds; i++) {
		draw_world(&world);
		put_world(&world);
		for (int j = 0; j < PER_WORLD; j++) {
			const struct model_tuple *u = draw_tuple(&world);
			bool out = one_in(4), icmp = !out && one_in(8);

			draw_frame(&world, u, out || icmp, &frame);
			if (icmp)
				complain(&world.slots[u->slot].side[u->side],
					 &world.slots[u->slot].side[!u->side], &frame);
			frame.kind = one_in(16) ? below(3) : MODEL_OTHER;
			frame.mark = one_in(16) ? 7 : 0;
			if (!icmp && one_in(12))
				add_header(&frame);
			if (one_in(4) && !icmp)
				spoil(&frame, IPPROTO_TCP);
			if (!icmp && !one_in(4)) /* else with a bit error, mostly */
				model_sum(&frame);
			told += compare(out) == MODEL_SENT && icmp;
		}
	}
	print_tally("in", false);
	print_tally("out", true);
	print_message("%u complaints of routers sent on\n", told);
	assert_true(told > tallies[0].all / 1000);
	assert_true(tallies[0].sent > tallies[0].all / 20);
	assert_true(tallies[1].answered > tallies[1].all / 20);
}

/* --- sessions from the SYN on --- */

/* KEY becomes that of the end of T.  It counts, mostly. */
static void draw_proof(struct model_proof *p, const struct graft_tuple *tuple, uint32_t forward)
{
	p->key = (struct graft_proof_key){ .tuple = *tuple, .forward = forward };
	*(forward ? &p->key.tuple.local_port : &p->key.tuple.remote_port) = 0;
	if (one_in(24)) /* the proof of another end */
		((uint8_t *)&p->key)[below(sizeof(p->key))]++;
	p->way = (struct graft_way){ .ifindex = LO,
				     .mark = below(3),
				     .mtu = one_in(4) ? 60 + below(1500) : 65535,
				     .ttl = (uint8_t)draw(),
				     .via = (uint8_t)below(4) };
	p->counts = !one_in(24);
	p->hooked = one_in(24);
}

/* Slot 1 may have one of the tuples of CLIENT and SERVER: that of SIDE. */
static void draw_rival(const struct graft_side *client, const struct graft_side *server,
		       uint32_t side)
{
	struct graft_entry *rival = &world.slots[1];

	if (one_in(6) && server->tuple.remote_port != t.port &&
	    memcmp(&client->tuple, &t.accepted, sizeof(t.accepted))) {
		rival->side[side].tuple = side ? server->tuple : client->tuple;
		rival->side[side].ipv6 = (side ? server : client)->ipv6;
		if (side) /* the index leads to one session that is found */
			rival->over = one_in(2) ? GRAFT_ANEW : GRAFT_KEPT;
		else if (one_in(2)) /* as if it had begun behind the packet's look */
			rival->side[0].ipv6 ^= 1;
		world.tuples[2 + side].tuple = rival->side[side].tuple;
	}
}

/* Slot 0 is PREPARED, and a SYN is to take it.  Slot 1 may have one of its tuples. */
static void draw_begin(void)
{
	struct graft_entry *g = &world.slots[0];
	const struct model_tuple none = { .slot = NO_SLOT };
	struct graft_side client = { 0 }, server = { 0 };
	uint32_t side = below(2);

	draw_world(&world);
	draw_side(&client, one_in(2), false);
	draw_side(&server, one_in(2), false);
	client.tuple.local_port = one_in(24) ? (uint16_t)draw() : t.port;
	if (one_in(24)) {
		client.tuple = t.accepted;
		client.ipv6 = 0;
	} else if (one_in(24)) {
		server.tuple = t.connected;
		server.ipv6 = 0;
	}
	world.half -= g->head.state == GRAFT_SYN_SENT || g->head.state == GRAFT_ANSWERED;
	world.half_most = world.half + !one_in(24);
	memset(g, 0, sizeof(*g));
	g->head.state = one_in(24) ? GRAFT_GAVE_UP : GRAFT_PREPARED;
	g->head.worker = GRAFT_NOBODY;
	g->head.id = 1;
	g->head.forward = 1 + below(3);
	g->syn_flags = (uint8_t)below(4);
	g->syn.near_us = one_in(8);
	g->side[0].end = draw_number();
	g->side[1].tsval_sent = one_in(2) ? (uint32_t)clock_ms() + below(3) - 1 : draw_number();
	g->side[1].tuple = server.tuple;
	g->side[1].ipv6 = server.ipv6;
	for (uint32_t i = MODEL_SLOTS * 2; i < MODEL_TUPLES; i++)
		world.tuples[i].slot = 2; /* the daemon has removed slot 0's */
	world.tuples[0] = none;
	world.tuples[1] = one_in(24) ? none : (struct model_tuple){ server.tuple, 0, 1 };
	draw_rival(&client, &server, side);
	world.ifindex = one_in(24) ? LO : t.ifindex;
	if (world.ifindex != LO)
		memcpy(world.mac, (const uint8_t[]){ MAC }, sizeof(world.mac));
	world.policies = one_in(24);
	world.auto_set_up = one_in(2);
	world.hooks = one_in(24);
	world.awake = one_in(2);
	draw_proof(&world.proofs[0], &client.tuple, 0);
	draw_proof(&world.proofs[1], &server.tuple, g->head.forward);
	world.taken = one_in(24) ? MODEL_STOCK_SIZE : below(MODEL_STOCK_SIZE);
	for (int i = 0; i < MODEL_STOCK_SIZE; i++)
		world.stock[i] = one_in(24) ? NO_SLOT : 0;
	put_world(&world);

	/* the SYN */
	g->side[0].ipv6 = client.ipv6;
	draw_frame(&world, &(struct model_tuple){ client.tuple, 0, 0 }, false, &frame);
	g->side[0].ipv6 = 0;
	if (!one_in(16))
		make_syn(&frame, client.ipv6, draw_number(), draw_number(),
			 one_in(16) ? draw_flags() | SYN :
			 one_in(3)  ? SYN | 0xc0 :
				      SYN);
}

/* From a SYN on: what begins, with which numbers; and what does not, and why. */
SEEDED(syns_begin_what_the_model_says)
{
	unsigned int begun = 0, opened = 0, remade_ones = 0, past[GRAFT_PASTS] = { 0 };

	for (unsigned int i = 0; i < t.worlds * 4; i++) {
		draw_begin();
		frame.kind = one_in(24) ? MODEL_REMADE : MODEL_OTHER;
		frame.mark = 0;
		if (one_in(16))
			spoil(&frame, IPPROTO_TCP);
		if (one_in(16))
			frame.bytes[MODEL_ETHERNET + 60 + below(20)] ^= 1;
		begun += compare(false) == MODEL_SENT;
		/* the model does not know losses, or far sessions */
		for (int j = 0; j < 10 && world.slots[0].far == GRAFT_ANYWHERE; j++) {
			const struct model_tuple *u = &world.tuples[one_in(2)];
			bool out = !remade && one_in(8), icmp = !remade && !out && one_in(4);

			if (one_in(8))
				world.slots[0].offered_ns = t.slots[0].offered_ns = 1;
			remade_ones += remade;
			frame.kind = remade ? MODEL_REMADE : MODEL_OTHER;
			if (u->slot == NO_SLOT)
				u = &world.tuples[4];
			if (!remade)
				draw_frame(&world, u, out || icmp, &frame);
			if (icmp)
				complain(&world.slots[u->slot].side[u->side],
					 &world.slots[u->slot].side[!u->side], &frame);
			compare(out);
		}
		opened += world.slots[0].head.state == GRAFT_ACTIVE;
		for (int why = 0; why < GRAFT_PASTS; why++)
			past[why] += world.past[why] != 0;
	}
	print_tally("from the SYN on", false);
	print_message("%u begun, %u opened, %u made again\n", begun, opened, remade_ones);
	assert_true(begun > t.worlds && opened > t.worlds / 20 && remade_ones > t.worlds / 20);
	for (int why = 0; why < GRAFT_PASTS; why++)
		assert_true(past[why] > t.worlds / 50);
}

/* A world with one session at work, nothing on its way, and a plain packet of it. */
static struct graft_entry *draw_quiet(struct model_frame *f)
{
	struct graft_entry *g = &world.slots[0];

	draw_world(&world);
	g->head.state = GRAFT_ACTIVE;
	g->over = g->killed = 0;
	g->loose = GRAFT_STRICT;
	g->head.mirrored = 0;
	world.unsynced = false;
	for (int side = 0; side < 2; side++) {
		struct graft_side *s = &g->side[side], *other = &g->side[!side];

		other->acked = (1ULL << 32) | (uint32_t)((uint32_t)s->end + s->seq_add);
		s->fin = s->fin_end = 0;
		s->window = 65536;
		s->way.mtu = 65535;
		s->way.ways = 0;
	}
	draw_frame(&world, &world.tuples[0], false, f);
	return g;
}

/* Set the numbers of F, a packet of S; or of the frame, of side 0. */
static void number_of(const struct graft_side *s, struct model_frame *f, uint32_t seq, uint32_t ack,
		      uint8_t flags)
{
	uint8_t *tcp = f->bytes + MODEL_ETHERNET + (s->ipv6 ? 40 : 20);

	put32(tcp + 4, seq);
	put32(tcp + 8, ack);
	tcp[13] = flags;
	model_sum(f);
}

static void number(const struct graft_entry *g, uint32_t seq, uint32_t ack, uint8_t flags)
{
	number_of(&g->side[0], &frame, seq, ack, flags);
}

/* The client's first ACK tells how long both round trips have taken. */
SEEDED(a_far_session_is_known_by_its_handshakes)
{
	static const struct {
		uint32_t near_us;
		bool slow;
		enum graft_far was, is;
	} rows[] = {
		{ 0, true, GRAFT_ANYWHERE, GRAFT_ANYWHERE },
		{ NS_PER_S / 1000, true, GRAFT_NEAR, GRAFT_LONG },
		{ UINT32_MAX, false, GRAFT_NEAR, GRAFT_NEAR },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct graft_entry *g = draw_quiet(&frame), *is = &t.slots[0];

		g->head.state = GRAFT_ANSWERED;
		g->syn = (struct graft_syn){ .near_us = rows[i].near_us };
		g->far = (uint16_t)rows[i].was;
		g->offered_ns = rows[i].slow ? 1 : clock_ns();
		put_world(&world);
		number(g, (uint32_t)g->side[0].end, (uint32_t)g->side[0].acked, ACK);
		assert_int_equal(run_frame(bpf_program__fd(t.skel->progs.graft_in), &frame, 0),
				 MODEL_SENT);
		assert_int_equal(is->head.state, GRAFT_ACTIVE);
		assert_int_equal(is->far, rows[i].is);
	}
}

/*
 * A far session without sockets: the daemon makes some for one that is BARE, in a moment.  After an
 * odd packet such a session must return, or end.  The daemon may withdraw the return of one whose ends
 * are at their edges: they send probes alone, and wait no longer than until the next one.
 */
SEEDED(a_far_session_without_sockets_waits_for_them)
{
	static const struct {
		uint8_t flags, fin, why_back;
		enum graft_far was, is;
		enum graft_state state;
		bool withdrawn;
	} rows[] = {
		{ GRAFT_SYN_BARE, 0, 0, GRAFT_LONG, GRAFT_LONG, GRAFT_ACTIVE, false },
		{ GRAFT_SYN_BARE, 0, 0, GRAFT_LONG, GRAFT_LONG, GRAFT_ACTIVE, true },
		{ GRAFT_SYN_BARE, 0, 0, GRAFT_LOSSY, GRAFT_LOSSY, GRAFT_ACTIVE, false },
		{ GRAFT_SYN_BARE, 1, 0, GRAFT_LONG, GRAFT_ANYWHERE, GRAFT_ACTIVE, false },
		{ GRAFT_SYN_BARE, 0, 0, GRAFT_NEAR, GRAFT_NEAR, GRAFT_RETURNING, false },
		{ GRAFT_SYN_BARE, 0, GRAFT_HEADERS, GRAFT_LONG, GRAFT_ANYWHERE, GRAFT_ACTIVE,
		  false },
		{ GRAFT_SYN_KNOWN_SEQ, 0, 0, GRAFT_LONG, GRAFT_ANYWHERE, GRAFT_ACTIVE, false },
	};
	const size_t n = sizeof(rows) / sizeof(rows[0]);

	for (size_t i = 0; i < 10 * n; i++) {
		struct graft_entry *g = draw_quiet(&frame), *is = &t.slots[0];

		g->head.state = rows[i % n].withdrawn ? GRAFT_ACTIVE : GRAFT_RETURNING;
		for (int side = 0; side < 2 && rows[i % n].withdrawn; side++)
			g->side[side].edge = (uint32_t)g->side[side].end;
		g->syn_flags = rows[i % n].flags;
		g->far = (uint16_t)rows[i % n].was;
		g->why_back = rows[i % n].why_back;
		g->side[1].fin = rows[i % n].fin;
		put_world(&world);
		number(g, (uint32_t)g->side[0].end, (uint32_t)g->side[0].acked, ACK);
		assert_int_equal(run_frame(bpf_program__fd(t.skel->progs.graft_in), &frame, 0),
				 MODEL_SENT);
		assert_int_equal(is->head.state, rows[i % n].state);
		assert_int_equal(is->far, rows[i % n].is);
		for (int side = 0; side < 2; side++)
			assert_int_equal(is->side[side].edge,
					 is->far >= GRAFT_LONG ?
						 (uint32_t)is->side[side].end + GRAFT_LEASH :
						 g->side[side].edge);
	}
}

/* Each bit of the tuple counts. */
SEEDED(another_tuple_is_left_alone)
{
	for (int i = 0; i < 20; i++) {
		const struct graft_entry *g = draw_quiet(&frame);
		const struct graft_side *s = &g->side[0];
		size_t from = MODEL_ETHERNET + (s->ipv6 ? 8 : 12), bits = s->ipv6 ? 288 : 96;

		number(g, (uint32_t)s->end, (uint32_t)s->acked, ACK);
		put_world(&world);
		for (size_t bit = 0; bit < bits; bit++) {
			frame.bytes[from + bit / 8] ^= (uint8_t)(1 << bit % 8);
			assert_int_equal(compare(false), MODEL_PASS);
			frame.bytes[from + bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		assert_int_equal(compare(false), MODEL_SENT);
	}
	print_tally("neighbours", false);
}

/* N packets of side 0, by somebody who knows the tuple alone. */
static void forge(const struct graft_entry *g, int n)
{
	static const uint8_t flags[] = { ACK, ACK | FIN, ACK | RST, 0 };

	for (int i = 0; i < n; i++) {
		number(g, (uint32_t)draw(), (uint32_t)draw(), flags[below(4)]);
		compare(false);
	}
}

/* Who knows the tuple alone guesses two numbers of 32 bits, each to within some 2^17. */
SEEDED(a_blind_attacker_gets_nothing_through)
{
	for (unsigned int i = 0; i < t.worlds / 20; i++) {
		const struct graft_entry *g = draw_quiet(&frame);

		put_world(&world);
		forge(g, 2000);
		assert_int_equal(t.slots[0].head.state, GRAFT_ACTIVE);
	}
	print_tally("blind", false);
	assert_true(tallies[0].sent <= tallies[0].all / 100000);
}

/*
 * All packets of a session that another relay knows are sent on, for the ends to judge; but forged
 * ones move no number, and do not keep both ends' next packets from being believed.
 */
SEEDED(a_forger_gains_nothing_from_a_loose_session)
{
	for (unsigned int i = 0; i < t.worlds / 20; i++) {
		struct graft_entry *g = draw_quiet(&frame), was, *is = &t.slots[0];
		uint32_t end = (uint32_t)draw(), acked = (uint32_t)draw(); /* not as recorded */
		struct graft_side *s = &is->side[0], *o = &is->side[1];

		g->loose = i % 2 ? GRAFT_LOOSE : GRAFT_STRICT;
		g->head.mirrored = 1;
		for (int side = 0; side < 2; side++)
			g->side[side].believed = g->side[side].apart = 0;
		was = *g;
		put_world(&world);
		forge(g, 200);
		number(g, end, acked, ACK);
		compare(false);
		assert_int_equal(is->head.state, GRAFT_ACTIVE);
		assert_int_equal(is->loose, was.loose);
		for (int side = 0; side < 2; side++) {
			assert_int_equal(is->side[side].end, was.side[side].end);
			assert_int_equal(is->side[side].acked, was.side[side].acked);
			assert_int_equal(is->side[side].begun, was.side[side].begun);
			assert_int_equal(is->side[side].heard_ns, was.side[side].heard_ns);
			assert_int_equal(is->side[side].window, was.side[side].window);
			assert_int_equal(is->side[side].fin, 0);
		}
		/* the other end answers, and this one goes on */
		draw_frame(&world, &world.tuples[1], false, &frame);
		number_of(&g->side[1], &frame, acked + s->ack_add, s->apart_end + s->seq_add, ACK);
		assert_int_equal(compare(false), MODEL_SENT);
		assert_int_equal(is->loose, GRAFT_FOUND);
		assert_int_equal((uint32_t)o->acked + o->ack_add, (uint32_t)s->end);
	}
	print_tally("forged", false);
}

/*
 * A reset needs no ACK: a few of these get to the other end, which takes the exact number only.
 * They tell nothing of their end: neither that it is there, nor a window that would let more in.
 */
SEEDED(a_sweep_of_resets_ends_no_session)
{
	const struct graft_entry *g;
	struct graft_entry was;
	const struct graft_side *is = &t.slots[0].side[0];
	uint32_t end;

	g = draw_quiet(&frame);
	end = (uint32_t)g->side[0].end;
	world.slots[0].side[0].window_left = 14;
	was = *g;
	put_world(&world);
	for (uint32_t i = 0; i < 65536; i++) {
		number(g, end + 1 + below(65535) + (i << 16), 0, RST);
		compare(false);
	}
	print_tally("resets", false);
	assert_in_range(tallies[0].sent, 1, 3);
	assert_int_equal(t.slots[0].head.state, GRAFT_ACTIVE);
	assert_int_equal(is->window, was.side[0].window);
	assert_int_equal(is->heard_ns, was.side[0].heard_ns);
	assert_int_equal(t.slots[0].side[1].tsval_sent, was.side[1].tsval_sent);
	number(g, end, 0, RST);
	assert_int_equal(compare(false), MODEL_SENT);
	assert_int_equal(t.slots[0].head.state, GRAFT_DONE);
}

/* Without a system call at first: two threads are to go on at once. */
static unsigned int wait_for(const _Atomic unsigned int *at, unsigned int round)
{
	for (unsigned int i = 0; *at < round; i++)
		if (i > 20000)
			sched_yield();
	return *at;
}

#define CLOSES 20000U

static struct {
	struct model_frame ack[2]; /* the last one of each end */
	_Atomic unsigned int begun, done;
} closes;

static void acknowledge(int side)
{
	struct model_frame f = closes.ack[side];

	run_frame(bpf_program__fd(t.skel->progs.graft_in), &f, 0);
}

static void *other_end(void *arg)
{
	for (unsigned int i = 1; i <= CLOSES; i++) {
		wait_for(&closes.begun, i);
		acknowledge(1);
		closes.done = i;
	}
	return arg;
}

/* Both ends have sent FIN, and each acknowledges the other's, on two CPUs: that is the end. */
SEEDED(two_that_close_at_once_have_ended)
{
	struct graft_entry *g;
	pthread_t thread;

	g = draw_quiet(&closes.ack[0]);
	draw_frame(&world, &world.tuples[1], false, &closes.ack[1]);
	for (int side = 0; side < 2; side++) {
		struct graft_side *s = &g->side[side];

		s->fin_end = (uint32_t)s->end;
		number_of(s, &closes.ack[side], (uint32_t)s->end, (uint32_t)s->acked, ACK);
	}
	put_world(&world);
	assert_int_equal(pthread_create(&thread, NULL, other_end, NULL), 0);
	for (unsigned int i = 1; i <= CLOSES; i++) {
		t.slots[0].side[0].fin = t.slots[0].side[1].fin = 1;
		t.slots[0].head.state = GRAFT_ACTIVE;
		closes.begun = i;
		acknowledge(0);
		wait_for(&closes.done, i);
		if (t.slots[0].head.state != GRAFT_DONE)
			fail_msg("number %u has not ended", i);
		ring_buffer__consume(t.ring);
	}
	assert_int_equal(t.events, CLOSES);
	pthread_join(thread, NULL);
}

/* A world in which the frame's SYN begins a session. */
static void draw_begun(void)
{
	struct model was;
	enum model_verdict v;

	do {
		struct model_frame f;

		draw_begin();
		f = frame;
		was = world;
		world.room = has_room();
		v = model_in(&world, &f);
	} while (v != MODEL_SENT || world.slots[0].head.state != GRAFT_SYN_SENT);
	world = was;
	for (int i = 0; i < MODEL_TUPLES; i++)
		if (i != 1)
			world.tuples[i].slot = NO_SLOT;
}

/* The TSval of F, a SYN; NULL: it has none. */
static const uint8_t *tsval_of(const struct model_frame *f, bool ipv6)
{
	const uint8_t *tcp = f->bytes + MODEL_ETHERNET + (ipv6 ? 40 : 20), *at = tcp + 20;

	while (at < tcp + (tcp[12] >> 4) * 4 && *at && *at != 8)
		at += *at == 1 ? 1 : at[1];
	return at < tcp + (tcp[12] >> 4) * 4 && *at == 8 ? at + 2 : NULL;
}

/* The frame becomes a SYN that SERVER's slot 0 may take; F: as it leaves.  False: it is odd. */
static bool send_syn(const struct graft_tuple *server, struct model_frame *f)
{
	struct graft_side *mine = &world.slots[0].side[0];

	draw_side(mine, one_in(2), false);
	mine->tuple.local_port = t.port;
	world.proofs[0].key = (struct graft_proof_key){ .tuple = mine->tuple };
	world.proofs[0].key.tuple.remote_port = 0;
	world.proofs[1].key = (struct graft_proof_key){ .tuple = *server, .forward = 1 };
	world.proofs[1].key.tuple.local_port = 0;
	put_syn_world(&world);
	graft_syn_push(t.stock, 0);
	draw_frame(&world, &(struct model_tuple){ mine->tuple, 0, 0 }, false, &frame);
	make_syn(&frame, mine->ipv6, (uint32_t)draw(), 0, SYN);
	*f = frame;
	f->ifindex = t.ifindex;
	return run_frame(bpf_program__fd(t.skel->progs.graft_in), f, 0) == MODEL_SENT;
}

/* A world without sessions, and three servers. */
static void draw_servers(struct graft_side servers[3])
{
	draw_begun();
	for (int i = 0; i < MODEL_TUPLES; i++)
		world.tuples[i].slot = NO_SLOT;
	world.taken = MODEL_STOCK_SIZE;
	for (int i = 0; i < 3; i++)
		draw_side(&servers[i], one_in(2), false);
	put_world(&world);
	memset(t.slots, 0, sizeof(world.slots));
}

/* The daemon prepares one slot again and again, for three servers: its port remembers (graft_isn()). */
SEEDED(the_numbers_of_a_port_grow)
{
	static struct slot slots[MODEL_SLOTS];
	uint64_t used[1] = { 0 };
	struct graft_table gs = { .skel = t.skel,
				  .all = t.slots,
				  .index = { .lock = PTHREAD_MUTEX_INITIALIZER,
					     .grafts = t.slots,
					     .buckets = t.buckets,
					     .n_buckets = BUCKETS },
				  .lock = PTHREAD_MUTEX_INITIALIZER,
				  .slots = slots,
				  .n_syn = 1,
				  .syn_port = 20000 };
	struct graft_side servers[3] = { 0 }, *sides = t.slots[0].side;
	uint32_t number = 0, clock = 0, sent = 0, stamped = 0;

	draw_servers(servers);
	slot_queue_open(&gs.syn_queue, 1, used, 0);
	graft_put(&gs, 0);
	for (unsigned int i = 0; i < t.worlds; i++) {
		const struct graft_side *to = &servers[below(3)];
		struct graft_tuple server = to->tuple;
		struct model_frame f;
		const uint8_t *tsval;

		server.local_port = htons(20000);
		assert_int_equal(graft_syn_prepare(&gs, &to->tuple, 1, 1, 0), 0);
		if (send_syn(&server, &f)) {
			uint32_t seq = ntohl(
				*(uint32_t *)(f.bytes + MODEL_ETHERNET + (to->ipv6 ? 40 : 20) + 4));

			/* a SYN that was lost here has used a number, too */
			if (sent++)
				assert_in_range(seq - number, 65537, 1 << 28);
			number = seq + 1;
			tsval = tsval_of(&f, to->ipv6);
			if (tsval && stamped++)
				assert_in_range(ntohl(*(uint32_t *)tsval) - clock, 1, INT32_MAX);
			if (tsval)
				clock = ntohl(*(uint32_t *)tsval);
			/* what it carries */
			number += i % 1000;
			sides[0].end += i % 1000;
			if (tsval && one_in(2))
				sides[1].tsval_sent = clock += below(5000);
		} else { /* it may have got its numbers all the same */
			number = (uint32_t)sides[0].end + sides[0].seq_add;
			clock = sides[1].tsval_sent;
		}
		t.slots[0].head.state = one_in(2) ? GRAFT_CLOSED : GRAFT_GAVE_UP;
		t.slots[0].over = GRAFT_GIVEN_BACK;
		graft_put(&gs, 0);
	}
	slot_queue_close(&gs.syn_queue);
	print_message("%u SYNs, %u with timestamps\n", sent, stamped);
	assert_true(stamped > t.worlds / 4);
}

/* --- hooks of netfilter --- */

/* Does the SYN of draw_begun() begin a session, with netfilter as it is?  RET_HOOKS: GRAFT_ROUTES. */
static bool begins(uint32_t *ret_hooks)
{
	struct graft_table gs = { .skel = t.skel };
	struct model_frame f = frame;

	f.ifindex = world.ifindex;
	do
		put_world(&world);
	while (!has_room());
	assert_int_equal(graft_request_run(&gs, GRAFT_ROUTES, 0), GRAFT_OK);
	*ret_hooks = t.skel->bss->graft_hooks;
	return run_frame(bpf_program__fd(t.skel->progs.graft_in), &f, 0) == MODEL_SENT;
}

/*
 * `auto` sees hooks of nft where its sessions would miss them, and no longer than they are there.  It
 * does not see those of security modules, which have the same priority (AppArmor has some on 6.1).
 */
SEEDED(hooks_of_netfilter_are_seen)
{
	static const struct {
		const char *family, *hook;
		uint32_t n; /* counted places */
		bool begins;
	} rows[] = {
		{ "ip", "prerouting", 1, false },
		{ "ip", "input", 1, false },
		{ "ip", "output", 1, false },
		{ "ip", "postrouting", 1, false },
		{ "ip6", "prerouting", 1, false },
		{ "ip6", "input", 1, false },
		{ "ip6", "output", 1, false },
		{ "ip6", "postrouting", 1, false },
		{ "inet", "input", 2, false },
		{ "inet", "forward", 0, true },
		{ "netdev", "ingress device kt0", 0, false },
		{ "netdev", "ingress device kt1", 0, true },
	};
	char line[160];
	uint32_t n;

	do
		draw_begun();
	while (!world.auto_set_up);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *family = rows[i].family;

		snprintf(
			line, sizeof(line),
			"nft 'add table %s t; add chain %s t c { type filter hook %s priority 225; }'",
			family, family, rows[i].hook);
		/* NOLINTNEXTLINE(cert-env33-c): constant words */
		if (system(line)) {
			print_message("skipped: nft, or its tables, are missing\n");
			skip();
		}
		assert_int_equal(begins(&n), rows[i].begins);
		assert_int_equal(n, rows[i].n);
		assert_int_equal(system("nft flush ruleset"), 0); /* NOLINT(cert-env33-c) */
		assert_true(begins(&n));
		assert_int_equal(n, 0);
	}
}

/* --- a SYN, and the daemon --- */

static struct {
	struct model_frame syn;
	_Atomic unsigned int begun, ready, done; /* rounds */
} race;

#define RACES_OVER UINT32_MAX

static void idle(unsigned int n)
{
	for (volatile unsigned int i = 0; i < n; i++)
		;
}

static void *send_syns(void *arg)
{
	for (unsigned int round = 1; wait_for(&race.begun, round) != RACES_OVER; round++) {
		struct model_frame f = race.syn;

		race.ready = round;
		idle(1000);
		run_frame(bpf_program__fd(t.skel->progs.graft_in), &f, 0);
		race.done = round;
	}
	return arg;
}

/* Slot 0 is PREPARED; the session of slot 1, an import's, has the client's tuple, or the server's. */
static void begin_race(struct graft_index *ix, uint32_t side, const struct graft_tuple *tuple)
{
	for (uint32_t slot = 0; slot < 2; slot++)
		graft_index_remove(ix, false, slot);
	memcpy(t.slots, world.slots, sizeof(world.slots));
	t.slots[0].head.state = t.slots[1].head.state = GRAFT_FREE;
	t.slots[1].over = GRAFT_KEPT;
	t.slots[1].side[side].tuple = *tuple;
	assert_true(graft_index_add(ix, false, 0, GRAFT_PREPARED));
	t.stock->first = t.stock_begins + world.taken;
	t.skel->bss->graft_half = world.half;
}

/* The two writers of the index (graft_index.c): an import waits about as long as a SYN needs. */
SEEDED(a_syn_and_an_import_never_both_win)
{
	struct graft_index ix = { .lock = PTHREAD_MUTEX_INITIALIZER,
				  .grafts = t.slots,
				  .buckets = t.buckets,
				  .n_buckets = BUCKETS };
	unsigned int round, wins[2] = { 0 }, wait = 2000;
	uint64_t end = clock_ms() + 1000;
	struct model_parts p;
	pthread_t thread;

	draw_begun();
	put_world(&world);
	race.syn = frame;
	race.syn.ifindex = world.ifindex;
	assert_true(model_take_apart(&frame, IPPROTO_TCP, &p));
	assert_int_equal(pthread_create(&thread, NULL, send_syns, NULL), 0);
	for (round = 0; clock_ms() < end; round++) {
		const struct graft_tuple *tuple = round % 2 ? &world.tuples[1].tuple : &p.from;
		bool syn, import;

		begin_race(&ix, round % 2, tuple);
		race.begun = round + 1;
		wait_for(&race.ready, round + 1);
		idle(wait + below(256));
		import = graft_index_add(&ix, false, 1, GRAFT_SETTING);
		wait_for(&race.done, round + 1);
		syn = t.slots[0].head.state == GRAFT_SYN_SENT;
		wait = import ? wait + wait / 64 + 1 : wait - wait / 64;
		assert_false(syn && import);
		assert_int_equal(graft_index_find(&ix, false, tuple), syn    ? 0 :
								      import ? 1 :
									       NO_SLOT);
		assert_int_equal(t.skel->bss->graft_half - world.half, syn);
		ring_buffer__consume(t.ring);
		wins[0] += syn;
		wins[1] += import;
	}
	race.begun = RACES_OVER;
	pthread_join(thread, NULL);
	print_message("%u rounds: the SYN has won %u, the import %u\n", round, wins[0], wins[1]);
}

/* A socket that listens at all addresses, with a stock, and one that is connected to it. */
static void open_sockets(void)
{
	const int off = 0;
	struct sockaddr_in6 at = { .sin6_family = AF_INET6 };
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);

	t.sockets[0] = socket(AF_INET6, SOCK_STREAM, 0);
	t.sockets[1] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(setsockopt(t.sockets[0], IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)), 0);
	assert_int_equal(bind(t.sockets[0], (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(t.sockets[0], 8), 0);
	assert_int_equal(getsockname(t.sockets[0], (struct sockaddr *)&at, &len), 0);
	t.port = to.sin_port = at.sin6_port;
	assert_int_equal(connect(t.sockets[1], (struct sockaddr *)&to, sizeof(to)), 0);
	t.connected.remote.w[2] = t.connected.local.w[2] = htonl(0xffff);
	t.connected.remote.w[3] = t.connected.local.w[3] = to.sin_addr.s_addr;
	t.connected.remote_port = t.port;
	len = sizeof(to);
	assert_int_equal(getsockname(t.sockets[1], (struct sockaddr *)&to, &len), 0);
	t.connected.local_port = to.sin_port;
	t.accepted = (struct graft_tuple){ .remote = t.connected.local,
					   .local = t.connected.remote,
					   .remote_port = t.connected.local_port,
					   .local_port = t.port };
}

static int load(void **state)
{
	int fd = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "graft_ring", 0, 0, 4096, NULL);
	const uint32_t worker = 0, lo = LO, used = GRAFT_IF_USED;

	(void)state;
	/* times that are set are 1, which is to be long ago */
	while (clock_ms() <= (GRAFT_STUCK_NS + GRAFT_PROOF_NS) / NS_PER_MS)
		poll(NULL, 0, 50);
	/* NOLINTNEXTLINE(cert-env33-c): a constant command */
	if (system("ip link add kt0 address 02:00:00:00:00:01 type veth peer name kt1"))
		return -1;
	t.ifindex = if_nametoindex("kt0");
	t.skel = graft_bpf__open();
	if (!t.skel || fd < 0)
		return -1;
	bpf_map__set_max_entries(t.skel->maps.grafts, MODEL_SLOTS);
	bpf_map__set_max_entries(t.skel->maps.tuples, BUCKETS + 1);
	t.skel->rodata->graft_n_buckets = BUCKETS;
	bpf_map__set_max_entries(t.skel->maps.addresses, MODEL_HERE);
	if (graft_bpf__load(t.skel) ||
	    bpf_map_update_elem(bpf_map__fd(t.skel->maps.graft_rings), &worker, &fd, 0) ||
	    bpf_map_update_elem(bpf_map__fd(t.skel->maps.interfaces), &lo, &used, 0) ||
	    bpf_map_update_elem(bpf_map__fd(t.skel->maps.interfaces), &t.ifindex, &used, 0))
		return -1;
	open_sockets();
	t.slots = bpf_values_map(t.skel->maps.grafts);
	t.buckets = bpf_values_map(t.skel->maps.tuples);
	t.stock = bpf_values_map(t.skel->maps.stocks);
	t.ring = ring_buffer__new(fd, count_event, NULL, NULL);
	close(fd);
	return t.slots && t.buckets && t.stock && t.ring ? 0 : -1;
}

static int unload(void **state)
{
	(void)state;
	close(t.sockets[0]);
	close(t.sockets[1]);
	ring_buffer__free(t.ring);
	graft_bpf__destroy(t.skel);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		t.seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		t.worlds = (unsigned int)strtoul(argv[2], NULL, 0);
	kt_enter();
	return unit_run(load, unload);
}
