// SPDX-License-Identifier: BSD-2-Clause
/* Listeners that overlap, and forwards that lead back to themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "config/config.h"

#define FORWARDS_MAX 8
#define MANY 3000

static char err[1024];

/* WORDS: LISTEN UPSTREAM and so on, up to NULL.  Names are not looked up. */
static int parse(const char *const *words, struct config *c)
{
	char text[FORWARDS_MAX * 128] = "", *argv[] = { (char *)"run", (char *)"-c", (char *)"c" };
	struct config_source from = { .text = text };
	size_t at = 0;
	int r;

	for (size_t i = 0; words[i]; i += 2)
		at += (size_t)snprintf(text + at, sizeof(text) - at,
				       "[forward f%zu]\nlisten = %s\nupstream = %s\n", i / 2,
				       words[i], words[i + 1]);
	from.len = at;
	log_keep_complaint(err, sizeof(err));
	r = config_parse_from(3, argv, &from, c);
	log_keep_complaint(NULL, 0);
	return r;
}

struct row {
	const char *want; /* NULL: nothing is wrong */
	const char *words[2 * FORWARDS_MAX];
};

static void check(const struct row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct config c;
		int r = parse(rows[i].words, &c);

		config_close(&c);
		if (r != (rows[i].want ? -EINVAL : 0) || (r && !strstr(err, rows[i].want)))
			fail_msg("row %zu, %s: %d, \"%s\"", i, rows[i].words[0], r, r ? err : "");
	}
}

#define UP "10.0.0.1:1"

static void test_overlap(void **state)
{
	static const struct row rows[] = {
		{ "c:5: listen \"127.0.0.1:80\": same address as the earlier \"127.0.0.1:080\"",
		  { "127.0.0.1:080", UP, "127.0.0.1:80", UP } },
		{ "c:5: listen \":80\": same address as the earlier \"0.0.0.0:80\"",
		  { "0.0.0.0:80", UP, ":80", UP } },
		{ "c:5: listen \"127.0.0.1:80\": overlaps with the earlier \"0.0.0.0:80\": both "
		  "would take the same connections", { "0.0.0.0:80", UP, "127.0.0.1:80", UP } },
		{ "c:8: listen \"0.0.0.0:80\": overlaps with the earlier \"10.1.1.1:80\"",
		  { "[::1]:80", UP, "10.1.1.1:80", UP, "0.0.0.0:80", UP } },
		{ "c:5: listen \"[fd77::1]:80\": overlaps with the earlier \":80\"",
		  { ":80", UP, "[fd77::1]:80", UP } },
		{ "c:5: listen \"unix:/a\": same address", { "unix:/a", UP, "unix:/a", UP } },
		{ "c:5: listen \"unix:/a/./x\": same address as the earlier \"unix:/a/x\"",
		  { "unix:/a/x", UP, "unix:/a/./x", UP } },
		{ "c:5: listen \"unix:/./a/.//x\": same address",
		  { "unix:/a//x", UP, "unix:/./a/.//x", UP } },
		{ "c:5: listen \"[::ffff:127.0.0.1]:80\": same address as the earlier",
		  { "127.0.0.1:80", UP, "[::ffff:127.0.0.1]:80", UP } },
		{ "c:5: listen \"10.1.1.1:80\": overlaps with the earlier \"[::ffff:0:0]:80\"",
		  { "[::ffff:0:0]:80", UP, "10.1.1.1:80", UP } },
		{ NULL, { "unix:/a/x", UP, "unix:/a/.x", UP, "unix:/a/..", UP, "unix:@/a/x", UP } },
		{ "c:5: listen \"Db.invalid:1\": same address as the earlier \"db.invalid:1\"",
		  { "db.invalid:1", UP, "Db.invalid:1", UP } },
		{ NULL, { "0.0.0.0:80", UP, "[::]:80", UP } }, /* two families */
		{ NULL, { "0.0.0.0:80", UP, "127.0.0.1:81", UP } },
		{ NULL, { "0.0.0.0:0", UP, "127.0.0.1:0", UP, "0.0.0.0:0", UP, ":1", UP } },
		{ NULL, { "127.0.0.1:80", UP, "127.0.0.2:80", UP, "unix:@a", UP, "unix:/a", UP } },
	};

	(void)state;
	check(rows, sizeof(rows) / sizeof(rows[0]));
}

#define ITSELF "the upstream is the listener itself"

static void test_to_itself(void **state)
{
	static const struct row rows[] = {
		{ "c:3: upstream \"127.0.0.1:80\": " ITSELF, { "127.0.0.1:80", "127.0.0.1:80" } },
		{ "c:3: upstream \"127.0.0.1:80\": " ITSELF, { "0.0.0.0:80", "127.0.0.1:80" } },
		{ "c:3: upstream \"127.9.9.9:80\": " ITSELF, { ":80", "127.9.9.9:80" } },
		{ "c:3: upstream \"[::1]:80\": " ITSELF, { ":80", "[::1]:80" } },
		{ "c:3: upstream \"[::ffff:127.0.0.1]:80\": " ITSELF,
		  { "127.0.0.1:80", "[::ffff:127.0.0.1]:80" } },
		{ "c:3: upstream \"0.0.0.0:80\": " ITSELF, { "127.0.0.1:80", "0.0.0.0:80" } },
		{ "c:3: upstream \"[::]:80\": " ITSELF, { "[::1]:80", "[::]:80" } },
		{ "c:3: upstream \"0.0.0.0:80\": " ITSELF, { "0.0.0.0:80", "0.0.0.0:80" } },
		{ "c:3: upstream \"10.1.1.1:80\": " ITSELF, { "10.1.1.1:80", "10.1.1.1:80" } },
		{ "c:3: upstream \"unix:@a\": " ITSELF, { "unix:@a", "unix:@a" } },
		{ NULL, { "0.0.0.0:80", "[::1]:80" } }, /* of the other family */
		{ NULL, { "[::]:80", "127.0.0.1:80" } },
		{ NULL, { "0.0.0.0:80", "127.0.0.1:81" } },
		{ NULL, { "0.0.0.0:80", "10.1.1.1:80" } }, /* whose that is, is not known */
		{ NULL, { "127.0.0.2:80", "127.0.0.1:80" } },
		{ NULL, { "0.0.0.0:0", "127.0.0.1:80" } },
		{ NULL, { "unix:/a", "unix:@a" } },
	};

	(void)state;
	check(rows, sizeof(rows) / sizeof(rows[0]));
}

#define A "127.0.0.1:1"
#define B "127.0.0.1:2"
#define C "127.0.0.1:3"
#define D "unix:/d"

static void test_loops(void **state)
{
	static const struct row rows[] = {
		{ "c:6: upstream \"" A "\": a loop: it leads to forward \"f0\", and from there "
		  "back here", { A, B, B, A } },
		{ "c:9: upstream \"" A "\": a loop: it leads to forward \"f0\"",
		  { A, B, B, C, C, A } },
		{ "c:6: upstream \"" C "\": a loop: it leads to forward \"f0\"",
		  { C, A, B, C, A, B } },
		{ "c:12: upstream \"" B "\": a loop: it leads to forward \"f1\"",
		  { A, B, B, C, C, D, D, B } }, /* the first only leads into it */
		{ "c:6: upstream \"127.0.0.1:80\": a loop: it leads to forward \"f0\"",
		  { ":80", A, A, "127.0.0.1:80" } },
		{ NULL, { A, B, B, C, C, D, D, UP } },
		{ NULL, { A, D, B, D, C, D, D, UP } },
		{ NULL, { D, UP, C, D, B, C, A, B } },
		{ "c:6: upstream \"" A "\": a loop: it leads to forward \"f0\"",
		  { A, "name.invalid:2", "Name.invalid:2", A } },
		{ NULL, { A, "name.invalid:2", "name.invalid:3", A } },
		{ NULL, { A, "name.invalid:2", B, A } }, /* nobody knows yet */
	};

	(void)state;
	check(rows, sizeof(rows) / sizeof(rows[0]));
}

/* A way through all of them, and one back. */
static void test_long_way(void **state)
{
	char *argv[] = { (char *)"run", (char *)"-c", (char *)"c" };
	char *text = malloc(MANY * 80);

	(void)state;
	assert_non_null(text);
	for (int closed = 0; closed < 2; closed++) {
		struct config_source from = { .text = text };
		struct config c;
		size_t at = 0;
		int r;

		for (int i = 0; i < MANY; i++)
			at += (size_t)sprintf(text + at, "[forward f%d]\nlisten = 127.0.0.1:%d\n"
					      "upstream = 127.0.0.1:%d\n", i, i + 1,
					      closed && i == MANY - 1 ? 1 : i + 2);
		from.len = at;
		log_keep_complaint(err, sizeof(err));
		r = config_parse_from(3, argv, &from, &c);
		log_keep_complaint(NULL, 0);
		assert_int_equal(r, closed ? -EINVAL : 0);
		config_close(&c);
	}
	assert_non_null(strstr(err, "c:9000: upstream \"127.0.0.1:1\": a loop: it leads to forward "
				    "\"f0\""));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_overlap),
		cmocka_unit_test(test_to_itself),
		cmocka_unit_test(test_loops),
		cmocka_unit_test(test_long_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
