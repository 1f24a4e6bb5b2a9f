/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "relay/client_rate.h"
#include "seeded.h"

#define START 1000000

static struct sockaddr_storage address(const char *text)
{
	struct sockaddr_storage ss = { .ss_family = strchr(text, ':') ? AF_INET6 : AF_INET };
	void *to = ss.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&ss)->sin6_addr
					    : (void *)&((struct sockaddr_in *)&ss)->sin_addr;

	assert_int_equal(inet_pton(ss.ss_family, text, to), 1);
	return ss;
}

static struct client_rate *enter(struct client_rates *l, const char *text, uint64_t now)
{
	struct sockaddr_storage ss = address(text);
	struct client_rate *r;

	assert_int_equal(client_rates_enter(l, (struct sockaddr *)&ss, now, &r), 0);
	return r;
}

static void test_clients(void **state)
{
	struct sockaddr_storage nowhere = { .ss_family = AF_UNIX }, fourth = address("10.0.0.4");
	struct client_rate *a, *b, *c, *r = NULL;
	struct client_rates *l;

	(void)state;
	assert_int_equal(client_rates_open(0, 100, &l), 0);
	assert_null(l);
	assert_int_equal(client_rates_enter(l, (struct sockaddr *)&fourth, START, &r), 0);
	assert_null(r);
	client_rates_leave(l, NULL);
	client_rates_close(l);

	assert_int_equal(client_rates_open(5000, 4, &l), 0);
	a = enter(l, "10.0.0.1", START);
	b = enter(l, "10.0.0.2", START);
	c = enter(l, "2001:db8:1:2::1", START);
	assert_int_equal(a->bandwidth.ways[1].average.rate, 5000);
	assert_ptr_not_equal(a, b);
	assert_ptr_equal(enter(l, "10.0.0.1", START + 5), a);
	assert_ptr_equal(enter(l, "::ffff:10.0.0.1", START + 5), a);
	assert_ptr_equal(enter(l, "2001:db8:1:2:ffff::2", START), c);
	assert_int_equal(a->sessions, 3);
	assert_int_equal(client_rates_enter(l, (struct sockaddr *)&nowhere, START, &r), 0);
	assert_null(r);
	r = enter(l, "2001:db8:1:3::1", START);
	assert_ptr_not_equal(r, c);
	/* four clients: no place is free */
	assert_int_equal(client_rates_enter(l, (struct sockaddr *)&fourth, START, &r), -ENOSPC);
	client_rates_leave(l, b);
	assert_int_equal(client_rates_enter(l, (struct sockaddr *)&fourth, START, &r), 0);
	assert_ptr_equal(r, b);
	client_rates_close(l);
}

/* A turn's bytes for R, if there are as many. */
static bool take_turn(struct client_rate *r)
{
	struct lane *l = &r->bandwidth.ways[0];
	struct place p;
	uint64_t due = lane_join(l, r->bandwidth.turn, START, &p);

	if (due <= START && lane_take(l, &p, r->bandwidth.turn, START, &due))
		return true;
	lane_leave(l, &p, r->bandwidth.turn, START);
	return false;
}

/* A client that is back soon finds what it has left, and not a full bucket. */
static void test_reconnect(void **state)
{
	struct client_rate *r, *others[3];
	struct client_rates *l;
	unsigned int n = 0;

	(void)state;
	assert_int_equal(client_rates_open(1 << 20, 4, &l), 0);
	for (int i = 0; i < 100; i++) {
		r = enter(l, "10.0.0.1", START);
		n += take_turn(r);
		client_rates_leave(l, r);
		/* others that come and go take places that are empty for longer */
		others[i % 3] = enter(l, i % 2 ? "10.0.0.2" : "10.0.0.3", START);
		client_rates_leave(l, others[i % 3]);
	}
	assert_int_equal(n, 16); /* a burst of 40 ms, in turns of 2.5 */
	/* but when there are many, its place is needed */
	for (int i = 0; i < 4; i++) {
		char text[32];

		snprintf(text, sizeof(text), "10.1.0.%d", i);
		client_rates_leave(l, enter(l, text, START));
	}
	r = enter(l, "10.0.0.1", START);
	assert_true(take_turn(r));
	client_rates_leave(l, r);
	client_rates_close(l);
}

#define ENTRIES 20
#define CLIENTS 40
#define HELD 200

/* Against a plain count: who is in has a place of his own, and nobody else is there. */
static void test_random(void **state)
{
	struct client_rate *held[HELD];
	unsigned int who[HELD], count[CLIENTS] = { 0 }, n = 0, distinct = 0, refused = 0;
	struct seeded r = { 3 };
	struct client_rates *l;

	(void)state;
	assert_int_equal(client_rates_open(1000, ENTRIES, &l), 0);
	for (unsigned int round = 0; round < 100000; round++) {
		if (n < HELD && seeded_below(&r, 2)) {
			unsigned int c = (unsigned int)seeded_below(&r, CLIENTS);
			struct sockaddr_in in = { .sin_family = AF_INET,
						  .sin_addr.s_addr = htonl(c * 7919) };
			int e = client_rates_enter(l, (struct sockaddr *)&in, START, &held[n]);

			assert_int_equal(e, !count[c] && distinct == ENTRIES ? -ENOSPC : 0);
			refused += e != 0;
			if (e)
				continue;
			for (unsigned int i = 0; i < n; i++)
				assert_int_equal(held[i] == held[n], who[i] == c);
			distinct += !count[c]++;
			assert_int_equal(held[n]->sessions, count[c]);
			who[n++] = c;
		} else if (n) {
			unsigned int i = (unsigned int)seeded_below(&r, n);

			client_rates_leave(l, held[i]);
			distinct -= !--count[who[i]];
			held[i] = held[--n];
			who[i] = who[n];
		}
	}
	assert_true(refused > 100);
	client_rates_close(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clients),
		cmocka_unit_test(test_reconnect),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
