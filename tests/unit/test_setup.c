// SPDX-License-Identifier: BSD-2-Clause
/* How many descriptors a configuration needs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/setup.h"
#include "config/config.h"
#include "relay/socket_stock.h"

#define SESSIONS 1000
#define WORKERS 3
#define TO_IN4 "upstream = 127.0.0.1:9\n"
#define TO_IN6 "upstream = [::1]:9\n"
#define TO_NAME "upstream = db.invalid:9\n"

static void need(const char *text, unsigned long *sockets, unsigned long *all)
{
	char *argv[] = { (char *)"run", (char *)"--config", (char *)"a.conf",
			 (char *)"--workers", (char *)"3", (char *)"--max-sessions",
			 (char *)"1000" };
	struct config_source from = { text, strlen(text) };
	struct config c;

	assert_int_equal(config_parse_from(7, argv, &from, &c), 0);
	assert_int_equal(c.workers, WORKERS);
	setup_descriptors(&c, sockets, all);
	config_close(&c);
}

/* Each configuration against that of one forward with one listener a worker. */
static void test_forwards(void **state)
{
	static const struct {
		const char *text;
		unsigned long more;
	} cases[] = {
		{ "[forward a]\nlisten = :80\n" TO_IN4, WORKERS },
		{ "[forward a]\nlisten = unix:/run/b\n" TO_IN4, 1UL - WORKERS },
		{ "[forward a]\nlisten = here.invalid:80\n" TO_IN4, WORKERS },
		{ "[forward a]\nlisten = 127.0.0.1:80\n" TO_IN4
		  "[forward b]\nlisten = 127.0.0.1:81\n" TO_IN4, WORKERS },
		{ "[forward a]\nlisten = 127.0.0.1:80\n" TO_NAME, 0 },
		{ "[forward a]\nlisten = 127.0.0.1:80\n" TO_IN4 "mark = 7\n", SOCKET_STOCK },
		{ "[forward a]\nlisten = 127.0.0.1:80\n" TO_IN6 "mark = 7\n", SOCKET_STOCK },
		{ "[forward a]\nlisten = [::1]:80\n" TO_IN6 "transparent = yes\n",
		  SOCKET_STOCK },
		{ "[forward a]\nlisten = 127.0.0.1:80\n" TO_NAME "mark = 7\n",
		  2 * SOCKET_STOCK },
		{ "[culvert]\nmark = 7\n"
		  "[forward a]\nlisten = 127.0.0.1:80\n" TO_IN4
		  "[forward b]\nlisten = 127.0.0.1:81\n" TO_IN4
		  "[forward c]\nlisten = 127.0.0.1:82\nmark = 0\n" TO_IN4,
		  2 * WORKERS + 2 * SOCKET_STOCK },
	};
	unsigned long sockets, all, least, least_all;

	(void)state;
	need("[forward a]\nlisten = 127.0.0.1:80\n" TO_IN4, &least, &least_all);
	assert_true(least >= 2 * SESSIONS + WORKERS);
	assert_true(least_all >= 6 * SESSIONS + WORKERS);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		need(cases[i].text, &sockets, &all);
		if (sockets - least != cases[i].more || all - least_all != cases[i].more)
			fail_msg("case %zu: %lu and %lu more", i, sockets - least,
				 all - least_all);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forwards),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
