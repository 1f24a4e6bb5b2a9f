/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/un.h>

#include "relay/client_limit.h"
#include "seeded.h"

union any {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_un un;
};

static union any client(const char *text)
{
	union any a = { 0 };

	if (strchr(text, ':')) {
		a.in6.sin6_family = AF_INET6;
		assert_int_equal(inet_pton(AF_INET6, text, &a.in6.sin6_addr), 1);
	} else {
		a.in.sin_family = AF_INET;
		assert_int_equal(inet_pton(AF_INET, text, &a.in.sin_addr), 1);
	}
	return a;
}

static bool enter(struct client_limit *l, const char *text)
{
	union any a = client(text);

	return client_limit_enter(l, &a.sa);
}

static void leave(struct client_limit *l, const char *text)
{
	union any a = client(text);

	client_limit_leave(l, &a.sa);
}

static void test_limit(void **state)
{
	struct client_limit *l;

	(void)state;
	assert_int_equal(client_limit_open(2, 10, &l), 0);
	assert_true(enter(l, "192.0.2.1"));
	assert_true(enter(l, "192.0.2.1"));
	assert_false(enter(l, "192.0.2.1"));
	assert_true(enter(l, "192.0.2.2"));
	assert_int_equal(client_limit_clients(l), 2);
	leave(l, "192.0.2.1");
	assert_true(enter(l, "192.0.2.1"));
	assert_false(enter(l, "192.0.2.1"));
	leave(l, "192.0.2.1");
	leave(l, "192.0.2.1");
	leave(l, "192.0.2.2");
	assert_int_equal(client_limit_clients(l), 0);
	leave(l, "192.0.2.2"); /* one too many does no harm */
	assert_true(enter(l, "192.0.2.2"));
	client_limit_close(l);
}

/* Who is one client, and who is another. */
static void test_keys(void **state)
{
	static const struct {
		const char *a, *b;
		bool same;
	} cases[] = {
		{ "2001:db8::1", "2001:db8::2", true },
		{ "2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true },
		{ "2001:db8:0:1::1", "2001:db8:0:2::1", false },
		{ "2001:db8:1::1", "2001:db8:2::1", false },
		{ "::ffff:192.0.2.1", "192.0.2.1", true },
		{ "::ffff:192.0.2.1", "::ffff:192.0.2.2", false },
		{ "::1", "::2", true },
		{ "192.0.2.1", "192.0.2.2", false },
		{ "192.0.2.1", "1.2.0.192", false },
		/* the bits of the IPv4 address, as they lie in memory, and then zeros */
		{ "192.0.2.1", "c000:0201::", false },
		{ "0.0.0.0", "::", false },
	};
	struct client_limit *l;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(client_limit_open(1, 10, &l), 0);
		assert_true(enter(l, cases[i].a));
		if (enter(l, cases[i].b) == cases[i].same)
			fail_msg("%s and %s", cases[i].a, cases[i].b);
		client_limit_close(l);
	}
}

static void test_unix_clients(void **state)
{
	union any a = { .un.sun_family = AF_UNIX };
	struct client_limit *l;

	(void)state;
	assert_int_equal(client_limit_open(1, 2, &l), 0);
	for (int i = 0; i < 10; i++)
		assert_true(client_limit_enter(l, &a.sa));
	for (int i = 0; i < 10; i++)
		client_limit_leave(l, &a.sa);
	assert_int_equal(client_limit_clients(l), 0);
	client_limit_close(l);
}

static void test_no_limit(void **state)
{
	struct client_limit *l = (void *)1;

	(void)state;
	assert_int_equal(client_limit_open(0, 10, &l), 0);
	assert_null(l);
	for (int i = 0; i < 100; i++)
		assert_true(enter(l, "192.0.2.1"));
	leave(l, "192.0.2.1");
	assert_int_equal(client_limit_clients(l), 0);
	client_limit_close(l);
}

/* As many clients as there can be sessions, and all of them again. */
static void test_full(void **state)
{
	const unsigned int sizes[] = { 1, 2, 3, 1000, 20000 };
	union any a = { .in6.sin6_family = AF_INET6 };

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct client_limit *l;

		assert_int_equal(client_limit_open(3, sizes[s], &l), 0);
		for (int round = 0; round < 2; round++) {
			for (uint32_t i = 0; i < sizes[s]; i++) {
				memcpy(&a.in6.sin6_addr, &i, sizeof(i));
				assert_true(client_limit_enter(l, &a.sa));
			}
			assert_int_equal(client_limit_clients(l), sizes[s]);
			assert_false(enter(l, "192.0.2.1")); /* more than there can be */
			for (uint32_t i = sizes[s]; i--;) {
				memcpy(&a.in6.sin6_addr, &i, sizeof(i));
				client_limit_leave(l, &a.sa);
			}
			assert_int_equal(client_limit_clients(l), 0);
		}
		client_limit_close(l);
	}
}

/* Against a plain array of counts. */
static void test_random(void **state)
{
	enum { CLIENTS = 40, MOST = 5, STEPS = 200000, TOTAL = CLIENTS * MOST };
	unsigned int counts[CLIENTS] = { 0 }, busy = 0;
	struct seeded r = { 4 };
	struct client_limit *l;

	(void)state;
	assert_int_equal(client_limit_open(MOST, TOTAL, &l), 0);
	for (int i = 0; i < STEPS; i++) {
		size_t who = seeded_below(&r, CLIENTS);
		union any a = { .in.sin_family = AF_INET };

		a.in.sin_addr.s_addr = htonl(0xc0000200U + (uint32_t)who);
		if (seeded_below(&r, 2)) {
			bool in = client_limit_enter(l, &a.sa);

			assert_int_equal(in, counts[who] < MOST);
			busy += in && !counts[who];
			counts[who] += in;
		} else if (counts[who]) {
			client_limit_leave(l, &a.sa);
			busy -= !--counts[who];
		}
		assert_int_equal(client_limit_clients(l), busy);
	}
	client_limit_close(l);
}

#define THREADS 4
#define ROUNDS 50000
#define SHARED_MOST 3

struct crowd {
	struct client_limit *l;
	_Atomic int inside, most_seen, refused;
};

/* Counted after entering and before leaving: INSIDE is never more than were admitted. */
static void *come_and_go(void *arg)
{
	struct crowd *c = arg;
	union any a = { .in.sin_family = AF_INET };

	for (int i = 0; i < ROUNDS; i++) {
		int now, most;

		if (!client_limit_enter(c->l, &a.sa)) {
			atomic_fetch_add(&c->refused, 1);
			continue;
		}
		now = atomic_fetch_add(&c->inside, 1) + 1;
		most = atomic_load(&c->most_seen);
		while (now > most && !atomic_compare_exchange_weak(&c->most_seen, &most, now))
			;
		atomic_fetch_sub(&c->inside, 1);
		client_limit_leave(c->l, &a.sa);
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct crowd c = { 0 };
	pthread_t threads[THREADS];

	(void)state;
	assert_int_equal(client_limit_open(SHARED_MOST, 100, &c.l), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, &c), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_true(c.most_seen >= 1 && c.most_seen <= SHARED_MOST);
	assert_int_equal(client_limit_clients(c.l), 0);
	client_limit_close(c.l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_unix_clients),
		cmocka_unit_test(test_no_limit),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
