/* SPDX-License-Identifier: BSD-2-Clause */
/* The command line of `culvert run`: defaults, options, mistakes, and the help. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "unit.h"
#include "config_rig.h"

#define WORDS_MAX 16
#define FORWARD "127.0.0.1:9000", "127.0.0.1:9001"
#define A10 "aaaaaaaaaa"
#define A100 A10 A10 A10 A10 A10 A10 A10 A10 A10 A10

/* The command line has no mistake. */
#define GOOD(...) rig_good(NULL, WORDS(__VA_ARGS__))

TEST(test_defaults)
{
	const struct config *c;
	cpu_set_t cpus;

	c = GOOD(FORWARD);
	assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
	assert_int_equal(c->workers, CPU_COUNT(&cpus));
	assert_int_equal(c->kernel_memory,
			 (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 16);
	assert_null(c->user);
	assert_null(c->session_log);
	assert_int_equal(c->log_level, LOG_INFO);
	assert_int_equal(c->n_forwards, 1);
	assert_string_equal(c->forwards[0].listen.text, "127.0.0.1:9000");
	assert_string_equal(c->forwards[0].upstream.text, "127.0.0.1:9001");
}

/* A reload reads the same file again, and must find it unchanged. */
TEST(test_fewer_cpus)
{
	cpu_set_t all, one;
	const struct config *c;
	int cpu = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	c = GOOD(FORWARD);
	assert_int_equal(c->workers, CPU_COUNT(&all));
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	c = GOOD(FORWARD);
	assert_int_equal(c->workers, CPU_COUNT(&all));
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(test_options)
{
	const struct config *c;

	c = GOOD("--engine", "sockmap", "--workers=3", "--control", "/c", "--connect-timeout=0.5",
		 "--grace", "1.25", "--user=nobody", FORWARD);
	assert_int_equal(c->defaults.engine, ENGINE_SOCKMAP);
	assert_int_equal(c->workers, 3);
	assert_string_equal(c->control, "/c");
	assert_int_equal(c->defaults.connect_timeout_ms, 500);
	assert_int_equal(c->grace_ms, 1250);
	assert_string_equal(c->user, "nobody");
}

TEST(test_syntax)
{
	const struct config *c;

	/* Anywhere; the last of two counts; "=" may be used. */
	c = GOOD("127.0.0.1:1", "--workers", "1", "127.0.0.1:2", "--workers=2", "--grace=0",
		 "--user=--x", "unix:/a", "127.0.0.1:3");
	assert_int_equal(c->workers, 2);
	assert_int_equal(c->grace_ms, 0);
	assert_string_equal(c->user, "--x");
	assert_int_equal(c->n_forwards, 2);
	assert_string_equal(c->forwards[1].listen.text, "unix:/a");
}

static const struct {
	const char *complaint;
	const char *words[WORDS_MAX];
} mistakes[] = {
	{ "\"127.0.0.1:1\": no UPSTREAM", { "127.0.0.1:1" } },
	{ "--bogus: unknown option", { "--bogus=1", FORWARD } },
	{ "-x: unknown option", { "-x" } },
	{ "-: unknown option", { "-" } },
	{ "?[0m: unknown option", { "--\x1b[0m" } },
	{ "--workers: needs a value", { FORWARD, "--workers" } },

	{ "--engine: \"\": expected", { "--engine=", FORWARD } },
	{ "--engine: \"AUTO\": expected auto", { "--engine", "AUTO" } },
	{ "--engine: \"a?b\": expected", { "--engine", "a\nb" } },
	{ "--log-level: \"loud\": expected err", { "--log-level", "loud" } },
	{ "a path of 1 to 107 bytes", { "--control", "/" A100 "1234567" } },
	{ "--user: \"\": expected", { "--user", "" } },
	{ "--probe: \"maybe\": expected yes or no", { "--probe", "maybe" } },
	{ "a whole number from 1 to 250", { "--workers", "0" } },
	{ "--workers: \"251\": expected", { "--workers", "251" } },
	{ "seconds from 0.001 to 86400", { "--connect-timeout", "0" } },
	{ "--connect-timeout: \"86400.001\"", { "--connect-timeout", "86400.001" } },
	{ "a size from 1 KiB to 16 MiB", { "--copy-buffer", "0" } },
	{ "--allow: \"10.0.0.0/33\": expected addresses", { "--allow", "10.0.0.0/33", FORWARD } },

	{ "LISTEN: \"unix:/?\": not UTF-8", { "unix:/\xff", "127.0.0.1:1" } },
	{ "LISTEN: \"a?b:1\": bad host", { "a\nb:1", "127.0.0.1:1" } },
	{ "UPSTREAM: \"127.0.0.1:0\": port 0", { "127.0.0.1:0", "127.0.0.1:0" } },
	{ "UPSTREAM: \"x:1x\"", { FORWARD, "127.0.0.1:2", "x:1x" } },
	{ "LISTEN: \"127.0.0.1:9000\": takes the same connections", { FORWARD, FORWARD } },
	{ "UPSTREAM: \"unix:@a\": the upstream is the listener itself",
	  { FORWARD, "unix:@a", "unix:@a" } },
};

TEST(test_mistakes)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		int r = rig_parse(true, mistakes[i].words);

		if (r != -EINVAL)
			fail_msg("case %zu (%s): returned %d", i, mistakes[i].complaint, r);
		if (!strstr(rig_err, mistakes[i].complaint) ||
		    strncmp(rig_err, "culvert: ", 9) != 0)
			fail_msg("case %zu: \"%s\" lacks \"%s\"", i, rig_err,
				 mistakes[i].complaint);
		/* One line. */
		assert_ptr_equal(strchr(rig_err, '\n'), rig_err + strlen(rig_err) - 1);
	}
}

TEST(test_help)
{
	struct capture capture;
	char out[8192];

	capture_begin(&capture, STDOUT_FILENO);
	config_help();
	capture_end(&capture, out, sizeof(out));
	assert_non_null(strstr(out, "--engine ENGINE              the carrier: auto, "
				    "graft, sockmap, splice or copy (default auto)\n"));
	for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
		assert_true(strlen(line) <= 100);
}

UNIT_MAIN(NULL, NULL)
