// SPDX-License-Identifier: BSD-2-Clause
/* culvert-bench: latencies, and its command line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "base/exit_codes.h"
#include "bench/options.h"
#include "bench/report.h"
#include "capture.h"
#include "seeded.h"

/* --- latencies --- */

static struct histogram *fresh(void)
{
	struct histogram *h = calloc(1, sizeof(*h));

	assert_non_null(h);
	return h;
}

TEST(test_zero_and_beyond)
{
	struct histogram *h = fresh();

	histogram_record(h, 0);
	histogram_record(h, HISTOGRAM_LIMIT_NS + 1);
	histogram_record(h, UINT64_C(1) << 60);
	assert_int_equal(h->counts[0], 1);
	assert_int_equal(h->counts[HISTOGRAM_BUCKETS - 1], 2);
	assert_int_equal(h->n, 3);
	assert_int_equal(histogram_percentile(h, 3333), 0);
	assert_int_equal(histogram_percentile(h, 10000), UINT64_C(1) << 60);
	free(h);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Against the sorted values themselves: never below, and at most 1/256 above. */
TEST(test_against_sorted)
{
	static uint64_t values[20000];
	static const unsigned int percentiles[] = { 1, 100, 2500, 5000, 9000, 9900, 9990, 10000 };
	const size_t n = sizeof(values) / sizeof(values[0]);
	struct seeded random = { 7 };
	struct histogram *h = fresh(), *parts[3] = { fresh(), fresh(), fresh() };

	for (size_t i = 0; i < n; i++) {
		values[i] = seeded_size(&random, 40);
		histogram_record(parts[i % 3], values[i]);
	}
	for (size_t i = 0; i < 3; i++) {
		histogram_add(h, parts[i]);
		free(parts[i]);
	}
	qsort(values, n, sizeof(values[0]), compare);
	assert_int_equal(h->n, n);
	assert_int_equal(h->max, values[n - 1]);
	for (size_t i = 0; i < sizeof(percentiles) / sizeof(percentiles[0]); i++) {
		size_t rank = (n * percentiles[i] + 9999) / 10000;
		uint64_t exact = values[rank - 1], told = histogram_percentile(h, percentiles[i]);

		assert_true(told >= exact);
		assert_true(told - exact <= exact / HISTOGRAM_SUB);
	}
	free(h);
}

/* --- the command line --- */

#define WORDS_MAX 16

/* Parse a wrong line of words between spaces, to its end.  What it said goes to COMPLAINT. */
static int parse(const char *line, char *complaint, size_t size)
{
	static struct options o;
	static char copy[1000];
	char *argv[WORDS_MAX + 1] = { (char[]){ "culvert-bench" } };
	struct capture c;
	int argc = 1, status;
	pid_t pid;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok(copy, " "); w && argc < WORDS_MAX; w = strtok(NULL, " "))
		argv[argc++] = w;
	capture_begin(&c, STDERR_FILENO);
	pid = fork();
	if (pid == 0) {
		program_invocation_short_name = argv[0];
		options_parse(argc, argv, &o);
		_exit(EXIT_CODE_OK);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	capture_end(&c, complaint, size);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static char said[1000];

static const struct {
	const char *line;
	const char *complaint;
} bad[] = {
	{ "nothing", "no such workload: \"nothing\"" },
	{ "rr", "rr needs --connect" },
	{ "sink", "sink needs --listen" },
	{ "rr --connect", "option '--connect' requires an argument" },
	{ "rr --conn 127.0.0.1:1", "option '--conn' is ambiguous" },
	{ "rr --connect unix:/x", "expected an IPv4 or IPv6 address" },
	{ "rr --connect 127.0.0.1:1 --size 0", "expected a size from 1 B to 16 MiB" },
	{ "bulk-up --connect 127.0.0.1:1 --size 1M", "sends at most 256K" },
	{ "rr --connect 127.0.0.1:1 --connections 0", "whole number from 1" },
	{ "rr --connect 127.0.0.1:1 --seconds 1x", "expected seconds" },
	{ "rr --connect 127.0.0.1:1 --verify none", "expected full or sample" },
	{ "rr --connect 127.0.0.1:1 --rate 1K", "rr has no option --rate" },
	{ "rr --connect 127.0.0.1:1 --protocol sctp", "expected tcp or udp" },
	{ "idle --connect 127.0.0.1:1 --protocol udp", "idle has no option --protocol" },
	{ "rr --connect 127.0.0.1:1 --protocol udp --size 23", "a datagram has 24 to 65507" },
	{ "bulk-up --connect 127.0.0.1:1 --protocol udp", "a datagram has 24 to 65507" },
	{ "rr --connect 127.0.0.1:1 --source ::1", "different families" },
};

TEST(test_bad)
{
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int r = parse(bad[i].line, said, sizeof(said));

		if (r != EXIT_CODE_USAGE)
			fail_msg("%s: exit code %d", bad[i].line, r);
		if (strncmp(said, "culvert-bench: ", 15) || !strstr(said, bad[i].complaint))
			fail_msg("%s: \"%s\"", bad[i].line, said);
	}
}

static const char *nth(const char *range, uint64_t n)
{
	static char text[ADDR_STRLEN];
	struct source_range r;
	struct addr a;
	const char *wrong = source_range_parse(range, &r);

	if (wrong)
		fail_msg("%s: %s", range, wrong);
	source_range_at(&r, n, &a);
	return addr_format((struct sockaddr *)&a.ss, a.len, text, sizeof(text));
}

TEST(test_source_range)
{
	assert_string_equal(nth("10.0.0.7", 0), "10.0.0.7:0");
	assert_string_equal(nth("10.0.0.7", 5), "10.0.0.7:0");
	assert_string_equal(nth("10.0.0.7-10.0.0.9", 2), "10.0.0.9:0");
	assert_string_equal(nth("10.0.0.7-10.0.0.9", 3), "10.0.0.7:0");
	assert_string_equal(nth("10.0.0.250-10.0.1.9", 6), "10.0.1.0:0");
	assert_string_equal(nth("10.0.0.255-10.1.0.0", 1), "10.0.1.0:0");
	assert_string_equal(nth("10.0.0.0-10.0.255.255", 65535), "10.0.255.255:0");
	assert_string_equal(nth("fd00::ffff-fd00::1:1", 1), "[fd00::1:0]:0");
	assert_string_equal(nth("fd00::1-fd00::3", 2), "[fd00::3]:0");
}

UNIT_MAIN(NULL, NULL)
