/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernel memory under receivers that never read, or slowly, with the daemon running and with it
 * stopped.
 *
 * Theory of operation: data that sits in TCP's queues is charged to sockets and bounded by TCP.
 * Data that was redirected sits on a list that nobody is charged for; that is what must be bounded.
 * Three figures show it:
 *  - hidden payload: what a sender has sent, less what the queues of the four sockets of its
 *    session hold (from /proc/net/tcp of our namespace).  Exact, and immune to other programs.
 *    A flow may have one hard limit of it in the kernel and read ahead as much in user space; or
 *    half as much again, if the gate was closed for want of a reader: then what TCP held already
 *    is redirected.
 *  - unreclaimable slab: where small packets are; a limit in bytes of payload does not hold them.
 *    Other programs disturb it, so a measurement above the bound is repeated.
 *  - receive queue, of the daemon's source: the kernel takes bytes however slow the target is, and
 *    TCP gives whoever takes fast a larger receive buffer, up to tcp_rmem[2].  With the sockmap
 *    engine it must stay below one hard limit; for the others it is TCP's affair.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "memory_run.h"
#include "peer.h"

#define ATTEMPTS 3
#define SLACK (64 << 20)     /* of slab, above a hard limit for each flow */
#define FLOW_SLACK (1 << 20) /* bytes: a pipe or buffer, and one interval of the limit's check */

static const char *const engines[] = { "auto", "graft", "sockmap", "splice", "copy" };

static const struct memory_variant variants[] = {
	{ .name = "bulk" },
	{ .name = "bulk, daemon stopped", .stop = true },
	{ .name = "bulk, slow readers", .slow = true },
	{ .name = "1-byte writes", .one_byte = true },
	{ .name = "1-byte writes, daemon stopped", .one_byte = true, .stop = true },
	{ .name = "both ways", .both = true },
	{ .name = "both ways, daemon stopped", .both = true, .stop = true },
	{ .name = "both ways, daemon stopped first", .both = true, .stop_first = true },
	{ .name = "both ways, 1-byte writes, daemon stopped",
	  .both = true,
	  .one_byte = true,
	  .stop = true },
};

static int passed, failed, skipped;

#define kib(bytes) ((long long)((bytes) / 1024))

static void run_engine(const struct memory_conf *conf)
{
	static struct memory_result got;
	const struct figures *f = &got.figures;
	int flows = conf->variant->both ? 2 : 1; /* of a session, that are filled */
	const struct figures bound = {
		.slab = (int64_t)MEMORY_PAIRS * flows * MEMORY_HARD + SLACK,
		.queue_max = strcmp(conf->engine, "sockmap") ? INT64_MAX : MEMORY_HARD,
		.hidden_max = flows * (2 * MEMORY_HARD + FLOW_SLACK),
	};
	bool ok = false;
	int r = 0;

	for (int attempt = 0; attempt < ATTEMPTS && !ok && !r; attempt++) {
		r = memory_run(conf, &got);
		ok = !r && f->hidden_max <= bound.hidden_max && f->slab <= bound.slab &&
		     f->queue_max <= bound.queue_max;
		if (f->hidden_max > bound.hidden_max || f->queue_max > bound.queue_max)
			break; /* nobody else disturbs these */
	}
	printf("%-4s %-8s %-42s ",
	       r == -ENOTSUP ? "skip" :
	       ok            ? "ok" :
			       "FAIL",
	       conf->engine, conf->variant->name);
	if (r)
		printf("%s\n", got.why);
	else
		printf("hidden payload of a session %lld KiB (bound %lld), slab %lld (%lld), "
		       "receive queue %lld; %lld KiB sent and verified\n",
		       kib(f->hidden_max), kib(bound.hidden_max), kib(f->slab), kib(bound.slab),
		       kib(f->queue_max), kib((int64_t)got.sent));
	passed += ok;
	skipped += r == -ENOTSUP;
	failed += !ok && r != -ENOTSUP;
}

static const char help[] = "test_memory [--engine E] [--seconds S, of sending (default 3)]\n";

static const struct option long_options[] = {
	{ "engine", required_argument, NULL, 'e' },
	{ "seconds", required_argument, NULL, 's' },
	{ 0 },
};

int main(int argc, char **argv)
{
	struct memory_conf conf = { .seconds = 3 };
	const char *only = NULL;
	int c;

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 'e':
			only = optarg;
			break;
		case 's':
			conf.seconds = atof(optarg);
			break;
		default:
			fputs(help, stderr);
			return 2;
		}
	}
	env_enter("test_memory", 1200);
	conf.listen_fd = net_listen(MEMORY_UPSTREAM, 4096);
	if (conf.listen_fd < 0) {
		fprintf(stderr, "FAIL: %s: %s\n", MEMORY_UPSTREAM, strerror(-conf.listen_fd));
		return 1;
	}
	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
		for (size_t e = 0; e < sizeof(engines) / sizeof(engines[0]); e++) {
			conf.variant = &variants[i];
			conf.engine = engines[e];
			if (!only || !strcmp(only, conf.engine))
				run_engine(&conf);
		}
	}
	printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
	return failed || !passed ? 1 : 0;
}
