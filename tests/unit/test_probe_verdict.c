/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the daemon makes of the probe's results.  The probe itself is replaced: what it finds is up
 * to each test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "capture.h"
#include "probe/probe_start.h"
#include "probe/probe_try.h"

static const char *bad; /* the check that fails; NULL: none */
static bool late, memory_short;
static unsigned int tries;

void probe_try(unsigned int carriers, struct probe_results *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->carriers = carriers;
	ret->tcp_memory_short = memory_short;
	for (size_t i = 0; i < PROBE_CHECKS; i++)
		ret->of[i].outcome = PROBE_HOLDS;
	if (bad) {
		struct probe_result *r = &ret->of[probe_find(bad, strlen(bad))];

		r->outcome = PROBE_FAILS;
		r->late = late;
		strcpy(r->detail, "as told");
	}
	tries++;
}

size_t probe_first_bad(const struct probe_results *results, unsigned int carrier)
{
	for (size_t i = 0; i < PROBE_CHECKS; i++)
		if (probe_checks[i].carriers & carrier && results->of[i].outcome != PROBE_HOLDS)
			return i;
	return PROBE_CHECKS;
}

int probe_check_variable(char *err, size_t len)
{
	if (len)
		err[0] = '\0';
	return 0;
}

static const struct verdict {
	const char *bad;
	bool late, memory_short;
	enum engine engine;
	int code;
	enum probe_verdict sockmap, splice;
	unsigned int tries;
	const char *said;
} cases[] = {
	{ NULL, false, false, ENGINE_SOCKMAP, 0, PROBE_OK, PROBE_OK, 1, "" },
	{ NULL, false, true, ENGINE_SOCKMAP, 0, PROBE_OK, PROBE_OK, 1, "" },
	/* it cannot */
	{ "accounting", false, false, ENGINE_SOCKMAP, 3, PROBE_BROKEN, PROBE_OK, 1,
	  "--engine sockmap cannot be used: \"accounting\" does not hold" },
	{ "splice", false, false, ENGINE_SPLICE, 3, PROBE_UNASKED, PROBE_BROKEN, 1,
	  "--engine splice cannot be used: \"splice\" does not hold" },
	{ "accounting", false, false, ENGINE_AUTO, 0, PROBE_BROKEN, PROBE_OK, 1,
	  "everything is carried in user space" },
	/* it may be able to, later */
	{ "accounting", true, false, ENGINE_SOCKMAP, 1, PROBE_BROKEN, PROBE_OK, 2,
	  "short of memory or time just now" },
	{ "accounting", false, true, ENGINE_SOCKMAP, 1, PROBE_UNKNOWN, PROBE_OK, 2,
	  "the machine is short of TCP memory just now" },
	{ "loopback", true, false, ENGINE_SPLICE, 1, PROBE_UNASKED, PROBE_UNKNOWN, 2,
	  "--engine splice cannot be used" },
	{ "accounting", true, false, ENGINE_AUTO, 0, PROBE_BROKEN, PROBE_OK, 2,
	  "everything is carried in user space" },
	/* to load a program takes no memory of TCP */
	{ "load", false, true, ENGINE_SOCKMAP, 3, PROBE_BROKEN, PROBE_OK, 2,
	  "\"load\" does not hold" },
};

static void test_verdicts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct verdict *v = &cases[i];
		struct forward_conf forward = { .engine = v->engine };
		struct config c = {
			.engine = v->engine, .probe = true, .forwards = &forward, .n_forwards = 1,
		};
		struct capture capture;
		struct probe_start found;
		char out[4096];
		int code;

		bad = v->bad;
		late = v->late;
		memory_short = v->memory_short;
		tries = 0;
		capture_begin(&capture, STDERR_FILENO);
		code = probe_start(&c, &found);
		capture_end(&capture, out, sizeof(out));
		if (code != v->code || !strstr(out, v->said) || (!*v->said && *out))
			fail_msg("case %zu: %d, \"%s\"", i, code, out);
		assert_int_equal(tries, v->tries);
		assert_int_equal(found.sockmap.verdict, v->sockmap);
		assert_int_equal(found.splice.verdict, v->splice);
	}
}

/* What one forward asks for by name must work, whatever the others do without. */
static void test_forwards(void **state)
{
	struct forward_conf forwards[] = {
		{ .name = "a", .engine = ENGINE_COPY }, { .name = "b", .engine = ENGINE_SPLICE },
	};
	struct config c = {
		.engine = ENGINE_COPY, .probe = true, .forwards = forwards, .n_forwards = 2,
	};
	struct capture capture;
	struct probe_start found;
	char out[4096];
	int code;

	(void)state;
	bad = "splice";
	late = memory_short = false;
	capture_begin(&capture, STDERR_FILENO);
	code = probe_start(&c, &found);
	capture_end(&capture, out, sizeof(out));
	assert_int_equal(code, 3);
	assert_non_null(strstr(out, "engine splice of forward b cannot be used: \"splice\" does "
				    "not hold"));
	assert_null(strstr(out, "--engine"));
	assert_int_equal(found.sockmap.verdict, PROBE_UNASKED);
	assert_string_equal(found.sockmap.why, "no forward's engine uses it");

	forwards[1].engine = ENGINE_AUTO;
	capture_begin(&capture, STDERR_FILENO);
	code = probe_start(&c, &found);
	capture_end(&capture, out, sizeof(out));
	assert_int_equal(code, 0);
	assert_non_null(strstr(out, "copy is used where splice would be better"));
	assert_int_equal(found.sockmap.verdict, PROBE_OK);

	forwards[1].engine = ENGINE_COPY;
	assert_int_equal(probe_start(&c, &found), 0);
	assert_string_equal(found.splice.why, "not used by --engine copy");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_verdicts),
		cmocka_unit_test(test_forwards),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
