// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "bench/client_side.h"
#include "bench/generator.h"
#include "bench/options.h"
#include "bench/source_range.h"
#include "capture.h"

#define WORDS_MAX 16

/* Parse a command line of words between spaces; what it printed to stderr goes to COMPLAINT. */
static int parse(const char *line, struct options *ret, char *complaint, size_t size)
{
	static char copy[1000];
	char *argv[WORDS_MAX + 1] = { (char[]){ "culvert-bench" } };
	struct capture c;
	int argc = 1, r;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok(copy, " "); w && argc < WORDS_MAX; w = strtok(NULL, " "))
		argv[argc++] = w;
	capture_begin(&c, STDERR_FILENO);
	r = options_parse(argc, argv, ret);
	capture_end(&c, complaint, size);
	return r;
}

static struct options o;
static char said[1000];

static void good(const char *line)
{
	if (parse(line, &o, said, sizeof(said)))
		fail_msg("%s: %s", line, said);
	assert_string_equal(said, "");
}

static void test_defaults(void **state)
{
	(void)state;
	good("rr --connect 127.0.0.1:9000");
	assert_int_equal(o.workload, WORKLOAD_RR);
	assert_int_equal(o.connect.n, 1);
	assert_int_equal(o.connections, 1);
	assert_int_equal(o.processes, 1);
	assert_int_equal(o.size, 64);
	assert_int_equal(o.seconds_ms, 5000);
	assert_int_equal(o.warmup_ms, 200);
	assert_int_equal(o.timeout_ms, 5000);
	assert_int_equal(o.verify, VERIFY_FULL);
	assert_int_equal(o.source.family, AF_UNSPEC);
	options_close(&o);

	good("bulk-both --connect [::1]:9000");
	assert_int_equal(o.size, 256 << 10);
	assert_int_equal(o.verify, VERIFY_SAMPLE);
	assert_int_equal(o.seconds_ms, 5000);
	options_close(&o);

	good("idle --connect 127.0.0.1:1");
	assert_int_equal(o.seconds_ms, 0);
	assert_int_equal(o.warmup_ms, 0);
	options_close(&o);

	good("sink --listen 127.0.0.1:0");
	assert_int_equal(o.listen.n, 1);
	options_close(&o);
}

static void test_values(void **state)
{
	(void)state;
	good("slow --connect=127.0.0.1:1 --connect 127.0.0.2:2 --connections=70 --size 1K "
	     "--seconds 0.25");
	assert_int_equal(o.connect.n, 2);
	assert_string_equal(o.connect.list[1].text, "127.0.0.2:2");
	assert_int_equal(o.connections, 70);
	assert_int_equal(o.size, 1024);
	assert_int_equal(o.seconds_ms, 250);
	assert_true(o.rate == 64 << 10);
	options_close(&o);

	good("slow --connect 127.0.0.1:1 --rate 2M --warmup 0 --timeout 1.5 --seconds .3 "
	     "--verify full");
	assert_true(o.rate == 2 << 20);
	assert_int_equal(o.warmup_ms, 0);
	assert_int_equal(o.timeout_ms, 1500);
	assert_int_equal(o.seconds_ms, 300);
	assert_int_equal(o.verify, VERIFY_FULL);
	options_close(&o);

	good("crr --connect 127.0.0.1:1 --source 127.0.0.2-127.0.0.5 --size 16M --processes 8");
	assert_int_equal(o.source.count, 4);
	assert_int_equal(o.size, 16 << 20);
	assert_int_equal(o.processes, 8);
	options_close(&o);

	good("sink --listen 127.0.0.1:1 --listen [::1]:1 --processes 3");
	assert_int_equal(o.listen.n, 2);
	options_close(&o);
}

static const struct {
	const char *line;
	const char *complaint;
} bad[] = {
	{ "", "no workload given" },
	{ "nothing", "no such workload: \"nothing\"" },
	{ "--connect 127.0.0.1:1", "no such workload" },
	{ "rr", "rr needs --connect" },
	{ "sink", "sink needs --listen" },
	{ "rr --connect", "--connect needs a value" },
	{ "rr 127.0.0.1:1", "unknown option \"127.0.0.1:1\"" },
	{ "rr --conn 127.0.0.1:1", "unknown option \"--conn\"" },
	{ "rr --connect nonsense", "no port" },
	{ "rr --connect unix:/x", "expected an IPv4 or IPv6 address" },
	{ "rr --connect 127.0.0.1:0", "port 0" },
	{ "rr --connect 127.0.0.1:1 --size 0", "expected a size from 1 B to 16 MiB" },
	{ "rr --connect 127.0.0.1:1 --size 17M", "expected a size" },
	{ "rr --connect 127.0.0.1:1 --size -1", "expected a size" },
	{ "rr --connect 127.0.0.1:1 --size", "--size needs a value" },
	{ "rr --connect 127.0.0.1:1 --size=", "expected a size" },
	{ "bulk-up --connect 127.0.0.1:1 --size 1M", "sends at most 256K" },
	{ "rr --connect 127.0.0.1:1 --connections 0", "whole number from 1" },
	{ "rr --connect 127.0.0.1:1 --connections 1K", "whole number" },
	{ "rr --connect 127.0.0.1:1 --connections 99999999999999999999", "whole number" },
	{ "rr --connect 127.0.0.1:1 --processes 257", "whole number from 1 to 256" },
	{ "rr --connect 127.0.0.1:1 --seconds 0", "expected seconds" },
	{ "rr --connect 127.0.0.1:1 --seconds 1.", "expected seconds" },
	{ "rr --connect 127.0.0.1:1 --seconds .", "expected seconds" },
	{ "rr --connect 127.0.0.1:1 --seconds 0.0005", "expected seconds" },
	{ "rr --connect 127.0.0.1:1 --seconds 1e9", "expected seconds" },
	{ "rr --connect 127.0.0.1:1 --seconds 86401", "expected seconds" },
	{ "rr --connect 127.0.0.1:1 --verify none", "expected full or sample" },
	{ "rr --connect 127.0.0.1:1 --rate 1K", "rr has no option --rate" },
	{ "rr --connect 127.0.0.1:1 --listen 127.0.0.1:2", "rr has no option --listen" },
	{ "sink --listen 127.0.0.1:2 --size 1", "sink has no option --size" },
	{ "idle --connect 127.0.0.1:1 --warmup 1", "idle has no option --warmup" },
	{ "rr --connect 127.0.0.1:1 --source ::1", "different families" },
	{ "rr --connect 127.0.0.1:1 --source x", "expected an IPv4 or IPv6 address" },
};

static void test_bad(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int r = parse(bad[i].line, &o, said, sizeof(said));

		options_close(&o);
		if (r >= 0)
			fail_msg("%s: taken", bad[i].line);
		if (strncmp(said, "culvert-bench: ", 15) || !strstr(said, bad[i].complaint))
			fail_msg("%s: \"%s\"", bad[i].line, said);
	}
}

/* The help has every workload and every option, and fits the terminal. */
static void test_help(void **state)
{
	static char text[20000];
	char *argv[] = {
		(char[]){ "culvert-bench" }, (char[]){ "rr" }, (char[]){ "--help" }, NULL,
	};
	struct capture c;
	int r;

	(void)state;
	capture_begin(&c, STDOUT_FILENO);
	r = options_parse(3, argv, &o);
	capture_end(&c, text, sizeof(text));
	assert_int_equal(r, 1);
	for (int i = 0; i < N_WORKLOADS; i++)
		assert_non_null(strstr(text, workload_name((enum workload)i)));
	assert_non_null(strstr(text, "--source FIRST[-LAST]"));
	assert_non_null(strstr(text, "coordinated omission"));
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		if (strlen(line) > 100)
			fail_msg("%zu columns: %s", strlen(line), line);
}

/* --- source addresses --- */

static const char *nth(const char *range, uint64_t n)
{
	static char text[ADDR_STRLEN];
	struct source_range r;
	struct addr a;
	char err[256];

	if (source_range_parse(range, &r, err, sizeof(err)))
		fail_msg("%s: %s", range, err);
	source_range_at(&r, n, &a);
	return addr_format((struct sockaddr *)&a.ss, a.len, text, sizeof(text));
}

static void test_source_range(void **state)
{
	(void)state;
	assert_string_equal(nth("10.0.0.7", 0), "10.0.0.7:0");
	assert_string_equal(nth("10.0.0.7", 5), "10.0.0.7:0");
	assert_string_equal(nth("10.0.0.7-10.0.0.9", 2), "10.0.0.9:0");
	assert_string_equal(nth("10.0.0.7-10.0.0.9", 3), "10.0.0.7:0");
	assert_string_equal(nth("10.0.0.250-10.0.1.9", 6), "10.0.1.0:0");
	assert_string_equal(nth("10.0.0.255-10.1.0.0", 1), "10.0.1.0:0");
	assert_string_equal(nth("10.0.0.0-10.0.255.255", 65535), "10.0.255.255:0");
	assert_string_equal(nth("fd00::ffff-fd00::1:1", 1), "[fd00::1:0]:0");
	assert_string_equal(nth("[fd00::1]-[fd00::3]", 2), "[fd00::3]:0");
}

static void test_bad_source_range(void **state)
{
	static const char *const texts[] = {
		"", "-", "10.0.0.1-", "-10.0.0.1", "10.0.0.2-10.0.0.1", "10.0.0.1-11.0.0.1",
		"10.0.0.0-10.1.0.0", "10.0.0.1-fd00::1", "fd00::1-fd01::1", "10.0.0.256",
		"10.0.0.1:80", "10.0.0.1-10.0.0.2-10.0.0.3", "fd00::2-fd00::1", "host",
		"[fd00::1", "11.0.0.1-10.0.0.1", "0.0.0.0-255.255.255.255",
		"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"1111:1111:1111:1111:1111:1111:1111:1111:1111:1111:1111:1111",
	};
	struct source_range r;
	char err[256];

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (source_range_parse(texts[i], &r, err, sizeof(err)) != -EINVAL)
			fail_msg("\"%s\" taken", texts[i]);
}

/* --- shares of processes --- */

static void test_shares(void **state)
{
	(void)state;
	for (unsigned int processes = 1; processes < 20; processes++) {
		uint32_t sum = 0;

		for (unsigned int i = 0; i < processes; i++)
			sum += generator_share(50, i, processes);
		assert_int_equal(sum, 50);
	}
	assert_int_equal(generator_share(50, 0, 3), 17);
	assert_int_equal(generator_share(50, 2, 3), 16);
}

static void test_processes_needed(void **state)
{
	(void)state;
	assert_int_equal(processes_needed(1, 1024, 1), 1);
	assert_int_equal(processes_needed(20000, 20000, 1), 2); /* some descriptors are not free */
	assert_int_equal(processes_needed(19000, 20000, 1), 1);
	assert_int_equal(processes_needed(40000, 1024, 1), 41);
	assert_int_equal(processes_needed(100, 1024, 4), 4);
	assert_int_equal(processes_needed(2, 1024, 4), 2);
	assert_int_equal(processes_needed(1000000, 1024, 1), 0); /* too many */
	assert_int_equal(processes_needed(1, 10, 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_help),
		cmocka_unit_test(test_source_range),
		cmocka_unit_test(test_bad_source_range),
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_processes_needed),
	};

	return cmocka_run_group_tests_name("bench: options", tests, NULL, NULL);
}
