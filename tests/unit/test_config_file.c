/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "capture.h"
#include "config.h"
#include "config_file.h"
#include "proxy_use.h"

#define FORWARD "[forward a]\nlisten = 127.0.0.1:9000\nupstream = 127.0.0.1:9001\n"
#define A10 "aaaaaaaaaa"
#define A50 A10 A10 A10 A10 A10
#define A200 A50 A50 A50 A50

static char folder[] = "/tmp/culvert-config.XXXXXX";
static char path[64];

static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/c", folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(folder);
}

static void write_file(const char *text, size_t len)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, 0600), 0);
}

/* The file, and WORDS of the command line behind it. */
static int parse(struct config *c, const char *const *words, char *err, size_t errlen)
{
	char *argv[16] = { (char *)"run", (char *)"--config", path };
	struct capture capture;
	int argc = 3, r;

	while (words && *words)
		argv[argc++] = (char *)*words++;
	capture_begin(&capture, STDERR_FILENO);
	r = config_parse(argc, argv, c);
	capture_end(&capture, err, errlen);
	return r;
}

static void good(struct config *c, const char *text, const char *const *words)
{
	char err[1024];
	int r;

	write_file(text, strlen(text));
	r = parse(c, words, err, sizeof(err));
	if (r)
		fail_msg("%d: %s", r, err);
	assert_string_equal(err, "");
}

#define FORWARD_BUT(line) "[forward a]\nupstream = 127.0.0.1:1\n" line "\n"
#define INDENTED "indented: sections and keys begin in the first column"
#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void test_everything(void **state)
{
	struct config c;

	(void)state;
	good(&c,
	     "\xef\xbb\xbf# a comment\n"
	     "; another\n"
	     "\n"
	     "[culvert]\n"
	     "engine=splice\n"
	     "workers = 3 ; and why\n"
	     "hard-limit\t=\t8M\r\n"
	     "control = /run/x/y.sock\n"
	     "seccomp = kill\n"
	     "session-log = /var/log/culvert/sessions.log ; and why\n"
	     "[forward one]  # ends here\n"
	     "  \n"
	     "listen = [::1]:80\n"
	     "upstream = unix:/run/up\n"
	     "[forward two]\n"
	     "upstream = 127.0.0.1:2\n"
	     "listen = :443", /* and no newline */
	     NULL);
	assert_int_equal(c.engine, ENGINE_SPLICE);
	assert_int_equal(c.workers, 3);
	assert_int_equal(c.hard_limit, 8 << 20);
	assert_string_equal(c.control, "/run/x/y.sock");
	assert_int_equal(c.seccomp, FILTER_KILL);
	assert_string_equal(c.session_log, "/var/log/culvert/sessions.log");
	assert_string_equal(c.file, path);
	assert_int_equal(c.n_forwards, 2);
	assert_string_equal(c.forwards[0].name, "one");
	assert_string_equal(c.forwards[0].listen.text, "[::1]:80");
	assert_string_equal(c.forwards[0].upstream.text, "unix:/run/up");
	assert_string_equal(c.forwards[1].name, "two");
	assert_string_equal(c.forwards[1].upstream.text, "127.0.0.1:2");
	config_close(&c);
}

/* A forward's own count over the command line, which counts over [culvert]; in any order. */
/* A forward's own, what it has of [culvert] and of the command line, and the defaults. */
static void read_own_options(struct config *c)
{
	good(c,
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
	good(&c, FORWARD "max-sessions = 30\nmax-sessions-per-client = 20\n"
	     "[culvert]\nmax-sessions = 10\nmax-sessions-per-client = 0\n",
	     WORDS("--max-sessions", "40"));
	assert_int_equal(c.max_sessions, 40);
	assert_int_equal(c.max_sessions_per_client, 0);
	assert_int_equal(c.forwards[0].max_sessions, 30);
	assert_int_equal(c.forwards[0].max_sessions_per_client, 20);
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
		good(&c, text, words ? WORDS("--deny=13.0.0.1", "--allow", "13.0.0.0/8,14.0.0.1",
					     "--allow=15.0.0.1") : NULL);
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

/* The command line counts over the file, wherever --config stands, and adds forwards. */
static void test_with_command_line(void **state)
{
	struct config c;

	(void)state;
	good(&c, "[culvert]\nengine = copy\nworkers = 3\n" FORWARD,
	     WORDS("--engine", "splice", "127.0.0.1:1", "127.0.0.1:2"));
	assert_int_equal(c.engine, ENGINE_SPLICE);
	assert_int_equal(c.workers, 3);
	assert_int_equal(c.n_forwards, 2);
	assert_string_equal(c.forwards[0].name, "a");
	assert_null(c.forwards[1].name);
	config_close(&c);

	good(&c, FORWARD, NULL);
	assert_int_equal(c.max_sessions_per_client, 8192);
	config_close(&c);
	good(&c, "[culvert]\nmax-sessions = 10\n" FORWARD, NULL);
	assert_int_equal(c.max_sessions_per_client, 5);
	config_close(&c);
}

static const struct {
	unsigned int line; /* 0: of the whole file */
	const char *complaint;
	const char *text;
} mistakes[] = {
	{ 0, "nothing to forward", "" },
	{ 0, "nothing to forward", "[culvert]\nengine = auto\n" },
	{ 1, "engine: before the first section", "engine = auto\n" },
	{ 2, "neither [SECTION] nor KEY = VALUE", "[culvert]\nengine\n" },
	{ 2, "engines: unknown key of [culvert]", "[culvert]\nengines = auto\n" },
	{ 2, "config: unknown key", "[culvert]\nconfig = /x\n" },
	{ 2, "help: unknown key", "[culvert]\nhelp = yes\n" },
	{ 2, "--engine: unknown key", "[culvert]\n--engine = auto\n" },
	{ 2, "engine: needs a value", "[culvert]\nengine =\n" },
	{ 2, "engine: needs a value", "[culvert]\nengine = ; auto\n" },
	{ 2, "a value without a key", "[culvert]\n= auto\n" },
	{ 2, "engine: \"fast\" is not valid, expected auto, sockmap",
	  "[culvert]\nengine = fast\n" },
	{ 3, "engine: given twice, first in line 2", "[culvert]\nengine = auto\nengine = auto\n" },
	{ 2, "workers: \"0\" is not valid", "[culvert]\nworkers = 0\n" },
	{ 2, "workers: \"99999999999999999999\"", "[culvert]\nworkers = 99999999999999999999\n" },
	{ 2, "hard-limit: \"4X\" is not valid, expected a size", "[culvert]\nhard-limit = 4X\n" },
	{ 2, "probe: \"maybe\" is not valid, expected yes or no", "[culvert]\nprobe = maybe\n" },
	{ 3, "neither [SECTION] nor KEY = VALUE", FORWARD_BUT("listen") "bogus = 1\n" },
	{ 3, "neither [SECTION] nor KEY = VALUE", FORWARD_BUT("listen ; = x") "[culvert]\n" },
	{ 3, "neither [SECTION] nor KEY = VALUE", FORWARD_BUT("listen") "\tindented\n" },
	{ 2, "workers: \"#\" in a value: a comment there begins with \";\"",
	  "[culvert]\nworkers = 3 # three\n" },
	{ 2, "user: \"#\" in a value", "[culvert]\nuser = x\t#three\n" },
	{ 2, "user: \"#\" in a value", "[culvert]\nuser = # x\n" },
	{ 2, "listen: \"#\" in a value", "[forward a]\nlisten = :80 # http\n" },
	{ 3, INDENTED, "[culvert]\nengine = auto\n  workers = 2\n" },
	{ 3, INDENTED, "[culvert]\nengine = auto\n\tworkers = 2\n" },
	{ 1, INDENTED, " [culvert]\n" },
	{ 1, INDENTED, "\xef\xbb\xbf [culvert]\n" },
	{ 1, "a byte order mark that", "\xef\xbb\xbf\xef\xbb\xbf[culvert]\n" },
	{ 2, "a byte order mark that", "\n\xef\xbb\xbf[culvert]\n" },
	{ 1, "a control character", "\r[culvert]\n" },
	{ 1, "a control character", "\v[culvert]\n" },
	{ 1, "a control character", "[culvert]\f\n" },
	{ 1, "a control character", "# \x7f\n" },
	{ 2, "a control character", "[culvert]\nuser = a\rb\n" },
	{ 4, "[culvert] again, it was in line 1", "[culvert]\nworkers = 1\n\n[culvert]\n" },
	{ 1, "[Culvert]: unknown section", "[Culvert]\n" },
	{ 1, "[]: unknown section", "[]\n" },
	{ 1, "[forward]: unknown section", "[forward]\n" },
	{ 1, "[forward ]: unknown section", "[forward ]\n" },
	{ 1, "[forward a b]: unknown section", "[forward a b]\n" },
	{ 1, "[forward ;x]: a name cannot begin with ; or #", "[forward ;x]\n" },
	{ 1, "[forward #x]: a name cannot begin with ; or #", "[forward #x]\n" },
	{ 1, "\"[\" without \"]\"", "[culvert\n" },
	{ 1, "nothing may follow \"]\"", "[culvert] engine = auto\n" },
	{ 1, "a section's name has at most 49 bytes", "[forward " A50 "]\n" },
	{ 1, "[forward a]: listen is missing", "[forward a]\n" },
	{ 1, "[forward a]: listen is missing", "[forward a]\nupstream = 127.0.0.1:1\n" },
	{ 1, "[forward a]: upstream is missing", "[forward a]\nlisten = 127.0.0.1:1\n[culvert]\n" },
	{ 4, "[forward a]: the name is taken in line 1", FORWARD FORWARD },
	{ 4, "listen: given twice, first in line 2", FORWARD "listen = 127.0.0.1:3\n" },
	{ 4, "limit: unknown key of [forward NAME]", FORWARD "limit = 3\n" },
	{ 2, "listen \"nonsense\": ", "[forward a]\nlisten = nonsense\nupstream = 127.0.0.1:1\n" },
	{ 3, "upstream \"127.0.0.1:0\": ",
	  "[forward a]\nlisten = :1\nupstream = 127.0.0.1:0\n" },
	{ 5, "listen \"127.0.0.1:9000\": same address as the earlier",
	  FORWARD "[forward b]\nlisten = 127.0.0.1:9000\nupstream = 127.0.0.1:9002\n" },
	{ 2, "the line has more than", "# x\n# " A200 A200 "\n" },
	{ 3, "upstream \"127.0.0.1:1\": the upstream is the listener itself",
	  "[forward a]\nlisten = 127.0.0.1:1\nupstream = 127.0.0.1:1\n" },
	{ 2, "soft-limit: 8 MiB is above --hard-limit (4 MiB)",
	  "[culvert]\nsoft-limit = 8M\n" FORWARD },
	{ 3, "soft-limit: 8 MiB is above hard-limit (5 MiB)",
	  "[culvert]\nhard-limit = 5M\nsoft-limit = 8M\n" FORWARD },
	{ 2, "--soft-limit: 1 MiB is above hard-limit (64 KiB)",
	  "[culvert]\nhard-limit = 64K\n" FORWARD },
	{ 1, "a control character", "\x1b = 1\n" },
	{ 4, "workers: unknown key of [forward NAME]", FORWARD "workers = 3\n" },
	{ 4, "config: unknown key of [forward NAME]", FORWARD "config = /x\n" },
	{ 2, "listen: unknown key of [culvert]", "[culvert]\nlisten = :1\n" },
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
	{ 4, "max-sessions-per-client: \"0\" is not valid, expected a whole number from 1",
	  FORWARD "max-sessions-per-client = 0\n" },
	{ 4, "max-sessions-per-client: 8193 is above that of all forwards together (8192)",
	  FORWARD "max-sessions-per-client = 8193\n" },
	{ 4, "allow: \"10.0.0.1/8\" is not valid, expected addresses, prefixes without host bits",
	  FORWARD "allow = 10.0.0.1/8\n" },
	{ 5, "deny: \"all, fe80::1%lo\" is not valid",
	  FORWARD "deny = all\ndeny = all, fe80::1%lo\n" },
	{ 2, "deny: \"host.example\" is not valid", "[culvert]\ndeny = host.example\n" FORWARD },
	{ 4, "deny: needs a value", FORWARD "deny =\n" },
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
	char err[1024], want[256];
	struct config c;

	(void)state;
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		write_file(mistakes[i].text, strlen(mistakes[i].text));
		assert_int_equal(parse(&c, NULL, err, sizeof(err)), -EINVAL);
		config_close(&c);
		if (mistakes[i].line)
			snprintf(want, sizeof(want), "culvert: %s:%u: %s", path, mistakes[i].line,
				 mistakes[i].complaint);
		else
			snprintf(want, sizeof(want), "culvert: %s", mistakes[i].complaint);
		if (strncmp(err, want, strlen(want)) != 0)
			fail_msg("mistake %zu: \"%s\" instead of \"%s\"", i, err, want);
		assert_int_equal(strcspn(err, "\n"), strlen(err) - 1); /* one line */
	}
}

/* What the command line says is not the file's mistake. */
static void test_limits_from_both(void **state)
{
	static const char text[] = "[culvert]\nsoft-limit = 8M\n" FORWARD;
	char err[1024], want[256];
	struct config c;

	(void)state;
	good(&c, text, WORDS("--hard-limit=16M"));
	assert_int_equal(c.soft_limit, 8 << 20);
	config_close(&c);
	good(&c, text, WORDS("--soft-limit=2M"));
	config_close(&c);
	assert_int_equal(parse(&c, WORDS("--soft-limit=9M"), err, sizeof(err)), -EINVAL);
	config_close(&c);
	assert_string_equal(err, "culvert: --soft-limit: 9 MiB is above --hard-limit (4 MiB)\n");
	assert_int_equal(parse(&c, WORDS("--hard-limit=1M"), err, sizeof(err)), -EINVAL);
	config_close(&c);
	snprintf(want, sizeof(want),
		 "culvert: %s:2: soft-limit: 8 MiB is above --hard-limit (1 MiB)\n", path);
	assert_string_equal(err, want);
}

static void test_place(void **state)
{
	char file[1000], at[CONFIG_PLACE_LEN];

	(void)state;
	assert_string_equal(config_place(NULL, 0, at), "");
	assert_string_equal(config_place("/etc/x", 7, at), "/etc/x:7: ");
	memset(file, 'x', sizeof(file) - 1);
	memcpy(file + sizeof(file) - 5, ".end", 5);
	config_place(file, UINT32_MAX, at);
	assert_int_equal(strlen(at), CONFIG_PLACE_LEN - 1);
	assert_memory_equal(at, "...x", 4);
	assert_string_equal(strchr(at + 3, '.'), ".end:4294967295: ");
}

/* A disk that fails is not a mistake in the file. */
static ssize_t read_then_fail(void *cookie, char *buf, size_t size)
{
	static const char text[] = "[forward a]\nlis";
	bool *failing = cookie;

	if (*failing || size < sizeof(text)) {
		errno = EIO;
		return -1;
	}
	*failing = true;
	memcpy(buf, text, sizeof(text) - 1);
	return sizeof(text) - 1;
}

static void test_read_error(void **state)
{
	bool failing = false;
	FILE *f = fopencookie(&failing, "r", (cookie_io_functions_t){ .read = read_then_fail });
	struct config_text text = { 0 };
	struct config c = { 0 };
	struct capture capture;
	char err[1024];
	int r;

	(void)state;
	assert_non_null(f);
	capture_begin(&capture, STDERR_FILENO);
	r = config_file_parse(f, "x.conf", &c, &text);
	capture_end(&capture, err, sizeof(err));
	fclose(f);
	config_text_close(&text);
	config_close(&c);
	assert_int_equal(r, -EIO);
	assert_string_equal(err, "culvert: x.conf: cannot be read: Input/output error\n");
}

static int check(char *err, size_t errlen)
{
	char *argv[] = { (char *)"check", path, NULL };
	struct capture capture;
	int r;

	capture_begin(&capture, STDERR_FILENO);
	r = config_check(2, argv);
	capture_end(&capture, err, errlen);
	return r;
}

static void test_check(void **state)
{
	struct capture capture;
	char err[1024], out[1024];
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC), saved, r;

	(void)state;
	write_file(FORWARD, strlen(FORWARD));
	capture_begin(&capture, STDOUT_FILENO);
	r = check(err, sizeof(err));
	capture_end(&capture, out, sizeof(out));
	assert_int_equal(r, 0);
	assert_string_equal(err, "");
	assert_non_null(strstr(out, ": 1 forward, no mistake\n"));

	assert_true(full >= 0);
	fflush(stdout);
	saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	dup2(full, STDOUT_FILENO);
	r = check(err, sizeof(err));
	__fpurge(stdout);
	clearerr(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	close(full);
	assert_int_equal(r, 1);
	assert_string_equal(err, "culvert: cannot write the result: No space left on device\n");

	write_file("x", 1);
	assert_int_equal(check(err, sizeof(err)), 2);
}

static void test_bytes(void **state)
{
	static const char nul[] = FORWARD "[culvert]\nengine = au\0to\n";
	static char big[(1 << 20) + 100];
	char err[1024];
	struct config c;

	(void)state;
	write_file(nul, sizeof(nul) - 1);
	assert_int_equal(parse(&c, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, ":5: a NUL byte"));
	config_close(&c);
	memset(big, '\n', sizeof(big));
	write_file(big, sizeof(big));
	assert_int_equal(parse(&c, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "the file has more than 1048576 bytes"));
	config_close(&c);
}

static int parse_as(mode_t file, mode_t dir, char *err, size_t errlen)
{
	struct config c;
	int r;

	assert_int_equal(chmod(path, file), 0);
	assert_int_equal(chmod(folder, dir), 0);
	r = parse(&c, NULL, err, errlen);
	config_close(&c);
	assert_int_equal(chmod(folder, 0700), 0);
	return r;
}

/* What a link leads to counts, and where that is. */
static void test_link(void **state)
{
	char err[1024], link[96], dir[80];
	struct config c;
	int r;

	(void)state;
	write_file(FORWARD, strlen(FORWARD));
	snprintf(dir, sizeof(dir), "%s/d", folder);
	snprintf(link, sizeof(link), "%s/d/link", folder);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(symlink("../c", link), 0);
	strcpy(path + strlen(folder), "/d/link");
	r = parse(&c, NULL, err, sizeof(err));
	config_close(&c);
	assert_int_equal(r, 0);
	assert_int_equal(chmod(folder, 0777), 0);
	r = parse(&c, NULL, err, sizeof(err));
	config_close(&c);
	assert_int_equal(chmod(folder, 0700), 0);
	assert_int_equal(r, -EPERM);
	snprintf(link, sizeof(link),
		 "%s/c: its directory can be written by others (mode 0777): chmod go-w", folder);
	assert_non_null(strstr(err, link));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("../nothing", path), 0);
	assert_int_equal(parse(&c, NULL, err, sizeof(err)), -ENOENT);
	config_close(&c);
	assert_non_null(strstr(err, "d/link: No such file or directory: give the path of a file"));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
	strcpy(path + strlen(folder), "/c");
}

/* Who could have written it? */
static void test_owner(void **state)
{
	char err[1024];
	struct config c;

	(void)state;
	write_file(FORWARD, strlen(FORWARD));
	assert_int_equal(parse_as(0600, 0700, err, sizeof(err)), 0);
	assert_int_equal(parse_as(0644, 0755, err, sizeof(err)), 0);
	assert_int_equal(parse_as(0644, 01777, err, sizeof(err)), 0); /* as /tmp */
	assert_int_equal(parse_as(0664, 0755, err, sizeof(err)), -EPERM);
	assert_non_null(strstr(err, "the file can be written by others (mode 0664): chmod go-w"));
	assert_int_equal(parse_as(0646, 0755, err, sizeof(err)), -EPERM);
	assert_int_equal(parse_as(0644, 0777, err, sizeof(err)), -EPERM);
	assert_non_null(strstr(err, "its directory can be written by others"));
	if (!geteuid()) {
		assert_int_equal(chown(path, 65534, 65534), 0);
		assert_int_equal(parse_as(0600, 0700, err, sizeof(err)), -EPERM);
		assert_non_null(strstr(err, "the file belongs to uid 65534, who could write "
					    "anything into it: chown root"));
	}
	unlink(path);
	assert_int_equal(parse(&c, NULL, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "No such file or directory"));
	config_close(&c);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(parse(&c, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "not a regular file"));
	config_close(&c);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_everything),
		cmocka_unit_test(test_own_options),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_two_of_a_name),
		cmocka_unit_test(test_with_command_line),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_limits_from_both),
		cmocka_unit_test(test_place),
		cmocka_unit_test(test_read_error),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_link),
		cmocka_unit_test(test_owner),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
