// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capture.h"
#include "config.h"
#include "config_convert.h"
#include "config_file.h"
#include "config_rinetd.h"

static char folder[] = "/tmp/culvert-rinetd.XXXXXX";
static char path[64], other[64];

static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/rinetd.conf", folder);
	snprintf(other, sizeof(other), "%s/culvert.conf", folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(path);
	unlink(other);
	return rmdir(folder);
}

static void write_to(const char *name, const char *text, size_t len)
{
	FILE *f = fopen(name, "we");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(name, 0600), 0);
}

static int parse(const char *name, struct config *c, char *err, size_t errlen)
{
	char option[] = "-c";
	char *argv[] = { (char *)"run", option, (char *)name, NULL };
	struct capture capture;
	int r;

	capture_begin(&capture, STDERR_FILENO);
	r = config_parse(3, argv, c);
	capture_end(&capture, err, errlen);
	return r;
}

/* Notes, if any, go to ERR. */
static void good(struct config *c, const char *text, char *err, size_t errlen)
{
	int r;

	write_to(path, text, strlen(text));
	r = parse(path, c, err, errlen);
	if (r)
		fail_msg("%d: %s", r, err);
}

static bool allows(const struct forward_conf *fc, const char *client)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };

	if (inet_pton(AF_INET, client, &in.sin_addr) == 1)
		return acl_allows(&fc->acl, (struct sockaddr *)&in);
	assert_int_equal(inet_pton(AF_INET6, client, &in6.sin6_addr), 1);
	return acl_allows(&fc->acl, (struct sockaddr *)&in6);
}

/* Debian's file with its examples in force, and more of each kind. */
static const char rich[] =
	"#\n"
	"# this is the configuration file for rinetd, the internet redirection server\n"
	"allow 192.168.2.*\n"
	"deny 192.168.2.1?\n"
	"allow fe80:*\n"
	"deny 2001:618:*:e43f\n"
	"  # bindadress  bindport  connectaddress  connectport  options...\n"
	"0.0.0.0     8080      192.168.1.2     80 # behind a blank\n"
	"\t::1 \t8080        192.168.1.2     http/tcp   \r\n"
	"deny fe80:1:*\n"
	"0           81/TCP    fe80::1         80[keepalive=on]# behind options\n"
	"allow 192.168.2.20\n"
	"deny *.21\n"
	"::          82        127.0.0.1       83 [ keepalive = off , connect-timeout=3 ]\n"
	"allow ::ffff:192.168.2.*\n"
	"[::1]       84        [::1]           85\n"
	"unix:@in    127.0.0.1 86\n"
	"127.0.0.1   87        unix:/run/up\n"
	"buffersize 32768\n"
	"127.0.0.1   88        127.0.0.1       89"; /* and no newline */

static void test_everything(void **state)
{
	static const char *const ends[][3] = {
		{ "0.0.0.0:8080", "0.0.0.0:8080", "192.168.1.2:80" },
		{ "::1:8080", "[::1]:8080", "192.168.1.2:http" },
		{ "0.0.0.0:81", "0.0.0.0:81", "[fe80::1]:80" },
		{ "*:82", ":82", "127.0.0.1:83" },
		{ "::1:84", "[::1]:84", "[::1]:85" },
		{ "unix:@in", "unix:@in", "127.0.0.1:86" },
		{ "127.0.0.1:87", "127.0.0.1:87", "unix:/run/up" },
		{ "127.0.0.1:88", "127.0.0.1:88", "127.0.0.1:89" },
	};
	const struct forward_conf *fc;
	struct config c;
	char err[1024];

	(void)state;
	good(&c, rich, err, sizeof(err));
	assert_string_equal(err, "");
	assert_int_equal(c.n_forwards, sizeof(ends) / sizeof(ends[0]));
	for (size_t i = 0; i < c.n_forwards; i++) {
		assert_string_equal(c.forwards[i].name, ends[i][0]);
		assert_string_equal(c.forwards[i].listen.text, ends[i][1]);
		assert_string_equal(c.forwards[i].upstream.text, ends[i][2]);
		assert_int_equal(c.forwards[i].keepalive_s, i == 2 ? 60 : 0);
		assert_int_equal(c.forwards[i].connect_timeout_ms, i == 3 ? 3000 : 5000);
	}
	assert_int_equal(c.copy_buffer, 32768);

	fc = &c.forwards[0];
	assert_true(allows(fc, "192.168.2.1"));
	assert_true(allows(fc, "192.168.2.20"));
	assert_false(allows(fc, "192.168.2.10"));
	assert_false(allows(fc, "192.168.2.19"));
	assert_false(allows(fc, "192.168.1.1"));
	assert_int_equal(c.forwards[1].listen.n_addrs, 1);
	assert_true(allows(&c.forwards[1], "fe80::1"));
	assert_false(allows(&c.forwards[1], "fe80:1::1"));
	assert_false(allows(&c.forwards[1], "2001:618::e43f"));
	assert_false(allows(&c.forwards[1], "::1"));
	assert_true(allows(&c.forwards[2], "192.168.2.20"));
	assert_false(allows(&c.forwards[2], "192.168.2.21"));
	assert_false(allows(&c.forwards[2], "192.168.2.22"));
	/* where rinetd sees ::ffff:192.168.2.2, which no global `allow` matches */
	assert_int_equal(c.forwards[3].listen.n_addrs, 2);
	assert_false(allows(&c.forwards[3], "192.168.2.2"));
	assert_false(allows(&c.forwards[3], "fe80::1"));
	assert_int_equal(c.forwards[5].acl.n, 0);
	config_close(&c);
}

/* oi's files are four words and, which oi reads only, rules. */
static void test_oi(void **state)
{
	struct config c;
	char err[1024];

	(void)state;
	good(&c, "\xef\xbb\xbf# oi\r\nALLOW 192.168.1.0/24\r\ndeny 192.168.1.50\r\n\r\n"
		 "127.0.0.1 9000 127.0.0.1 9001\r\n::1 9000 ::1 9001\r\n", err, sizeof(err));
	assert_string_equal(err, "");
	assert_int_equal(c.n_forwards, 2);
	assert_string_equal(c.forwards[0].listen.text, "127.0.0.1:9000");
	assert_string_equal(c.forwards[1].upstream.text, "[::1]:9001");
	assert_true(allows(&c.forwards[0], "192.168.1.51"));
	assert_false(allows(&c.forwards[0], "192.168.1.50"));
	assert_false(allows(&c.forwards[0], "192.168.2.1"));
	assert_false(allows(&c.forwards[1], "::1"));
	config_close(&c);
}

/* What deserves a word. */
static void test_notes(void **state)
{
	static const char skipped[] = "127.0.0.1 80 127.0.0.1 81\n127.0.0.1 82 127.0.0.1 83\n"
				      "allow 10.*\nallow 11.*\n127.0.0.1 84 127.0.0.1 85\n"
				      "deny 10.*\ndeny 11.*\n";
	static const char asked[] = "deny 12.*\n127.0.0.1 82 127.0.0.1 83\nallow 10.*\n"
				    "allow 11.*\n";
	char err[1024], want[256];
	struct config c;

	(void)state;
	good(&c, skipped, err, sizeof(err));
	config_close(&c);
	snprintf(want, sizeof(want), "culvert: %s:3: note: rinetd 0.70 to 0.73 does not look at "
		 "this first one of several rules; culvert does\n", path);
	assert_string_equal(err, want);
	good(&c, asked, err, sizeof(err));
	assert_string_equal(err, "");
	config_close(&c);
}

static void check_source(const struct forward_conf *fc, const char *address)
{
	char text[ADDR_STRLEN];

	if (!address) {
		assert_int_equal(fc->source.len, 0);
		return;
	}
	addr_format((const struct sockaddr *)&fc->source.ss, fc->source.len, text, sizeof(text));
	assert_string_equal(text, address);
}

static void test_source_and_log(void **state)
{
	char err[1024], want[512];
	struct config c;

	(void)state;
	good(&c, "127.0.0.1 80 127.0.0.1 81 [src=127.0.0.9]\n"
		 "logfile \"/var/log/rinetd.log\" # quoted\n"
		 "127.0.0.1 82 ::1 83 [keepalive=on, src = [::1] ]\n"
		 "127.0.0.1 84 ::1 85 [src=2001:db8::7]\n"
		 "127.0.0.1 86 ::1 87 [src=::]\n127.0.0.1 88 ::1 89 [src=0]\n",
	     err, sizeof(err));
	check_source(&c.forwards[0], "127.0.0.9:0");
	check_source(&c.forwards[1], "[::1]:0");
	check_source(&c.forwards[2], "[2001:db8::7]:0");
	check_source(&c.forwards[3], NULL);
	check_source(&c.forwards[4], NULL);
	assert_string_equal(c.session_log, "/var/log/rinetd.log");
	snprintf(want, sizeof(want), "culvert: %s:2: note: logfile: culvert writes a line of JSON "
		 "for each session\n", path);
	assert_string_equal(err, want);
	config_close(&c);
}

/* What rinetd has for UDP only, and the process id. */
static void test_timeout(void **state)
{
	char err[1024], want[512];
	struct config c;

	(void)state;
	good(&c, "dns-refresh 600\npidlogfile /run/rinetd.pid\n"
		 "127.0.0.1 80 127.0.0.1 81 [timeout=72000, dns-refresh=60]\n"
		 "127.0.0.1 82 127.0.0.1 83 [timeout = 0]\n127.0.0.1 84 127.0.0.1 85\n",
	     err, sizeof(err));
	assert_int_equal(c.forwards[0].idle_timeout_ms, 72000000);
	assert_int_equal(c.forwards[0].resolve_interval_ms, 60000);
	assert_int_equal(c.forwards[1].resolve_interval_ms, 600000);
	assert_int_equal(c.forwards[1].idle_timeout_ms, 0);
	assert_int_equal(c.forwards[2].idle_timeout_ms, 0);
	assert_string_equal(c.pid_file, "/run/rinetd.pid");
	snprintf(want, sizeof(want), "culvert: %s:3: note: timeout=72000 ends idle TCP sessions; "
		 "rinetd has it for UDP only\n", path);
	assert_string_equal(err, want);
	config_close(&c);
}

#define A50 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define GOOD "127.0.0.1 80 127.0.0.1 81"

static const struct {
	unsigned int line; /* 0: of the whole file */
	const char *complaint, *text;
} mistakes[] = {
	{ 0, "nothing to forward", "allow 10.*\n" },
	{ 1, "BINDPORT is missing", "127.0.0.1\n" },
	{ 1, "CONNECTADDRESS is missing", "127.0.0.1 80\n" },
	{ 2, "CONNECTPORT is missing; a rule is BINDADDRESS BINDPORT",
	  "#\n127.0.0.1 80 127.0.0.1" },
	{ 1, "CONNECTPORT is missing", "127.0.0.1 80 127.0.0.1 [keepalive=on]\n" },
	{ 1, "CONNECTPORT is missing", "unix:/run/x 127.0.0.1\n" },
	{ 1, "\"82\": nothing but [OPTION=VALUE,...] and a comment may follow", GOOD " 82\n" },
	{ 1, "\"[timeout]\": nothing but", GOOD " [timeout]\n" },
	{ 1, "53/udp: culvert does not forward UDP", "0.0.0.0 53/udp 10.0.0.1 53\n" },
	{ 1, "53/udp: culvert does not forward UDP", "0.0.0.0 53 10.0.0.1 53/udp\n" },
	{ 1, "53/sctp: unknown protocol", "0.0.0.0 53/sctp 10.0.0.1 53\n" },
	{ 1, "listen \"0.0.0.0:65536\": port is above 65535", "0.0.0.0 65536 10.0.0.1 53\n" },
	{ 2, "upstream \"10.0.0.1:99999999999999999999\": port is above 65535",
	  "\n0.0.0.0 80 10.0.0.1 99999999999999999999\n" },
	{ 1, "upstream \"10.0.0.1:0\": port 0 cannot be connected to", "0.0.0.0 80 10.0.0.1 0\n" },
	{ 1, "listen \"0.0.0.0:-1\": bad port", "0.0.0.0 -1 10.0.0.1 80\n" },
	{ 1, "listen \"0.0.0.0:nosuchservice\": ", "0.0.0.0 nosuchservice 10.0.0.1 80\n" },
	{ 1, "listen \"1.2.3.256:80\": bad IPv4 address", "1.2.3.256 80 10.0.0.1 80\n" },
	{ 1, "listen \"010.0.0.1:80\": bad IPv4 address", "010.0.0.1 80 10.0.0.1 80\n" },
	{ 2, "listen \"[]:80\": nothing between the brackets",
	  "127.0.0.1 81 10.0.0.1 80\n[] 80 10.0.0.1 80\n" },
	{ 1, "upstream \"[]:80\": nothing between the brackets", "127.0.0.1 80 [] 80\n" },
	{ 1, "listen \"[1::2::3]:80\": bad IPv6 address", "1::2::3 80 10.0.0.1 80\n" },
	{ 2, "listen \"127.0.0.1:http\": same address as the earlier \"127.0.0.1:80\"",
	  GOOD "\n127.0.0.1 http 127.0.0.1 82\n" },
	{ 2, "listen \":80\": same address as the earlier \"0.0.0.0:80\"",
	  "0.0.0.0 80 127.0.0.1 81\n:: 80 127.0.0.1 81\n" },
	{ 1, "upstream \"127.0.0.1:80\": the upstream is the listener itself",
	  "127.0.0.1 80 127.0.0.1 80\n" },
	{ 1, "[color]: unknown option, expected timeout, src or keepalive", GOOD " [color=red]\n" },
	{ 1, "[]: unknown option", GOOD " [keepalive=on,]\n" },
	{ 1, "[timeout]: needs a value", GOOD " [keepalive=on,timeout]\n" },
	{ 1, "timeout: \"1.5\" is not a whole number", GOOD " [timeout=1.5]\n" },
	{ 1, "timeout: \"\" is not a whole number", GOOD " [timeout=]\n" },
	{ 1, "timeout: \"604801\" is not valid, expected seconds", GOOD " [timeout=604801]\n" },
	{ 1, "timeout: \"99999999999999999999\" is not valid", GOOD
	  " [timeout=99999999999999999999]\n" },
	{ 1, "keepalive: \"yes\", expected on or off", GOOD " [keepalive=yes]\n" },
	{ 1, "keepalive: given twice, first in line 1", GOOD " [keepalive=on,keepalive=off]\n" },
	{ 1, "connect-timeout: \"0\" is not valid", GOOD " [connect-timeout=0]\n" },
	{ 1, "src: \"localhost\" is not valid, expected an IPv4 or IPv6", GOOD
	  " [src=localhost]\n" },
	{ 1, "src: \"\" is not valid", GOOD " [src=]\n" },
	{ 2, "logcommon: culvert has a log format of its own", GOOD "\nlogcommon\n" },
	{ 3, "logfile: given twice, first in line 1", "logfile /a\n" GOOD "\nlogfile /b\n" },
	{ 1, "mode: who may connect is up to the directory", "unix:/x 127.0.0.1 1 [mode=0660]\n" },
	{ 1, "\"[\" without \"]\"", GOOD " [keepalive=on\n" },
	{ 1, "nothing but a comment may follow \"]\"", GOOD " [keepalive=on] x\n" },
	{ 2, "\"10.0.0.256\" matches nobody", GOOD "\ndeny 10.0.0.256\n" },
	{ 2, "\"FE80::1\" matches nobody", GOOD "\nallow FE80::1\n" },
	{ 1, "\"localhost\" is not valid, expected an address", "allow localhost\n" GOOD },
	{ 1, "\"10.0.0.1 10.0.0.2\" is not valid", "allow 10.0.0.1 10.0.0.2\n" GOOD },
	{ 1, "\"\" is not valid", "allow\n" GOOD },
	{ 1, "\"fe80::*\": which IPv6 clients that matches depends on how",
	  "deny fe80::*\n" GOOD "\n::1 80 127.0.0.1 80\n" },
	{ 2, "clients of a unix socket have no address", "unix:/x 127.0.0.1 1\ndeny 10.*\n" },
	{ 2, "include: culvert reads one file", GOOD "\ninclude /etc/rinetd.d/*.conf\n" },
	{ 1, "statusfile: ask `culvert status", "statusfile /run/x\n" },
	{ 1, "logfile: needs a value", "logfile\n" GOOD },
	{ 1, "logfile: \"/a b\" is more than one word", "logfile \"/a b\"\n" GOOD },
	{ 1, "buffersize: \"1\" is not valid, expected a size", "buffersize 1\n" GOOD },
	{ 3, "a section, but line 2 made this a rinetd.conf: a file has one form",
	  "#\n" GOOD "\n[culvert]\nengine = copy\n" },
	{ 3, "a section, but line 1 made this", GOOD "\n\n[forward a]\n" },
	{ 2, "neither [SECTION] nor KEY = VALUE", "[culvert]\n" GOOD "\n" },
	{ 1, "BINDPORT is missing", "engine\n" },
	{ 2, "a control character", GOOD "\n10.0.0.1\r80 127.0.0.1 81\n" },
	{ 1, "a control character", "127.0.0.1\v80 127.0.0.1 81\n" },
	{ 1, "a control character", GOOD " # \x1b[2J\n" },
};

static void check_mistake(const char *text, size_t len, unsigned int line, const char *complaint)
{
	char err[1024], want[256];
	struct config c;
	int r;

	write_to(path, text, len);
	r = parse(path, &c, err, sizeof(err));
	config_close(&c);
	if (line)
		snprintf(want, sizeof(want), "culvert: %s:%u: %s", path, line, complaint);
	else
		snprintf(want, sizeof(want), "culvert: %s", complaint);
	if (r != -EINVAL || strncmp(err, want, strlen(want)) != 0 ||
	    strchr(err, '\n') != err + strlen(err) - 1)
		fail_msg("%d: \"%s\"\ninstead of \"%s\"", r, err, want);
}

static void test_mistakes(void **state)
{
	static const char nul[] = "127.0.0.1 80 127.0.0.1 81\n127.0.0.1\0 82 127.0.0.1 83\n";
	static const char nul_first[] = "\0" "127.0.0.1 80 127.0.0.1 81\n";
	char *big = malloc(1 << 21);

	(void)state;
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++)
		check_mistake(mistakes[i].text, strlen(mistakes[i].text), mistakes[i].line,
			      mistakes[i].complaint);
	check_mistake(nul, sizeof(nul) - 1, 2, "a NUL byte");
	check_mistake(nul_first, sizeof(nul_first) - 1, 1, "a NUL byte");

	assert_non_null(big);
	memset(big, '#', 1 << 21);
	memcpy(big, GOOD "\n", sizeof(GOOD));
	check_mistake(big, 1 << 21, 2, "the line has more than 16383 bytes");
	for (size_t i = 100; i < 1 << 21; i += 100)
		big[i] = '\n';
	check_mistake(big, 1 << 21, 10487, "the file has more than 1048576 bytes");
	free(big);
}

static void test_missing(void **state)
{
	char err[1024], want[256];
	struct config c;

	(void)state;
	unlink(path);
	assert_int_equal(parse(path, &c, err, sizeof(err)), -ENOENT);
	config_close(&c);
	snprintf(want, sizeof(want), "culvert: %s: No such file or directory", path);
	assert_memory_equal(err, want, strlen(want));

	write_to(path, GOOD, strlen(GOOD));
	assert_int_equal(chmod(path, 0666), 0);
	assert_int_equal(parse(path, &c, err, sizeof(err)), -EPERM);
	config_close(&c);
	assert_non_null(strstr(err, "can be written by others"));
}

static const struct {
	const char *text;
	bool is_rinetd;
} forms[] = {
	{ "", false },
	{ "# only\n; comments\n\n", false },
	{ "[culvert]\n", false },
	{ "\xef\xbb\xbf[culvert]\n", false },
	{ "# 1.2.3.4 80 1.2.3.4 80\n;x\n\n\t [forward a]\n", false },
	{ "engine = auto\n", false },
	{ "engine=auto", false },
	{ "\v[culvert]\n", false },
	{ "[", false },
	{ "[::1]\n", true },
	{ "[::1] 80 127.0.0.1 80\n", true },
	{ "0 80 127.0.0.1 80", true },
	{ "\xef\xbb\xbf 0 80 127.0.0.1 80", true },
	{ "\r\n; x\r\n\tallow *\n", true },
	{ "logfile /a=b\n", true },
	{ "127.0.0.1 80 127.0.0.1 80 [timeout=3]\n", true },
	{ "engine\n", true },
};

static void test_forms(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		size_t len = strlen(forms[i].text);
		FILE *f = fmemopen((void *)forms[i].text, len + !len, "r");

		assert_non_null(f);
		if (config_rinetd_is(f) != forms[i].is_rinetd)
			fail_msg("%s", forms[i].text);
		assert_int_equal(ftell(f), 0);
		fclose(f);
	}
}

/* --- `culvert convert` --- */

/* What is printed goes to the file OTHER. */
static void convert(const char *text)
{
	char *argv[] = { (char *)"convert", path, NULL };
	static char out[1 << 18];
	struct capture capture;
	int r;

	write_to(path, text, strlen(text));
	capture_begin(&capture, STDOUT_FILENO);
	r = config_convert(2, argv);
	capture_end(&capture, out, sizeof(out));
	assert_int_equal(r, 0);
	write_to(other, out, strlen(out));
}

static void check_same_forward(const struct forward_conf *a, const struct forward_conf *b)
{
	char rule[ACL_RULE_STRLEN], other_rule[ACL_RULE_STRLEN];

	assert_string_equal(a->name, b->name);
	assert_string_equal(a->listen.text, b->listen.text);
	assert_string_equal(a->upstream.text, b->upstream.text);
	assert_int_equal(a->listen.n_addrs, b->listen.n_addrs);
	for (size_t i = 0; i < a->listen.n_addrs; i++)
		assert_true(addr_equal(&a->listen.addrs[i], &b->listen.addrs[i]));
	assert_int_equal(a->engine, b->engine);
	assert_int_equal(a->connect_timeout_ms, b->connect_timeout_ms);
	assert_int_equal(a->soft_limit, b->soft_limit);
	assert_int_equal(a->hard_limit, b->hard_limit);
	assert_int_equal(a->nodelay, b->nodelay);
	assert_int_equal(a->keepalive_s, b->keepalive_s);
	assert_int_equal(a->idle_timeout_ms, b->idle_timeout_ms);
	assert_true(addr_equal(&a->source, &b->source));
	assert_int_equal(a->max_sessions, b->max_sessions);
	assert_int_equal(a->max_sessions_per_client, b->max_sessions_per_client);
	assert_int_equal(a->acl.n, b->acl.n);
	assert_int_equal(a->acl.allows, b->acl.allows);
	for (size_t i = 0; i < a->acl.n; i++) {
		assert_string_equal(acl_rule_format(&a->acl.rules[i], rule),
				    acl_rule_format(&b->acl.rules[i], other_rule));
		assert_int_equal(a->acl.rules[i].allow, b->acl.rules[i].allow);
	}
}

/* Notes, which the one file has and the other no more, are left alone. */
static void check_round_trip(const char *text)
{
	struct config a, b;
	char err[1024];

	convert(text);
	good(&a, text, err, sizeof(err));
	if (parse(other, &b, err, sizeof(err)))
		fail_msg("%s", err);
	assert_string_equal(err, "");
	assert_int_equal(a.n_forwards, b.n_forwards);
	for (size_t i = 0; i < a.n_forwards; i++)
		check_same_forward(&a.forwards[i], &b.forwards[i]);
	assert_int_equal(a.copy_buffer, b.copy_buffer);
	assert_int_equal(a.workers, b.workers);
	assert_int_equal(a.max_sessions, b.max_sessions);
	config_close(&a);
	config_close(&b);
}

static void test_round_trip(void **state)
{
	(void)state;
	check_round_trip(rich);
	check_round_trip("[forward a]\nlisten=:80\nupstream = 127.0.0.1:81 ; x\nkeepalive=7\n"
			 "deny = 10.0.0.1\nallow=10.0.0.0/8,::1\n[culvert]\nworkers = 3\n"
			 "max-sessions=77\n[forward b]\nupstream=[::1]:80\nlisten=unix:@b\n"
			 "engine=copy\n");
	/* many rules, many lines */
	check_round_trip("deny 1*4\nallow 1*\nallow *.1?.*\n127.0.0.1 80 127.0.0.1 81\n"
			 "allow *4\nallow *.200\n::1 http localhost 81\ndeny 2001:db8:2*\n");
	check_round_trip("127.0.0.1 80 127.0.0.1 81 [timeout=72000,src=127.0.0.9]\n"
			 "connect-timeout 7\n127.0.0.1 82 127.0.0.1 83 [connect-timeout=8]\n");
	/* none can pass */
	check_round_trip("allow 10.*\n127.0.0.1 80 127.0.0.1 81\nallow 11.*\n");
	check_round_trip("allow fe80:*\n127.0.0.1 80 127.0.0.1 81\n");
	check_round_trip("0.0.0.0 80 127.0.0.1 81\n0.0.0.0 0 127.0.0.1 81\n0.0.0.0 0 ::1 82\n"
			 "unix:/run/" A50 " 127.0.0.1 80\nunix:/run/b" A50 " 127.0.0.1 80\n");
}

static void test_converted(void **state)
{
	char out[2048], want[2048];
	size_t n;
	FILE *f;

	(void)state;
	convert("deny 10.0.0.5\nlocalhost 80 localhost 81 [keepalive=on]\nallow 10.*\n");
	f = fopen(other, "re");
	assert_non_null(f);
	n = fread(out, 1, sizeof(out) - 1, f);
	out[n] = '\0';
	fclose(f);
	snprintf(want, sizeof(want),
		 "; %s, as `culvert convert` reads it: a rinetd.conf\n"
		 "\n"
		 "[forward localhost:80]\n"
		 "listen = localhost:80\n"
		 "upstream = localhost:81\n"
		 "keepalive = 60\n"
		 "deny = 10.0.0.5\n"
		 "allow = 10.0.0.0/8\n", path);
	assert_string_equal(out, want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_everything),
		cmocka_unit_test(test_oi),
		cmocka_unit_test(test_notes),
		cmocka_unit_test(test_source_and_log),
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_converted),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
