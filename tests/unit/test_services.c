// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <unistd.h>

#include "config/endpoint.h"
#include "config/services.h"
#include "temp_dir.h"

static const char file[] =
	"# comment\n"
	"http\t\t80/tcp\t\twww\t# WorldWideWeb\n"
	"tftp 69/udp\n"
	"  sip 5060/tcp sips#x\n"
	"bad\n"
	"none 0/tcp\n"
	"big 65536/tcp\n"
	"word x/tcp\n"
	"longer 80/tcpx\n"
	"#hidden 7/tcp\n"
	"\n"
	"http 8080/tcp\n"
	"last 9/tcp";

static void check(const char *name, unsigned int port)
{
	in_port_t found = 0;
	bool kept;

	assert_int_equal(services_find(name, &found, &kept), port != 0);
	assert_true(kept);
	assert_int_equal(ntohs(found), port);
}

static void keep(const char *text)
{
	char dir[TEMP_DIR_LEN], path[100];

	assert_int_equal(temp_dir_make(dir), 0);
	snprintf(path, sizeof(path), "%s/services", dir);
	if (text)
		temp_file_write(path, text, strlen(text));
	assert_int_equal(services_keep(path), 0);
	assert_int_equal(temp_dir_remove(dir), 0);
}

static void test_file(void **state)
{
	(void)state;
	keep(file);
	check("http", 80);
	check("www", 80);
	check("sip", 5060);
	check("sips", 5060);
	check("last", 9);
	check("tftp", 0); /* of UDP only */
	check("HTTP", 0);
	check("", 0);
	check("bad", 0);
	check("none", 0);
	check("big", 0);
	check("word", 0);
	check("longer", 0);
	check("hidden", 0);
	keep(NULL);
	check("http", 0);
	assert_true(services_keep("/") < 0);
}

/* A process that has kept them asks nobody else. */
static void test_nobody_else(void **state)
{
	static const struct {
		const char *text;
		unsigned int port; /* 0: it is not known */
	} rows[] = {
		{ "10.0.0.1:www", 80 }, { "[::1]:www", 80 }, { "10.0.0.1:ftp", 0 },
	};

	(void)state;
	keep(file);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct endpoint e;
		char err[256];
		int r = endpoint_parse_offline(rows[i].text, false, &e, err, sizeof(err));

		assert_int_equal(r, rows[i].port ? 0 : -EINVAL);
		if (r)
			continue;
		assert_int_equal(ntohs(addr_port(&e.addrs[0])), rows[i].port);
		endpoint_close(&e);
	}
	services_forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_nobody_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
