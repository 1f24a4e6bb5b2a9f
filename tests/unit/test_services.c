// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>

#include "services.h"

static void check(const char *name, int port)
{
	in_port_t found = 0;
	int r = service_find(name, &found);

	assert_int_equal(r, port < 0 ? -ENOENT : 0);
	if (!r)
		assert_int_equal(ntohs(found), port);
}

/* The same answers, from the system and from what was kept; also by their second names. */
static void test_names(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		check("http", 80);
		check("www", 80);
		check("sip", 5060);
		check("tftp", -1); /* of UDP only */
		check("nosuchservice", -1);
		check("", -1);
		check("HTTP", -1);
		if (i == 0)
			assert_int_equal(services_keep(), 0);
		else
			services_forget();
	}
	services_forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
