/* SPDX-License-Identifier: BSD-2-Clause */
/* What the privileged process may be asked for, and what not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "daemon/privileged.h"

static struct privileged_known known;

/* Number GENERATION of the two that are kept: TEXT behind the listener of the command line. */
static void know(size_t place, uint32_t generation, const char *text)
{
	char *argv[] = { (char *)"run", (char *)"--config", (char *)"a.conf",
			 (char *)"127.0.0.1:9000", (char *)"127.0.0.1:9001" };
	struct config_source from = { text, strlen(text) };
	struct config *c = &known.configs[place];

	assert_int_equal(config_parse_from(5, argv, &from, c), 0);
	c->generation = generation;
}

static int make(void **state)
{
	(void)state;
	know(0, 7,
	     "[forward web]\nlisten = 0.0.0.0:443\nupstream = db.invalid:1\n"
	     "[forward any]\nlisten = [::1]:0\nupstream = db.invalid:2\n"
	     "[forward host]\nlisten = host.invalid:993\nupstream = db.invalid:3\n"
	     "[forward host0]\nlisten = host.invalid:0\nupstream = db.invalid:3\n"
	     "[forward all]\nlisten = :25\nupstream = db.invalid:3\n"
	     "[forward file]\nlisten = unix:/run/a\nupstream = db.invalid:3\n"
	     "[forward hidden]\nlisten = unix:@a\nupstream = db.invalid:3\n"
	     "[forward marked]\nlisten = :26\nupstream = db.invalid:3\nmark = 7\n"
	     "[forward clear]\nlisten = :27\nupstream = db.invalid:3\ntransparent = yes\n"
	     "[forward bound]\nlisten = :28\nupstream = db.invalid:3\nsource = ::1\n");
	know(1, 9, "[forward web]\nlisten = 0.0.0.0:444\nupstream = db.invalid:1\n");
	return 0;
}

static int unmake(void **state)
{
	(void)state;
	config_close(&known.configs[0]);
	config_close(&known.configs[1]);
	return 0;
}

/* The places of the forwards: those of the file first. */
enum { WEB, ANY, HOST, HOST0, ALL, FILE_, HIDDEN, MARKED, CLEAR, BOUND, WORDS };

static int judge(const struct privileged_request *q)
{
	const struct config *c;
	const char *why = NULL;
	int r = privileged_judge(q, sizeof(*q), &known, &c, &why);

	assert_true(!r || (why && *why));
	if (!r)
		assert_int_equal(c->generation, q->generation);
	return r;
}

static struct privileged_request listen_on(uint32_t forward, const char *where)
{
	struct privileged_request q = {
		.op = PRIVILEGED_LISTEN, .generation = 7, .forward = forward, .count = 2,
	};
	struct endpoint e;
	char err[256];

	assert_int_equal(endpoint_parse_offline(where, true, &e, err, sizeof(err)), 0);
	q.addr = e.addrs[0];
	endpoint_close(&e);
	if (!addr_is_inet(&q.addr))
		q.count = 1;
	return q;
}

static void test_listen(void **state)
{
	static const struct {
		int want;
		uint32_t forward;
		const char *where;
	} cases[] = {
		{ 0, WEB, "0.0.0.0:443" },
		{ -EPERM, WEB, "0.0.0.0:444" },
		{ -EPERM, WEB, "127.0.0.1:443" },
		{ -EPERM, WEB, "[::]:443" },
		{ -EPERM, WEB, "0.0.0.0:0" },
		{ -EPERM, WEB, "unix:/run/a" },
		{ -EPERM, ANY, "0.0.0.0:443" },
		/* port 0: the kernel's choice, which is none of the privileged ones */
		{ 0, ANY, "[::1]:0" },
		{ 0, ANY, "[::1]:1024" },
		{ 0, ANY, "[::1]:65535" },
		{ -EPERM, ANY, "[::1]:1023" },
		{ -EPERM, ANY, "[::2]:1024" },
		{ -EPERM, ANY, "127.0.0.1:1024" },
		/* a host name stands for any address */
		{ 0, HOST, "192.0.2.1:993" },
		{ 0, HOST, "[2001:db8::1]:993" },
		{ -EPERM, HOST, "192.0.2.1:994" },
		{ -EPERM, HOST, "192.0.2.1:0" },
		{ -EPERM, HOST, "unix:@a" },
		{ 0, HOST0, "192.0.2.1:0" },
		{ 0, HOST0, "192.0.2.1:5000" },
		{ -EPERM, HOST0, "192.0.2.1:22" },
		{ 0, ALL, "0.0.0.0:25" },
		{ 0, ALL, "[::]:25" },
		{ -EPERM, ALL, "127.0.0.1:25" },
		{ 0, FILE_, "unix:/run/a" },
		{ -EPERM, FILE_, "unix:/run/ab" },
		{ -EPERM, FILE_, "unix:/run" },
		{ -EPERM, FILE_, "unix:@a" },
		{ 0, HIDDEN, "unix:@a" },
		{ -EPERM, HIDDEN, "unix:@ab" },
		{ 0, WORDS, "127.0.0.1:9000" },
		{ -EPERM, WORDS, "127.0.0.1:9001" },
		{ -EPERM, WORDS + 1, "127.0.0.1:9000" },
		{ -EPERM, UINT32_MAX, "127.0.0.1:9000" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct privileged_request q = listen_on(cases[i].forward, cases[i].where);
		int r = judge(&q);

		if (r != cases[i].want)
			fail_msg("%u, %s: %d", cases[i].forward, cases[i].where, r);
	}
}

static void test_sockets(void **state)
{
	struct privileged_request q = {
		.op = PRIVILEGED_SOCKETS, .generation = 7, .family = AF_INET, .count = 1,
	};

	(void)state;
	for (q.forward = 0; q.forward < WORDS + 2; q.forward++)
		assert_int_equal(judge(&q), q.forward == MARKED || q.forward == CLEAR ? 0 : -EPERM);
	q.forward = MARKED;
	q.family = AF_INET6;
	q.count = PRIVILEGED_FDS;
	assert_int_equal(judge(&q), 0);
	q.count = PRIVILEGED_FDS + 1;
	assert_int_equal(judge(&q), -EBADMSG);
	q.count = 0;
	assert_int_equal(judge(&q), -EBADMSG);
	q.count = 1;
	q.family = AF_UNIX;
	assert_int_equal(judge(&q), -EBADMSG);
	q.family = AF_PACKET;
	assert_int_equal(judge(&q), -EBADMSG);
	q.family = AF_INET;
	q.generation = 9;
	assert_int_equal(judge(&q), -EPERM);
}

static void test_generations(void **state)
{
	struct privileged_request q = listen_on(WEB, "0.0.0.0:444");

	(void)state;
	assert_int_equal(judge(&q), -EPERM);
	q.generation = 9;
	assert_int_equal(judge(&q), 0);
	q.forward = 2; /* the other one has that */
	assert_int_equal(judge(&q), -EPERM);
	q.forward = WEB;
	q.generation = 8;
	assert_int_equal(judge(&q), -EPERM);
	q.generation = 0; /* an empty place is none */
	assert_int_equal(judge(&q), -EPERM);
}

static void test_malformed_numbers(void **state)
{
	struct privileged_request q = listen_on(WEB, "0.0.0.0:443"), u;

	(void)state;
	q.count = PRIVILEGED_FDS;
	q.joins = 1;
	assert_int_equal(judge(&q), 0);
	q.joins = 2;
	assert_int_equal(judge(&q), -EBADMSG);
	q.joins = 0;
	q.count = PRIVILEGED_FDS + 1;
	assert_int_equal(judge(&q), -EBADMSG);
	q.count = UINT32_MAX;
	assert_int_equal(judge(&q), -EBADMSG);
	q.count = 0;
	assert_int_equal(judge(&q), -EBADMSG);
	u = listen_on(FILE_, "unix:/run/a");
	u.count = 2;
	assert_int_equal(judge(&u), -EBADMSG);
	u.count = 1;
	u.joins = 1;
	assert_int_equal(judge(&u), -EBADMSG);
	q = listen_on(WEB, "0.0.0.0:443");
	q.op = 0;
	assert_int_equal(judge(&q), -EBADMSG);
	q.op = 1000;
	assert_int_equal(judge(&q), -EBADMSG);
}

static void test_malformed_addresses(void **state)
{
	struct privileged_request q = listen_on(WEB, "0.0.0.0:443");

	(void)state;
	for (socklen_t len = 0; len < 300; len++) {
		q.addr.len = len;
		assert_int_equal(judge(&q), len == 16 ? 0 : -EBADMSG);
	}
	q.addr.len = UINT32_MAX;
	assert_int_equal(judge(&q), -EBADMSG);
	q = listen_on(FILE_, "unix:/run/a");
	q.addr.len = sizeof(q.addr.ss) + 1;
	assert_int_equal(judge(&q), -EBADMSG);
	q.addr.len = 2;
	assert_int_equal(judge(&q), -EBADMSG);
	q.addr.ss.ss_family = AF_PACKET;
	q.addr.len = 16;
	assert_int_equal(judge(&q), -EBADMSG);
}

static void test_sizes(void **state)
{
	struct privileged_request q = listen_on(WEB, "0.0.0.0:443");
	const struct config *c;
	const char *why;

	(void)state;
	assert_int_equal(privileged_judge(&q, sizeof(q), &known, &c, &why), 0);
	assert_int_equal(privileged_judge(&q, sizeof(q) - 1, &known, &c, &why), -EBADMSG);
	assert_int_equal(privileged_judge(&q, sizeof(q) + 1, &known, &c, &why), -EBADMSG);
	assert_int_equal(privileged_judge(&q, 0, &known, &c, &why), -EBADMSG);
}

static void test_read_config(void **state)
{
	struct privileged_request q = { .op = PRIVILEGED_READ_CONFIG, .generation = 7 };

	(void)state;
	assert_int_equal(judge(&q), 0);
	q.generation = 6;
	assert_int_equal(judge(&q), -EPERM);
	q.generation = 7;
	known.configs[0].file = NULL; /* none was given at the start */
	assert_int_equal(judge(&q), -EPERM);
	known.configs[0].file = "a.conf";
}

/* The log of the start, whatever the configuration is by now; one descriptor. */
static void test_open_log(void **state)
{
	struct privileged_request q = { .op = PRIVILEGED_OPEN_LOG, .count = 1, .generation = 99 };
	const struct config *c;
	const char *why = NULL;

	(void)state;
	assert_int_equal(privileged_judge(&q, sizeof(q), &known, &c, &why), -EPERM);
	assert_string_equal(why, "there is no session log");
	known.log = "/run/log";
	assert_int_equal(privileged_judge(&q, sizeof(q), &known, &c, &why), 0);
	for (uint32_t i = 0; i < 3; i += 2) {
		q.count = i;
		assert_int_equal(privileged_judge(&q, sizeof(q), &known, &c, &why), -EBADMSG);
	}
	known.log = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_listen),
		cmocka_unit_test(test_sockets),
		cmocka_unit_test(test_generations),
		cmocka_unit_test(test_malformed_numbers),
		cmocka_unit_test(test_malformed_addresses),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_read_config),
		cmocka_unit_test(test_open_log),
	};

	return cmocka_run_group_tests(tests, make, unmake);
}
