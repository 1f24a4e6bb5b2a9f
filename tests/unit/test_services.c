// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <unistd.h>

#include "config/endpoint.h"
#include "daemon/services.h"
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

static unsigned int asked;

// NOLINTNEXTLINE(readability-non-const-parameter): endpoint_ask
static int ask(void *arg, const char *text, bool passive, struct endpoint *ret, char *err,
	       size_t errlen)
{
	(void)arg, (void)text, (void)passive, (void)ret, (void)err, (void)errlen;
	asked++;
	return -EAGAIN;
}

static void check(const char *name, unsigned int port)
{
	in_port_t found = 0;

	assert_int_equal(services_find(name, &found), port != 0);
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
	check("http", 0);
}

/* Beside a number nobody is asked for what the file says. */
static void test_no_resolver(void **state)
{
	static const struct {
		const char *text;
		unsigned int asked, port;
	} rows[] = {
		{ "10.0.0.1:www", 0, 80 },     { "[::1]:www", 0, 80 },
		{ "10.0.0.1:other", 1, 0 },    { "[::1%lo]:www", 1, 0 },
		{ "host.test:www", 1, 0 },     { "10.0.0.1:99", 0, 99 },
	};

	(void)state;
	keep(file);
	endpoint_look_up_by(ask, NULL);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct endpoint e;
		char err[256];
		int r;

		asked = 0;
		r = endpoint_parse(rows[i].text, false, &e, err, sizeof(err));
		assert_int_equal(asked, rows[i].asked);
		assert_int_equal(r, rows[i].asked ? -EAGAIN : 0);
		if (!r)
			assert_int_equal(ntohs(((struct sockaddr_in *)&e.addrs[0].ss)->sin_port),
					 rows[i].port);
		if (!r)
			endpoint_close(&e);
	}
	endpoint_look_up_by(NULL, NULL);
	services_forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_no_resolver),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
