/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernel memory under receivers that never read, or slowly, with the daemon running and with it
 * stopped.
 *
 * Theory of operation: data that sits in TCP's queues is charged to sockets and bounded by TCP.
 * Data that was redirected sits on a list that nobody is charged for; that is what must be bounded.
 * Three figures show it, and a fourth that TCP's own bound is a small one:
 *  - hidden payload: what a sender has sent, less what the queues of the four sockets of its
 *    session hold (from /proc/net/tcp of our namespace).  Exact, and immune to other programs.
 *    A flow may have one hard limit of it in the kernel and read ahead as much in user space; or
 *    half as much again, if the gate was closed for want of a reader: then what TCP held already
 *    is redirected.
 *  - unreclaimable slab: where small packets are; a limit in bytes of payload does not hold them.
 *  - used memory less what TCP accounts for.  Other programs disturb it, so a measurement above the
 *    bound is repeated and the smallest counts.
 *  - receive queue, of the daemon's source: the kernel takes bytes however slow the target is, and
 *    TCP gives whoever takes fast a larger receive buffer, up to tcp_rmem[2].  With the sockmap
 *    engine it must stay below one hard limit; for the others it is TCP's affair.
 * The bounds of slab and unaccounted memory are the figures of the copy engine, plus one hard limit
 * per flow, plus a slack.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "env.h"
#include "memory_run.h"
#include "peer.h"

#define ATTEMPTS 3
#define SLACK (64 << 20) /* allowed above copy, and a hard limit for each flow */
#define FLOW_SLACK (1 << 20) /* bytes: a pipe or buffer, and one interval of the limit's check */

static struct options {
	const char *engine, *variant;
	double seconds;
} opt = { .variant = "", .seconds = 3 };

static const char *const engines[] = { "auto", "sockmap", "splice", "copy" };

static const struct memory_variant variants[] = {
	{ .name = "bulk" },
	{ .name = "bulk, daemon stopped", .stop = true },
	{ .name = "bulk, slow readers", .slow = true },
	{ .name = "1-byte writes", .one_byte = true },
	{ .name = "1-byte writes, daemon stopped", .one_byte = true, .stop = true },
	{ .name = "both ways", .both = true },
	{ .name = "both ways, daemon stopped", .both = true, .stop = true },
	{ .name = "both ways, daemon stopped first", .both = true, .stop_first = true },
	{ .name = "both ways, 1-byte writes, daemon stopped", .both = true, .one_byte = true,
	  .stop = true },
};

#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

static struct totals {
	int passed, failed, skipped;
} totals;

#define kib(bytes) ((long long)((bytes) / 1024))
#define mib(bytes) ((long long)((bytes) / (1 << 20)))

static void print_run(const struct memory_conf *conf, const struct memory_result *got,
		      const char *verdict, const struct figures *bound)
{
	const struct figures *f = &got->figures;

	printf("%-4s %-8s %-42s hidden payload %lld KiB (most of one session %lld", verdict,
	       conf->engine, conf->variant->name, kib(f->hidden), kib(f->hidden_max));
	if (bound)
		printf(", bound %lld", kib(bound->hidden_max));
	printf("), slab %lld MiB", mib(f->slab));
	if (bound)
		printf(" (bound %lld)", mib(bound->slab));
	printf(", unaccounted %lld MiB", mib(f->unaccounted));
	if (bound)
		printf(" (bound %lld)", mib(bound->unaccounted));
	printf(", longest receive queue %lld KiB", kib(f->queue_max));
	if (bound && bound->queue_max != INT64_MAX)
		printf(" (bound %lld)", kib(bound->queue_max));
	printf(", TCP mem %lld MiB, used %lld MiB; %lld KiB sent and verified\n",
	       mib(got->grown.accounted), mib(got->grown.used), kib((int64_t)got->sent));
}

static bool within(const struct figures *f, const struct figures *bound)
{
	return f->hidden_max <= bound->hidden_max && f->slab <= bound->slab &&
	       f->unaccounted <= bound->unaccounted && f->queue_max <= bound->queue_max;
}

static void take_least(struct figures *least, const struct figures *f, bool first)
{
	if (first || f->unaccounted < least->unaccounted)
		least->unaccounted = f->unaccounted;
	if (first || f->slab < least->slab)
		least->slab = f->slab;
	/* Nobody else disturbs these: the worst counts. */
	if (first || f->queue_max > least->queue_max)
		least->queue_max = f->queue_max;
	if (first || f->hidden_max > least->hidden_max)
		least->hidden_max = f->hidden_max;
	if (first || f->hidden > least->hidden)
		least->hidden = f->hidden;
}

static int no_figure(const struct memory_conf *conf, const char *verdict, int *count,
		     const struct memory_result *got)
{
	printf("%-4s %-8s %-42s %s\n", verdict, conf->engine, conf->variant->name, got->why);
	(*count)++;
	return -1;
}

/*
 * Run one engine; BOUND NULL: the copy engine, which sets the mark (two measurements, the smaller
 * ones count: that is stricter).  Returns 0, or -1 if there is no figure.
 */
static int run_engine(const struct memory_conf *conf, const struct figures *bound,
		      struct figures *ret)
{
	static struct memory_result got;
	int attempts = bound ? ATTEMPTS : 2, r = 0;
	bool ok = !bound;

	for (int attempt = 0; attempt < attempts && !r; attempt++) {
		r = memory_run(conf, &got);
		take_least(ret, &got.figures, attempt == 0);
		ok = !bound || within(ret, bound);
		if (bound && (ok || r))
			break;
		if (bound)
			print_run(conf, &got, "note", bound);
	}
	if (r == -ENOTSUP)
		return no_figure(conf, "skip", &totals.skipped, &got);
	if (r)
		return no_figure(conf, "FAIL", &totals.failed, &got);
	got.figures = *ret;
	print_run(conf, &got, ok ? "ok" : "FAIL", bound);
	totals.passed += ok;
	totals.failed += !ok;
	return 0;
}

static void run_variant(const struct memory_variant *v, int listen_fd)
{
	struct memory_conf conf = {
		.engine = "copy",
		.variant = v,
		.seconds = opt.seconds,
		.listen_fd = listen_fd,
	};
	int flows = v->both ? 2 : 1; /* of a session, that are filled */
	int64_t slack = (int64_t)MEMORY_PAIRS * flows * MEMORY_HARD + SLACK;
	struct figures copy, bound, got;

	if (run_engine(&conf, NULL, &copy))
		return;
	bound.slab = (copy.slab > 0 ? copy.slab : 0) + slack;
	bound.unaccounted = (copy.unaccounted > 0 ? copy.unaccounted : 0) + slack;
	bound.hidden_max = flows * (2 * MEMORY_HARD + FLOW_SLACK);
	for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++) {
		conf.engine = engines[i];
		bound.queue_max = strcmp(conf.engine, "sockmap") ? INT64_MAX : MEMORY_HARD;
		if (strcmp(conf.engine, "copy") && (!opt.engine || !strcmp(opt.engine, conf.engine)))
			run_engine(&conf, &bound, &got);
	}
}

static const char help[] =
	"test_memory [options]\n"
	"  --engine E         only this engine (and copy, which sets the mark)\n"
	"  --variant TEXT     only variants whose names hold TEXT\n"
	"  --seconds S        of sending (default 3)\n";

static const struct option long_options[] = {
	{ "engine", required_argument, NULL, 'e' },
	{ "variant", required_argument, NULL, 'v' },
	{ "seconds", required_argument, NULL, 's' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

int main(int argc, char **argv)
{
	int c, fd;

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 'e': opt.engine = optarg; break;
		case 'v': opt.variant = optarg; break;
		case 's': opt.seconds = atof(optarg); break;
		default:
			fputs(help, c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
	}
	env_enter("test_memory", 1200);
	fd = net_listen(MEMORY_UPSTREAM, 4096);
	if (fd < 0) {
		fprintf(stderr, "FAIL: %s: %s\n", MEMORY_UPSTREAM, strerror(-fd));
		return 1;
	}
	for (size_t i = 0; i < N_VARIANTS; i++)
		if (strstr(variants[i].name, opt.variant))
			run_variant(&variants[i], fd);
	printf("%d passed, %d failed, %d skipped\n", totals.passed, totals.failed, totals.skipped);
	return totals.failed || !totals.passed ? 1 : 0;
}
