// SPDX-License-Identifier: BSD-2-Clause
/*
 * The command line of culvert-bench (user/bench/options.c): words that end in NUL.
 *
 * What is accepted is within the documented bounds and complete; what is not gives a message.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/options.h"
#include "bench/wire.h"
#include "fuzz.h"

#define WORDS_MAX 40
#define PREFIX "culvert-bench: "

static struct options o; /* most of a megabyte */

static void must_be_within(const char *what, uint64_t n, uint64_t least, uint64_t most)
{
	must(n >= least && n <= most, "%s: %s: %llu", workload_name(o.workload), what,
	     (unsigned long long)n);
}

static void check_endpoints(const struct endpoints *e, size_t least, size_t most)
{
	must_be_within("addresses", e->n, least, most);
	for (size_t i = 0; i < e->n; i++)
		must(e->list[i].n_addrs >= 1 && addr_is_inet(&e->list[i].addrs[0]) &&
		     e->list[i].text[0], "address %zu is none", i);
}

static void check_client(void)
{
	bool idle = o.workload == WORKLOAD_IDLE;

	check_endpoints(&o.connect, 1, WORDS_MAX);
	check_endpoints(&o.listen, 0, 0);
	must_be_within("connections", o.connections, 1, 1000000);
	must_be_within("in flight", o.in_flight, 1, 65536);
	must_be_within("size", o.size, 1,
		       workload_is_transfer(o.workload) ? TRANSFER_SIZE_MAX : EXCHANGE_SIZE_MAX);
	must_be_within("warm-up", o.warmup_ms, 0, idle ? 0 : PHASE_MS_MAX);
	must_be_within("seconds", o.seconds_ms, idle ? 0 : 1, PHASE_MS_MAX);
	must_be_within("timeout", o.timeout_ms, 1, PHASE_MS_MAX);
	must_be_within("rate", o.rate, 1, UINT64_C(1) << 40);
	must(o.verify == VERIFY_FULL || o.verify == VERIFY_SAMPLE, "verify: %d", (int)o.verify);
	for (size_t i = 0; o.source.family && i < o.connect.n; i++)
		must(o.connect.list[i].addrs[0].ss.ss_family == o.source.family, "families");
	must(!o.source.family == !o.source.count && o.source.count <= SOURCE_RANGE_MAX,
	     "%u addresses to connect from", o.source.count);
}

static void check_accepted(void)
{
	must((unsigned int)o.workload < N_WORKLOADS && workload_name(o.workload), "workload %d",
	     (int)o.workload);
	must_be_within("processes", o.processes, 1, PROCESSES_MAX);
	if (o.workload != WORKLOAD_SINK) {
		check_client();
		return;
	}
	check_endpoints(&o.listen, 1, WORDS_MAX);
	check_endpoints(&o.connect, 0, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	const char *help;
	int argc, r;
	char **argv = input_words(&in, "culvert-bench", WORDS_MAX, &argc);

	said_clear();
	stdout_begin();
	r = options_parse(argc, argv, &o);
	help = stdout_end(NULL);
	must(r <= 1, "returned %d", r);
	must(!help[0] == (r != 1), "returned %d and printed \"%s\"", r, help);
	must(!said()[0] == (r >= 0), "returned %d and said \"%s\"", r, said());
	if (r < 0)
		must(!strncmp(said(), PREFIX, strlen(PREFIX)) && said()[strlen(said()) - 1] == '\n',
		     "\"%s\"", said());
	if (r == 0)
		check_accepted();
	options_close(&o);
	words_free(argv);
	return 0;
}
