// SPDX-License-Identifier: BSD-2-Clause
/* What becomes of the addresses that look-ups find; flow/test_names has a real name server. */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "relay/names.h"

#define INTERVAL_MS 1000

struct rig {
	struct loop loop;
	struct names *names;
	struct endpoint conf, listen;
	struct upstream u;
};

static void parse(const char *text, bool passive, struct endpoint *ret)
{
	char err[256];

	if (endpoint_parse_offline(text, passive, ret, err, sizeof(err)))
		fail_msg("%s: %s", text, err);
}

/* An upstream that has no address yet, and is looked up in a loop that nobody runs. */
static int setup(void **state)
{
	static struct rig rig;
	char err[256];

	memset(&rig, 0, sizeof(rig));
	parse("10.0.0.99:80", true, &rig.listen);
	parse("name.test:80", false, &rig.conf);
	*state = &rig;
	return loop_open(&rig.loop, NULL, NULL) ||
	       names_open(&rig.loop, NULL, NULL, &rig.names, err, sizeof(err)) ||
	       upstream_open(&rig.u, &rig.conf, &rig.listen, INTERVAL_MS, 500) ||
	       names_add(rig.names, &rig.u);
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	upstream_close(&rig->u);
	upstream_close(&rig->u);
	names_close(rig->names);
	loop_close(&rig->loop);
	endpoint_close(&rig->conf);
	endpoint_close(&rig->listen);
	return 0;
}

/* A look-up finds the addresses that TEXT has, "10.0.0.1:80 [::1]:80". */
static int find(struct upstream *u, const char *text, uint64_t now_ms)
{
	char copy[512], *rest, *word;
	struct addr found[32];
	size_t n = 0;

	snprintf(copy, sizeof(copy), "%s", text);
	for (word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		struct endpoint e;

		parse(word, true, &e);
		found[n++] = e.addrs[0];
		endpoint_close(&e);
	}
	return upstream_found(u, found, n, now_ms);
}

static void expect(struct upstream *u, const char *text)
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

/* Families take turns; each address is there once; the same set in another order is no news. */
static void test_found(void **state)
{
	static const struct {
		const char *found, *list;
		int r;
	} rows[] = {
		{ "10.0.0.1:80", "10.0.0.1:80", 1 },
		{ "10.0.0.1:80 10.0.0.1:80", "10.0.0.1:80", 0 },
		{ "[::6]:80 [::7]:80 10.0.0.1:80", "[::6]:80, 10.0.0.1:80, [::7]:80", 1 },
		{ "10.0.0.1:80 [::7]:80 [::6]:80", "10.0.0.1:80, [::7]:80, [::6]:80", 0 },
		{ "10.0.0.1:80 10.0.0.2:80 10.0.0.3:80 [::1]:80 [::2]:80",
		  "10.0.0.1:80, [::1]:80, 10.0.0.2:80, [::2]:80 and 1 more", 1 },
		{ "10.0.0.99:80 10.0.0.5:80 10.0.0.6:0", "10.0.0.5:80", 1 },
		{ "10.0.0.99:80", "10.0.0.5:80", -EADDRNOTAVAIL },
		{ "", "10.0.0.5:80", -EADDRNOTAVAIL },
		{ "10.0.0.5:80", "10.0.0.5:80", 0 },
	};
	struct rig *rig = *state;
	struct addr_list *first;

	expect(&rig->u, "");
	assert_int_equal(find(&rig->u, rows[0].found, 600), 1);
	first = upstream_get(&rig->u);
	for (size_t i = 1; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int r = find(&rig->u, rows[i].found, 600 + i);

		if (r != rows[i].r)
			fail_msg("%s: %d", rows[i].found, r);
		expect(&rig->u, rows[i].list);
		assert_int_equal(record_of(&rig->u).why[0] != 0, r < 0);
	}
	assert_int_equal(record_of(&rig->u).lookups, 9);
	assert_int_equal(record_of(&rig->u).failures, 2);
	assert_int_equal(record_of(&rig->u).resolved_ms, 608);
	assert_int_equal(first->n, 1); /* who began before keeps what he had */
	addr_list_put(first);
}

/* A listener with every local address would be fed by those that are known to be local. */
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
		struct endpoint listen;
		struct upstream u;
		int r;

		parse(rows[i].listen, true, &listen);
		assert_int_equal(upstream_open(&u, &rig->conf, &listen, INTERVAL_MS, 500), 0);
		r = find(&u, rows[i].found, 600);
		if (r != (rows[i].good ? 1 : -EADDRNOTAVAIL))
			fail_msg("%s at %s: %d", rows[i].found, rows[i].listen, r);
		upstream_close(&u);
		endpoint_close(&listen);
	}
}

/* An address that has won is first for a while, also in a newer list. */
static void test_preferred(void **state)
{
	struct rig *rig = *state;
	struct addr_list *list;

	find(&rig->u, "10.0.0.1:80 10.0.0.2:80", 1000);
	list = upstream_get(&rig->u);
	assert_int_equal(upstream_first(&rig->u, list, 1000), 0);
	upstream_prefer(&rig->u, &list->addrs[1], 1000);
	assert_int_equal(upstream_first(&rig->u, list, 1000 + UPSTREAM_PREFER_MS - 1), 1);
	assert_int_equal(upstream_first(&rig->u, list, 1000 + UPSTREAM_PREFER_MS), 0);
	upstream_avoid(&rig->u, &list->addrs[0]);
	assert_int_equal(upstream_first(&rig->u, list, 1000), 1);
	addr_list_put(list);
	find(&rig->u, "10.0.0.7:80 10.0.0.8:80 10.0.0.2:80", 2000);
	list = upstream_get(&rig->u);
	assert_int_equal(upstream_first(&rig->u, list, 2000), 2);
	upstream_avoid(&rig->u, &list->addrs[2]);
	assert_int_equal(upstream_first(&rig->u, list, 2000), 0);
	addr_list_put(list);
}

static bool is_wanted(struct upstream *u)
{
	return atomic_exchange(&u->wanted, false);
}

/* Failed connects ask for a look-up, and not too often. */
static void test_failed(void **state)
{
	struct rig *rig = *state;
	unsigned int wanted = 0;

	for (uint64_t now = 1000; now < 1000 + 3 * UPSTREAM_ASK_MS; now += 10) {
		upstream_failed(&rig->u, now);
		wanted += is_wanted(&rig->u);
	}
	assert_int_equal(wanted, 3);
}

static int await(struct upstream *u, uint64_t *seen)
{
	struct addr_list *list = NULL;
	int r = upstream_await(u, seen, &list);

	assert_int_equal(r == 1, list != NULL);
	addr_list_put(list);
	return r;
}

/* Sessions that come before there is an address wait for the end of one look-up. */
static void test_await(void **state)
{
	struct rig *rig = *state;
	struct upstream *u = &rig->u, alone;
	uint64_t seen[3] = { 0 };

	assert_int_equal(await(u, &seen[0]), 0);
	assert_true(is_wanted(u));
	assert_int_equal(await(u, &seen[0]), 0);
	assert_true(upstream_not_found(u, "no such host"));
	assert_false(upstream_not_found(u, "no such host"));
	assert_int_equal(await(u, &seen[0]), -ENOENT);
	assert_int_equal(await(u, &seen[1]), 0); /* it came after that one had ended */
	find(u, "10.0.0.4:80", 600);
	assert_int_equal(await(u, &seen[1]), 1);
	assert_int_equal(await(u, &seen[2]), 1);
	/* nobody looks this one up */
	assert_int_equal(upstream_open(&alone, &rig->conf, &rig->listen, INTERVAL_MS, 0), 0);
	seen[0] = 0;
	assert_int_equal(await(&alone, &seen[0]), -ENOENT);
	upstream_failed(&alone, 5000);
	upstream_close(&alone);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_found),  TEST(test_own_by_loopback), TEST(test_preferred),
		TEST(test_failed), TEST(test_await),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
