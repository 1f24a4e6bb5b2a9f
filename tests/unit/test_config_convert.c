// SPDX-License-Identifier: BSD-2-Clause
/* `culvert convert`: what it prints reads as what it was given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "config/config_convert.h"
#include "config_rig.h"
#include "rinetd_sample.h"

#define A50 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static char converted[1 << 18];

static void convert(const char *text)
{
	char *argv[] = { (char *)"convert", rig_path, NULL };
	struct capture capture;
	int r;

	rig_write(text);
	capture_begin(&capture, STDOUT_FILENO);
	r = config_convert(2, argv);
	capture_end(&capture, converted, sizeof(converted));
	assert_int_equal(r, 0);
}

/* Nothing is printed, and WANT is said of LINE. */
static void refuses(const char *text, unsigned int line, const char *want)
{
	char *argv[] = { (char *)"convert", rig_path, NULL };
	struct capture capture, messages;
	char err[1024], begin[512];
	int r;

	rig_write(text);
	snprintf(begin, sizeof(begin), "culvert: %s:%u: %s", rig_path, line, want);
	capture_begin(&messages, STDERR_FILENO);
	capture_begin(&capture, STDOUT_FILENO);
	r = config_convert(2, argv);
	capture_end(&capture, converted, sizeof(converted));
	capture_end(&messages, err, sizeof(err));
	assert_int_equal(r, 2);
	assert_string_equal(converted, "");
	if (strncmp(err, begin, strlen(begin)) != 0)
		fail_msg("\"%s\" does not begin with \"%s\"", err, begin);
}

/* What fits into a line of a rinetd.conf, and not into one of ours. */
static void test_too_long(void **state)
{
	(void)state;
	refuses("# \n127.0.0.1 80 " A50 "." A50 "." A50 "." A50 " 81\n", 2,
		"\"upstream = ...\" would be a line of 217 bytes, and one in a file with sections "
		"has at most 199: ");
	refuses("127.0.0.1 80 127.0.0.1 81\n\nlogfile /" A50 A50 A50 A50 "\n", 3,
		"\"session-log = ...\" would be a line of 215 bytes");
	refuses("127.0.0.1 82 127.0.0.1 81\n" A50 "." A50 "." A50 "." A50 " 80 127.0.0.1 81\n",
		2, "\"listen = ...\" would be a line of 215 bytes");
}

/* No forward: what `culvert check` warns of. */
static void test_empty(void **state)
{
	struct capture capture;
	char err[1024], want[512];

	(void)state;
	snprintf(want, sizeof(want), "culvert: %s: warning: no forward here: give LISTEN UPSTREAM "
		 "on the command line\n", rig_path);
	capture_begin(&capture, STDERR_FILENO);
	convert("# nothing\n");
	capture_end(&capture, err, sizeof(err));
	assert_string_equal(err, want);
	capture_begin(&capture, STDERR_FILENO);
	convert("[culvert]\nworkers = 3\n");
	capture_end(&capture, err, sizeof(err));
	assert_string_equal(err, want);
	assert_non_null(strstr(converted, "\n[culvert]\nworkers = 3\n"));
	capture_begin(&capture, STDERR_FILENO);
	convert("# nothing\nlogfile /var/log/x\nallow 10.*\n");
	capture_end(&capture, err, sizeof(err));
	assert_string_equal(err, want);
	assert_non_null(strstr(converted, "; line 3: allow and deny are for the rules of this "
					  "file, and it has none\n"));
	assert_non_null(strstr(converted, "\n[culvert]\nsession-log = /var/log/x\n"));
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
	rig_good_noted(&a, text, err, sizeof(err));
	rig_good(&b, converted, NULL);
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
	check_round_trip(rinetd_sample);
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
	char want[2048];

	(void)state;
	convert("deny 10.0.0.5\nlocalhost 80 localhost 81 [keepalive=on]\nallow 10.*\n");
	snprintf(want, sizeof(want),
		 "; %s, as `culvert convert` reads it: a rinetd.conf\n"
		 "\n"
		 "[forward localhost:80]\n"
		 "listen = localhost:80\n"
		 "upstream = localhost:81\n"
		 "keepalive = 60\n"
		 "deny = 10.0.0.5\n"
		 "allow = 10.0.0.0/8\n", rig_path);
	assert_string_equal(converted, want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_converted),
		cmocka_unit_test(test_too_long),
		cmocka_unit_test(test_empty),
	};

	return cmocka_run_group_tests(tests, rig_open, rig_close);
}
