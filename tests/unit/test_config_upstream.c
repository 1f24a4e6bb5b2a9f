/* SPDX-License-Identifier: BSD-2-Clause */
/* How connections to the upstream shall leave: what is taken, inherited, refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config/config.h"

#define INET "listen = 127.0.0.1:1\nupstream = db.invalid:5\n"
#define FORWARD "[forward a]\n" INET

static char err[1024];

static int parse(const char *text, const char *const *words, struct config *c)
{
	char *argv[16] = { (char *)"run", (char *)"--config", (char *)"c" };
	struct config_source from = { text, strlen(text) };
	int argc = 3, r;

	while (words && *words)
		argv[argc++] = (char *)*words++;
	log_keep_complaint(err, sizeof(err));
	r = config_parse_from(argc, argv, &from, c);
	log_keep_complaint(NULL, 0);
	return r;
}

static void good(const char *text, const char *const *words, struct config *c)
{
	int r = parse(text, words, c);

	if (r)
		fail_msg("%d: %s", r, err);
}

static const char *host(const struct addr *a)
{
	static char text[ADDR_STRLEN];

	return a->len ? addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text)) :
			"any";
}

static void test_defaults(void **state)
{
	struct config c;

	(void)state;
	good(FORWARD, NULL, &c);
	assert_int_equal(c.forwards[0].source.len, 0);
	assert_null(c.forwards[0].interface);
	assert_int_equal(c.forwards[0].mark, 0);
	assert_false(c.forwards[0].transparent);
	assert_false(forward_needs_privileges(&c.forwards[0]));
	config_close(&c);
}

static void test_values(void **state)
{
	static const struct {
		const char *text, *want;
	} sources[] = {
		{ "192.0.2.1", "192.0.2.1:0" }, { "2001:db8::1", "[2001:db8::1]:0" },
		{ "[2001:db8::1]", "[2001:db8::1]:0" }, { "fe80::1%7", "[fe80::1%7]:0" },
		{ "::ffff:192.0.2.1", "192.0.2.1:0" }, { "any", "any" },
	};
	static const struct {
		const char *text;
		unsigned int want;
	} marks[] = {
		{ "0", 0 }, { "1", 1 }, { "0x4d", 77 }, { "4294967295", UINT32_MAX },
		{ "0xFFFFffff", UINT32_MAX }, { "0x0", 0 },
	};
	char text[256];
	struct config c;

	(void)state;
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		snprintf(text, sizeof(text), FORWARD "source = %s\n", sources[i].text);
		good(text, NULL, &c);
		assert_string_equal(host(&c.forwards[0].source), sources[i].want);
		config_close(&c);
	}
	for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
		snprintf(text, sizeof(text), FORWARD "mark = %s\n", marks[i].text);
		good(text, NULL, &c);
		assert_int_equal(c.forwards[0].mark, marks[i].want);
		assert_int_equal(forward_needs_privileges(&c.forwards[0]), !!marks[i].want);
		config_close(&c);
	}
	good(FORWARD "interface = eth0.1234567890\n", NULL, &c);
	assert_string_equal(c.forwards[0].interface, "eth0.1234567890");
	config_close(&c);
}

static void test_inherited(void **state)
{
	static const char *const words[] = { "--mark", "5", "--interface=eth0", "--source=::1",
					     "127.0.0.1:2", "[::1]:3", NULL };
	struct config c;

	(void)state;
	good("[culvert]\nmark = 1\nsource = 192.0.2.1\n"
	     FORWARD "mark = 0\ninterface = any\nsource = any\ntransparent = yes\n"
	     "[forward unix]\nlisten = 127.0.0.1:4\nupstream = unix:/x\n", words, &c);
	assert_int_equal(c.forwards[0].mark, 0);
	assert_null(c.forwards[0].interface);
	assert_int_equal(c.forwards[0].source.len, 0);
	assert_true(c.forwards[0].transparent);
	assert_true(forward_needs_privileges(&c.forwards[0]));
	/* nothing of it is for a unix socket */
	assert_int_equal(c.forwards[1].mark, 0);
	assert_null(c.forwards[1].interface);
	assert_int_equal(c.forwards[1].source.len, 0);
	assert_false(forward_needs_privileges(&c.forwards[1]));
	assert_int_equal(c.forwards[2].mark, 5);
	assert_string_equal(c.forwards[2].interface, "eth0");
	assert_string_equal(host(&c.forwards[2].source), "[::1]:0");
	config_close(&c);
}

#define BAD_SOURCE " is not valid, expected an IPv4 or IPv6 address without a port, or any"
#define BAD_MARK " is not valid, expected a number below 2^32"
#define BAD_NAME " is not valid, expected the name of a network interface, or any"

static void test_refused(void **state)
{
	static const struct {
		const char *text, *want;
	} bad[] = {
		{ FORWARD "source = 192.0.2.1:80\n", "c:4: source: \"192.0.2.1:80\"" BAD_SOURCE },
		{ FORWARD "source = [::1]:80\n", BAD_SOURCE },
		{ FORWARD "source = host.invalid\n", BAD_SOURCE },
		{ FORWARD "source = 127.1\n", BAD_SOURCE },
		{ FORWARD "source = []\n", BAD_SOURCE },
		{ FORWARD "source = [::1\n", BAD_SOURCE },
		{ FORWARD "source = fe80::1%\n", BAD_SOURCE },
		{ FORWARD "source = fe80::1%no-such-if\n", BAD_SOURCE },
		{ FORWARD "mark = -1\n", "c:4: mark: \"-1\"" BAD_MARK },
		{ FORWARD "mark = 4294967296\n", BAD_MARK },
		{ FORWARD "mark = 0x100000000\n", BAD_MARK },
		{ FORWARD "mark = 0x\n", BAD_MARK },
		{ FORWARD "mark = 7a\n", BAD_MARK },
		{ FORWARD "mark = 99999999999999999999\n", BAD_MARK },
		{ FORWARD "interface = eth0.12345678901\n", BAD_NAME },
		{ FORWARD "interface = a/b\n", BAD_NAME },
		{ FORWARD "interface = ..\n", BAD_NAME },
		{ FORWARD "interface = a b\n", BAD_NAME },
		{ FORWARD "transparent = true\n", "expected yes or no" },
		{ FORWARD "transparent = yes\nsource = ::1\n",
		  "c:4: transparent: not together with source" },
		{ "[culvert]\nsource = ::1\n" FORWARD "transparent = yes\n",
		  "c:6: transparent: not together with source" },
		{ "[forward a]\nlisten = unix:/x\nupstream = 127.0.0.1:1\ntransparent = yes\n",
		  "c:4: transparent: clients of a unix socket have no address" },
		{ "[forward a]\nlisten = :1\nupstream = unix:/x\nmark = 1\n",
		  "c:4: mark: the upstream is a unix socket, which has none" },
		{ "[forward a]\nlisten = :1\nupstream = unix:/x\nsource = ::1\n", "c:4: source: " },
		{ "[forward a]\nlisten = :1\nupstream = unix:/x\ninterface = e\n", "c:4: interf" },
		{ "[culvert]\nprivileged-process = no\n" FORWARD "mark = 1\n",
		  "c:6: mark: needs the privileged process, and privileged-process says no" },
		{ "[culvert]\nprivileged-process = no\n" FORWARD "transparent = yes\n",
		  "c:6: transparent: needs the privileged process" },
		{ "[forward a]\nlisten = :1\nupstream = [::1]:81\nsource = 127.0.0.2\n",
		  "c:4: source: the upstream \"[::1]:81\" is IPv6, and this address is IPv4: no "
		  "connection can be made" },
		{ "[culvert]\nsource = ::1\n[forward a]\nlisten = :1\nupstream = 127.0.0.1:2\n",
		  "c:5: source: the upstream \"127.0.0.1:2\" is IPv4, and this address is IPv6" },
		{ "[forward a]\nlisten = :1\nupstream = [::ffff:127.0.0.1]:2\nsource = ::1\n",
		  "c:4: source: the upstream \"[::ffff:127.0.0.1]:2\" is IPv4, and this" },
		{ "[forward a]\nlisten = [::1]:1\nupstream = 127.0.0.1:2\ntransparent = yes\n",
		  "c:4: transparent: the upstream \"127.0.0.1:2\" is IPv4, and its clients are "
		  "IPv6" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct config c;

		assert_int_equal(parse(bad[i].text, NULL, &c), -EINVAL);
		if (!strstr(err, bad[i].want))
			fail_msg("%s\n%s", err, bad[i].text);
		config_close(&c);
	}
}

/* What may work for some, or is not known yet. */
static void test_families(void **state)
{
	static const char *const texts[] = {
		"[forward a]\nlisten = :1\nupstream = db.invalid:2\nsource = ::1\n",
		"[forward a]\nlisten = [::1]:1\nupstream = 127.0.0.1:2\nsource = 127.0.0.2\n",
		"[forward a]\nlisten = :1\nupstream = 127.0.0.1:2\ntransparent = yes\n",
		("[forward a]\nlisten = [::1]:1\nupstream = 127.0.0.1:2\ntransparent = yes\n"
		 "proxy-protocol = receive\n"),
		"[forward a]\nlisten = in.invalid:1\nupstream = [::1]:2\ntransparent = yes\n",
		"[forward a]\nlisten = [::1]:1\nupstream = [::1]:2\ntransparent = yes\n",
	};
	struct config c;

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		good(texts[i], NULL, &c);
		config_close(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_inherited),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_families),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
