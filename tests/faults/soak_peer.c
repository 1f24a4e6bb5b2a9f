/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The torture peers of tests/flow on both sides of a daemon that somebody else has started, in the
 * network namespace of the caller: verified sessions of every kind for a while.  For scripts/soak.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../flow/env.h"
#include "../flow/peer.h"
#include "../flow/torture.h"

static const char help[] =
	"soak_peer --connect ADDR:PORT --listen ADDR:PORT [options]\n"
	"  --connect ADDR:PORT  where the daemon listens\n"
	"  --listen ADDR:PORT   its upstream, which is this program\n"
	"  --seconds S          start sessions for so long (default 10)\n"
	"  --concurrency N      sessions at a time (default 24)\n"
	"  --stall-timeout S    a session without progress for so long has failed (default 60)\n"
	"  --seed S             of the sessions (default 1)\n"
	"The counts are one line of JSON.  Exit: 0, or 1 if a byte was wrong or a session "
	"failed.\n";

static const struct option long_options[] = {
	{ "connect", required_argument, NULL, 'c' },	 { "listen", required_argument, NULL, 'l' },
	{ "seconds", required_argument, NULL, 's' },	 { "seed", required_argument, NULL, 'd' },
	{ "concurrency", required_argument, NULL, 'n' }, { "help", no_argument, NULL, 'h' },
	{ "stall-timeout", required_argument, NULL, 't' }, { 0 },
};

static struct torture_conf conf = {
	.seed = 1, .concurrency = 24, .threads = 1, .stall_ms = 60000, .listen_fd = -1,
	/* of the last run, which may have been killed, while the daemon was stopped */
	.strangers = true,
};
static double seconds = 10;
static const char *listen_at, *connect_to;

static void parse_options(int argc, char **argv)
{
	int c;

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 'c': connect_to = optarg; break;
		case 'l': listen_at = optarg; break;
		case 's': seconds = atof(optarg); break;
		case 'd': conf.seed = strtoull(optarg, NULL, 0); break;
		case 'n': conf.concurrency = (unsigned int)atoi(optarg); break;
		case 't': conf.stall_ms = (int)(atof(optarg) * 1000); break;
		default:
			fputs(help, c == 'h' ? stdout : stderr);
			exit(c == 'h' ? 0 : 2);
		}
	}
	if (optind < argc || !connect_to || !listen_at || !conf.concurrency || seconds <= 0) {
		fputs(help, stderr);
		exit(2);
	}
}

static void print_counts(void)
{
	const struct torture_stats *s = &torture_stats;
	const struct {
		const char *key;
		uint64_t value;
	} counts[] = {
		{ "sessions", s->finished }, { "bytes", s->bytes }, { "wrong", s->wrong },
		{ "truncated", s->truncated }, { "extra", s->extra }, { "stalls", s->stalls },
		{ "failed", s->failed }, { "resets", s->reset_by_daemon },
		{ "aborted", s->aborted_by_plan }, { "strangers", s->strangers },
	};

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		printf("%s \"%s\": %llu", i ? "," : "{", counts[i].key,
		       (unsigned long long)counts[i].value);
	printf(" }\n");
}

int main(int argc, char **argv)
{
	struct rlimit lim;

	parse_options(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	if (!getrlimit(RLIMIT_NOFILE, &lim)) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
	conf.listen_fd = net_listen(listen_at, 1024);
	if (conf.listen_fd < 0 || net_addr(connect_to, &conf.to, &conf.to_len) < 0) {
		fprintf(stderr, "soak_peer: cannot listen at %s or connect to %s\n", listen_at,
			connect_to);
		return 1;
	}
	conf.deadline = now_ms() + (int64_t)(seconds * 1000);
	torture_run(&conf);
	print_counts();
	return torture_failures() ? 1 : 0;
}
