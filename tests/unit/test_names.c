// SPDX-License-Identifier: BSD-2-Clause
/* What becomes of the addresses that look-ups find; flow/test_names has a real name server. */
#include <stdio.h>
#include <string.h>

#include "unit.h"
#include "relay/names.h"

struct rig {
	struct forward_conf fc;
	struct endpoint conf;
	struct lookup u;
};

static void parse(const char *text, bool passive, struct endpoint *ret)
{
	const char *wrong = endpoint_parse(text, passive, false, ret);

	if (wrong)
		fail_msg("%s: %s", text, wrong);
}

/* An upstream that has no address yet, and is looked up in a loop that nobody runs. */
static int setup(void **state)
{
	static struct rig rig;
	static struct loop loop;
	static struct names *names; /* of all tests: names are never closed */
	char err[256];

	memset(&rig, 0, sizeof(rig));
	rig.fc.resolve_interval_ms = 1000;
	parse("10.0.0.99:80", true, &rig.fc.listen);
	parse("name.test:80", false, &rig.conf);
	*state = &rig;
	if ((!names &&
	     (loop_open(&loop, NULL, NULL) || names_open(&loop, &names, err, sizeof(err)))) ||
	    lookup_open(&rig.u, &rig.fc, &rig.conf, 500))
		return -1;
	names_add(names, &rig.u);
	return 0;
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	lookup_close(&rig->u);
	lookup_close(&rig->u);
	endpoint_close(&rig->conf);
	endpoint_close(&rig->fc.listen);
	return 0;
}

/* A look-up finds the addresses that TEXT has, "10.0.0.1:80 [::1]:80". */
static bool find(struct lookup *u, const char *text, uint64_t now_ms)
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
	return lookup_update(u, found, n, "none", now_ms);
}

static void expect(struct lookup *u, const char *text)
{
	struct addr_list *list = lookup_get(u);
	char one[ADDR_STRLEN], buf[512] = "";

	for (size_t i = 0; i < list->n; i++) {
		strcat(buf, i ? ", " : "");
		strcat(buf, addr_format((const struct sockaddr *)&list->addrs[i].ss,
					list->addrs[i].len, one, sizeof(one)));
	}
	assert_string_equal(buf, text);
	addr_list_put(list);
}

static struct lookup_record record_of(struct lookup *u)
{
	struct lookup_record record;

	lookup_record(u, &record);
	return record;
}

#define ON_RIG(f) TEST_WITH(f, setup, teardown)

/* Families take turns; each address is there once; the same set in another order is no news. */
ON_RIG(test_found)
{
	static const struct {
		const char *found, *list;
		bool news, fails;
	} rows[] = {
		{ "10.0.0.1:80", "10.0.0.1:80", true, false },
		{ "10.0.0.1:80 10.0.0.1:80", "10.0.0.1:80", false, false },
		{ "[::6]:80 [::7]:80 10.0.0.1:80", "[::6]:80, 10.0.0.1:80, [::7]:80", true, false },
		{ "10.0.0.1:80 [::7]:80 [::6]:80", "10.0.0.1:80, [::7]:80, [::6]:80", false, false },
		{ "10.0.0.1:80 10.0.0.2:80 10.0.0.3:80 [::1]:80 [::2]:80",
		  "10.0.0.1:80, [::1]:80, 10.0.0.2:80, [::2]:80, 10.0.0.3:80", true, false },
		{ "10.0.0.99:80 10.0.0.5:80 10.0.0.6:0", "10.0.0.5:80", true, false },
		{ "10.0.0.99:80", "10.0.0.5:80", true, true },
		{ "", "10.0.0.5:80", true, true },
		{ "", "10.0.0.5:80", false, true },
		{ "10.0.0.5:80", "10.0.0.5:80", false, false },
	};
	struct rig *rig = *state;
	struct addr_list *first;

	expect(&rig->u, "");
	assert_true(find(&rig->u, rows[0].found, 600));
	first = lookup_get(&rig->u);
	for (size_t i = 1; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (find(&rig->u, rows[i].found, 600 + i) != rows[i].news)
			fail_msg("%s: news or not", rows[i].found);
		expect(&rig->u, rows[i].list);
		assert_int_equal(record_of(&rig->u).why[0] != 0, rows[i].fails);
	}
	assert_int_equal(record_of(&rig->u).lookups, 10);
	assert_int_equal(record_of(&rig->u).failures, 3);
	assert_int_equal(record_of(&rig->u).resolved_ms, 609);
	assert_int_equal(first->n, 1); /* who began before keeps what he had */
	addr_list_put(first);
}

/* A listener with every local address would be fed by those that are known to be local. */
ON_RIG(test_own_by_loopback)
{
	static const struct {
		const char *listen, *found;
		bool good;
	} rows[] = {
		{ "0.0.0.0:80", "127.0.0.1:80", false },   { "0.0.0.0:80", "127.9.9.9:80", false },
		{ "0.0.0.0:80", "0.0.0.0:80", false },     { "0.0.0.0:80", "[::1]:80", true },
		{ "[::]:80", "[::1]:80", false },          { "[::]:80", "[::]:80", false },
		{ "0.0.0.0:81", "127.0.0.1:80", true },    { "0.0.0.0:80", "10.0.0.1:80", true },
		{ ":80", "[::ffff:127.0.0.1]:80", false }, { "127.0.0.1:80", "0.0.0.0:80", false },
		{ "127.0.0.1:80", "127.0.0.2:80", true },  { "[::1]:80", "[::]:80", false },
	};
	struct rig *rig = *state;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct forward_conf fc = { .resolve_interval_ms = 1000 };
		struct lookup u, heir;

		parse(rows[i].listen, true, &fc.listen);
		assert_int_equal(lookup_open(&u, &fc, &rig->conf, 500), 0);
		find(&u, rows[i].found, 600);
		if (!record_of(&u).why[0] != rows[i].good)
			fail_msg("%s at %s", rows[i].found, rows[i].listen);
		/* a reload that has changed the address to listen at */
		assert_int_equal(lookup_open(&heir, &fc, &rig->conf, 500), 0);
		find(&rig->u, rows[i].found, 600);
		lookup_inherit(&heir, &rig->u);
		if (heir.list->n != rows[i].good || heir.record.lookups != rows[i].good * (i + 1))
			fail_msg("%s, known, at %s", rows[i].found, rows[i].listen);
		lookup_close(&heir);
		lookup_close(&u);
		endpoint_close(&fc.listen);
	}
}

UNIT_MAIN(NULL, NULL)
