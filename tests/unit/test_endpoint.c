// SPDX-License-Identifier: BSD-2-Clause
/* Addresses to listen at and to connect to, as they are written: good and bad, ranges, names. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "unit.h"
#include "config/endpoint.h"

#define A10 "aaaaaaaaaa"
#define A50 A10 A10 A10 A10 A10
#define A100 A50 A50

enum use {
	CONNECT,
	LISTEN,
};

static const struct {
	const char *text;
	enum use use;
	const char *formatted;
} good[] = {
	{ "1.2.3.4:80", CONNECT, "1.2.3.4:80" },
	{ "127.0.0.1:0000080", CONNECT, "127.0.0.1:80" },
	{ "[::1]:80", CONNECT, "[::1]:80" },
	{ "[::]:0", LISTEN, "[::]:0" },
	{ "[2001:DB8:0::1]:1", CONNECT, "[2001:db8::1]:1" },
	{ "[::ffff:1.2.3.4]:5", CONNECT, "1.2.3.4:5" },
	{ "[::FFFF:0:0]:0", LISTEN, "0.0.0.0:0" },
	{ "[fe80::1%1]:80", CONNECT, "[fe80::1%1]:80" },
	{ "1.2.3.4:80/tcp", CONNECT, "1.2.3.4:80" },
	{ "1.2.3.4:53/udp", CONNECT, "1.2.3.4:53" },
	{ "[::1]:53/udp", LISTEN, "[::1]:53" },
	{ "[::]:tftp/udp", LISTEN, "[::]:69" },
	{ "unix:/run/x/tcp", CONNECT, "unix:/run/x/tcp" },
	{ "unix:/a b:c[", LISTEN, "unix:/a b:c[" },
	{ "unix:/123456" A100, CONNECT, "unix:/123456" A100 },
	{ "unix:@123456" A100, LISTEN, "unix:@123456" A100 },
};

/* Host names are looked up, too. */
static int parse(const char *text, bool passive, struct endpoint *ret, char *err, size_t errlen)
{
	const char *wrong = endpoint_parse(text, passive, false, ret);

	if (!wrong)
		return ret->named ? endpoint_look_up(ret, passive, err, errlen) : 0;
	snprintf(err, errlen, "%s", wrong);
	return -EINVAL;
}

TEST(test_good)
{
	char err[256], buf[ADDR_STRLEN];
	struct endpoint e;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		int r = parse(good[i].text, good[i].use == LISTEN, &e, err, sizeof(err));

		if (r != 0)
			fail_msg("%s: %s", good[i].text, err);
		assert_string_equal(e.text, good[i].text);
		assert_int_equal(e.udp, strstr(good[i].text, "/udp") != NULL);
		assert_int_equal(e.n_addrs, 1);
		assert_string_equal(addr_format((struct sockaddr *)&e.addrs[0].ss, e.addrs[0].len,
						buf, sizeof(buf)),
				    good[i].formatted);
		assert_int_equal(addr_is_inet(&e.addrs[0]), strncmp(good[i].text, "unix", 4) != 0);
		endpoint_close(&e);
		assert_null(e.addrs);
		assert_int_equal(e.n_addrs, 0);
	}
}

static const struct {
	const char *text;
	enum use use;
	int error;
	const char *complaint;
} bad[] = {
	{ "", CONNECT, -EINVAL, "expected HOST:PORT" },
	{ "1.2.3.4:80\n", CONNECT, -EINVAL, "bad port" },
	{ A100 A100 A50 A10 A10 A10 "12345:80", CONNECT, -EINVAL, "longer than 287" },

	{ "host", CONNECT, -EINVAL, "expected HOST:PORT" },
	{ "host:", CONNECT, -EINVAL, "bad port" },
	{ "1.2.3.4:65536", CONNECT, -EINVAL, "bad port" },
	{ "1.2.3.4:99999999999999999999999", CONNECT, -EINVAL, "bad port" },
	{ "1.2.3.4:0", CONNECT, -EINVAL, "port 0" },
	{ "127.0.0.1:8000-", LISTEN, -EINVAL, "bad port" },
	{ "127.0.0.1:8000-8010-8020", LISTEN, -EINVAL, "bad port" },
	{ "127.0.0.1:8010-8000", LISTEN, -EINVAL, "bad port" },
	{ "127.0.0.1:0-10", LISTEN, -EINVAL, "port 0" },
	{ "127.0.0.1:1000-17384", LISTEN, -EINVAL, "bad port" },
	{ "127.0.0.1:65530-65536", CONNECT, -EINVAL, "bad port" },

	{ "1.2.3.4:80/", CONNECT, -EINVAL, "perhaps with /udp" },
	{ "1.2.3.4:80/sctp", CONNECT, -EINVAL, "perhaps with /udp" },
	{ "1.2.3.4/udp:80", CONNECT, -EINVAL, "expected HOST:PORT" },
	{ "unix:/run/x/udp", CONNECT, -EINVAL, "has no /udp" },

	{ ":80", CONNECT, -EINVAL, "expected HOST:PORT" },
	{ "*:80", CONNECT, -EINVAL, "bad host" },
	{ "caf\xc3\xa9:80", CONNECT, -EINVAL, "bad host" },
	{ "1.2.3.256:80", CONNECT, -EINVAL, "bad host" },
	{ "0x7f.0x1:80", CONNECT, -EINVAL, "bad host" },
	{ "/run/x.sock", CONNECT, -EINVAL, "unix:/path" },

	{ "::1", CONNECT, -EINVAL, "expected HOST:PORT" },
	{ "1.2.3.4:80:90", CONNECT, -EINVAL, "expected HOST:PORT" },
	{ "[::1:80", CONNECT, -EINVAL, "expected HOST:PORT" },
	{ "[]:80", LISTEN, -EINVAL, "bad IPv6" },
	{ "[localhost]:80", CONNECT, -EINVAL, "bad IPv6" },
	{ "[fe80::1%nosuchif]:80", CONNECT, -EINVAL, "no such network interface" },

	{ "unix:", CONNECT, -EINVAL, "unix:/path" },
	{ "unix:relative/path", LISTEN, -EINVAL, "unix:/path" },
	{ "unix:@", LISTEN, -EINVAL, "unix:@name" },
	{ "unix:/1234567" A100, CONNECT, -EINVAL, "at most 107" },
	{ "unix:@1234567" A100, LISTEN, -EINVAL, "at most 107" },
	/* No name server is asked for a label of more than 63 bytes. */
	{ A50 A10 "12345.invalid:80", CONNECT, -ENOENT, "lookup failed" },
};

TEST(test_bad)
{
	char err[256];
	struct endpoint e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int r = parse(bad[i].text, bad[i].use == LISTEN, &e, err, sizeof(err));

		if (r != bad[i].error)
			fail_msg("\"%s\": %d, expected %d", bad[i].text, r, bad[i].error);
		if (!strstr(err, bad[i].complaint))
			fail_msg("\"%s\": \"%s\" lacks \"%s\"", bad[i].text, err, bad[i].complaint);
		assert_null(strchr(err, '\n'));
		assert_null(e.addrs);
	}
}

/* To listen at: each port; to connect to: the first, since the session's own is added. */
TEST(test_range)
{
	char err[256];
	struct endpoint e;

	assert_int_equal(parse("127.0.0.1:8000-8099", true, &e, err, sizeof(err)), 0);
	assert_int_equal(e.n_addrs, 100);
	assert_int_equal(e.n_ports, 100);
	for (unsigned int i = 0; i < 100; i++)
		assert_int_equal(ntohs(addr_port(&e.addrs[i])), 8000 + i);
	endpoint_close(&e);
	assert_int_equal(parse("[::1]:1000-5095", false, &e, err, sizeof(err)), 0);
	assert_int_equal(e.n_addrs, 1);
	assert_int_equal(e.n_ports, 4096);
	assert_int_equal(ntohs(addr_port(&e.addrs[0])), 1000);
	endpoint_close(&e);
	assert_int_equal(parse("127.0.0.1:8000-8099/udp", true, &e, err, sizeof(err)), 0);
	assert_int_equal(e.n_addrs, 100);
	assert_true(e.udp);
	endpoint_close(&e);
	assert_int_equal(parse("localhost:80-81", true, &e, err, sizeof(err)), 0);
	assert_true(e.n_addrs >= 2 && e.n_addrs % 2 == 0);
	endpoint_close(&e);
}

/* Without the resolver: the services of a protocol, also by their second names. */
TEST(test_service_offline)
{
	static const struct {
		const char *text, *formatted; /* NULL: there is none */
	} rows[] = {
		{ "127.0.0.1:http", "127.0.0.1:80" },
		{ "127.0.0.1:www", "127.0.0.1:80" },
		{ "[::1]:sip", "[::1]:5060" },
		{ "127.0.0.1:tftp", NULL }, /* of UDP */
		{ "127.0.0.1:nosuchservice", NULL },
		{ "127.0.0.1:HTTP", NULL },
		{ "[::1]:tftp/udp", "[::1]:69" },
		{ "127.0.0.1:tftp/tcp", NULL },
		{ "127.0.0.1:http/tcp", "127.0.0.1:80" },
	};
	char buf[ADDR_STRLEN];
	struct endpoint e;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *wrong = endpoint_parse(rows[i].text, false, false, &e);

		assert_int_equal(!wrong, rows[i].formatted != NULL);
		if (wrong)
			assert_non_null(strstr(wrong, "bad port"));
		else
			assert_string_equal(addr_format((struct sockaddr *)&e.addrs[0].ss,
							e.addrs[0].len, buf, sizeof(buf)),
					    rows[i].formatted);
		endpoint_close(&e);
	}
	assert_null(endpoint_parse("db.example.org:tftp/udp", false, false, &e));
	assert_int_equal(ntohs(e.named_port), 69);
	endpoint_close(&e);
	assert_null(endpoint_parse("db.example.org:www", false, false, &e));
	assert_int_equal(ntohs(e.named_port), 80);
	endpoint_close(&e);
}

UNIT_MAIN(NULL, NULL)
