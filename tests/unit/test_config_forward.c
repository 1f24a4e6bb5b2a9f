// SPDX-License-Identifier: BSD-2-Clause
/* What a [forward NAME] says of itself, what it has of all, and which of that cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "config/option_value.h"
#include "config_rig.h"
#include "relay/proxy_use.h"

#define FORWARD "[forward a]\nlisten = 127.0.0.1:9000\nupstream = 127.0.0.1:9001\n"

/* A forward's own, what it has of [culvert] and of the command line, and the defaults. */
static void read_own_options(struct config *c)
{
	rig_good(c,
		 "[forward a]\n"
		 "soft-limit = 8K\n"
		 "listen = :1\n"
		 "upstream = 127.0.0.1:2\n"
		 "connect-timeout = 0.25\n"
		 "idle-timeout = 1.5\n"
		 "copy-buffer = 8K\n"
		 "resolve-interval = 2\n"
		 "accept-rate = 12\n"
		 "bandwidth = 10M\n"
		 "engine = copy\n"
		 "nodelay = no\n"
		 "keepalive = 0\n"
		 "[culvert]\n"
		 "connect-timeout = 7\n"
		 "idle-timeout = 60\n"
		 "accept-rate = 50\n"
		 "bandwidth-per-client = 1M\n"
		 "fin-timeout = 30\n"
		 "resolve-interval = 600\n"
		 "hard-limit = 2M\n"
		 "keepalive = 60\n"
		 "proxy-protocol = send-v2\n"
		 "[forward b]\n"
		 "proxy-protocol = receive, send-v1\n"
		 "proxy-timeout = 3.5\n"
		 "listen = :3\n"
		 "upstream = 127.0.0.1:2\n"
		 "hard-limit = 3M\n"
		 "max-sessions = 12\n"
		 "max-sessions-per-client = 3\n",
		 WORDS("--soft-limit", "16K", ":4", "127.0.0.1:2", "--engine", "splice"));
	assert_int_equal(c->n_forwards, 3);
}

static void test_own_options(void **state)
{
	struct config c;

	(void)state;
	read_own_options(&c);
	assert_int_equal(c.forwards[0].engine, ENGINE_COPY);
	assert_int_equal(c.forwards[1].engine, ENGINE_SPLICE);
	assert_false(c.forwards[0].nodelay);
	assert_true(c.forwards[1].nodelay);
	assert_int_equal(c.forwards[0].keepalive_s, 0);
	assert_int_equal(c.forwards[1].keepalive_s, 60);
	assert_int_equal(c.forwards[0].proxy_protocol, PROXY_SEND_V2);
	assert_int_equal(c.forwards[1].proxy_protocol, PROXY_RECEIVE | PROXY_SEND_V1);
	assert_int_equal(c.forwards[0].proxy_timeout_ms, 5000);
	assert_int_equal(c.forwards[1].proxy_timeout_ms, 3500);
	assert_int_equal(c.forwards[2].engine, ENGINE_SPLICE);
	assert_ptr_equal(config_forward_with(&c, ENGINE_SPLICE), &c.forwards[1]);
	assert_null(config_forward_with(&c, ENGINE_AUTO));
	assert_int_equal(c.forwards[0].connect_timeout_ms, 250);
	assert_int_equal(c.forwards[0].idle_timeout_ms, 1500);
	assert_int_equal(c.forwards[0].copy_buffer, 8 << 10);
	assert_int_equal(c.forwards[1].copy_buffer, 64 << 10);
	assert_int_equal(c.forwards[0].accept_rate, 12);
	assert_int_equal(c.forwards[1].accept_rate, 50);
	assert_int_equal(c.forwards[0].bandwidth, 10 << 20);
	assert_int_equal(c.forwards[1].bandwidth, 0);
	assert_int_equal(c.forwards[0].bandwidth_per_client, 1 << 20);
	assert_int_equal(c.forwards[0].fin_timeout_ms, 30000);
	assert_int_equal(c.forwards[1].idle_timeout_ms, 60000);
	assert_int_equal(c.forwards[0].resolve_interval_ms, 2000);
	assert_int_equal(c.forwards[1].resolve_interval_ms, 600000);
	assert_int_equal(c.forwards[0].soft_limit, 8 << 10);
	assert_int_equal(c.forwards[0].hard_limit, 2 << 20);
	assert_int_equal(c.forwards[1].connect_timeout_ms, 7000);
	assert_int_equal(c.forwards[1].soft_limit, 16 << 10);
	assert_int_equal(c.forwards[1].hard_limit, 3 << 20);
	assert_int_equal(c.forwards[2].connect_timeout_ms, 7000);
	assert_int_equal(c.forwards[2].soft_limit, 16 << 10);
	assert_int_equal(c.forwards[2].hard_limit, 2 << 20);
	assert_int_equal(c.connect_timeout_ms, 7000);
	assert_int_equal(c.max_sessions, 16384);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(c.forwards[i].max_sessions, i == 1 ? 12 : 0);
		assert_int_equal(c.forwards[i].max_sessions_per_client, i == 1 ? 3 : 0);
	}
	config_close(&c);
}

/* The two with the same name are different options, in any order. */
static void test_two_of_a_name(void **state)
{
	struct config c;

	(void)state;
	rig_good(&c, FORWARD "max-sessions = 30\nmax-sessions-per-client = 20\n"
		 "[culvert]\nmax-sessions = 10\nmax-sessions-per-client = 0\n",
		 WORDS("--max-sessions", "40"));
	assert_int_equal(c.max_sessions, 40);
	assert_int_equal(c.max_sessions_per_client, 0);
	assert_int_equal(c.forwards[0].max_sessions, 30);
	assert_int_equal(c.forwards[0].max_sessions_per_client, 20);
	config_close(&c);
}

/* As in [culvert], 0 is no limit; that of all forwards together is another one. */
static void test_no_limit_of_its_own(void **state)
{
	struct config c;

	(void)state;
	rig_good(&c, FORWARD "max-sessions-per-client = 0\n", WORDS("--max-sessions", "40"));
	assert_int_equal(c.forwards[0].max_sessions_per_client, 0);
	assert_int_equal(c.max_sessions_per_client, 20);
	config_close(&c);
}

static bool allows(const struct forward_conf *fc, const char *client)
{
	struct sockaddr_in in = { .sin_family = AF_INET };

	assert_int_equal(inet_pton(AF_INET, client, &in.sin_addr), 1);
	return acl_allows(&fc->acl, (struct sockaddr *)&in);
}

/* A forward with any rule has its own only; the command line's take the place of [culvert]'s. */
static void test_rules(void **state)
{
	static const char text[] =
		"[forward own]\nlisten = :1\nupstream = 127.0.0.1:9\n"
		"deny = 10.0.0.5\nallow = 10.0.0.0/8 2001:db8::/32\n"
		"allow = 192.0.2.1, 192.0.2.2 ; two\n"
		"deny = all\n"
		"[forward inherits]\nlisten = :2\nupstream = 127.0.0.1:9\n"
		"[culvert]\ndeny = 11.0.0.5\nallow = 11.0.0.0/8\nallow = 12.0.0.0/8\n"
		"[forward denies]\nlisten = :3\nupstream = 127.0.0.1:9\ndeny = 12.0.0.1\n";
	struct config c;

	(void)state;
	for (int words = 0; words < 2; words++) {
		rig_good(&c, text, words ? WORDS("--deny=13.0.0.1", "--allow",
						 "13.0.0.0/8,14.0.0.1", "--allow=15.0.0.1") :
					   NULL);
		assert_false(allows(&c.forwards[0], "10.0.0.5"));
		assert_true(allows(&c.forwards[0], "10.0.0.6"));
		assert_true(allows(&c.forwards[0], "192.0.2.2"));
		assert_false(allows(&c.forwards[0], "11.0.0.6"));
		assert_false(allows(&c.forwards[0], "13.0.0.2"));
		assert_int_equal(c.forwards[0].acl.n, 6);

		assert_false(allows(&c.forwards[1], "11.0.0.5"));
		assert_true(allows(&c.forwards[1], words ? "13.0.0.2" : "11.0.0.6"));
		assert_true(allows(&c.forwards[1], words ? "14.0.0.1" : "12.0.0.1"));
		assert_false(allows(&c.forwards[1], words ? "13.0.0.1" : "11.0.0.5"));
		assert_false(allows(&c.forwards[1], words ? "12.0.0.1" : "15.0.0.1"));

		assert_false(allows(&c.forwards[2], "12.0.0.1"));
		assert_true(allows(&c.forwards[2], "13.0.0.1"));
		config_close(&c);
	}
}

#define A10 "aaaaaaaaaa"
#define A100 A10 A10 A10 A10 A10 A10 A10 A10 A10 A10
#define LISTEN(address) "[forward a]\nlisten = " address "\nupstream = 127.0.0.1:1\n"

static const struct rig_mistake mistakes[] = {
	{ 4, "limit: unknown key of [forward NAME]", FORWARD "limit = 3\n" },
	{ 2, "listen \"nonsense\": ", "[forward a]\nlisten = nonsense\nupstream = 127.0.0.1:1\n" },
	{ 3, "upstream \"127.0.0.1:0\": ",
	  "[forward a]\nlisten = :1\nupstream = 127.0.0.1:0\n" },
	{ 5, "listen \"127.0.0.1:9000\": same address as the earlier",
	  FORWARD "[forward b]\nlisten = 127.0.0.1:9000\nupstream = 127.0.0.1:9002\n" },
	{ 3, "upstream \"127.0.0.1:1\": the upstream is the listener itself",
	  "[forward a]\nlisten = 127.0.0.1:1\nupstream = 127.0.0.1:1\n" },
	{ 4, "workers: this key can only be in [culvert]", FORWARD "workers = 3\n" },
	{ 4, "config: unknown key of [forward NAME]", FORWARD "config = /x\n" },
	{ 4, "soft-limit: needs a value", FORWARD "soft-limit =\n" },
	{ 4, "soft-limit: \"1K\" is not valid, expected a size from 4 KiB to 1 GiB",
	  FORWARD "soft-limit = 1K\n" },
	{ 4, "hard-limit: \"2G\" is not valid, expected a size", FORWARD "hard-limit = 2G\n" },
	{ 4, "connect-timeout: \"0\" is not valid, expected seconds from 0.001",
	  FORWARD "connect-timeout = 0\n" },
	{ 4, "idle-timeout: \"604800.001\" is not valid, expected seconds from 0 to 604800",
	  FORWARD "idle-timeout = 604800.001\n" },
	{ 4, "accept-rate: \"1000001\" is not valid, expected a whole number from 0 to 1000000",
	  FORWARD "accept-rate = 1000001\n" },
	{ 4, "accept-rate: \"10/s\" is not valid", FORWARD "accept-rate = 10/s\n" },
	{ 4, "bandwidth: \"129G\" is not valid, expected a size from 0 B to 128 GiB",
	  FORWARD "bandwidth = 129G\n" },
	{ 4, "bandwidth: \"18446744073709551616\" is not valid",
	  FORWARD "bandwidth = 18446744073709551616\n" },
	{ 4, "bandwidth-per-client: \"10Mbit\" is not valid",
	  FORWARD "bandwidth-per-client = 10Mbit\n" },
	{ 4, "fin-timeout: \"never\" is not valid", FORWARD "fin-timeout = never\n" },
	{ 4, "connect-timeout: \"soon\" is not valid", FORWARD "connect-timeout = soon\n" },
	{ 4, "resolve-interval: \"0.05\" is not valid, expected seconds from 0.1",
	  FORWARD "resolve-interval = 0.05\n" },
	{ 5, "hard-limit: given twice, first in line 4",
	  FORWARD "hard-limit = 5M\nhard-limit = 5M\n" },
	{ 4, "nodelay: \"1\" is not valid, expected yes or no", FORWARD "nodelay = 1\n" },
	{ 4, "keepalive: \"32768\" is not valid, expected a whole number from 0 to 32767",
	  FORWARD "keepalive = 32768\n" },
	{ 4, "keepalive: \"yes\" is not valid", FORWARD "keepalive = yes\n" },
	{ 2, "keepalive: \"0.5\" is not valid", "[culvert]\nkeepalive = 0.5\n" FORWARD },
	{ 4, "proxy-protocol: \"yes\" is not valid, expected off, or receive, send-v1 or send-v2",
	  FORWARD "proxy-protocol = yes\n" },
	{ 4, "proxy-protocol: \"send-v1, send-v2\" is not valid",
	  FORWARD "proxy-protocol = send-v1, send-v2\n" },
	{ 2, "proxy-protocol: \"off receive\" is not valid",
	  "[culvert]\nproxy-protocol = off receive\n" FORWARD },
	{ 5, "proxy-protocol: given twice, first in line 4",
	  FORWARD "proxy-protocol = receive\nproxy-protocol = send-v1\n" },
	{ 4, "proxy-timeout: \"0\" is not valid, expected seconds from 0.001",
	  FORWARD "proxy-timeout = 0\n" },
	{ 4, "engine: \"fast\" is not valid, expected auto, sockmap, splice or copy",
	  FORWARD "engine = fast\n" },
	{ 5, "engine: given twice, first in line 4", FORWARD "engine = copy\nengine = copy\n" },
	{ 4, "max-sessions: \"0\" is not valid, expected a whole number from 1 to 1000000",
	  FORWARD "max-sessions = 0\n" },
	{ 4, "max-sessions: \"many\" is not valid", FORWARD "max-sessions = many\n" },
	{ 4, "max-sessions: 16385 is above that of all forwards together (16384)",
	  FORWARD "max-sessions = 16385\n" },
	{ 4, "max-sessions-per-client: \"-1\" is not valid, expected a whole number from 0",
	  FORWARD "max-sessions-per-client = -1\n" },
	{ 4, "max-sessions-per-client: 8193 is above that of all forwards together (8192)",
	  FORWARD "max-sessions-per-client = 8193\n" },
	{ 4, "allow: \"10.0.0.1/8\" is not valid, expected addresses, prefixes without host bits",
	  FORWARD "allow = 10.0.0.1/8\n" },
	{ 5, "deny: \"all, fe80::1%lo\" is not valid",
	  FORWARD "deny = all\ndeny = all, fe80::1%lo\n" },
	{ 2, "deny: \"host.example\" is not valid", "[culvert]\ndeny = host.example\n" FORWARD },
	{ 4, "deny: needs a value", FORWARD "deny =\n" },
	{ 2, "listen: needs a value", "[forward a]\nlisten =\nupstream = 127.0.0.1:1\n" },
	{ 2, "listen \"127.0.0.1:65536\": port is above 65535", LISTEN("127.0.0.1:65536") },
	{ 2, "listen \"127.0.0.1:99999999999999999999\": port is above 65535",
	  LISTEN("127.0.0.1:99999999999999999999") },
	{ 2, "listen \"127.0.0.1:-1\": bad port", LISTEN("127.0.0.1:-1") },
	{ 2, "listen \"127.0.0.1:80-90\": a range of ports: each port needs a forward of its own",
	  LISTEN("127.0.0.1:80-90") },
	{ 2, "listen \"127.0.0.1\": no port, expected HOST:PORT", LISTEN("127.0.0.1") },
	{ 2, "listen \"::1:80\": an IPv6 address needs brackets", LISTEN("::1:80") },
	{ 2, "listen \"unix:run/x\": expected unix:/path", LISTEN("unix:run/x") },
	{ 2, "listen \"unix:/" A100 "1234567\": path of 108 bytes is too long for a unix socket",
	  LISTEN("unix:/" A100 "1234567") },
	{ 2, "listen: a value is written without quotes", LISTEN("\"127.0.0.1:80\"") },
	{ 2, "listen \"http://127.0.0.1:80\": expected HOST:PORT, without scheme or path",
	  LISTEN("http://127.0.0.1:80") },
	{ 3, "upstream \":80\": no host before the colon",
	  "[forward a]\nlisten = :1\nupstream = :80\n" },
	{ 3, "upstream \"unix:@" A100 "1234567\": path of 108 bytes is too long",
	  "[forward a]\nlisten = :1\nupstream = unix:@" A100 "1234567\n" },
	{ 4, "max-sessions: \"-1\" is not valid", FORWARD "max-sessions = -1\n" },
	{ 4, "connect-timeout: \"-1\" is not valid", FORWARD "connect-timeout = -1\n" },
	{ 4, "connect-timeout: \"5s\" is not valid", FORWARD "connect-timeout = 5s\n" },
	{ 4, "bandwidth: \"-1\" is not valid", FORWARD "bandwidth = -1\n" },
	{ 4, "deny: \",\" is not valid", FORWARD "deny = ,\n" },
	{ 6, "deny: \"10.1.2.3\": an earlier rule says the opposite",
	  FORWARD "allow = 10.0.0.0/8\nallow = ::1\ndeny = 10.1.2.3\n" },
	{ 4, "soft-limit: 8 MiB is above the hard-limit of this forward (4 MiB)",
	  FORWARD "soft-limit = 8M\n" },
	{ 4, "soft-limit: 1 MiB is above the hard-limit of this forward (64 KiB)",
	  FORWARD "hard-limit = 64K\n" },
	{ 6, "soft-limit: 3 MiB is above the hard-limit of this forward (2 MiB)",
	  "[culvert]\nhard-limit = 16M\n" FORWARD "soft-limit = 3M\nhard-limit = 2M\n" },
};

static void test_mistakes(void **state)
{
	(void)state;
	rig_bad(mistakes, sizeof(mistakes) / sizeof(mistakes[0]));
}

/* What the command line says is not the file's mistake. */
static void test_limits_from_both(void **state)
{
	static const char text[] = "[culvert]\nsoft-limit = 8M\n" FORWARD;
	char err[1024], want[256];
	struct config c;

	(void)state;
	rig_good(&c, text, WORDS("--hard-limit=16M"));
	assert_int_equal(c.soft_limit, 8 << 20);
	config_close(&c);
	rig_good(&c, text, WORDS("--soft-limit=2M"));
	config_close(&c);
	assert_int_equal(rig_read(&c, WORDS("--soft-limit=9M"), err, sizeof(err)), -EINVAL);
	config_close(&c);
	assert_string_equal(err, "culvert: --soft-limit: 9 MiB is above --hard-limit (4 MiB)\n");
	assert_int_equal(rig_read(&c, WORDS("--hard-limit=1M"), err, sizeof(err)), -EINVAL);
	config_close(&c);
	snprintf(want, sizeof(want),
		 "culvert: %s:2: soft-limit: 8 MiB is above --hard-limit (1 MiB)\n", rig_path);
	assert_string_equal(err, want);
}

/* The same file, read again: its texts are elsewhere in memory. */
static void test_read_twice(void **state)
{
	static const char all[] = FORWARD "interface = lo\nengine = copy\nallow = 10.0.0.0/8\n"
					  "mark = 7\nbandwidth = 1M\nkeepalive = 7\n"
					  "proxy-protocol = receive\n";
	static const char source[] = FORWARD "source = 127.0.0.2\n";
	static const char other[] = FORWARD "interface = eth0\n";
	static const char *const same[] = { all, source, other };
	struct config a, b;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		rig_good(&a, same[i], NULL);
		rig_good(&b, same[i], NULL);
		assert_true(options_same_own(&a.forwards[0], &b.forwards[0]));
		config_close(&b);
		rig_good(&b, same[(i + 1) % 3], NULL);
		assert_false(options_same_own(&a.forwards[0], &b.forwards[0]));
		config_close(&b);
		config_close(&a);
	}
	rig_good(&a, FORWARD "interface = lo\n", NULL);
	rig_good(&b, other, NULL);
	assert_false(options_same_own(&a.forwards[0], &b.forwards[0]));
	config_close(&b);
	config_close(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own_options),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_two_of_a_name),
		cmocka_unit_test(test_no_limit_of_its_own),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_limits_from_both),
		cmocka_unit_test(test_read_twice),
	};

	return cmocka_run_group_tests(tests, rig_open, rig_close);
}
