/* SPDX-License-Identifier: BSD-2-Clause */
/* Every call of the session path made to fail in turn; see sweep.c. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../flow/daemon.h"
#include "../flow/env.h"
#include "lanes.h"
#include "sweep.h"

static const char help[] =
	"test_faults [options]\n"
	"  --engine E      auto, sockmap, splice or copy (default auto)\n"
	"  --culvert PATH  the daemon (default: the one built together with this program)\n"
	"  --only TEXT     only places whose description holds TEXT, such as "
	"\"recv user/session\"\n"
	"  --full          every error in every mode\n"
	"  --most N        about N of the errors of each place, picked by the seed (default all)\n"
	"  --seed S        of the random choices (default: from the clock; printed)\n"
	"  --json FILE     one object an injection\n"
	"  --share I/N     only each N-th place, as number I (from 0) of N such sweeps\n"
	"  --syscalls FILE have strace count the daemon's system calls meanwhile\n"
	"  --verbose       a line for each injection\n";

static const struct option long_options[] = {
	{ "engine", required_argument, NULL, 'e' },   { "culvert", required_argument, NULL, 'c' },
	{ "only", required_argument, NULL, 'o' },     { "full", no_argument, NULL, 'f' },
	{ "most", required_argument, NULL, 'm' },
	{ "seed", required_argument, NULL, 's' },     { "json", required_argument, NULL, 'j' },
	{ "syscalls", required_argument, NULL, 'y' }, { "verbose", no_argument, NULL, 'v' },
	{ "share", required_argument, NULL, 'S' },    { "help", no_argument, NULL, 'h' },
	{ 0 },
};

static struct sweep_options opt = { .engine = "auto" };
static const char *json_path;

static void usage(bool is_asked_for)
{
	fputs(help, is_asked_for ? stdout : stderr);
	exit(is_asked_for ? 0 : 2);
}

static void parse_share(const char *text)
{
	char end;

	if (sscanf(text, "%u/%u%c", &opt.share, &opt.shares, &end) != 2 ||
	    opt.share >= opt.shares)
		usage(false);
}

static void parse_options(int argc, char **argv)
{
	int c;

	opt.seed = (uint64_t)time(NULL);
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 'e': opt.engine = optarg; break;
		case 'c': opt.culvert = optarg; break;
		case 'o': opt.only = optarg; break;
		case 'm': opt.most = (unsigned int)atoi(optarg); break;
		case 'f': opt.full = true; break;
		case 's': opt.seed = strtoull(optarg, NULL, 0); break;
		case 'j': json_path = optarg; break;
		case 'y': opt.syscalls = optarg; break;
		case 'v': opt.verbose = true; break;
		case 'S': parse_share(optarg); break;
		default: usage(c == 'h');
		}
	}
	if (optind < argc)
		usage(false);
}

int main(int argc, char **argv)
{
	struct json_object *results = json_object_new_array();
	char *culvert, *preload, path[PATH_MAX];
	int r;

	parse_options(argc, argv);
	beside_test(BUILT_CULVERT, path, sizeof(path));
	culvert = realpath(opt.culvert ?: path, NULL);
	beside_test("libculvert_faults.so", path, sizeof(path));
	preload = realpath(path, NULL);
	if (!culvert || !preload || !results) {
		fprintf(stderr, "FAIL: the daemon or libculvert_faults.so is missing\n");
		return 1;
	}
	opt.culvert = culvert;
	opt.preload = preload;
	env_enter("test_faults", 3600);
	if (lanes_open())
		return 1;
	fprintf(stderr, "faults: engine %s, seed %llu\n", opt.engine, (unsigned long long)opt.seed);
	r = sweep_run(&opt, results);
	if (json_path && json_object_to_file_ext(json_path, results, JSON_C_TO_STRING_PLAIN) < 0) {
		fprintf(stderr, "FAIL: %s: %s\n", json_path, strerror(errno));
		r = r ?: -EIO;
	}
	printf("%s: engine %s, %zu injections, %d broken\n", r ? "FAILED" : "ok", opt.engine,
	       json_object_array_length(results), r > 0 ? r : 0);
	json_object_put(results);
	free(culvert);
	free(preload);
	if (r == -ENOTSUP)
		return EXIT_SKIP;
	return r ? 1 : 0;
}
