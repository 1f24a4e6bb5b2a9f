// SPDX-License-Identifier: BSD-2-Clause
/* The file with sections: what it says, what is inherited and refused, whose it may be; `check`. */
#include <linux/capability.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "client.h"
#include "daemon/check.h"
#include "config/file.h"
#include "config_rig.h"

#define FORWARD "[forward a]\nlisten = 127.0.0.1:9000\nupstream = 127.0.0.1:9001\n"
/* What any machine has descriptors for, and nothing is to be said of. */
#define MODEST "[culvert]\nmax-sessions = 10\nkeepalive = 60\n"
#define SERVERS(list) "[forward a]\nlisten = 127.0.0.1:1\nupstream = " list "\n"
#define UDP(to) "[forward a]\nlisten = 127.0.0.1:1/udp\nupstream = " to "\n"
#define A10 "aaaaaaaaaa"
#define A50 A10 A10 A10 A10 A10
#define A100 A50 A50
#define A200 A100 A100
#define LISTEN(address) "[forward a]\nlisten = " address "\nupstream = 127.0.0.1:1\n"

TEST(test_everything)
{
	const struct config *c;

	c = rig_good("\xef\xbb\xbf# a comment\n"
		     "; another\n"
		     "\n"
		     "[culvert]\n"
		     "  engine=splice\n"
		     "workers : 3 # and why\n"
		     "hard-limit\t=\t8M\r\n"
		     "control = /run/x/y.sock\n"
		     "seccomp = kill\n"
		     "session-log = /var/log/culvert/sessions.log ; and why\n"
		     "; " A200 A200 " a long comment\n"
		     "\t[forward one]  # ends here\n"
		     "  \n"
		     "listen = [::1]:80\n"
		     "upstream = unix:/run/up\n"
		     "[forward two]\n"
		     "upstream = 127.0.0.1:2\n"
		     "listen = :443", /* and no newline */
		     NULL);
	assert_int_equal(c->defaults.engine, ENGINE_SPLICE);
	assert_int_equal(c->workers, 3);
	assert_int_equal(c->defaults.hard_limit, 8 << 20);
	assert_string_equal(c->control, "/run/x/y.sock");
	assert_int_equal(c->seccomp, FILTER_KILL);
	assert_string_equal(c->session_log, "/var/log/culvert/sessions.log");
	assert_string_equal(c->file, rig_path);
	assert_int_equal(c->n_forwards, 2);
	assert_string_equal(c->forwards[0].name, "one");
	assert_string_equal(c->forwards[0].listen.text, "[::1]:80");
	assert_string_equal(c->forwards[0].upstream.text, "unix:/run/up");
	assert_string_equal(c->forwards[1].name, "two");
	assert_string_equal(c->forwards[1].upstream.text, "127.0.0.1:2");
}

/* The command line counts over the file, wherever --config stands, and adds forwards. */
TEST(test_with_command_line)
{
	const struct config *c;

	c = rig_good("[culvert]\nengine = copy\nworkers = 3\n" FORWARD,
		     WORDS("--engine", "splice", "127.0.0.1:1", "127.0.0.1:2"));
	assert_int_equal(c->defaults.engine, ENGINE_SPLICE);
	assert_int_equal(c->workers, 3);
	assert_int_equal(c->n_forwards, 2);
	assert_string_equal(c->forwards[0].name, "a");
	assert_null(c->forwards[1].name);

	c = rig_good(FORWARD, NULL);
	assert_int_equal(c->max_sessions_per_client, 8192);
	c = rig_good("[culvert]\nmax-sessions = 10\n" FORWARD, NULL);
	assert_int_equal(c->max_sessions_per_client, 5);
}

static const struct rig_mistake mistakes[] = {
	{ 0, "nothing to forward", "[culvert]\nengine = auto\n" },
	{ 1, "engine: before the first section", "engine = auto\n" },
	{ 2, "neither [SECTION] nor KEY = VALUE", "[culvert]\nengine\n" },
	{ 2, "xyzzy: unknown key of [culvert]\n", "[culvert]\nxyzzy = 1\n" },
	{ 4, "metrics: unknown key of [forward NAME]: it belongs to [culvert]\n",
	  FORWARD "metrics = :1\n" },
	{ 4, "include: belongs to [culvert] of the first file\n",
	  FORWARD "include = no-such-dir/*.conf\n" },
	{ 2, "neither [SECTION] nor KEY = VALUE", "[culvert]\ninclude /etc/culvert/x.conf\n" },
	{ 1, "a control character", "\0021 x\n" },
	{ 2, "a control character", "[culvert]\n\003x\n" },
	{ 4, "10.0.0.2: unknown key of [forward NAME]: a line cannot be continued on the next one\n",
	  "[forward a]\nlisten = :1\nupstream = 10.0.0.1:1,\n  10.0.0.2:1\n" },
	{ 4, "neither [SECTION] nor KEY = VALUE: a line cannot be continued on the next one\n",
	  FORWARD "  backup\n" },
	{ 2, "config: unknown key of [culvert]: it belongs to the command line",
	  "[culvert]\nconfig = /x\n" },
	{ 2, ": unknown key", "[culvert]\n= auto\n" },
	{ 2, "graft-rtt: \"1ms\": expected microseconds", "[culvert]\ngraft-rtt = 1ms\n" },
	{ 2, "engine: \"\": expected", "[culvert]\nengine = ; auto\n" },
	{ 3, "engine: given twice", "[culvert]\nengine = auto\nengine = auto\n" },
	{ 4, "upstream: given twice", FORWARD "upstream = 127.0.0.1:3\n" },
	{ 4, "listen: \"in.invalid:1\": expected one host name alone",
	  FORWARD "listen = in.invalid:1\n" },
	{ 1, "a control character", "# \x7f\n" },
	{ 2, "a control character", "[culvert]\nuser = a\rb\n" },
	{ 1, "\"[Culvert]\": expected [culvert], [sni FORWARD NAME...] or [forward NAME]",
	  "[Culvert]\n" },
	{ 1, "[sni a ...]: no [forward a] stands above", "[sni a b.c]\n" },
	{ 4, "\"192.0.2.1\": expected a host name, *. and one, or not-tls",
	  "[forward a]\nlisten = :1\nupstream = 192.0.2.1:1\n[sni a b.c 192.0.2.1]\n" },
	{ 4, "expected [sni FORWARD NAME...], and nothing behind it",
	  "[forward a]\nlisten = :1\nupstream = 192.0.2.1:1\n[sni a]\n" },
	{ 4, "[sni a/b.c]: upstream is missing",
	  "[forward a]\nlisten = :1\nupstream = 192.0.2.1:1\n[sni a b.c]\n" },
	{ 5, "listen: no key of [sni FORWARD NAME...]",
	  "[forward a]\nlisten = :1\nupstream = 192.0.2.1:1\n[sni a b.c]\nlisten = :2\n" },
	{ 5, "alpn: protocols are separated by blanks",
	  "[forward a]\nlisten = :1\n[sni a b.c]\nupstream = 192.0.2.1:1\nalpn = h2,http/1.1\n" },
	{ 5, "proxy-protocol: the PROXY header comes before the TLS hello, so receive",
	  "[forward a]\nlisten = :1\n[sni a b.c]\nupstream = 192.0.2.1:1\n"
	  "proxy-protocol = receive, send-v2\n" },
	{ 2, "listen: [sni] needs TCP",
	  "[forward a]\nlisten = :1/udp\n[sni a b.c]\nupstream = 192.0.2.1:1\n" },
	{ 1, "\"[forward ]\": expected", "[forward ]\n" },
	{ 1, "\"[forward a b]\": expected", "[forward a b]\n" },
	{ 1, "\"[culvert] engine = auto\": expected", "[culvert] engine = auto\n" },
	{ 1, "\"[forward " A50, "[forward " A100 A200 "]\n" },
	{ 1, "\"[forward\": expected", "[forward ;x]\nlisten = :1\nupstream = 10.0.0.1:1\n" },
	{ 3, "[forward a]: listen is missing",
	  "[culvert]\r\n\r\n[forward a]\r\nupstream = 127.0.0.1:1\r\n" },
	{ 1, "[forward ?]: not UTF-8", "[forward \xff]\n" },
	{ 2, "session-log: \"/???\": not UTF-8", "[culvert]\nsession-log = /\xed\xa0\x80\n" },
	{ 2, "session-log: \"/??\": not UTF-8", "[culvert]\nsession-log = /\xc1\x81\n" },
	{ 2, "user: \"????\": not UTF-8", "[culvert]\nuser = \xf4\x90\x80\x80\n" },

	{ 2, "stop-timeout: \"25h\": expected seconds from 0 to 86400, such as 5, 0.5",
	  "[culvert]\nstop-timeout = 25h\n" },
	{ 4, "proxy-protocol: \"yes\": expected off, receive, send-v1, send-v2, ",
	  FORWARD "proxy-protocol = yes\n" },
	{ 4, "proxy-protocol: \"send-v1, send-v2\": expected",
	  FORWARD "proxy-protocol = send-v1, send-v2\n" },

	{ 3, "upstream: \"unix:/run/a\": not UDP", UDP("unix:/run/a") },
	{ 3, "upstream: \"unix:/run/udp\": a unix socket has no /udp", UDP("unix:/run/udp") },
	{ 3, "upstream: \"db:1 db:2/tcp\": db:2/tcp: not UDP", UDP("db:1 db:2/tcp") },
	{ 3, "upstream: \"127.0.0.1:http\": bad port", UDP("127.0.0.1:http") },
	{ 2, "upstream: \"127.0.0.1:2/udp\": not TCP",
	  "[forward a]\nupstream = 127.0.0.1:2/udp\nlisten = 127.0.0.1:1\n" },
	{ 3, "listen: \"127.0.0.1:2\": one listener has one protocol",
	  "[forward a]\nlisten = 127.0.0.1:1/udp\nlisten = 127.0.0.1:2\nupstream = 10.0.0.1:1\n" },
	{ 2, "listen: \"unix:/run/a/udp\": a unix socket has no /udp",
	  "[forward a]\nlisten = unix:/run/a/udp\nupstream = 10.0.0.1:1\n" },
	{ 2, "metrics: needs an address and one port of TCP",
	  "[culvert]\nmetrics = :9/udp\n" FORWARD },
	{ 4, "check: servers of UDP are checked by check-port, or by check-send and check-expect",
	  UDP("127.0.0.1:2 check-port=3, 127.0.0.1:4") "check = 1\ncheck-send = x\n" },
	{ 4, "check-http: servers are not checked: see `check`", FORWARD "check-http = /\n" },
	{ 5, "check-http: expected a path", FORWARD "check = 1\ncheck-http = primary\n" },
	{ 6, "check-status: expected a number from 100 to 599, or two",
	  FORWARD "check = 1\ncheck-http = /\ncheck-status = 399-200\n" },
	{ 5, "check-expect: a bad escape; \\ is written \\\\",
	  FORWARD "check = 1\ncheck-expect = a\\q\n" },
	{ 5, "check-port: servers are unix sockets",
	  "[forward a]\nlisten = :1\nupstream = unix:/x\ncheck = 1\ncheck-port = 2\n" },
	{ 3, "upstream: \"10.0.0.1:1 max-sessions=x\": max-sessions=x: expected a number from 1",
	  SERVERS("10.0.0.1:1 max-sessions=x") },
	{ 3, "upstream: \"10.0.0.1:1 check-port=0\": check-port=0: expected a port from 1 to 65535",
	  SERVERS("10.0.0.1:1 check-port=0") },
	{ 4, "deny-client: needs proxy-protocol = receive", FORWARD "deny-client = ::1\n" },
	{ 4, "proxy-protocol: UDP has version 2 alone",
	  UDP("127.0.0.1:2") "proxy-protocol = receive, send-v1\n" },
	{ 2, "proxy-protocol: UDP has version 2 alone",
	  "[culvert]\nproxy-protocol = send-v1\n" UDP("127.0.0.1:2") },

	{ 4, "listen: \"127.0.0.1:9000\": takes the same connections as metrics \":9000\"",
	  "[culvert]\nmetrics = :9000\n" FORWARD },
	{ 3, "upstream: \"10.0.0.1:1 [::ffff:10.0.0.1]:01\": [::ffff:10.0.0.1]:01: given twice",
	  SERVERS("10.0.0.1:1 [::ffff:10.0.0.1]:01") },
	{ 3, "upstream: \"db:80 [::1]:80 DB:080\": DB:080: given twice",
	  SERVERS("db:80 [::1]:80 DB:080") },

	{ 4, "source: \"192.0.2.1:80\": expected an IPv4 or IPv6 address without a port",
	  FORWARD "source = 192.0.2.1:80\n" },
	{ 4, "source: \"fe80::1%no-such-if\": expected", FORWARD "source = fe80::1%no-such-if\n" },
	{ 3, "upstream: a range of ports needs a listen range of the same length",
	  "[forward a]\nlisten = :1-9\nupstream = 10.0.0.1:11-20\n" },
	{ 3, "upstream: a range of ports needs a listen range of the same length",
	  "[forward a]\nlisten = :1-9\nupstream = 10.0.0.1:11-19\nlisten = :21-29\n" },
	{ 3,
	  "upstream: \"10.0.0.1:1-9 10.0.0.2:1\": 10.0.0.2:1: all servers need the same number of ports",
	  "[forward a]\nlisten = :1-9\nupstream = 10.0.0.1:1-9 10.0.0.2:1\n" },
	{ 2, "metrics: needs an address and one port", "[culvert]\nmetrics = :1-9\n" FORWARD },
	{ 4, "mark: \"0x100000000\": expected a number below 2^32", FORWARD "mark = 0x100000000\n" },
	{ 4, "mark: \"7a\": expected", FORWARD "mark = 7a\n" },
	{ 4, "interface: \"eth0.12345678901\": expected", FORWARD "interface = eth0.12345678901\n" },
	{ 4, "transparent: not together with source", FORWARD "transparent = yes\nsource = ::1\n" },
	{ 6, "transparent: not together with source",
	  "[culvert]\nsource = ::1\n" FORWARD "transparent = yes\n" },
	{ 4, "transparent: clients of a unix socket have no address",
	  LISTEN("unix:/x") "transparent = yes\n" },
	{ 6, "mark: needs the privileged process, and privileged-process says no",
	  "[culvert]\nprivileged-process = no\n" FORWARD "mark = 1\n" },
};

TEST(test_mistakes)
{
	rig_bad(mistakes, sizeof(mistakes) / sizeof(mistakes[0]));
}

/* --- many mistakes --- */

static const char many[] = "[culvert]\n"
			   "engin = copy\n"
			   "workers = many\n"
			   "pid-file = /run/a\n"
			   "session-log = /run/a\n"
			   "[forward a]\n"
			   "lisen = :1\n"
			   "upstream = 10.0.0.1\n"
			   "[forward a]\n"
			   "listen = :1\n"
			   "keepalive = 1y\n"
			   "upstream = 10.0.0.1:1\n"
			   "[forwards b]\n"
			   "upstream = 10.0.0.1:1\n"
			   "[forward c]\n"
			   "listen = :1\x1b\n"
			   "upstream = 10.0.0.1:1\n"
			   "[forward d]\n"
			   "listen = :4\n"
			   "[forward e]\n"
			   "listen = :5:5/udp\n"
			   "upstream = 10.0.0.1:5/udp\n"
			   "mark = 1\n"
			   "mark = 2\n"
			   "[forward f]\n"
			   "listen = :6\n"
			   "upstream = 127.0.0.1:6\n"
			   "[forward g]\n"
			   "listen = 127.0.0.1:6\n"
			   "upstream = 10.0.0.1:6\n"
			   "responses = 1\n";
static const struct {
	unsigned int line, see; /* and an earlier one that is named; 0: none */
	const char *says;
} many_said[] = {
	{ 2, 0, "engin: unknown key of [culvert] (did you mean engine?)" },
	{ 7, 0, "lisen: unknown key of [forward NAME] (did you mean listen?)" },
	{ 9, 6, "[forward a]: the name is taken: see " },
	{ 13, 0, "\"[forwards b]\": expected [culvert], " },
	{ 16, 0, "a control character" },
	{ 24, 23, "mark: given twice: see " },
	{ 18, 0, "[forward d]: upstream is missing" },
	{ 3, 0, "workers: \"many\": expected" },
	{ 4, 0, "pid-file: the session log has that path" },
	{ 8, 0, "upstream: \"10.0.0.1\": expected HOST:PORT" },
	{ 11, 0, "keepalive: \"1y\": expected" },
	{ 21, 0, "listen: \":5:5/udp\": expected HOST:PORT" },
	{ 31, 0, "responses: only for UDP" },
	{ 27, 0, "upstream: \"127.0.0.1:6\": the upstream is the listener itself" },
	{ 29, 26,
	  "listen: \"127.0.0.1:6\": takes the same connections as the earlier \":6\": see " },
};

/* All mistakes of a file at once, and none that only follows from another one. */
TEST(test_all_mistakes)
{
	char want[512], earlier[sizeof(rig_path) + 16], *at = rig_err;

	rig_write(many);
	assert_int_equal(rig_parse(false, NULL), -EINVAL);
	for (size_t i = 0; i < sizeof(many_said) / sizeof(many_said[0]); i++) {
		snprintf(earlier, sizeof(earlier), "%s:%u\n", rig_path, many_said[i].see);
		snprintf(want, sizeof(want), "culvert: %s:%u: %s%s", rig_path, many_said[i].line,
			 many_said[i].says, many_said[i].see ? earlier : "");
		if (strncmp(at, want, strlen(want)) != 0)
			fail_msg("\"%s\"\ninstead of \"%s\"", at, want);
		at += strcspn(at, "\n") + 1;
	}
	assert_string_equal(at, "");
}

/* Listeners are compared whatever else is wrong, and as far as all of their lines are right. */
TEST(test_overlap_and_mistakes)
{
	static const struct rig_mistake said[] = {
		{ 3, "frob: unknown key", "" },
		{ 15, "[forward a]: the name is taken", "" },
		{ 6, "listen: \"127.0.0.1:3\": one listener has one protocol", "" },
		{ 14, "keepalive: ", "" },
		{ 12, "listen: \"127.0.0.1:1\": takes the same connections as the earlier", "" },
	};
	char want[512], *at = rig_err;

	rig_write(
		"[forward a]\nlisten = 127.0.0.1:1\nfrob = 1\n"
		"[forward b]\nlisten = 127.0.0.1:2/udp\nlisten = 127.0.0.1:3\n" /* two protocols */
		"upstream = 10.0.0.1:1\n"
		"[forward c]\nlisten = 127.0.0.1:3/udp\nupstream = 10.0.0.1:1\n"
		"[forward d]\nlisten = 127.0.0.1:1\nupstream = 127.0.0.1:1\nkeepalive = 1y\n"
		"[forward a]\nlisten = 127.0.0.1:4\nupstream = 127.0.0.1:4\n");
	assert_int_equal(rig_parse(false, NULL), -EINVAL);
	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		snprintf(want, sizeof(want), "culvert: %s:%u: %s", rig_path, said[i].line,
			 said[i].complaint);
		if (strncmp(at, want, strlen(want)) != 0)
			fail_msg("\"%s\"\ninstead of \"%s\"", at, want);
		at += strcspn(at, "\n") + 1;
	}
	assert_string_equal(at, "");
}

/* As many of them as have room, as of a reload. */
TEST(test_kept_mistakes)
{
	char kept[4096];

	rig_write(many);
	for (size_t room = sizeof(kept); room >= 256; room /= 4) {
		log_keep_complaint(kept, room);
		assert_int_equal(rig_parse(false, NULL), -EINVAL);
		log_keep_complaint(NULL, 0);
		assert_non_null(strstr(kept, "(did you mean engine?); "));
		assert_true(room == sizeof(kept) ? strstr(kept, ":26") != NULL :
						   strlen(kept) > room - 8 &&
							   !strcmp(kept + strlen(kept) - 3, "..."));
	}
}

/* As other programs of this kind have it. */
TEST(test_habits)
{
	const struct config *c;

	c = rig_good("[culvert]\nidle-timeout = 1h\nfin-timeout = 30m\nmetrics = *:9\n"
		     "# Latin-1 \xe4 in a comment\n"
		     "[forward f\xc3\xbcr-\xe2\x82\xac-\xf0\x9f\x98\x80]\n"
		     "listen = *:8080\nlisten = 127.0.0.2:81\nlisten = unix:/a b\n"
		     "upstream = 10.0.0.1:1,10.0.0.2:1 weight=2, 10.0.0.3:1 backup\n",
		     NULL);
	assert_int_equal(c->defaults.idle_timeout_ms, 3600000);
	assert_int_equal(c->defaults.fin_timeout_ms, 1800000);
	assert_string_equal(c->forwards[0].listen.text, "*:8080 127.0.0.2:81 unix:/a b");
	assert_int_equal(c->forwards[0].listen.n_addrs, 3 + addr_has_ipv6());
	assert_int_equal(c->forwards[0].upstream.n, 3);
	assert_int_equal(c->forwards[0].upstream.servers[1].weight, 2);
	assert_true(c->forwards[0].upstream.servers[2].backup);
}

/* A forward's own, what it has of [culvert] and of the command line, and the defaults. */
TEST(test_own_options)
{
	static const struct {
		enum engine engine;
		unsigned int soft_limit, hard_limit, proxy_protocol, sessions, of_client;
	} want[] = {
		{ ENGINE_COPY, 8 << 10, 2 << 20, PROXY_SEND_V2, 0, 0 },
		{ ENGINE_SPLICE, 16 << 10, 3 << 20, PROXY_RECEIVE | PROXY_SEND_V1, 12, 3 },
		{ ENGINE_SPLICE, 16 << 10, 2 << 20, PROXY_SEND_V2, 0, 0 },
	};
	const struct config *c;

	c = rig_good("[forward a]\n"
		     "soft-limit = 8K\n"
		     "listen = :1\n"
		     "upstream = 127.0.0.1:2\n"
		     "engine = copy\n"
		     "[culvert]\n"
		     "hard-limit = 2M\n"
		     "proxy-protocol = send-v2\n"
		     "[forward b]\n"
		     "proxy-protocol = receive, send-v1\n"
		     "listen = :3\n"
		     "upstream = 127.0.0.1:2\n"
		     "hard-limit = 3M\n"
		     "max-sessions = 12\n"
		     "max-sessions-per-client = 3\n",
		     WORDS("--soft-limit", "16K", ":4", "127.0.0.1:2", "--engine", "splice"));
	assert_int_equal(c->n_forwards, 3);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(c->forwards[i].engine, want[i].engine);
		assert_int_equal(c->forwards[i].soft_limit, want[i].soft_limit);
		assert_int_equal(c->forwards[i].hard_limit, want[i].hard_limit);
		assert_int_equal(c->forwards[i].proxy_protocol, want[i].proxy_protocol);
		assert_int_equal(c->forwards[i].max_sessions, want[i].sessions);
		assert_int_equal(c->forwards[i].max_sessions_per_client, want[i].of_client);
	}
	assert_ptr_equal(config_forward_with(c, ENGINE_SPLICE), &c->forwards[1]);
	assert_null(config_forward_with(c, ENGINE_AUTO));
	assert_int_equal(c->max_sessions, 16384);
}

/* What has no meaning for one protocol is inherited without a complaint. */
TEST(test_udp)
{
	const struct config *c;

	c = rig_good("[culvert]\nresponses = 2\nmax-reply-factor = 9\ncheck = 5\n"
		     "proxy-protocol = receive, send-v2\nmetrics = :1\n"
		     "[forward a]\nupstream = 127.0.0.1:tftp, db:69/udp\nlisten = :1/udp\n"
		     "listen = 127.0.0.1:2-3/udp\n"
		     "[forward b]\nlisten = 127.0.0.1:2-3/tcp\nupstream = 127.0.0.1:http/tcp\n"
		     "[forward c]\nlisten = here:2/udp\nupstream = here:3\nidle-timeout = 0\n"
		     "responses = 1\nmax-reply-factor = 0\n",
		     WORDS("127.0.0.1:4/udp", "127.0.0.1:5"));
	assert_int_equal(c->n_forwards, 4);
	for (size_t i = 0; i < c->n_forwards; i++) {
		assert_int_equal(c->forwards[i].listen.udp, i != 1);
		assert_int_equal(c->forwards[i].check_ms, i == 1 ? 5000 : 0);
		assert_int_equal(c->forwards[i].idle_timeout_ms, i == 0 || i == 3 ? 60000 : 0);
		assert_int_equal(c->forwards[i].responses, i == 2 ? 1 : 2);
		assert_int_equal(c->forwards[i].max_reply_factor, i == 2 ? 0 : 9);
	}
	assert_int_equal(ntohs(c->forwards[0].upstream.servers[0].at.named_port), 69);
	assert_true(c->forwards[2].upstream.servers[0].at.udp);
	assert_string_equal(forward_name(&c->forwards[3]), "127.0.0.1:4/udp");
	c = rig_good("[culvert]\nidle-timeout = 0\n" UDP("127.0.0.1:2"), NULL);
	assert_int_equal(c->forwards[0].idle_timeout_ms, 0);
	assert_int_equal(c->forwards[0].max_reply_factor, 50);
	c = rig_good(UDP("127.0.0.1:2"), WORDS("--idle-timeout", "5"));
	assert_int_equal(c->forwards[0].idle_timeout_ms, 5000);
}

/* A forward with any rule has its own only; the command line's take the place of [culvert]'s. */
TEST(test_rules)
{
	static const char text[] =
		"[forward own]\nlisten = :1\nupstream = 127.0.0.1:9\n"
		"deny = 10.0.0.5\nallow = 10.0.0.0/8 2001:db8::/32\n"
		"allow = 192.0.2.1, 192.0.2.2 ; two\n"
		"deny = all\n"
		"[forward inherits]\nlisten = :2\nupstream = 127.0.0.1:9\n"
		"[culvert]\ndeny = 11.0.0.5\nallow = 11.0.0.0/8\nallow = 12.0.0.0/8\n"
		"[forward denies]\nlisten = :3\nupstream = 127.0.0.1:9\ndeny = 12.0.0.1\n";
	const struct config *c;

	for (int words = 0; words < 2; words++) {
		c = rig_good(text, words ? WORDS("--deny=13.0.0.1", "--allow",
						 "13.0.0.0/8,14.0.0.1", "--allow=15.0.0.1") :
					   NULL);
		assert_int_equal(c->forwards[0].acl.n, 6);
		expect_clients(&c->forwards[0].acl, "own", "10.0.0.6 192.0.2.2", true);
		expect_clients(&c->forwards[0].acl, "own", "10.0.0.5 11.0.0.6 13.0.0.2", false);
		expect_clients(&c->forwards[1].acl, "inherits",
			       words ? "13.0.0.2 14.0.0.1" : "11.0.0.6 12.0.0.1", true);
		expect_clients(&c->forwards[1].acl, "inherits",
			       words ? "11.0.0.5 13.0.0.1 12.0.0.1" : "11.0.0.5 15.0.0.1", false);
		expect_clients(&c->forwards[2].acl, "denies", "13.0.0.1", true);
		expect_clients(&c->forwards[2].acl, "denies", "12.0.0.1", false);
	}
}

/* What may work for some, or is not known yet, and what a unix socket inherits. */
TEST(test_upstream)
{
	static const char *const texts[] = {
		"[forward a]\nlisten = :1\nupstream = db.invalid:2\nsource = ::1\n",
		LISTEN(":9") "transparent = yes\n",
		LISTEN("[::1]:2") "transparent = yes\nproxy-protocol = receive\n",
		LISTEN("in.invalid:1") "transparent = yes\n",
		SERVERS("db:80 db:81 dbx:80 10.0.0.1:80 weight=2 10.0.0.2:80 weight=2 backup"),
		SERVERS("unix:/run/a unix:/run/A unix:@/run/a"),
		LISTEN(":8000-8099"),
		LISTEN(":8000-8099") "listen = :81\n",
		("[forward a]\nlisten = 127.0.0.1:1-9\nlisten = [::1]:1-9\n"
		 "upstream = db.invalid:11-19\n"),
	};
	const struct config *c;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		rig_good(texts[i], NULL);
	c = rig_good("[culvert]\nmark = 0x4d\nsource = ::ffff:192.0.2.1\ninterface = eth0\n" LISTEN(
			     "127.0.0.1:9") "[forward b]\nlisten = :2\nupstream = unix:/x\n",
		     NULL);
	assert_int_equal(c->forwards[0].mark, 77);
	assert_int_equal(c->forwards[0].source.ss.ss_family, AF_INET);
	assert_string_equal(c->forwards[0].interface, "eth0");
	assert_true(forward_needs_privileges(&c->forwards[0]));
	assert_int_equal(c->forwards[1].mark, 0);
	assert_int_equal(c->forwards[1].source.len, 0);
	assert_null(c->forwards[1].interface);
}

#define UP "10.0.0.1:1"
#define TWO(a, b)                                                                                  \
	"[forward a]\nlisten = " a "\nupstream = " UP "\n[forward b]\nlisten = " b                 \
	"\nupstream = " UP "\n"
#define WAY(from, to) "[forward a]\nlisten = " from "\nupstream = " to "\n"
#define SAME(b, a) "listen: \"" b "\": takes the same connections as the earlier \"" a "\""
#define ITSELF(to) "upstream: \"" to "\": the upstream is the listener itself"

static const struct rig_mistake overlaps[] = {
	{ 6, SAME(":80 :81", ":81"),
	  "[forward b]\nlisten = :81\nupstream = " UP
	  "\n[forward a]\nlisten = :80\nlisten = :81\nupstream = " UP "\n" },
	{ 5, SAME("127.0.0.1:80", "127.0.0.1:080"), TWO("127.0.0.1:080", "127.0.0.1:80") },
	{ 5, SAME(":80-89", ":85"), TWO(":85", ":80-89") },
	{ 5, SAME(":80", "0.0.0.0:80"), TWO("0.0.0.0:80", ":80") },
	{ 5, SAME("127.0.0.1:80", "0.0.0.0:80"), TWO("0.0.0.0:80", "127.0.0.1:80") },
	{ 5, SAME("0.0.0.0:80", "10.1.1.1:80"), TWO("10.1.1.1:80", "0.0.0.0:80") },
	{ 5, SAME("[fd77::1]:80", ":80"), TWO(":80", "[fd77::1]:80") },
	{ 5, SAME("unix:/a/x", "unix:/a/x"), TWO("unix:/a/x", "unix:/a/x") },
	{ 5, SAME("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
	  TWO("127.0.0.1:80", "[::ffff:127.0.0.1]:80") },

	{ 3, ITSELF("127.9.9.9:80"), WAY(":80", "127.9.9.9:80") },
	{ 3, ITSELF("[::1]:80"), WAY(":80", "[::1]:80") },
	{ 3, ITSELF("[::ffff:127.0.0.1]:80"), WAY("127.0.0.1:80", "[::ffff:127.0.0.1]:80") },
	{ 3, ITSELF("0.0.0.0:80"), WAY("127.0.0.1:80", "0.0.0.0:80") },
	{ 3, ITSELF("[::]:80"), WAY("[::1]:80", "[::]:80") },
	{ 3, ITSELF("10.1.1.1:80"), WAY("10.1.1.1:80", "10.1.1.1:80") },
	{ 3, ITSELF("unix:@a"), WAY("unix:@a", "unix:@a") },
	{ 5, ITSELF("127.9.9.9:80"), WAY(":80", UP) "[sni a b.c]\nupstream = 127.9.9.9:80\n" },
};

TEST(test_overlap)
{
	static const char *const good[] = {
		TWO("0.0.0.0:80", "0.0.0.0:80/udp"),
		TWO("unix:/a/x", "unix:@/a/x"),
		TWO("0.0.0.0:80", "[::]:80"), /* two families */
		TWO("0.0.0.0:80", "127.0.0.1:81"),
		TWO("0.0.0.0:0", "127.0.0.1:0"), /* two ports */
		TWO("db.invalid:1", "db.invalid:2"),
		WAY("0.0.0.0:80", "[::1]:80"), /* of the other family */
		WAY("0.0.0.0:80", "127.0.0.1:81"),
		WAY("0.0.0.0:80", "10.1.1.1:80"), /* whose that is, is not known */
		WAY("0.0.0.0:0", "127.0.0.1:80"),
	};

	rig_bad(overlaps, sizeof(overlaps) / sizeof(overlaps[0]));
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		rig_good(good[i], NULL);
}

/* What is no text, or too much of it. */
TEST(test_bytes)
{
	static const char nul[] = FORWARD "[culvert]\nengine = au\0to\n";
	static char big[CONFIG_FILE_MAX + 100];

	rig_bad_bytes(nul, sizeof(nul) - 1, 5, "a control character");
	memset(big, '\n', sizeof(big));
	rig_bad_bytes(big, sizeof(big), 0, rig_path);
}

/* --- which files are read: what they are, whose, and who else could have written them --- */

static void parse_as(mode_t file, mode_t dir, int result, const char *says)
{
	int r;

	assert_int_equal(chmod(rig_path, file), 0);
	assert_int_equal(chmod(rig_dir, dir), 0);
	r = rig_parse(false, NULL);
	assert_int_equal(chmod(rig_dir, 0700), 0);
	assert_int_equal(r, result);
	assert_non_null(strstr(rig_err, says));
}

/* What a link leads to counts, and where that is. */
TEST(test_link)
{
	char link[96], dir[80];

	rig_write(FORWARD);
	snprintf(dir, sizeof(dir), "%s/d", rig_dir);
	snprintf(link, sizeof(link), "%s/d/link", rig_dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(symlink("../c", link), 0);
	strcpy(rig_path + strlen(rig_dir), "/d/link");
	snprintf(link, sizeof(link), "%s can be written by others (uid ", rig_dir);
	parse_as(0600, 0700, 0, "");
	parse_as(0600, 0777, -EPERM, link);
	assert_int_equal(unlink(rig_path), 0);
	assert_int_equal(symlink("../nothing", rig_path), 0);
	assert_int_equal(rig_parse(false, NULL), -ENOENT);
	assert_non_null(strstr(rig_err, "d/link: No such file or directory (uid "));
	assert_int_equal(unlink(rig_path), 0);
	assert_int_equal(rmdir(dir), 0);
	strcpy(rig_path + strlen(rig_dir), "/c");
}

/* Who could have written it? */
static void write_beside(const char *name, const char *text)
{
	char path[sizeof(rig_dir) + 16];

	snprintf(path, sizeof(path), "%s/%s", rig_dir, name);
	temp_file_write(path, text, strlen(text));
}

/* Files that [culvert] includes, in the order of their names; their mistakes have file and line. */
TEST(test_include)
{
	const struct config *c;

	write_beside("b.inc", "[forward b]\nlisten = :3\nupstream = 10.0.0.1:3\nidle-timeout = 7");
	write_beside("a.inc", "[forward a]\nlisten = :2\nupstream = 10.0.0.1:2\n");
	c = rig_good("[culvert]\nidle-timeout = 9\ninclude = *.inc\ninclude = no-such*\nrise = 4\n"
		     "[forward z]\nlisten = :1\nupstream = 10.0.0.1:1\n",
		     NULL);
	assert_int_equal(c->n_forwards, 3);
	assert_string_equal(c->forwards[0].name, "a");
	assert_int_equal(c->forwards[0].idle_timeout_ms, 9000);
	assert_int_equal(c->forwards[0].rise, 4);
	assert_string_equal(c->forwards[1].name, "b");
	assert_int_equal(c->forwards[1].idle_timeout_ms, 7000);
	assert_string_equal(c->forwards[2].name, "z");
	write_beside("a.inc", "rise = 3\n\002\ninclude = b.inc\n[forward z]\nlistn = :2\n");
	rig_write("[culvert]\ninclude = a.inc\nfal = 3\n[forward z]\nlisten = :1\nupstream = :1\n");
	assert_int_equal(rig_parse(false, NULL), -EINVAL);
	for (const char *const *said =
		     (const char *const[]){
			     "/a.inc:1: rise: before the first section\n",
			     "/a.inc:2: a control character\n",
			     "/a.inc:3: include: belongs to [culvert] of the first file\n",
			     "/a.inc:5: listn: unknown key of [forward NAME] (did you mean listen?)\n",
			     "/c:3: fal: unknown key of [culvert] (did you mean fall?)\n",
			     "/c:4: [forward z]: the name is taken: see ", "/a.inc:4\n", NULL };
	     *said; said++)
		if (!strstr(rig_err, *said))
			fail_msg("%s is missing in %s", *said, rig_err);
	write_beside("a.inc", "");
	write_beside("b.inc", "");
}

/* Files and folders that cannot be included are mistakes of that line, and hide no other one. */
TEST(test_include_wrong)
{
	static const char *const said[] = {
		"c:2: include: ",
		"/a.bad can be written by others (uid ",
		"c:2: include: ",
		"/b?.bad: No such file or directory (uid ",
		"c:2: include: ",
		"/d.bad: not a regular file\n",
		"e.bad:1: fal: before the first section\n",
		"e.bad:2: a control character\n",
		"c:3: include: ",
		"/no-such-file: No such file or directory\n",
		"c:4: include: ",
		"/cnof.d/: No such file or directory\n",
		"c:5: include: ",
		"/c/: Not a directory\n",
		"c:6: fal: unknown key of [culvert] (did you mean fall?)\n",
		"c:8: include: belongs to [culvert] of the first file\n",
	};
	char path[4][sizeof(rig_dir) + 16];
	const char *at = rig_err;
	int lines = 0;

	for (int i = 0; i < 4; i++)
		snprintf(path[i], sizeof(path[i]), "%s/%s.bad", rig_dir,
			 (const char *const[]){ "a", "b\xc3", "d", "e" }[i]);
	write_beside("a.bad", FORWARD);
	assert_int_equal(chmod(path[0], 0666), 0);
	assert_int_equal(symlink("nothing", path[1]), 0);
	assert_int_equal(mkdir(path[2], 0700), 0);
	write_beside("e.bad", "fal = 3\n\003 x\n");
	rig_write("[culvert]\ninclude = *.bad\ninclude = no-such-file\ninclude = cnof.d/*.bad\n"
		  "include = c/*\nfal = 3\n[forward a]\ninclude = cnof.d/*\n");
	assert_int_equal(rig_parse(false, NULL), -EINVAL);
	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		at = strstr(at, said[i]);
		if (!at)
			fail_msg("%s is missing in %s", said[i], rig_err);
		at += strlen(said[i]);
	}
	for (at = rig_err; *at; at++)
		lines += *at == '\n';
	assert_int_equal(lines, 10);
	unlink(path[0]);
	unlink(path[1]);
	rmdir(path[2]);
	unlink(path[3]);
	/* no file can have a mark, even behind a byte order mark */
	rig_bad_bytes("\xef\xbb\xbf\0029 x\n", 8, 1, "a control character");
	rig_good("[culvert]\ninclude = *.bad\n" FORWARD, NULL);
}

TEST(test_owner)
{
	rig_write(FORWARD);
	parse_as(0600, 0700, 0, "");
	parse_as(0644, 0755, 0, "");
	parse_as(0644, 01777, 0, ""); /* as /tmp */
	parse_as(0664, 0755, -EPERM, "mode 0664): chown root, chmod go-w");
	parse_as(0644, 0777, -EPERM, "");
	if (!geteuid()) {
		assert_int_equal(chown(rig_path, 65534, 65534), 0);
		parse_as(0600, 0700, -EPERM, "can be written by others (uid 65534, mode 0600)");
	}
	unlink(rig_path);
	assert_int_equal(rig_parse(false, NULL), -ENOENT);
	assert_non_null(strstr(rig_err, "No such file or directory"));
	assert_int_equal(mkfifo(rig_path, 0600), 0);
	parse_as(0600, 0700, -EINVAL, "not a regular file");
	unlink(rig_path);
}

/* --- culvert check --- */

/* The exit code for TEXT; rig_err and OUT get what is said. */
static int check(const char *text, char out[1024])
{
	char *argv[] = { (char *)"check", rig_path, NULL };
	struct capture to_stderr, to_stdout;
	int r;

	rig_write(text);
	capture_begin(&to_stdout, STDOUT_FILENO);
	capture_begin(&to_stderr, STDERR_FILENO);
	r = check_run(2, argv);
	capture_end(&to_stderr, rig_err, sizeof(rig_err));
	capture_end(&to_stdout, out, 1024);
	return r;
}

/* What run would refuse, with TEXT: a mistake whose message begins with file and line. */
static void check_refuses(const char *text, unsigned int line, const char *want)
{
	char out[1024], at[256];

	assert_int_equal(check(text, out), 2);
	snprintf(at, sizeof(at), "culvert: %s:%u: %s", rig_path, line, want);
	if (strncmp(rig_err, at, strlen(at)))
		fail_msg("%s instead of %s", rig_err, at);
}

TEST(test_check_account)
{
	static const char *const empty[] = {
		"",
		"[culvert]\nengine = copy\n",
		"# nothing\n",
	};
	static const char *const made[] = {
		MODEST "control = /run/none/c\nsession-log = -\n" FORWARD,
		MODEST "pid-file = /run/culvert/p\nsession-log = /run/none/s\n" FORWARD,
	};
	char out[1024], want[512];

	check_refuses("[culvert]\nuser = nosuchuser\n" FORWARD, 2, "no such account: nosuchuser");
	check_refuses("[culvert]\nuser = root\n" FORWARD, 2, "account root is root");
	/* made by who starts it, or by itself */
	for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
		assert_int_equal(check(made[i], out), 0);
		assert_string_equal(rig_err, "");
	}
	/* with which `culvert run --config FILE` would not start */
	snprintf(want, sizeof(want), "culvert: nothing to forward: %s has no forward, and ",
		 rig_path);
	for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
		assert_int_equal(check(empty[i], out), 2);
		assert_memory_equal(rig_err, want, strlen(want));
	}
}

/* In a process of its own, which may have 100 descriptors and no privilege to have more. */
static void check_with_few_descriptors(const char *text)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };
	struct rlimit few = { 100, 100 };
	char *argv[] = { (char *)"check", rig_path, NULL };
	struct capture capture;
	int status = -1;
	pid_t pid;

	rig_write(text);
	capture_begin(&capture, STDERR_FILENO);
	pid = fork();
	if (!pid)
		_exit(setrlimit(RLIMIT_NOFILE, &few) || syscall(SYS_capset, &head, none) ?
			      99 :
			      check_run(2, argv));
	waitpid(pid, &status, 0);
	capture_end(&capture, rig_err, sizeof(rig_err));
	if (status)
		fail_msg("%#x: %s", status, rig_err);
}

/* With the line of what is too much; the file is good all the same. */
TEST(test_check_machine)
{
	char want[sizeof(rig_path) + 256];

	check_with_few_descriptors("[culvert]\nmax-sessions = 1000000\n" FORWARD);
	snprintf(want, sizeof(want),
		 "culvert: warning: %s:2: max-sessions: only 100 descriptors: "
		 "1000000 sessions need 2000",
		 rig_path);
	assert_non_null(strstr(rig_err, want));

	check_with_few_descriptors(FORWARD);
	assert_non_null(strstr(rig_err, "culvert: warning: max-sessions: only 100 "));
}

TEST(test_check)
{
	char out[1024];

	assert_int_equal(check(MODEST FORWARD, out), 0);
	assert_string_equal(rig_err, "");
	assert_non_null(strstr(out, ": 1 forward, no mistake\n"));
	assert_non_null(strstr(out, "a: sessions "));
	assert_int_equal(check(MODEST FORWARD "set-up = kernel\nbalance = source\n", out), 0);
	assert_non_null(strstr(out, "a: sessions begin by sockets: balance = source\n"));
	assert_int_equal(
		check(MODEST SERVERS("127.0.0.1:2 max-sessions=3") "set-up = kernel\n", out), 0);
	assert_non_null(strstr(out, "a: sessions begin by sockets: max-sessions of a server\n"));
	assert_int_equal(check(MODEST SERVERS("127.0.0.1:2 none.invalid:1"), out), 0);
	assert_non_null(strstr(rig_err, ": upstream none.invalid:1: "));
}

/* The file of a relay called NAME, with a forward called a whose section has LINES. */
#define RELAY(name, lines)                                                                         \
	MODEST "relay = " name "\n[forward a]\nlisten = 127.0.0.1:1\nupstream = 127.0.0.1:2\n" lines

/* The files of two relays, in this order: what is said, and where. */
static const struct {
	int code;
	const char *one, *other, *at, *want;
} fleets[] = {
	{ 0, RELAY("a", "source = 127.0.0.1\n"), RELAY("b", "source = 127.0.0.2\n"), "", "" },
	{ 0, RELAY("a", "source = 127.0.0.1\n"),
	  RELAY("b", "source = 127.0.0.2\nidle-timeout = 5\n"), "", "" },
	{ 0, RELAY("a", ""), RELAY("b", "source = 127.0.0.2\n"),
	  ".a:5: ", "no source: servers see" },
	{ 2, RELAY("a", "source = 127.0.0.1\n"), RELAY("b", "source = 127.0.0.1\n"),
	  ":8: source: that of a in ", ": a server's answer to a handshake may reach the other" },
	{ 0, RELAY("a\nstandby-ports = 1-2", "source = 127.0.0.1\n"),
	  RELAY("b\nstandby-ports = 3-4", "source = 127.0.0.1\n"), "", "" },
	{ 2, RELAY("a", "source = 127.0.0.1\n"),
	  RELAY("b\nstandby-ports = 3-4", "source = 127.0.0.1\n"), ":9: source: ", "" },
	{ 2, RELAY("a", ""), RELAY("a", ""), ":4: relay: ", "has the same name" },
	{ 2, RELAY("a", ""), RELAY("b b", ""), ":4: relay: ", "expected a word" },
	{ 2, RELAY("r913", ""), RELAY("r1000", ""), ":4: relay: r1000 and r913 of ",
	  "make the same number" },
	{ 2, MODEST FORWARD, RELAY("b", ""), ".a: relay", " is missing" },
	{ 2, RELAY("a", ""), RELAY("b", "[forward b]\nlisten = :3\nupstream = 127.0.0.1:2\n"),
	  ":8: ", "has no forward b, and would refuse its sessions" },
	{ 2, RELAY("a", "[forward b]\nlisten = :3\nupstream = 127.0.0.1:2\n"), RELAY("b", ""),
	  ".a:8: ", "has no forward b, and would refuse its sessions" },
	{ 2, RELAY("a", "[forward b]\nlisten = :3/udp\nupstream = 127.0.0.1:2\n"),
	  RELAY("b", "[forward b]\nlisten = :3\nupstream = 127.0.0.1:2\n"),
	  ":8: forward b is tcp here, but udp in ", "" },
};

TEST(test_check_fleet)
{
	char first[sizeof(rig_path) + 2];
	struct capture to_stderr, to_stdout;
	char *argv[] = { (char *)"check", first, rig_path, NULL }, out[1024];

	snprintf(first, sizeof(first), "%s.a", rig_path);
	for (size_t i = 0; i < sizeof(fleets) / sizeof(fleets[0]); i++) {
		int r;

		rig_write(fleets[i].one);
		assert_int_equal(rename(rig_path, first), 0);
		rig_write(fleets[i].other);
		capture_begin(&to_stdout, STDOUT_FILENO);
		capture_begin(&to_stderr, STDERR_FILENO);
		r = check_run(3, argv);
		capture_end(&to_stderr, rig_err, sizeof(rig_err));
		capture_end(&to_stdout, out, sizeof(out));
		if (r != fleets[i].code || !strstr(rig_err, fleets[i].at) ||
		    !strstr(rig_err, fleets[i].want) || (!r && !*fleets[i].at && *rig_err) ||
		    !r != !!strstr(out, ", no mistake"))
			fail_msg("%zu: %d, %s instead of %d, %s", i, r, rig_err, fleets[i].code,
				 fleets[i].want);
	}
	unlink(first);
}

UNIT_MAIN(rig_open, rig_close)
