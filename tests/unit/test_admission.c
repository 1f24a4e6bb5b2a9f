// SPDX-License-Identifier: BSD-2-Clause
/* How many sessions and clients are let in: who is one client, and how the limits hold together. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "unit.h"
#include "client.h"
#include "relay/forward.h"
#include "relay/admission.h"
#include "relay/bandwidth.h"
#include "seeded.h"

/* --- clients --- */

static int enter(struct clients *c, const char *text, unsigned int most)
{
	union client_addr at = client_at(text);

	return clients_enter(c, &at.sa, most, false);
}

static void leave(struct clients *c, const char *text)
{
	union client_addr at = client_at(text);

	clients_leave(c, &at.sa);
}

TEST(test_keys)
{
	static const struct {
		const char *a, *b;
		bool same;
	} cases[] = {
		{ "192.0.2.1", "192.0.2.1", true },
		{ "192.0.2.1", "192.0.2.2", false },
		{ "2001:db8::1", "2001:db8::2", true },
		{ "2001:db8::1", "2001:db8:0:1::1", false },
		{ "::ffff:192.0.2.1", "192.0.2.1", true },
		{ "::ffff:192.0.2.1", "::ffff:192.0.2.2", false },
		{ "::", "0.0.0.0", false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct clients c;

		clients_init(&c);
		assert_int_equal(enter(&c, cases[i].a, 1), 0);
		assert_int_equal(enter(&c, cases[i].b, 1), cases[i].same ? -EUSERS : 0);
		assert_int_equal(c.n, cases[i].same ? 1 : 2);
		leave(&c, cases[i].a);
		assert_int_equal(enter(&c, cases[i].a, 1), 0);
		for (int k = 0; k < 10; k++)
			assert_int_equal(enter(&c, "unix", 1), 0); /* a unix socket */
		assert_int_equal(enter(&c, cases[i].a, 0), 0);
		clients_close(&c);
	}
}

static const union client_addr *client(unsigned int n)
{
	static union client_addr a = { .in.sin_family = AF_INET };

	a.in.sin_addr.s_addr = htonl(0x0a000000U + n);
	return &a;
}

/* Many clients, against a plain array of counts. */
TEST(test_many)
{
	enum { CLIENTS = 300, MOST = 3 };
	unsigned int counts[CLIENTS] = { 0 }, busy = 0;
	struct seeded r = { 4 };
	struct clients c;

	clients_init(&c);
	for (int i = 0; i < 100000; i++) {
		unsigned int who = (unsigned int)seeded_below(&r, CLIENTS);
		const struct sockaddr *at = &client(who)->sa;

		if (seeded_below(&r, 2)) {
			int e = clients_enter(&c, at, MOST, false);

			assert_int_equal(e, counts[who] < MOST ? 0 : -EUSERS);
			busy += !e && !counts[who];
			counts[who] += !e;
		} else if (counts[who]) {
			clients_leave(&c, at);
			busy -= !--counts[who];
		}
		assert_int_equal(c.n, busy);
	}
	clients_close(&c);
}

/* Short sessions, one after the other, share the tokens of their client. */
TEST(test_tokens)
{
	enum { BYTES = 65536 };
	static const uint64_t rates[LIMITS] = { [OF_CLIENT] = 1024 };
	union client_addr at = client_at("192.0.2.1");
	struct clients c;

	clients_init(&c);
	for (int i = 0; i < 3; i++) {
		struct bandwidth *limits[LIMITS] = { 0 };
		struct pace *p;

		assert_int_equal(enter(&c, "192.0.2.1", 1), 0);
		limits[OF_CLIENT] = clients_bandwidth(&c, &at.sa);
		assert_int_equal(pace_new(limits, rates, &p), 0);
		assert_int_equal(pace_take(p, 0, BYTES), !i);
		pace_free(p);
		leave(&c, "192.0.2.1");
		assert_int_equal(c.n, 1);
	}
	assert_int_equal(enter(&c, "192.0.2.1", 1), 0);
	bucket_give_back(&clients_bandwidth(&c, &at.sa)->ways[0], BYTES);
	leave(&c, "192.0.2.1");
	assert_int_equal(c.n, 0);
	clients_close(&c);
}

/* --- admission --- */

#define FORWARDS 3

/* Forward 0 has no limits of its own, 1 has 3 sessions, 2 has 1 of each client. */
static struct forward_conf forwards[FORWARDS] = {
	[1] = { .max_sessions = 3 },
	[2] = { .max_sessions_per_client = 1 },
};

static const struct config config = {
	.workers = 1,
	.max_sessions = 8,
	.max_sessions_per_client = 4,
	.forwards = forwards,
	.n_forwards = FORWARDS,
};

static struct shared shared = { .config = &config };
static struct forward *made[FORWARDS];

static int open_it(void **state)
{
	(void)state;
	for (size_t i = 0; i < FORWARDS; i++) {
		made[i] = forward_new(&forwards[i], &config, NULL, NULL, NULL);
		assert_non_null(made[i]);
	}
	clients_init(&shared.clients);
	return 0;
}

static int close_it(void **state)
{
	(void)state;
	assert_int_equal(shared.live, 0);
	assert_int_equal(shared.clients.n, 0);
	for (size_t i = 0; i < FORWARDS; i++) {
		assert_int_equal(made[i]->sessions, 0);
		forward_free(made[i]);
	}
	clients_close(&shared.clients);
	return 0;
}

static enum cause admit(unsigned int forward)
{
	return admission_enter(&shared, made[forward]);
}

static bool admit_client(unsigned int forward, unsigned int who)
{
	enum cause why;

	assert_int_equal(admit(forward), CAUSE_NONE);
	why = admission_enter_client(&shared, made[forward], client(who), false);
	if (why == CAUSE_NONE)
		return true;
	assert_int_equal(why, CAUSE_CLIENT_LIMIT);
	admission_leave(&shared, made[forward], NULL);
	return false;
}

TEST_WITH(test_sessions, open_it, close_it)
{
	for (int i = 0; i < 3; i++)
		assert_int_equal(admit(1), CAUSE_NONE);
	assert_int_equal(admit(1), CAUSE_FORWARD_LIMIT);
	for (int i = 0; i < 5; i++)
		assert_int_equal(admit(0), CAUSE_NONE);
	assert_int_equal(admit(0), CAUSE_SESSION_LIMIT);
	assert_int_equal(admit(1), CAUSE_FORWARD_LIMIT);
	/* what all forwards together refuse does not count for the forward */
	admission_leave(&shared, made[1], NULL);
	assert_int_equal(admit(0), CAUSE_NONE);
	assert_int_equal(admit(1), CAUSE_SESSION_LIMIT);
	admission_leave(&shared, made[0], NULL);
	assert_int_equal(admit(1), CAUSE_NONE);
	for (int i = 0; i < 8; i++)
		admission_leave(&shared, made[i < 3 ? 1 : 0], NULL);
}

TEST_WITH(test_clients, open_it, close_it)
{
	assert_true(admit_client(2, 1));
	assert_false(admit_client(2, 1));
	assert_true(admit_client(2, 2));
	for (int i = 0; i < 3; i++)
		assert_true(admit_client(0, 1));
	assert_false(admit_client(0, 1));
	assert_int_equal(shared.live, 5);
	assert_int_equal(shared.clients.n, 2);
	/* refused in all, it is not counted at the forward either */
	admission_leave(&shared, made[2], client(1));
	assert_true(admit_client(0, 1));
	assert_false(admit_client(2, 1));
	admission_leave(&shared, made[0], client(1));
	assert_true(admit_client(2, 1));
	for (int i = 0; i < 3; i++)
		admission_leave(&shared, made[0], client(1));
	admission_leave(&shared, made[2], client(1));
	admission_leave(&shared, made[2], client(2));
}

static _Atomic unsigned int inside, worst;

static void *come_and_go(void *arg)
{
	for (int i = 0; i < 20000; i++) {
		unsigned int n;

		if (admit(1) != CAUSE_NONE)
			continue;
		n = atomic_fetch_add(&inside, 1) + 1;
		if (n > atomic_load(&worst))
			atomic_store(&worst, n);
		atomic_fetch_sub(&inside, 1);
		admission_leave(&shared, made[1], NULL);
	}
	return arg;
}

/* Several workers never let in more than there may be. */
TEST_WITH(test_threads, open_it, close_it)
{
	pthread_t threads[6];

	for (size_t i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_in_range(atomic_load(&worst), 1, 3);
}

UNIT_MAIN(NULL, NULL)
