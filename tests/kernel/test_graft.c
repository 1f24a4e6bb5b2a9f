/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The packet programs against the model of graft_model.h: they are run on generated packets
 * (BPF_PROG_TEST_RUN), and each byte that they leave, each verdict and all that they remember must
 * be what the model says.  Entries are written by hand, so there are no sockets and no traffic.
 *
 * test_graft [SEED [WORLDS]]: other packets, or more of them.
 */
#include "kt.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <poll.h>
#include <pthread.h>

#include "base/clock.h"
#include "bpf/graft.skel.h"
#include "datapath/bpf_ring.h"
#include "graft_frames.h"
#include "graft_model.h"

#define PER_WORLD 40
#define BUCKETS 4

static struct {
	struct graft_bpf *skel;
	struct graft_entry *slots;    /* mapped */
	struct graft_bucket *buckets; /* mapped; behind them is the seed */
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
	s->frozen_write = draw_number();
	s->frozen_read = draw_number();
	if (shifted) {
		s->back_read = draw_number();
		s->back_write = draw_number();
		s->back_ts = draw_number();
	}
	s->heard_ns = one_in(2);
	s->believed = one_in(2);
	s->apart = one_in(2);
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
	g->head.id = slot + 1;
	for (uint32_t side = 0; side < 2; side++) {
		draw_side(&g->side[side], side ? other : ipv6, g->shifted);
		m->tuples[slot * 2 + side] = (struct model_tuple){ g->side[side].tuple, slot,
								   side };
	}
	draw_stream(&g->side[0], &g->side[1]);
	draw_stream(&g->side[1], &g->side[0]);
}

/* The last two tuples are old: their slots have other owners. */
static void draw_world(struct model *m)
{
	memset(m, 0, sizeof(*m));
	m->now_ms = clock_ms();
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
		put_tuple(u);
	memcpy(t.slots, m->slots, sizeof(m->slots));
	t.events = 0;
	t.skel->bss->graft_outside = 0;
}

/* --- a packet --- */

/* One option that fits into ROOM bytes, or nearly. */
static size_t draw_option(uint8_t *p, size_t room)
{
	static const uint8_t stamps[] = { 8, 10 }, aligned[] = { 1, 1, 8, 10 };
	size_t len;

	switch (below(8)) {
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
			      mine->frozen_write - below(2000), (uint32_t)draw() };

	if (out)
		return near(frozen, 4);
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
}

/* F, which leaves, becomes the complaint of a router that it is too big. */
static void complain(const struct graft_side *mine, const struct graft_side *other,
		     struct model_frame *f)
{
	uint32_t numbers[] = { (uint32_t)mine->acked, (uint32_t)mine->acked + below(3000),
			       (uint32_t)other->end + other->seq_add };
	static uint8_t was[MODEL_BYTES];
	size_t l3 = mine->ipv6 ? 40 : 20, quoted = f->len - MODEL_ETHERNET;
	uint8_t *ip = f->bytes + MODEL_ETHERNET;

	if (quoted > 576)
		quoted = 576;
	memcpy(was, ip, quoted);
	if (one_in(2)) /* of what was not acknowledged, or nearly */
		put32(was + l3 + 4, near(numbers, 3));
	memcpy(ip + l3 + 8, was, quoted);
	memset(ip + l3, 0, 8);
	put16(ip + l3 + 6, 1280 + below(200));
	if (mine->ipv6) {
		ip[l3] = 2;
		ip[6] = 58;
		put16(ip + 4, (uint32_t)(8 + quoted));
	} else {
		put16(ip + l3, 3 << 8 | 4);
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

/* A time that is set is 1, as in the model.  No end asks in vain here: each asks once. */
static void round_times(struct graft_entry *g)
{
	g->ended_ns = !!g->ended_ns;
	g->stuck_ns = !!g->stuck_ns;
	for (int side = 0; side < 2; side++) {
		g->side[side].heard_ns = !!g->side[side].heard_ns;
		g->side[side].data_ns = !!g->side[side].data_ns;
		g->side[side].probed_ns = !!g->side[side].probed_ns;
		g->side[side].asked_ns = g->side[side].asked_at = 0;
	}
}

static bool same_slots(struct model *m)
{
	bool same = true;

	for (uint32_t slot = 0; slot < MODEL_SLOTS; slot++) {
		round_times(&t.slots[slot]);
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

static struct model world;
static struct model_frame frame;
static struct tally {
	unsigned int all, sent, dropped, passed, refused;
	unsigned int answered; /* packets of frozen sockets */
} tallies[2];                  /* in, out */

/* Run the program on the frame, and compare it with the model; both change the world. */
static enum model_verdict compare(bool out)
{
	struct tally *tally = &tallies[out];
	struct model was;
	struct model_frame is = frame, want = frame;
	int prog = bpf_program__fd(out ? t.skel->progs.graft_out : t.skel->progs.graft_in);
	enum model_verdict v;
	bool right;
	int r;

	do /* the program finds the same, if that does not change right now */
		world.units = (uint32_t)(clock_ns() >> GRAFT_CLOCK_SHIFT);
	while (world.units != (uint32_t)((clock_ns() + 5 * NS_PER_MS) >> GRAFT_CLOCK_SHIFT));
	was = world;
	v = out ? model_out(&world, &want) : model_in(&world, &want);
	r = run_frame(prog, &is, 0);
	tally->all++;
	if (r == -EINVAL && frame.len < MODEL_ETHERNET + 40) {
		tally->refused++;
		world = was;
		return MODEL_DROP;
	}
	if (out && is.kind == MODEL_TO_NOBODY) /* the socket must not know */
		r = MODEL_DROP;
	ring_buffer__consume(t.ring);
	right = r == (int)v && (v == MODEL_DROP || same_frame(&is, &want));
	right = same_slots(&world) && right;
	if (t.events != world.events || t.skel->bss->graft_outside != world.outside) {
		print_error("other events, or another count of packets outside\n");
		right = false;
	}
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

/* A reset needs no ACK: a few of these get to the other end, which takes the exact number only. */
SEEDED(a_sweep_of_resets_ends_no_session)
{
	const struct graft_entry *g;
	uint32_t end;

	g = draw_quiet(&frame);
	end = (uint32_t)g->side[0].end;
	put_world(&world);
	for (uint32_t i = 0; i < 65536; i++) {
		number(g, end + 1 + below(65535) + (i << 16), 0, RST);
		compare(false);
	}
	print_tally("resets", false);
	assert_in_range(tallies[0].sent, 1, 3);
	assert_int_equal(t.slots[0].head.state, GRAFT_ACTIVE);
	number(g, end, 0, RST);
	assert_int_equal(compare(false), MODEL_SENT);
	assert_int_equal(t.slots[0].head.state, GRAFT_DONE);
}

#define CLOSES 20000

static struct {
	struct model_frame ack[2]; /* the last one of each end */
	_Atomic int begun, done;
} closes;

static void acknowledge(int side)
{
	struct model_frame f = closes.ack[side];

	run_frame(bpf_program__fd(t.skel->progs.graft_in), &f, 0);
}

static void *other_end(void *arg)
{
	for (int i = 1; i <= CLOSES; i++) {
		while (closes.begun < i)
			;
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
	for (int i = 1; i <= CLOSES; i++) {
		t.slots[0].side[0].fin = t.slots[0].side[1].fin = 1;
		t.slots[0].head.state = GRAFT_ACTIVE;
		closes.begun = i;
		acknowledge(0);
		while (closes.done < i)
			;
		if (t.slots[0].head.state != GRAFT_DONE)
			fail_msg("number %d has not ended", i);
		ring_buffer__consume(t.ring);
	}
	assert_int_equal(t.events, CLOSES);
	pthread_join(thread, NULL);
}

static int load(void **state)
{
	int fd = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "graft_ring", 0, 0, 4096, NULL);
	const uint32_t worker = 0, lo = LO, used = GRAFT_IF_USED;

	(void)state;
	/* times that are set are 1, which is to be long ago */
	while (clock_ms() <= GRAFT_STUCK_NS / 1000000 + 1)
		poll(NULL, 0, 50);
	t.skel = graft_bpf__open();
	if (!t.skel || fd < 0)
		return -1;
	bpf_map__set_max_entries(t.skel->maps.grafts, MODEL_SLOTS);
	bpf_map__set_max_entries(t.skel->maps.tuples, BUCKETS + 1);
	t.skel->rodata->graft_n_buckets = BUCKETS;
	bpf_map__set_max_entries(t.skel->maps.addresses, MODEL_HERE);
	if (graft_bpf__load(t.skel) ||
	    bpf_map_update_elem(bpf_map__fd(t.skel->maps.graft_rings), &worker, &fd, 0) ||
	    bpf_map_update_elem(bpf_map__fd(t.skel->maps.interfaces), &lo, &used, 0))
		return -1;
	t.slots = bpf_values_map(t.skel->maps.grafts);
	t.buckets = bpf_values_map(t.skel->maps.tuples);
	t.ring = ring_buffer__new(fd, count_event, NULL, NULL);
	close(fd);
	return t.slots && t.buckets && t.ring ? 0 : -1;
}

static int unload(void **state)
{
	(void)state;
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
