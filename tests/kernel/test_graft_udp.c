/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * UDP at packet level.  The packet programs are run on generated datagrams (BPF_PROG_TEST_RUN), and
 * each byte that they leave, each verdict and all that they remember must be what a model says,
 * which is written from the contract (include/udp_contract.h) and makes its checksums anew.  Slots
 * and the index are tried by themselves, and as a killed daemon leaves them.  Real traffic is in
 * flow/udp.py.
 *
 * test_graft_udp [SEED [WORLDS]]: other datagrams, or more of them.
 */
#include "kt.h"

#include <bpf/bpf.h>

#include "base/bits.h"
#include "base/clock.h"
#include "bpf/graft.skel.h"
#include "datapath/graft/graft.h"
#include "datapath/graft/graft_index.h"
#include "datapath/graft/udp_graft.h"
#include "graft_frames.h"

#define SLOTS 8   /* of a world */
#define MOST 64   /* of the map */
#define BUCKETS 8 /* few, so that they are full */
#define PER_WORLD 40
#define IDLE 50000       /* ticks */
#define SLACK 1000       /* of the coarse clock; and a busy machine */
#define STALE UINT32_MAX /* graft_ways is 0 */

static struct {
	struct graft_bpf *skel;
	struct udp_table *us;
	uint64_t used[BITS_WORDS(2 * MOST)];
	struct udp_flow *flows;       /* mapped */
	struct graft_bucket *buckets; /* mapped; behind them is the seed */
	struct graft_index index;
	uint64_t seed;
	unsigned int worlds;
} t = { .seed = 1, .worlds = 2000 };

static uint32_t ticks(void)
{
	return (uint32_t)(clock_ns() >> UDP_TICK_SHIFT);
}

/* --- the model --- */

struct world {
	struct udp_flow flows[SLOTS];
	bool linked[SLOTS * 2];
	bool used_interface;
	uint32_t now;
};

static uint32_t udp_sum(const struct model_parts *p)
{
	return model_l4_sum(p->ip, p->ipv6, 17, p->l4, p->len);
}

static void set_sum(const struct model_parts *p, uint32_t was)
{
	if (!get16(p->l4 + 6))
		return;
	mend(p->l4 + 6, udp_sum(p), was);
	if (!get16(p->l4 + 6)) /* 0 would be none */
		put16(p->l4 + 6, 0xffff);
}

/* False: not one whose ports the packet programs can know. */
static bool take_apart(struct model_frame *f, struct model_parts *p)
{
	if (!model_take_apart(f, 17, p))
		return false;
	if (!p->odd && get16(p->l4 + 4) != p->len)
		p->odd = GRAFT_HEADERS;
	return true;
}

static bool is_ipv6(const struct graft_leg *l)
{
	return l->tuple.remote.w[2] != htonl(0xffff) || l->tuple.remote.w[0] ||
	       l->tuple.remote.w[1];
}

/* F becomes a message to MINE's remote end: more than MTU does not fit. */
static void tell_too_big(struct model_frame *f, const struct graft_leg *mine, uint32_t mtu)
{
	const struct graft_tuple *u = &mine->tuple;
	bool ipv6 = is_ipv6(mine);
	uint32_t l3 = ipv6 ? 40 : 20, len = 8 + l3 + 8;
	uint8_t *ip = f->bytes + MODEL_ETHERNET, *icmp = ip + l3, *quote = icmp + 8;

	model_ip(ip, ipv6, &u->local, &u->remote, ipv6 ? 58 : 1, len, 64, 0);
	model_ip(quote, ipv6, &u->remote, &u->local, 17, mtu + 1 - l3, 64, 0);
	memset(icmp, 0, 8);
	icmp[0] = ipv6 ? 2 : 3;
	icmp[1] = ipv6 ? 0 : 4;
	put32(icmp + 4, mtu);
	memcpy(quote + l3, &u->remote_port, 2);
	memcpy(quote + l3 + 2, &u->local_port, 2);
	put32(quote + l3 + 4, 0);
	mend(quote + l3 + 4, sum_of(quote + l3, 8), 0); /* the length: so a device adds 0 */
	mend(icmp + 2, ipv6 ? model_l4_sum(ip, ipv6, 58, icmp, len) : sum_of(icmp, len), 0);
	f->len = MODEL_ETHERNET + l3 + len;
	f->sums[0] = MODEL_ETHERNET + l3 + 2;
	f->sums[1] = f->len - 4;
}

/* F, which P is, goes out by TO. */
static void change(struct model_frame *f, struct model_parts *p, const struct graft_leg *to)
{
	bool ipv6 = is_ipv6(to);
	uint32_t was = udp_sum(p), ip_was = sum_of(p->ip, 20), l3 = p->ipv6 ? 40 : 20;
	uint32_t traffic = p->ipv6 ? get16(p->ip) >> 4 & 255 : p->ip[1];

	memcpy(p->l4, &to->tuple.local_port, 2);
	memcpy(p->l4 + 2, &to->tuple.remote_port, 2);
	if (ipv6 == p->ipv6) {
		size_t l = ipv6 ? 16 : 4;
		uint8_t *at = p->ip + (ipv6 ? 8 : 12);

		p->ip[ipv6 ? 7 : 8] = to->way.ttl;
		memcpy(at, (const uint8_t *)&to->tuple.local + 16 - l, l);
		memcpy(at + l, (const uint8_t *)&to->tuple.remote + 16 - l, l);
		if (!ipv6)
			mend(p->ip + 10, sum_of(p->ip, 20), ip_was);
	} else {
		memmove(p->ip + (ipv6 ? 40 : 20), p->l4, f->len - MODEL_ETHERNET - l3);
		model_ip(p->ip, ipv6, &to->tuple.local, &to->tuple.remote, 17, p->len, to->way.ttl,
			 traffic);
		f->len = f->len + (ipv6 ? 40 : 20) - l3;
		p->ipv6 = ipv6;
		p->l4 = p->ip + (ipv6 ? 40 : 20);
	}
	if (!ipv6)
		f->sums[0] = MODEL_ETHERNET + 10;
	set_sum(p, was);
}

static bool silent(const struct world *w, const struct udp_leg *at, uint32_t idle)
{
	return !at->heard || (int32_t)(w->now - at->heard) >= (int32_t)idle;
}

static enum model_verdict pass(struct udp_leg *at, uint32_t n, uint8_t why, bool back)
{
	at->why = why ? why : at->why;
	at->word += n * UDP_PASSED_ONE - (back ? UDP_ACTIVE : 0);
	return MODEL_PASS;
}

/* F arrives. */
static enum model_verdict model_flow(struct world *w, struct udp_flow *u, int leg, uint32_t gso,
				     struct model_frame *f, struct model_parts *p)
{
	struct graft_leg *mine = &u->leg[leg], *other = &u->leg[!leg];
	struct udp_leg *at = &u->at[leg];
	uint32_t payload = p->len - 8, n = 1, mtu, size, least;
	uint32_t head = is_ipv6(other) ? 40 : 20;

	if (gso && gso < payload)
		n = (payload + gso - 1) / gso;
	if (u->idle && silent(w, &u->at[0], u->idle) && silent(w, &u->at[1], u->idle))
		return MODEL_PASS;
	at->heard = w->now;
	if (!(at->word & UDP_ACTIVE))
		return pass(at, n, 0, false);
	if (other->way.ways)
		return pass(at, n, GRAFT_WAY, true);
	if (at->seen) {
		at->seen = 0;
		u->from[leg] = LO;
		at->why = w->used_interface ? 0 : GRAFT_INTERFACE;
		if (at->why)
			return pass(at, n, at->why, true);
	}
	if (u->from[leg] != LO)
		return pass(at, n, 0, false);
	if (p->odd)
		return pass(at, n, p->odd, false);
	if (!get16(p->l4 + 6) && is_ipv6(other))
		return pass(at, n, GRAFT_HEADERS, false);
	mtu = other->way.mtu;
	if (u->at[!leg].path_mtu && u->at[!leg].path_mtu < mtu)
		mtu = u->at[!leg].path_mtu;
	size = head + 8 + (n > 1 ? gso : payload);
	f->kind = MODEL_OURS;
	if (size <= mtu) {
		at->packets += n;
		at->bytes += payload;
		f->mark = other->way.mark;
		change(f, p, other);
		return MODEL_SENT;
	}
	least = 1280 - 40 + head;
	if (mtu < least)
		mtu = least;
	if (p->df && size > mtu && !mine->way.ways &&
	    memcmp(&mine->tuple.remote, &mine->tuple.local, sizeof(mine->tuple.local))) {
		f->mark = mine->way.mark;
		tell_too_big(f, mine, mtu - head + (p->ipv6 ? 40 : 20));
		return MODEL_SENT;
	}
	f->kind = MODEL_OTHER;
	return pass(at, n, GRAFT_TOO_BIG, false);
}

static enum model_verdict model_arrives(struct world *w, struct model_frame *f, uint32_t gso)
{
	static const uint8_t us[6];
	struct model_parts p;

	f->sums[0] = f->sums[1] = 0;
	if (memcmp(f->bytes, us, 6) != 0 || !take_apart(f, &p) || (p.ipv6 && !get16(p.l4 + 6)))
		return MODEL_PASS;
	for (int i = 0; i < SLOTS * 2; i++) {
		struct udp_flow *u = &w->flows[i / 2];
		const struct graft_leg *l = &u->leg[i & 1];

		if (w->linked[i] && !memcmp(&l->tuple, &p.from, sizeof(p.from)))
			return is_ipv6(l) == p.ipv6 ? model_flow(w, u, i & 1, gso, f, &p) :
						      MODEL_PASS;
	}
	return MODEL_PASS;
}

/* --- a world, and a datagram --- */

static void draw_leg(struct graft_leg *l, struct udp_leg *at, bool ipv6, uint32_t now)
{
	draw_address(&l->tuple.remote, ipv6);
	draw_address(&l->tuple.local, ipv6);
	l->tuple.remote_port = (uint16_t)draw();
	l->tuple.local_port = (uint16_t)draw();
	l->way = (struct graft_way){ .ifindex = LO,
				     .mark = one_in(2) ? 0 : 1 + below(1000),
				     .mtu = one_in(3) ? 300 + below(1300) : 65535,
				     .ttl = (uint8_t)draw(),
				     .via = (uint8_t)below(4),
				     .ways = one_in(16) ? STALE : 0 };
	*at = (struct udp_leg){ .word = below(1000) * UDP_PASSED_ONE + !one_in(4),
				.seen = one_in(2) ? STALE : 0,
				.heard = one_in(4) ? 0 : now - (one_in(3) ? 2 * IDLE : 0),
				.path_mtu = (uint16_t)(one_in(8) ? 300 + below(1300) : 0) };
}

static void draw_world(struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->now = ticks();
	w->used_interface = !one_in(8);
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		struct udp_flow *u = &w->flows[slot];
		bool ipv6 = one_in(2), other = one_in(3) ? !ipv6 : ipv6;

		u->head.state = GRAFT_ACTIVE;
		u->idle = one_in(2) ? IDLE : 0;
		u->from[0] = u->from[1] = one_in(8) ? LO + 1 : LO;
		draw_leg(&u->leg[0], &u->at[0], ipv6, w->now);
		draw_leg(&u->leg[1], &u->at[1], other, w->now);
	}
}

static struct graft_bucket *bucket_of(const struct graft_tuple *u)
{
	return &t.buckets[graft_hash(u, t.buckets[BUCKETS].place[0]) % BUCKETS];
}

/* Some are in no bucket, for want of a place or by chance.  Places of TCP lead elsewhere. */
static void put_world(struct world *w)
{
	const uint32_t lo = LO, used = w->used_interface ? GRAFT_IF_USED : 0;

	memset(t.buckets, 0, sizeof(*t.buckets) * BUCKETS);
	t.buckets[BUCKETS].place[0] = (uint32_t)draw();
	for (uint32_t i = 0; i < SLOTS * 2; i++) {
		const struct graft_tuple *u = &w->flows[i / 2].leg[i & 1].tuple;
		uint32_t *place = &bucket_of(u)->place[below(GRAFT_PLACES)];

		w->linked[i] = !*place && !one_in(8);
		if (!*place)
			*place = graft_place(w->linked[i], i / 2, i & 1);
	}
	memcpy(t.flows, w->flows, sizeof(w->flows));
	assert_int_equal(bpf_map_update_elem(bpf_map__fd(t.skel->maps.interfaces), &lo, &used, 0),
			 0);
}

/* A datagram that arrives on LEG of U. */
static void draw_datagram(const struct udp_flow *u, int leg, struct model_frame *f)
{
	const struct graft_tuple *from = &u->leg[leg].tuple;
	bool ipv6 = is_ipv6(&u->leg[leg]);
	uint32_t payload = below(one_in(2) ? 40 : 1450), l3 = ipv6 ? 40 : 20;
	uint8_t *ip = f->bytes + MODEL_ETHERNET;
	struct model_parts p = { .ip = ip, .l4 = ip + l3, .ipv6 = ipv6, .len = payload + 8 };

	memset(f, 0, offsetof(struct model_frame, bytes[MODEL_ETHERNET + 40]));
	put16(f->bytes + 12, ipv6 ? 0x86dd : 0x0800);
	model_ip(ip, ipv6, &from->remote, &from->local, 17, payload + 8, (uint8_t)draw(),
		 below(256));
	if (ipv6)
		ip[2] = (uint8_t)draw(); /* of the flow label */
	else if (one_in(2))
		ip[6] = 0; /* may be cut */
	draw_bytes(p.l4, 8 + payload);
	memcpy(p.l4, &from->remote_port, 2);
	memcpy(p.l4 + 2, &from->local_port, 2);
	put16(p.l4 + 4, payload + 8);
	if (one_in(4))
		put16(p.l4 + 6, 0);
	else if (!one_in(8))
		set_sum(&p, 0);
	f->len = MODEL_ETHERNET + l3 + 8 + payload;
	f->kind = MODEL_OTHER;
	f->mark = one_in(16) ? 7 : 0;
}

/* --- the comparison --- */

/* Times that packet programs have written are W's. */
static void round_times(const struct world *w, uint32_t *heard)
{
	if ((int32_t)(*heard - w->now) >= -SLACK && (int32_t)(ticks() - *heard) >= -SLACK)
		*heard = w->now;
}

static bool same_flows(const struct world *w)
{
	bool same = true;

	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		round_times(w, &t.flows[slot].at[0].heard);
		round_times(w, &t.flows[slot].at[1].heard);
		same &= same_bytes(slot, &t.flows[slot], &w->flows[slot], sizeof(struct udp_flow));
	}
	return same;
}

struct tally {
	unsigned int all, sent, told, passed, back, refused;
};

/* Run the program on F, which both change. */
static enum model_verdict compare(struct world *w, struct model_frame *f, uint32_t gso,
				  struct tally *y)
{
	struct world was = *w;
	struct model_frame is = *f, want = *f;
	enum model_verdict v = model_arrives(w, &want, gso);
	int r = run_frame(bpf_program__fd(t.skel->progs.graft_in), &is, gso);

	y->all++;
	if (r == -EINVAL && f->len < MODEL_ETHERNET + 40) {
		y->refused++;
		*w = was;
		return MODEL_PASS;
	}
	if (!same_flows(w) || r != (int)v || !same_frame(&is, &want)) {
		print_error("seed %#jx, packet %u: verdict %d, not %d\n", (uintmax_t)t.seed, y->all,
			    r, (int)v);
		print_frame("packet", f);
		print_frame("the program's", &is);
		print_frame("the model's", &want);
		fail();
	}
	y->sent += v == MODEL_SENT;
	y->told += want.sums[1] != 0;
	y->passed += v == MODEL_PASS;
	for (int i = 0; i < SLOTS * 2; i++)
		y->back += was.flows[i / 2].at[i & 1].word & ~w->flows[i / 2].at[i & 1].word & 1;
	return v;
}

TEST(datagrams_become_what_the_model_says)
{
	static struct world w;
	static struct model_frame f;
	struct tally y = { 0 };

	chance = t.seed;
	for (unsigned int i = 0; i < t.worlds; i++) {
		draw_world(&w);
		put_world(&w);
		for (int j = 0; j < PER_WORLD; j++) {
			uint32_t gso = one_in(8) ? 1 + below(one_in(2) ? 60 : 1400) : 0;

			draw_datagram(&w.flows[below(SLOTS)], (int)below(2), &f);
			if (one_in(12))
				add_header(&f);
			if (one_in(4))
				spoil(&f, 17);
			compare(&w, &f, gso, &y);
		}
	}
	print_message("%u datagrams: %u sent on, %u of these told that they are too big, %u "
		      "passed, %u times with all that follow, %u not runnable\n",
		      y.all, y.sent, y.told, y.passed, y.back, y.refused);
	assert_true(y.sent > y.all / 6 && y.told > y.all / 500 && y.back > y.all / 100);
}

/* --- slots and the index --- */

static void open_flows(void)
{
	t.us = udp_table_open(&t.index, MOST, &t.skel->bss->graft_ways, t.used);
}

/* As a daemon does that finds nothing. */
static void begin(void)
{
	chance = t.seed;
	memset(t.flows, 0, sizeof(*t.flows) * MOST);
	memset(t.buckets, 0, sizeof(*t.buckets) * (BUCKETS + 1));
	t.buckets[BUCKETS].place[0] = (uint32_t)draw();
	open_flows();
	poll(NULL, 0, 11); /* so long slots rest */
}

static struct udp_flow draw_request(void)
{
	struct udp_flow q = { .head = { .id = draw(), .forward = (uint32_t)draw() } };
	struct graft_leg l;
	struct udp_leg at;
	bool ipv6 = one_in(2);

	for (int leg = 0; leg < 2; leg++) {
		draw_leg(&l, &at, ipv6, 0);
		q.leg[leg].tuple = l.tuple;
	}
	return q;
}

static uint32_t enter(const struct udp_flow *q)
{
	uint32_t slot = NO_SLOT;
	uint64_t end = clock_ms() + 1000;

	while (slot == NO_SLOT && clock_ms() < end)
		slot = udp_graft_enter(t.us, q);
	return slot;
}

/* The packet programs find exactly the flows that are used. */
static void all_are_found(void)
{
	static struct model_frame f;

	for (uint32_t slot = 0; slot < MOST; slot++)
		for (int leg = 0; leg < 2; leg++) {
			struct udp_flow *u = &t.flows[slot];
			uint32_t was = u->at[leg].word, n = u->head.state ? UDP_PASSED_ONE : 0;

			if (was & UDP_ACTIVE || !u->born) /* never used */
				continue;
			do
				draw_datagram(u, leg, &f);
			while (f.bytes[MODEL_ETHERNET] >> 4 == 6 &&
			       !get16(f.bytes + MODEL_ETHERNET + 46));
			assert_int_equal(run_frame(bpf_program__fd(t.skel->progs.graft_in), &f, 0),
					 MODEL_PASS);
			assert_int_equal(u->at[leg].word, was + n);
			if (u->head.state)
				assert_int_equal(
					graft_index_find(&t.index, true, &u->leg[leg].tuple), slot);
		}
}

TEST(slots_are_used_again_in_order_and_not_at_once)
{
	uint32_t slots[MOST], n = 0;
	uint64_t left_ns;

	begin();
	while (n < MOST) { /* buckets have no room for all */
		struct udp_flow q = draw_request();
		uint32_t slot = udp_graft_enter(t.us, &q);

		if (slot == NO_SLOT)
			break;
		assert_int_equal(slot, n);
		slots[n++] = slot;
	}
	print_message("%u flows in %d buckets\n", n, BUCKETS);
	assert_in_range(n, GRAFT_PLACES / 2, BUCKETS * GRAFT_PLACES / 2);
	all_are_found();
	for (uint32_t i = 0; i < n; i += 2)
		udp_graft_put(t.us, slots[i]);
	left_ns = clock_ns();
	all_are_found();
	for (uint32_t i = n; i < MOST; i++) { /* those that are free longest */
		struct udp_flow q = draw_request();
		uint32_t slot = udp_graft_enter(t.us, &q);

		if (slot != NO_SLOT)
			udp_graft_put(t.us, slot);
		assert_true(slot == NO_SLOT || slot >= n || clock_ns() - left_ns > 9 * NS_PER_MS);
	}
	all_are_found();
	udp_table_close(t.us);
}

TEST(a_tuple_is_one_flows_alone)
{
	struct udp_flow q, other;
	uint32_t slot;

	begin();
	q = draw_request();
	slot = udp_graft_enter(t.us, &q);
	assert_int_equal(slot, 0);
	for (int i = 0; i < 4; i++) {
		other = draw_request();
		other.leg[i & 1].tuple = q.leg[i >> 1].tuple;
		assert_int_equal(udp_graft_enter(t.us, &other), NO_SLOT);
	}
	other.leg[0].tuple = other.leg[1].tuple;
	assert_int_equal(udp_graft_enter(t.us, &other), NO_SLOT);
	udp_graft_put(t.us, slot);
	assert_int_equal(enter(&q), 6); /* what was refused had slots */
	all_are_found();
	udp_table_close(t.us);
}

TEST(a_leg_is_active_if_nothing_has_passed_and_the_way_is_known)
{
	static struct model_frame f;
	struct udp_flow q;
	uint32_t word;

	begin();
	q = draw_request();
	assert_int_equal(udp_graft_enter(t.us, &q), 0);
	word = udp_graft_word(&t.flows[0], 0);
	assert_false(udp_graft_activate(t.us, 0, 0, word)); /* no way */
	t.flows[0].leg[1].way.ways = t.skel->bss->graft_ways;
	all_are_found();
	assert_false(udp_graft_activate(t.us, 0, 0, word)); /* one has passed */
	assert_false(udp_graft_carries(t.us, 0, 0));
	t.flows[0].at[0].why = GRAFT_INTERFACE; /* and no way has changed since */
	t.flows[0].at[0].seen = t.skel->bss->graft_ways;
	assert_false(udp_graft_activate(t.us, 0, 0, udp_graft_word(&t.flows[0], 0)));
	t.flows[0].at[0].seen--;
	assert_true(udp_graft_activate(t.us, 0, 0, udp_graft_word(&t.flows[0], 0)));
	assert_true(udp_graft_carries(t.us, 0, 0));
	assert_false(udp_graft_carries(t.us, 0, 1));
	assert_int_equal(udp_table_live(t.us), 1);
	udp_graft_put(t.us, 0);
	assert_false(udp_graft_carries(t.us, 0, 0));
	draw_datagram(&t.flows[0], 0, &f);
	assert_int_equal(run_frame(bpf_program__fd(t.skel->progs.graft_in), &f, 0), MODEL_PASS);
	udp_table_close(t.us);
}

/* Whatever a daemon was at when it was killed, the next one has the flows that are translated. */
static void be_killed(unsigned int at)
{
	uint32_t n = 0, slot, *at_place;

	begin();
	for (int i = 0; i < 12; i++) {
		struct udp_flow q = draw_request();

		slot = udp_graft_enter(t.us, &q);
		if (slot != NO_SLOT && i % 3)
			t.flows[slot].at[i & 1].word |= UDP_ACTIVE;
	}
	udp_table_close(t.us);
	at_place = &t.buckets[below(BUCKETS)].place[below(GRAFT_PLACES)];
	switch (at) {
	case 1: /* half entered */
		*at_place = 0;
		break;
	case 2: /* half left */
		t.flows[below(12)].head.state = GRAFT_FREE;
		break;
	case 3:
		t.flows[below(12)].head.state = GRAFT_FREE;
		*at_place = 0;
		break;
	case 4: /* what a daemon does not do */
		t.flows[below(12)].head.state = (uint32_t)draw();
		break;
	}
	for (slot = 0; slot < MOST; slot++)
		n += t.flows[slot].head.state == GRAFT_ACTIVE &&
		     (t.flows[slot].at[0].word | t.flows[slot].at[1].word) & UDP_ACTIVE;
	open_flows();
	assert_int_equal(udp_table_live(t.us), n);
	for (slot = 0; udp_graft_next(t.us, &slot); slot++) {
		t.flows[slot].at[0].word &= ~UDP_ACTIVE;
		t.flows[slot].at[1].word &= ~UDP_ACTIVE;
		n--;
	}
	assert_int_equal(n, 0);
	all_are_found();
	udp_table_close(t.us);
}

TEST(what_a_killed_daemon_leaves_is_found)
{
	for (unsigned int i = 0; i < 60; i++) {
		t.seed += i;
		be_killed(i % 5);
		t.seed -= i;
	}
}

static int load(void **state)
{
	(void)state;
	t.skel = graft_bpf__open();
	if (!t.skel)
		return -1;
	bpf_map__set_max_entries(t.skel->maps.udp_flows, MOST);
	bpf_map__set_max_entries(t.skel->maps.tuples, BUCKETS + 1);
	t.skel->rodata->graft_n_buckets = BUCKETS;
	if (graft_bpf__load(t.skel))
		return -1;
	t.flows = bpf_values_map(t.skel->maps.udp_flows);
	t.buckets = bpf_values_map(t.skel->maps.tuples);
	t.index = (struct graft_index){ .lock = PTHREAD_MUTEX_INITIALIZER,
					.flows = t.flows,
					.buckets = t.buckets,
					.n_buckets = BUCKETS };
	return t.flows && t.buckets ? 0 : -1;
}

static int unload(void **state)
{
	(void)state;
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
