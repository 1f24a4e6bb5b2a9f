// SPDX-License-Identifier: BSD-2-Clause
/* Records of grafted sessions: what is packed is unpacked the same, and what is none is refused. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "unit.h"
#include "base/clock.h"
#include "datapath/graft/standby_record.h"
#include "seeded.h"

#define DAY_NS (86400 * NS_PER_S)
#define ROUNDS 2000
#define some() ((uint32_t)seeded_next(&rnd))
#define coin() (some() % 2 == 1)

static struct seeded rnd;

static struct graft_addr some_addr(bool ipv6)
{
	struct graft_addr a = { { some() | 1, some(), some(), some() } };

	return ipv6 ? a : (struct graft_addr){ { 0, 0, htonl(0xffff), some() } };
}

static struct graft_tuple some_tuple(bool ipv6)
{
	uint16_t ports[] = { some() | 1, some() | 1 };

	return (struct graft_tuple){ some_addr(ipv6), some_addr(ipv6), ports[0], ports[1] };
}

/* As it is unpacked.  FAMILIES: a bit for each side that has IPv6.  PLAIN: no mark, nor RETURNED. */
static struct graft_record some_tcp(unsigned int families, bool plain)
{
	struct graft_record r = { RECORD_TCP, .tcp = { .head.id = seeded_next(&rnd),
						       .head.forward = some(),
						       .shaped = some() & 7 } };
	struct graft_entry *g = &r.tcp;

	for (int i = 0; i < 2; i++) {
		struct graft_side *s = &g->side[i], *other = &g->side[!i];
		uint32_t *w[] = { &s->window,      &s->seq_add,     &s->tsval_add,
				  &s->tsval_sent,  &s->tsecr_least, &s->frozen_write,
				  &s->frozen_read, &s->way.mark,    &s->back_read,
				  &s->back_write,  &s->back_ts };

		for (size_t k = 0; k < (plain ? 7 : 11); k++)
			*w[k] = k < 7 || coin() ? some() : 0;
		s->ipv6 = families >> i & 1;
		s->tuple = some_tuple(s->ipv6);
		s->way.ttl = (uint8_t)some();
		s->timestamps = g->head.forward & 1;
		s->tsecr_clamped = coin();
		s->sack = coin();
		s->window_left = some() % 15;
		s->read_shift = some() % 15;
		s->mss = some() & 0xffff;
		s->fin = some() % 3;
		s->acked = 1ULL << 32 | some();
		s->end = 1ULL << 32 | some();
		s->begun = s->end - !!s->fin; /* nothing was carried */
		s->fin_end = s->fin ? (uint32_t)s->end : 0;
		other->ack_add = -s->seq_add;
		other->tsecr_add = -s->tsval_add;
		other->window_right = s->read_shift;
		g->shifted |= s->back_read || s->back_write || s->back_ts;
	}
	return r;
}

static struct graft_record some_udp(void)
{
	struct graft_record r = { RECORD_UDP,
				  .flow = { .head.id = seeded_next(&rnd), .idle = some() } };

	r.flow.head.forward = some();
	for (int i = 0; i < 2; i++) {
		r.flow.leg[i].tuple = some_tuple(coin());
		r.flow.leg[i].way = (struct graft_way){ .ttl = i + 63, .mark = some() };
		r.flow.at[i].path_mtu = (uint16_t)some();
	}
	return r;
}

/* Of a session that is known. */
static struct graft_record some_of(enum record_kind kind)
{
	struct graft_record r = { .kind = kind, .udp = coin() };

	r.client = some_tuple(coin());
	r.id = seeded_next(&rnd);
	for (int i = 0; i < 2 && kind == RECORD_HEARD; i++)
		r.heard[i] = (struct graft_heard){
			.ns = 2, .end = some(), .acked = some(), .flags = (uint8_t)some()
		};
	return r;
}

/* The first bytes alone are not whole yet.  R stays as it is. */
static size_t pack(const struct graft_record *r, uint64_t now_ns, uint8_t buf[RECORD_MAX])
{
	struct graft_record got = *r;
	size_t n = record_pack(&got, now_ns, buf);
	const char *why;

	assert_in_range(n, 4, RECORD_MAX);
	for (size_t k = 0; k < n; k++)
		assert_int_equal(record_unpack(buf, k, now_ns, &got, &why), 0);
	return n;
}

/* To a relay with another clock.  What is behind the record does not matter. */
static struct graft_record travel(const struct graft_record *r, uint64_t from_ns, uint64_t to_ns)
{
	uint8_t buf[RECORD_MAX + 1];
	struct graft_record got;
	const char *why;
	size_t n = pack(r, from_ns, buf);

	buf[n] = 0xff;
	assert_int_equal(record_unpack(buf, n + 1, to_ns, &got, &why), n);
	assert_true(!why && got.kind == r->kind);
	return got;
}

TEST(test_tcp)
{
	for (unsigned int i = 0; i < ROUNDS; i++) {
		uint64_t from = 40 * DAY_NS + some(), to = 400 * DAY_NS + some();
		uint64_t age = seeded_size(&rnd, 51), quiet = seeded_size(&rnd, 51);
		struct graft_record want = some_tcp(i, coin()), sent = want, got;

		sent.tcp.offered_ns = from - age;
		sent.tcp.side[i & 1].data_ns = from - quiet;
		sent.tcp.side[!(i & 1)].data_ns = from - quiet - seeded_size(&rnd, 40);
		sent.tcp.side[0].acked += (uint64_t)some()
					  << 32; /* of this relay, as is what follows */
		sent.tcp.side[1].end += (uint64_t)some() << 32;
		sent.tcp.side[0].begun = sent.tcp.side[1].way.hop[3] = some();
		sent.tcp.head.state = some();
		sent.tcp.head.source = some();
		sent.tcp.head.mirrored = some();
		got = travel(&sent, from, to);
		assert_in_range(got.tcp.offered_ns - (to - age), 0, NS_PER_MS - 1);
		assert_in_range(got.tcp.side[0].data_ns - (to - quiet), 0, NS_PER_MS - 1);
		want.tcp.offered_ns = got.tcp.offered_ns;
		for (int k = 0; k < 2; k++) {
			want.tcp.side[k].heard_ns = want.tcp.side[k].data_ns =
				got.tcp.side[0].data_ns;
			want.tcp.side[k].probed_ns = want.tcp.side[k].heard_ns + 1;
		}
		assert_memory_equal(&got.tcp, &want.tcp, sizeof(want.tcp));
	}
}

/* To come, before the other clock began, and longer ago than can be told. */
TEST(test_odd_times)
{
	struct graft_record r = some_tcp(0, true), got;

	r.tcp.offered_ns = 9 * NS_PER_S;
	got = travel(&r, 8 * NS_PER_S, 5 * NS_PER_S);
	assert_true(got.tcp.offered_ns == 5 * NS_PER_S && got.tcp.side[0].data_ns == 1);
	got = travel(&r, 90 * DAY_NS, 91 * DAY_NS);
	assert_int_equal(got.tcp.offered_ns, 91 * DAY_NS - UINT32_MAX * NS_PER_MS);
}

/* Ticks, which begin again after 52 days. */
TEST(test_udp)
{
	for (uint64_t i = 0; i < ROUNDS; i++) {
		uint64_t from = (40 + i / 20) * DAY_NS + some(), to = (40 + i / 30) * DAY_NS;
		uint32_t age = (uint32_t)(seeded_size(&rnd, 51) >> UDP_TICK_SHIFT);
		struct graft_record r = some_udp(), got;

		r.flow.born = (uint32_t)(from >> UDP_TICK_SHIFT) - age;
		got = travel(&r, from, to);
		age -= (uint32_t)(to >> UDP_TICK_SHIFT) - got.flow.born;
		assert_in_range((uint32_t)(age + 2), 0, 4);
		r.flow.born = got.flow.born;
		assert_memory_equal(&got.flow, &r.flow, sizeof(r.flow));
	}
}

/* It says REASON, and so does one that is passed over: the others of its stream may be right. */
static void told(const uint8_t *buf, size_t n, int result, const char *reason)
{
	const char *why = NULL;
	struct graft_record got;

	assert_int_equal(record_unpack(buf, n, 1, &got, &why), result);
	assert_true(result < 0 || got.kind == RECORD_NONE);
	assert_true(why && strstr(why, reason));
}

/* What comes back, and what does not when its header, or the magic, is another. */
TEST(test_each_kind)
{
	for (unsigned int i = 0, kind = 1; i < ROUNDS; i++, kind = 1 + i % (RECORD_KINDS - 1)) {
		struct graft_record r = { .kind = kind }, got;
		uint8_t buf[RECORD_MAX + 1] = { 0 };
		size_t n;

		if (record_is_tcp(&r))
			r = some_tcp(i, coin());
		else if (record_is_udp(&r))
			r = some_udp();
		else if (record_is_end(&r) || kind == RECORD_HEARD)
			r = some_of(kind);
		r.kind = kind;
		got = travel(&r, 1, 2);
		if (!record_is_tcp(&r) && !record_is_udp(&r))
			assert_memory_equal(&got, &r, sizeof(r));
		n = pack(&r, 1, buf);
		for (int k = 0; k < 4; k++) {
			size_t bad = (size_t[]){ n + 1, n - 1, 3, RECORD_MAX + 1 }[k];

			buf[2] = (uint8_t)(bad >> 8);
			buf[3] = (uint8_t)bad;
			told(buf, sizeof(buf), -EPROTO,
			     k > 1 || bad < 4 ? "its length" : "its kind");
		}
		buf[1]++;
		told(buf, 2, -EPROTO, "version");
	}
}

TEST(test_bad_fields)
{
	uint8_t buf[RECORD_MAX];
	struct graft_record r;
	struct graft_side *s = r.tcp.side;
	size_t n;
#define BAD(is, at, to, why)                                                                       \
	(r = (is), (at) = (to), n = pack(&r, 1, buf), told(buf, n, (int)n, why))
	for (int i = 0; i < 2; i++) {
		BAD(some_tcp(i, true), s[i].tuple.remote_port, 0, "port");
		BAD(some_tcp(0, true), s[i].tuple.remote, some_addr(true), "family");
		BAD(some_tcp(3, true), s[i].tuple.local, some_addr(false), "family");
		BAD(some_tcp(i, true), s[i].window_left, 15, "scale");
		BAD(some_tcp(i, true), s[i].read_shift, 15, "scale");
		BAD(some_tcp(i, true), s[i].fin, 3, "FIN");
		BAD(some_tcp(i, true), s[i].timestamps, !s[i].timestamps, "timestamps");
		BAD(some_tcp(i, true), s[i].sack, 2, "neither 0 nor 1");
		BAD(some_tcp(i, true), s[i].tsecr_clamped, 2, "neither 0 nor 1");
		BAD(some_tcp(i, true), r.tcp.shifted, 2, "neither 0 nor 1");
		BAD(some_tcp(0, true), s[i].tuple, s[!i].tuple, "the same");
		BAD(some_udp(), r.flow.leg[i].tuple.local_port, 0, "port");
		BAD(some_udp(), r.flow.leg[i].tuple, r.flow.leg[!i].tuple, "the same");
	}
}

TEST(test_unknown_kind)
{
	uint8_t buf[RECORD_MAX] = { RECORD_KINDS, RECORD_VERSION, 0, 99 };
	struct graft_record got;
	const char *why;

	assert_int_equal(record_unpack(buf, sizeof(buf), 1, &got, &why), 99);
	assert_true(got.kind == RECORD_KINDS && !why);
}

UNIT_MAIN(NULL, NULL)
