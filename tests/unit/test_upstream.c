// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "relay/upstream.h"
#include "seeded.h"

#define MOST 20
#define PORT 80

static struct addr address(unsigned int host, unsigned int port)
{
	struct addr a = { .len = sizeof(struct sockaddr_in) };
	struct sockaddr_in *in = (struct sockaddr_in *)&a.ss;

	in->sin_family = AF_INET;
	in->sin_port = htons((uint16_t)port);
	in->sin_addr.s_addr = htonl(0x0a000000 | host);
	return a;
}

/* 10.0.0.HOST:80, as many as N. */
static void addresses(struct addr *ret, unsigned int first, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ret[i] = address(first + (unsigned int)i, PORT);
}

struct rig {
	struct addr at_start[MOST], own;
	struct endpoint conf, listen;
	struct upstream u;
};

static int setup(void **state)
{
	static struct rig rig;

	memset(&rig, 0, sizeof(rig));
	addresses(rig.at_start, 1, 2);
	rig.own = address(99, PORT);
	rig.conf = (struct endpoint){ .addrs = rig.at_start, .n_addrs = 2, .named = true };
	rig.listen = (struct endpoint){ .addrs = &rig.own, .n_addrs = 1 };
	*state = &rig;
	return upstream_open(&rig.u, &rig.conf, &rig.listen, 1000, 500);
}

static int teardown(void **state)
{
	upstream_close(&((struct rig *)*state)->u);
	upstream_close(&((struct rig *)*state)->u);
	return 0;
}

static void expect_list(struct upstream *u, const char *text)
{
	struct addr_list *list = upstream_get(u);
	char buf[ADDR_LIST_STRLEN];

	assert_string_equal(addr_list_format(list, buf, sizeof(buf)), text);
	addr_list_put(list);
}

static struct lookup_record record_of(struct upstream *u)
{
	struct lookup_record record;

	upstream_record(u, &record);
	return record;
}

static void test_found(void **state)
{
	struct rig *rig = *state;
	struct addr_list *old = upstream_get(&rig->u);
	struct addr found[MOST];

	expect_list(&rig->u, "10.0.0.1:80, 10.0.0.2:80");
	assert_int_equal(record_of(&rig->u).resolved_ms, 500);
	addresses(found, 3, 1);
	assert_int_equal(upstream_found(&rig->u, found, 1, 700), 1);
	expect_list(&rig->u, "10.0.0.3:80");
	assert_int_equal(record_of(&rig->u).resolved_ms, 700);
	assert_int_equal(record_of(&rig->u).lookups, 1);
	/* who began before keeps what he had */
	assert_int_equal(old->n, 2);
	assert_true(addr_equal(&old->addrs[1], &rig->at_start[1]));
	addr_list_put(old);

	addresses(found, 1, MOST);
	assert_int_equal(upstream_found(&rig->u, found, MOST, 800), 1);
	expect_list(&rig->u, "10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80, 10.0.0.4:80 and 16 more");
}

/* The same addresses in another order are tried in the new order, but that is no news. */
static void test_same_set(void **state)
{
	struct rig *rig = *state;
	struct addr found[] = { address(2, PORT), address(1, PORT) };

	assert_int_equal(upstream_found(&rig->u, found, 2, 600), 0);
	expect_list(&rig->u, "10.0.0.2:80, 10.0.0.1:80");
	assert_int_equal(record_of(&rig->u).resolved_ms, 600);
	assert_int_equal(upstream_found(&rig->u, found, 1, 600), 1);
}

static void test_not_found(void **state)
{
	struct rig *rig = *state;
	struct addr found = address(1, PORT);
	char endless[2 * LOOKUP_WHY_LEN];

	assert_true(upstream_not_found(&rig->u, "one"));
	assert_false(upstream_not_found(&rig->u, "one"));
	assert_true(upstream_not_found(&rig->u, "two"));
	assert_string_equal(record_of(&rig->u).why, "two");
	assert_int_equal(record_of(&rig->u).lookups, 3);
	assert_int_equal(record_of(&rig->u).failures, 3);
	assert_int_equal(record_of(&rig->u).resolved_ms, 500);
	expect_list(&rig->u, "10.0.0.1:80, 10.0.0.2:80");
	upstream_found(&rig->u, &found, 1, 600);
	assert_string_equal(record_of(&rig->u).why, "");
	assert_int_equal(record_of(&rig->u).failures, 3);
	memset(endless, 'x', sizeof(endless));
	endless[sizeof(endless) - 1] = '\0';
	assert_true(upstream_not_found(&rig->u, endless));
	assert_false(upstream_not_found(&rig->u, endless));
}

/* What a name server, or what reads its answers, may not bring about. */
static void test_unacceptable(void **state)
{
	struct rig *rig = *state;
	struct addr found[] = { rig->own, address(4, 22), address(5, PORT), address(6, 0) };

	assert_int_equal(upstream_found(&rig->u, found, 4, 600), 1);
	expect_list(&rig->u, "10.0.0.5:80");
	assert_int_equal(upstream_found(&rig->u, found, 2, 700), -EADDRNOTAVAIL);
	assert_int_equal(upstream_found(&rig->u, found, 0, 700), -EADDRNOTAVAIL);
	expect_list(&rig->u, "10.0.0.5:80");
	assert_int_equal(record_of(&rig->u).failures, 2);
	found[0].ss.ss_family = AF_UNIX;
	assert_int_equal(upstream_found(&rig->u, found, 1, 700), -EADDRNOTAVAIL);
}

/* Its listener has every local address: it leads to itself by those that are known to be local. */
static void test_own_by_loopback(void **state)
{
	static const struct {
		const char *listen, *found;
		bool good;
	} rows[] = {
		{ "0.0.0.0:80", "127.0.0.1:80", false }, { "0.0.0.0:80", "127.9.9.9:80", false },
		{ "0.0.0.0:80", "0.0.0.0:80", false },   { "0.0.0.0:80", "[::1]:80", true },
		{ "[::]:80", "[::1]:80", false },        { "[::]:80", "[::]:80", false },
		{ "0.0.0.0:81", "127.0.0.1:80", true },  { "0.0.0.0:80", "10.0.0.1:80", true },
		{ ":80", "[::ffff:127.0.0.1]:80", false }, { "127.0.0.1:80", "0.0.0.0:80", false },
		{ "127.0.0.1:80", "127.0.0.2:80", true },  { "[::1]:80", "[::]:80", false },
	};
	struct rig *rig = *state;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct endpoint listen, found;
		struct upstream u;
		char err[256];
		int r;

		assert_int_equal(endpoint_parse(rows[i].listen, true, &listen, err, sizeof(err)),
				 0);
		assert_int_equal(endpoint_parse(rows[i].found, false, &found, err, sizeof(err)), 0);
		assert_int_equal(upstream_open(&u, &rig->conf, &listen, 1000, 500), 0);
		r = upstream_found(&u, found.addrs, found.n_addrs, 600);
		if (r != (rows[i].good ? 1 : -EADDRNOTAVAIL))
			fail_msg("%s at %s: %d", rows[i].found, rows[i].listen, r);
		upstream_close(&u);
		endpoint_close(&listen);
		endpoint_close(&found);
	}
}

static void test_preferred(void **state)
{
	struct rig *rig = *state;
	struct addr_list *list = upstream_get(&rig->u);
	struct addr found[] = { address(7, PORT), address(8, PORT), address(2, PORT) };
	struct addr others = address(9, PORT);

	assert_int_equal(addr_list_first(list, 1000), 0);
	addr_list_prefer(list, 1, 1000);
	assert_int_equal(addr_list_first(list, 1000 + ADDR_PREFER_MS - 1), 1);
	assert_int_equal(addr_list_first(list, 1000 + ADDR_PREFER_MS), 0);
	/* it is found again: at another place */
	assert_int_equal(upstream_found(&rig->u, found, 3, 2000), 1);
	addr_list_put(list);
	list = upstream_get(&rig->u);
	assert_int_equal(addr_list_first(list, 2000), 2);
	addr_list_forget(list);
	assert_int_equal(addr_list_first(list, 2000), 0);
	addr_list_prefer(list, 1, 2000);
	assert_int_equal(upstream_found(&rig->u, &others, 1, 2000), 1);
	addr_list_put(list);
	list = upstream_get(&rig->u);
	assert_int_equal(addr_list_first(list, 2000), 0);
	addr_list_put(list);
}

/* A look-up ends between a session's first attempt and the one that wins. */
static void test_preferred_meanwhile(void **state)
{
	struct rig *rig = *state;
	struct addr_list *before = upstream_get(&rig->u), *after;

	assert_int_equal(upstream_found(&rig->u, rig->at_start, 2, 1000), 0);
	addr_list_prefer(before, 1, 1000);
	after = upstream_get(&rig->u);
	assert_int_equal(addr_list_first(after, 1000), 1);
	assert_int_equal(record_of(&rig->u).lookups, 1);
	assert_int_equal(record_of(&rig->u).resolved_ms, 1000);
	addr_list_put(before);
	addr_list_put(after);
}

static void count(void *arg)
{
	(*(unsigned int *)arg)++;
}

static void test_failed(void **state)
{
	struct rig *rig = *state;
	unsigned int asked = 0;

	upstream_failed(&rig->u, 1000); /* nobody looks it up */
	rig->u.arg = &asked;
	atomic_store(&rig->u.ask, count);
	for (uint64_t now = 1000; now < 1000 + 3 * UPSTREAM_ASK_MS; now += 10)
		upstream_failed(&rig->u, now);
	assert_int_equal(asked, 3);
	assert_true(atomic_load(&rig->u.wanted));
	atomic_store(&rig->u.ask, NULL);
}

/* What a session is told that comes before the name has an address. */
static int await(struct upstream *u, uint64_t *seen)
{
	struct addr_list *list = NULL;
	int r = upstream_await(u, seen, &list);

	assert_int_equal(r == 1, list != NULL);
	assert_true(!list || list->n);
	addr_list_put(list);
	return r;
}

static void test_unknown(void **state)
{
	struct rig *rig = *state;
	const struct endpoint name = { .named = true, .named_port = htons(PORT) };
	uint64_t seen[4] = { 0 };
	unsigned int asked = 0;
	struct addr found[] = { address(3, 22), address(4, PORT) };
	struct upstream u;

	assert_int_equal(upstream_open(&u, &name, &rig->listen, 1000, 500), 0);
	assert_true(upstream_is_unknown(&u));
	expect_list(&u, "");
	assert_int_equal(await(&u, &seen[0]), -ENOENT); /* nobody looks it up */
	u.arg = &asked;
	atomic_store(&u.ask, count);
	assert_false(upstream_awaited(&u));
	assert_int_equal(await(&u, &seen[0]), 0);
	assert_int_equal(await(&u, &seen[1]), 0);
	assert_int_equal(asked, 1);
	assert_true(atomic_exchange(&u.wanted, false));
	assert_true(upstream_awaited(&u));
	assert_false(upstream_awaited(&u));

	/* one that ends without an address is for those who were there, and not for others */
	assert_true(upstream_not_found(&u, "no such host"));
	assert_int_equal(await(&u, &seen[0]), -ENOENT);
	assert_int_equal(await(&u, &seen[2]), 0);
	assert_int_equal(await(&u, &seen[2]), 0);
	assert_int_equal(asked, 2);
	assert_int_equal(upstream_found(&u, found, 1, 600), -EADDRNOTAVAIL);
	assert_true(upstream_is_unknown(&u));
	assert_int_equal(await(&u, &seen[2]), -ENOENT);
	assert_int_equal(await(&u, &seen[3]), 0);

	assert_int_equal(upstream_found(&u, found, 2, 700), 1);
	assert_false(upstream_is_unknown(&u));
	assert_int_equal(await(&u, &seen[1]), 1);
	assert_int_equal(await(&u, &seen[3]), 1);
	expect_list(&u, "10.0.0.4:80");
	atomic_store(&u.ask, NULL);
	upstream_close(&u);
}

/* The port of a service is learnt with the address, and then is as good as written. */
static void test_service(void **state)
{
	struct rig *rig = *state;
	const struct endpoint name = { .named = true };
	struct addr found[] = { address(1, 0), address(2, PORT) }, other = address(2, 22);
	struct upstream u;

	assert_int_equal(upstream_open(&u, &name, &rig->listen, 1000, 500), 0);
	assert_int_equal(upstream_found(&u, found, 2, 600), 1);
	expect_list(&u, "10.0.0.2:80");
	assert_int_equal(upstream_found(&u, &other, 1, 700), -EADDRNOTAVAIL);
	expect_list(&u, "10.0.0.2:80");
	upstream_close(&u);
}

struct crowd {
	struct upstream *u;
	_Atomic bool over;
	_Atomic unsigned int taken;
};

static void *take_lists(void *arg)
{
	struct crowd *crowd = arg;

	while (!atomic_load(&crowd->over)) {
		struct addr_list *list = upstream_get(crowd->u);
		size_t first = addr_list_first(list, 1000);

		/* never half of one and half of another: as many as the first one's number */
		if (first < list->n &&
		    ntohl(((struct sockaddr_in *)&list->addrs[0].ss)->sin_addr.s_addr) % 256 !=
			    list->n)
			return crowd;
		addr_list_prefer(list, first, 1000);
		addr_list_put(list);
		atomic_fetch_add(&crowd->taken, 1);
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct rig *rig = *state;
	struct crowd crowd = { .u = &rig->u };
	uint64_t deadline = clock_now_ms() + 10000;
	struct addr found[MOST];
	pthread_t threads[4];
	void *wrong;

	addresses(found, 2, 2);
	upstream_found(&rig->u, found, 2, 1);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_lists, &crowd), 0);
	for (unsigned int i = 0; (i < 5000 || atomic_load(&crowd.taken) < 5000) &&
				 clock_now_ms() < deadline; i++) {
		size_t n = 1 + i % MOST;

		addresses(found, (unsigned int)n, n);
		upstream_found(&rig->u, found, n, i);
	}
	atomic_store(&crowd.over, true);
	for (size_t i = 0; i < 4; i++) {
		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
	assert_true(atomic_load(&crowd.taken) >= 5000);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_found),     TEST(test_same_set),  TEST(test_not_found),
		TEST(test_preferred), TEST(test_failed),    TEST(test_unacceptable),
		TEST(test_threads),   TEST(test_unknown),   TEST(test_service),
		TEST(test_own_by_loopback), TEST(test_preferred_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
