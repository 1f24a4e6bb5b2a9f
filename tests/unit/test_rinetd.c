// SPDX-License-Identifier: BSD-2-Clause
/*
 * The file of rinetd: what it becomes, natively too, and what is refused.  flow/replace_rinetd.py
 * has the same beside rinetd itself, and the file of oi.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"
#include "client.h"
#include "daemon/check.h"
#include "config/rinetd.h"
#include "config_rig.h"

/* A file with everything that is taken. */
static const char sample[] = "# comment\n"
			     "allow 192.168.2.*\n"
			     "allow fe80:*\n"
			     "allow ::ffff:192.168.2.*\n"
			     "  deny 192.168.2.1?\n"
			     "\n"
			     "0.0.0.0\t8080\t192.168.1.2\t80\n"
			     "0.0.0.0 8080/udp 192.168.1.2 80/udp\n"
			     "::1 8080/tcp 192.168.1.2 http # to a service\n"
			     "deny 2001:618:*:e43f\n"
			     "0 81 192.168.1.3 80 [timeout=72000, src=127.0.0.9]\n"
			     "allow 192.168.2.2*\n"
			     "deny 192.168.2.21\n"
			     ":: 82 127.0.0.1 83#none\n"
			     "allow ::ffff:192.168.2.3*\n"
			     "allow *.7\n"
			     ":: 82/udp 127.0.0.1 tftp/UDP [timeout=1200]\n"
			     "::1 83/udp ::1 84/udp [src=::1,timeout=0]\n"
			     "pidlogfile /run/rinetd.pid\n"
			     "logfile /var/log/rinetd.log\n";

static const struct {
	const char *name, *listen, *upstream, *allowed, *denied; /* clients, between blanks */
} forwards[] = {
	{ "0.0.0.0:8080", "0.0.0.0:8080", "192.168.1.2:80", "192.168.2.1 192.168.2.20",
	  "192.168.2.10 192.168.1.1" },
	{ "0.0.0.0:8080/udp", "0.0.0.0:8080/udp", "192.168.1.2:80", "192.168.2.1 192.168.2.20",
	  "192.168.2.10 192.168.1.1" },
	{ "::1:8080", "[::1]:8080", "192.168.1.2:http", "fe80::1",
	  "fe81::1 2001:618::e43f ::1 192.168.2.10" },
	{ "0.0.0.0:81", "0.0.0.0:81", "192.168.1.3:80", "192.168.2.20 192.168.2.2",
	  "192.168.2.21 192.168.2.3 192.168.2.10" },
	/* rinetd sees ::ffff:192.168.2.3 here */
	{ "*:82", ":82", "127.0.0.1:83", "192.168.2.3 192.168.2.7 192.168.2.39",
	  "192.168.2.4 192.168.2.17 fe80::1" },
	{ "*:82/udp", ":82/udp", "127.0.0.1:tftp", "192.168.2.3", "192.168.1.4" },
	{ "::1:83/udp", "[::1]:83/udp", "[::1]:84", "fe80::1", "::1" },
};

static void check_forwards(const struct config *c)
{
	assert_int_equal(c->n_forwards, sizeof(forwards) / sizeof(forwards[0]));
	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct forward_conf *fc = &c->forwards[i];

		assert_string_equal(fc->name, forwards[i].name);
		assert_string_equal(fc->listen.text, forwards[i].listen);
		assert_string_equal(fc->upstream.text, forwards[i].upstream);
		assert_int_equal(fc->listen.udp, strstr(fc->name, "/udp") != NULL);
		assert_int_equal(fc->idle_timeout_ms, !fc->listen.udp ? 0 :
						      i == 5          ? 1200000 :
									72000);
		assert_int_equal(fc->source.len != 0, i == 3 || i == 6);
		expect_clients(&fc->acl, fc->name, forwards[i].allowed, true);
		expect_clients(&fc->acl, fc->name, forwards[i].denied, false);
	}
	assert_string_equal(c->pid_file, "/run/rinetd.pid");
	assert_string_equal(c->session_log, "/var/log/rinetd.log");
}

static int convert(char *out, size_t size)
{
	char *argv[] = { (char *)"convert", rig_path, NULL };
	struct capture capture;
	int r;

	capture_begin(&capture, STDOUT_FILENO);
	r = convert_run(2, argv);
	capture_end(&capture, out, size);
	return r;
}

/* The file, and what `culvert convert` makes of it. */
TEST(test_everything)
{
	char converted[4096];
	const struct config *c;

	c = rig_good(sample, NULL);
	check_forwards(c);
	assert_int_equal(convert(converted, sizeof(converted)), 0);
	assert_non_null(strstr(converted, "deny = 192.168.2.1?\ndeny = 2001:618:*:e43f\n"
					  "allow = 192.168.2.*\nallow = fe80:*\n"));
	c = rig_good(converted, NULL);
	check_forwards(c);
}

/*
 * Thousands of rules at the top are there once for all forwards without rules of their own, except
 * for those at "::", to which patterns mean something else.
 */
TEST(test_shared)
{
	const struct forward_conf *fc;
	char converted[4096];
	const struct config *c;

	for (int native = 0; native < 2; native++) {
		c = rig_good(native ? converted :
				      "deny 10.0.0.*\nallow 10.*\nallow 192.168.*\n"
				      "0 81 127.0.0.1 91\n"
				      "0 82 127.0.0.1 91\ndeny 10.0.1.1\n"
				      "0 83 127.0.0.1 91\n"
				      ":: 84 127.0.0.1 91\n"
				      ":: 85 127.0.0.1 91\n",
			     NULL);
		fc = c->forwards;
		for (int i = 0; i < 5; i++) {
			expect_clients(&fc[i].acl, fc[i].name, "10.0.0.1", false);
			expect_clients(&fc[i].acl, fc[i].name, "192.168.0.1", i < 3);
			expect_clients(&fc[i].acl, fc[i].name, "10.0.1.1", i == 0 || i == 2);
		}
		assert_ptr_equal(fc[2].acl.rules, fc[0].acl.rules);
		assert_ptr_not_equal(fc[3].acl.rules, fc[0].acl.rules);
		if (!native)
			assert_int_equal(convert(converted, sizeof(converted)), 0);
	}
}

/* Patterns that rinetd matches with IPv4 clients in IPv6 form. */
TEST(test_mapped)
{
	static const struct {
		const char *rules, *allowed, *denied;
	} rows[] = {
		{ "allow ::FFFF:10.*", "10.0.0.1", "11.0.0.1 10::1 ::1" },
		{ "allow ::ffff:1*", "10.0.0.1", "1::2 2.0.0.1" },
		{ "allow ::ffff:*", "10.0.0.1", "::1" },
		{ "deny ::ffff:10.0.0.1", "10.0.0.2 ::1", "10.0.0.1" },
		{ "deny ::ffff:10.*", "11.0.0.8 ::7", "10.0.0.7" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char text[256];
		const struct config *c;

		snprintf(text, sizeof(text), ":: 80 127.0.0.1 81\n%s\n", rows[i].rules);
		c = rig_good(text, NULL);
		expect_clients(&c->forwards[0].acl, rows[i].rules, rows[i].allowed, true);
		expect_clients(&c->forwards[0].acl, rows[i].rules, rows[i].denied, false);
	}
}

#define GOOD "127.0.0.1 80 127.0.0.1 81"

static const struct rig_mistake mistakes[] = {
	{ 0, "nothing to forward", "allow 10.*\n" },
	{ 1,
	  "expected BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT; a file of culvert begins "
	  "with a [SECTION]\n",
	  "127.0.0.1\n" },
	{ 3, "expected BIND", "#\n" GOOD "\n[culvert]\n" },
	{ 2, "include: a rinetd.conf is one file", GOOD "\ninclude /etc/x\n" },
	{ 2, "expected BINDADDRESS",
	  "\nstream {\n  server { listen 80; proxy_pass 10.0.0.1:80; }\n}\n" },
	{ 1, "\"82\": nothing but a comment may follow", GOOD " 82\n" },
	{ 1, "/udp on one side: culvert translates no protocol", "0.0.0.0 53/udp 10.0.0.1 53\n" },
	{ 1, "53/sctp: expected /tcp or /udp", "0.0.0.0 53/sctp 10.0.0.1 53/sctp\n" },
	{ 1, "timeout: \"x\": expected seconds", "0.0.0.0 53/udp 10.0.0.1 53/udp [timeout=x]\n" },
	{ 1, "upstream: \"10.0.0.1:0\": port 0", "0.0.0.0 80 10.0.0.1 0\n" },
	{ 2, "listen: \"127.0.0.1:80\": takes the same connections as the earlier \"0.0.0.0:80\"",
	  "0.0.0.0 80 10.0.0.1 81\n" GOOD "\n" },
	{ 2, "[forward 127.0.0.1:80]: the name is taken", GOOD "\n" GOOD "\n" },
	{ 2, "listen: \":80\": takes the same connections as the earlier \"0.0.0.0:80\"",
	  "0.0.0.0 80 127.0.0.1 81\n:: 80 127.0.0.1 81\n" },
	{ 1, "listen: \"1.2.3.256:80\": bad host", "1.2.3.256 80 10.0.0.1 80\n" },
	{ 1, "[color=red]: expected timeout=SECONDS or src=ADDRESS", GOOD " [color=red]\n" },
	{ 1, "[timeout]: expected timeout=SECONDS or src", GOOD " [src=::1,timeout]\n" },
	{ 1, "src: given twice", GOOD " [src=::1,src=::2]\n" },
	{ 1, "src: \"localhost\": expected an IPv4 or IPv6", GOOD " [src=localhost]\n" },
	{ 1, "\"[\" without \"]\"", GOOD " [timeout=1\n" },
	{ 2, "logcommon: culvert has a log format of its own", GOOD "\nlogcommon\n" },
	{ 3, "logfile: given twice", "logfile /a\n" GOOD "\nlogfile /b\n" },
	{ 1, "logfile: \"\": expected", "logfile\n" GOOD },
	{ 1, "logfile: culvert takes no file name with ;", "logfile ;\n" GOOD },
	{ 1, "\"localhost\": expected an address", "allow localhost\n" GOOD },
	{ 1, "\"10.0.0.2\": nothing but a comment may follow", "allow 10.0.0.1 10.0.0.2\n" GOOD },
	{ 1, "\"10.*&10.1.*\": expected", "allow 10.*&10.1.*\n" GOOD },
	{ 2, "\"10.0.0.256\": expected an address", GOOD "\ndeny 10.0.0.256\n" },
	{ 2, "a control character", GOOD "\n10.0.0.1\r80 127.0.0.1 81\n" },
};

TEST(test_mistakes)
{
	static const char nul_first[] = "\0"
					"127.0.0.1 80 127.0.0.1 81\n";

	rig_bad(mistakes, sizeof(mistakes) / sizeof(mistakes[0]));
	rig_bad_bytes(nul_first, sizeof(nul_first) - 1, 1, "a control character");
}

static const struct {
	const char *text;
	bool is_rinetd;
} forms[] = {
	{ "", false },
	{ "# only\n; comments\n\n", false },
	{ "[culvert]\n", false },
	{ "# 1.2.3.4 80 1.2.3.4 80\n;x\n\n\t [forward a]\n", false },
	{ "engine = auto\n", false },
	{ "engine=auto", false },
	{ "0 80 127.0.0.1 80", true },
	{ " 0 80 127.0.0.1 80", true },
	{ "\r\n; x\r\n\tallow *\n", true },
	{ "logfile /a=b\n", true },
	{ "127.0.0.1 80 127.0.0.1 80 [timeout=3]\n", true },
	{ "engine\n", true },
};

TEST(test_forms)
{
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
		if (rinetd_is(forms[i].text) != forms[i].is_rinetd)
			fail_msg("%s", forms[i].text);
}

UNIT_MAIN(rig_open, rig_close)
