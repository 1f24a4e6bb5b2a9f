// SPDX-License-Identifier: BSD-2-Clause
/* Which server gets a session, and when a server is used: without a socket. */

#include "unit.h"
#include "relay/balance.h"
#include "relay/servers.h"

#define SERVERS 5
#define CLIENTS 20000

struct rig {
	struct candidate c[SERVERS];
	int64_t turns[SERVERS];
};

static void set_up(struct rig *r, size_t n)
{
	*r = (struct rig){ 0 };
	for (size_t i = 0; i < n; i++)
		r->c[i] = (struct candidate){ .weight = FULL_SHARE,
					      .turn = &r->turns[i],
					      .name = balance_hash(&i, sizeof(i), 1) };
}

TEST(test_ranks)
{
	struct rig r;

	set_up(&r, 4);
	r.c[1].backup = r.c[3].backup = true;
	r.c[0].aside = true;
	assert_int_equal(balance_pick(BALANCE_LEAST_SESSIONS, r.c, 4, 0), 2);
	r.c[2].aside = true;
	r.c[3].live = 1;
	assert_int_equal(balance_pick(BALANCE_LEAST_SESSIONS, r.c, 4, 0), 1);
	r.c[1].aside = r.c[3].aside = true;
	r.c[0].live = 1;
	assert_int_equal(balance_pick(BALANCE_LEAST_SESSIONS, r.c, 4, 0), 2);
}

/* Choices that are undone leave no trace. */
TEST(test_undo)
{
	struct rig r, was;
	size_t at[7];

	set_up(&r, 4);
	r.c[1].weight = 2 * FULL_SHARE;
	r.c[3].backup = true;
	balance_pick(BALANCE_ROUND_ROBIN, r.c, 4, 0);
	was = r;
	for (size_t i = 0; i < 7; i++)
		at[i] = balance_pick(BALANCE_ROUND_ROBIN, r.c, 4, 0);
	for (size_t i = 0; i < 7; i++)
		balance_undo(BALANCE_ROUND_ROBIN, r.c, 4, at[i]);
	assert_memory_equal(r.turns, was.turns, sizeof(r.turns));
}

static size_t of_client(struct rig *r, size_t n, uint32_t client)
{
	return balance_pick(BALANCE_SOURCE, r->c, n, balance_hash(&client, sizeof(client), 0));
}

/* A server that comes takes its share from all others, and moves nobody else. */
TEST(test_source)
{
	unsigned int had[SERVERS] = { 0 }, moved = 0;
	struct rig r;

	set_up(&r, SERVERS);
	r.c[1].weight = 2 * FULL_SHARE;
	for (uint32_t i = 0; i < CLIENTS; i++) {
		size_t before = of_client(&r, SERVERS - 1, i), after = of_client(&r, SERVERS, i);

		had[before]++;
		if (before != after) {
			assert_int_equal(after, SERVERS - 1);
			moved++;
		}
	}
	assert_in_range(had[0], CLIENTS / 5 * 9 / 10, CLIENTS / 5 * 11 / 10);
	assert_in_range(had[1], CLIENTS / 5 * 19 / 10, CLIENTS / 5 * 21 / 10);
	assert_in_range(moved, CLIENTS / 6 * 9 / 10, CLIENTS / 6 * 11 / 10);
}

TEST(test_aside)
{
	struct health h = { 0 };
	uint64_t now = 50000;

	for (unsigned int n = 1; n <= 8; n++) {
		uint64_t wait = n < 7 ? (uint64_t)ASIDE_MS << (n - 1) : ASIDE_MAX_MS;

		health_refused(&h, now);
		health_refused(&h, now + 1); /* one of the same crowd */
		assert_int_equal(health_state(&h, now + wait - 1), SERVER_ASIDE);
		now += wait;
		assert_int_equal(health_state(&h, now), SERVER_TRIAL);
		assert_int_equal(health_weight(&h, 3, now), 3 * FULL_SHARE);
		health_refused(&h, now); /* as it gets a session */
		assert_int_equal(health_state(&h, now), SERVER_ASIDE);
	}
	health_connected(&h, now);
	assert_int_equal(health_state(&h, now), SERVER_RETURNING);
	assert_int_equal(health_weight(&h, 1, now), 1);
	assert_in_range(health_weight(&h, 1, now + BACK_SLOWLY_MS / 2), FULL_SHARE / 2 - 1,
			FULL_SHARE / 2 + 1);
	now += BACK_SLOWLY_MS;
	assert_int_equal(health_state(&h, now), SERVER_UP);
	assert_int_equal(health_weight(&h, 1, now), FULL_SHARE);
}

TEST(test_checks)
{
	struct health h = { 0 };

	health_checked(&h, false, 2, 3, 1000); /* the first one decides */
	assert_int_equal(health_state(&h, 1000), SERVER_FAILED);
	health_checked(&h, true, 2, 3, 1100);
	assert_int_equal(health_state(&h, 1100), SERVER_FAILED);
	health_checked(&h, true, 2, 3, 1200);
	assert_int_equal(health_state(&h, 1200), SERVER_RETURNING);
	health_checked(&h, false, 2, 3, 1300);
	health_checked(&h, false, 2, 3, 1400);
	health_checked(&h, true, 2, 3, 1500);
	health_checked(&h, false, 2, 3, 1600);
	health_checked(&h, false, 2, 3, 1700);
	assert_int_equal(health_state(&h, 1700), SERVER_RETURNING);
	health_checked(&h, false, 2, 3, 1800);
	assert_int_equal(health_state(&h, 1800), SERVER_FAILED);
	h.down = false;
	health_refused(&h, 2000);
	health_checked(&h, true, 2, 3, 2100);
	assert_int_equal(health_state(&h, 2100), SERVER_RETURNING);
	h.order = ORDER_DRAIN;
	assert_int_equal(health_state(&h, 2100), SERVER_DRAIN);
}

/* --- servers of a forward --- */

struct named {
	struct forward_conf fc;
	struct servers servers;
	pthread_mutex_t lock;
};

static void named_open(struct named *r, const char *upstream)
{
	char err[256];

	pthread_mutex_init(&r->lock, NULL);
	assert_int_equal(upstreams_parse(upstream, false, &r->fc.upstream, err, sizeof(err)), 0);
	assert_int_equal(servers_open(&r->servers, &r->fc, NULL, &r->lock, NULL, 0), 0);
}

/* lookup_update() by the main thread, as if "db" had the addresses 192.0.2.FIRST and the next. */
static void answer(struct lookup *u, unsigned int first, unsigned int n)
{
	struct addr addrs[8];

	for (unsigned int i = 0; i < n; i++)
		addrs[i] = (struct addr){ .in = { .sin_family = AF_INET,
						  .sin_port = htons(80),
						  .sin_addr.s_addr = htonl(0xc0000200 + first + i) },
					  .len = sizeof(struct sockaddr_in) };
	assert_true(lookup_update(u, addrs, n, NULL, 0));
}

static struct server *pick_at(struct servers *ss, uint64_t now)
{
	union client_addr client = { .sa.sa_family = AF_UNIX };
	struct addr_list *list;
	uint64_t seen = 0;
	struct server *s;

	if (servers_pick(ss, &client, NULL, 0, NULL, &seen, now, &s, &list) <= 0)
		return NULL;
	addr_list_put(list);
	server_leave(s);
	return s;
}

static struct server *pick(struct servers *ss)
{
	return pick_at(ss, 1000);
}

#define TICK 100 /* ms: a session begins in each */

/*
 * Sessions of two servers, of which server I answers after ROUND_TRIPS[I] ticks (0: never), from
 * tick FROM on for N ticks.  How many the second one gets.
 */
static unsigned int second_gets(struct servers *ss, const unsigned int *round_trips,
				unsigned int from, unsigned int n)
{
	static const struct server *picked[2000];
	unsigned int got = 0;

	for (unsigned int tick = from; tick < from + n; tick++) {
		uint64_t now = 1000 + TICK * tick;

		for (size_t i = 0; i < 2; i++) {
			unsigned int trip = round_trips[i];
			struct server *s = ss->members[i].server;

			if (trip && tick >= trip && picked[tick - trip] == s)
				servers_connected(ss, s, TICK * trip, now);
		}
		picked[tick] = pick_at(ss, now);
		got += picked[tick] == ss->members[1].server;
	}
	return got;
}

/* A server that owes its answers gives way to another; a slow one does not. */
TEST(test_silent)
{
	static const unsigned int slow[] = { 1, 3 }, silent[] = { 1, 0 }, both[] = { 0, 0 },
				  well[] = { 1, 1 };
	struct named r = { 0 };

	named_open(&r, "192.0.2.1:80 192.0.2.2:80");
	second_gets(&r.servers, slow, 0, 100);
	assert_in_range(second_gets(&r.servers, slow, 100, 300), 149, 151);
	second_gets(&r.servers, well, 400, 100);
	assert_in_range(second_gets(&r.servers, silent, 500, 300), 27, 33);
	assert_in_range(second_gets(&r.servers, well, 800, 300), 100, 151);
	second_gets(&r.servers, both, 1100, 100);
	assert_in_range(second_gets(&r.servers, both, 1200, 300), 149, 151);
	servers_close(&r.servers);
	upstreams_close(&r.fc.upstream);
}

TEST(test_each_address)
{
	const enum server_order drain = ORDER_DRAIN;
	struct named r = { .fc.each_address = true };
	struct servers next = { 0 };
	struct server *second;

	named_open(&r, "db:80");
	assert_null(pick(&r.servers));
	answer(&r.servers.members[0].place->lookup, 1, 3);
	assert_string_equal(pick(&r.servers)->name, "192.0.2.1:80");
	second = pick(&r.servers);
	assert_string_equal(second->name, "192.0.2.2:80");
	assert_string_equal(pick(&r.servers)->name, "192.0.2.3:80");

	/* what is known stays, also in a forward that takes the place of this one */
	server_put(servers_order(&r.servers, "192.0.2.2:80", &drain, NULL));
	answer(&r.servers.members[0].place->lookup, 2, 2);
	assert_string_equal(pick(&r.servers)->name, "192.0.2.3:80");
	assert_int_equal(r.servers.n, 2);
	assert_ptr_equal(r.servers.members[0].server, second);
	assert_int_equal(servers_open(&next, &r.fc, &r.servers, &r.lock, NULL, 0), 0);
	servers_close(&r.servers);
	assert_ptr_equal(next.members[0].server, second);
	assert_string_equal(pick(&next)->name, "192.0.2.3:80");
	servers_close(&next);
	upstreams_close(&r.fc.upstream);
}

UNIT_MAIN(NULL, NULL)
