/* SPDX-License-Identifier: BSD-2-Clause */
/* Faults of the network and of the machine, each on every engine; see cases.h. */
#include <errno.h>
#include <getopt.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../flow/daemon.h"
#include "../flow/env.h"
#include "cases.h"

static const struct {
	const char *name, *what;
	net_case_fn *run;
	bool kernel; /* only where the kernel carries */
} cases[] = {
	{ "reset-stages", "RST by either side after so many bytes sent or received",
	  case_reset_stages, false },
	{ "fin-stages", "FIN by either side after so many rounds and bytes", case_fin_stages,
	  false },
	{ "tiny-windows", "the smallest receive buffer, a byte at a time", case_tiny_windows,
	  false },
	{ "zero-windows", "readers that stop for a second", case_zero_windows, false },
	{ "loss", "one packet of 100 is dropped", case_loss, false },
	{ "doubling", "one packet of 10 comes twice", case_doubling, false },
	{ "reordering", "three of 100 come behind later ones, two twice, few never",
	  case_reordering, false },
	{ "mtu", "the MTU, and with it the MSS, changes every few ms", case_mtu, false },
	{ "link", "the link goes down and up", case_link, false },
	{ "stopped", "SIGSTOP, SIGCONT, all the time", case_stopped, false },
	{ "full-table", "four slots for all sessions", case_full_table, false },
	{ "memory", "a memory cgroup of 8 MiB; 512 KiB for TCP where that has a limit of its own",
	  case_memory, false },
	{ "ring", "more events than the ring buffer holds", case_ring, true },
};

#define N_CASES (sizeof(cases) / sizeof(cases[0]))

static const char *const engines[] = { "copy", "splice", "sockmap", "auto" };
static int failed, passed, skipped;

static void add_result(struct json_object *results, const struct net_case *c, size_t i, int r)
{
	struct json_object *o = json_object_new_object();
	const struct {
		const char *key;
		int64_t value;
	} numbers[] = {
		{ "hits", (int64_t)c->times }, { "sessions", c->sum.sessions },
		{ "wrong", c->sum.wrong }, { "truncated", c->sum.truncated },
		{ "stuck", c->sum.stuck + c->sum.failed }, { "resets", c->sum.resets },
		{ "leaks", r && !c->sum.wrong && !c->sum.truncated && !c->sum.stuck &&
				   !c->sum.failed },
	};

	json_object_object_add(o, "engine", json_object_new_string(c->engine));
	json_object_object_add(o, "case", json_object_new_string(cases[i].name));
	json_object_object_add(o, "what", json_object_new_string(cases[i].what));
	json_object_object_add(o, "broken", json_object_new_string(r ? c->why : ""));
	for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
		json_object_object_add(o, numbers[k].key, json_object_new_int64(numbers[k].value));
	json_object_array_add(results, o);
}

/* After the fault nothing is left, and a batch runs as if there had been none. */
static int check_after(struct net_case *c)
{
	struct batch b;

	if (!c->rig.d)
		return 0;
	if (!rig_clean(&c->rig, c->why, sizeof(c->why)))
		return -1;
	lanes_run(NULL, NULL, &b);
	if (net_add(c, &b, false))
		return -1;
	return rig_clean(&c->rig, c->why, sizeof(c->why)) ? 0 : -1;
}

static int run_case(struct net_case *c, size_t i)
{
	/* a reset that nobody hears is the end of a session, too: see keep_alive() of the lanes */
	static const char *const options[] = { "--keepalive", "4", NULL };
	char why[1000];
	int r = rig_start(&c->rig, c->culvert, c->engine, options);

	if (r)
		return r == -ENOTSUP ? net_fail(c, "the engine cannot work here"), r : -1;
	r = cases[i].run(c);
	r = r ?: check_after(c);
	if (r && r != -ENOTSUP)
		rig_show_warnings(&c->rig);
	if (!r && c->rig.d) {
		if (daemon_stop(c->rig.d, 10000, why, sizeof(why)))
			r = net_fail(c, "SIGTERM: %.900s", why);
		c->rig.d = NULL;
	}
	rig_kill(&c->rig);
	return r;
}

static void run_engine(const struct net_case *proto, const char *only, struct json_object *results)
{
	for (size_t i = 0; i < N_CASES; i++) {
		struct net_case c = *proto;
		int64_t start = now_ms();
		int r;

		if ((only && strcmp(only, cases[i].name) != 0) ||
		    (cases[i].kernel && (!strcmp(c.engine, "copy") || !strcmp(c.engine, "splice"))))
			continue;
		r = run_case(&c, i);
		printf("%s %-8s %-14s %6lld ms  %llu times, %u sessions, %u reset%s%s\n",
		       r == -ENOTSUP ? "skip" : r ? "FAIL" : "ok  ", c.engine, cases[i].name,
		       (long long)(now_ms() - start), (unsigned long long)c.times, c.sum.sessions,
		       c.sum.resets, r ? ": " : "", r ? c.why : "");
		if (r == -ENOTSUP) {
			skipped++;
			continue;
		}
		add_result(results, &c, i, r);
		failed += r != 0;
		passed += r == 0;
	}
}

static const char help[] =
	"test_network [--engine E] [--only CASE] [--culvert PATH] [--json FILE] [--list]\n";

static const struct option long_options[] = {
	{ "engine", required_argument, NULL, 'e' }, { "only", required_argument, NULL, 'o' },
	{ "culvert", required_argument, NULL, 'c' }, { "json", required_argument, NULL, 'j' },
	{ "list", no_argument, NULL, 'l' }, { "help", no_argument, NULL, 'h' }, { 0 },
};

static int list_cases(void)
{
	for (size_t i = 0; i < N_CASES; i++)
		printf("%-14s %s\n", cases[i].name, cases[i].what);
	return 0;
}

int main(int argc, char **argv)
{
	const char *engine = NULL, *only = NULL, *json = NULL;
	struct json_object *results = json_object_new_array();
	struct net_case proto = { 0 };
	char path[PATH_MAX];
	int c;

	beside_test("libculvert_faults.so", path, sizeof(path));
	proto.preload = realpath(path, NULL);
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (c == 'e')
			engine = optarg;
		else if (c == 'o')
			only = optarg;
		else if (c == 'c')
			proto.culvert = realpath(optarg, NULL);
		else if (c == 'j')
			json = optarg;
		else if (c == 'l')
			return list_cases();
		else
			return fputs(help, c == 'h' ? stdout : stderr) < 0 || c != 'h' ? 2 : 0;
	}
	env_enter("test_network", 900);
	if (lanes_open())
		return 1;
	for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++) {
		proto.engine = engines[i];
		if (!engine || !strcmp(engine, engines[i]))
			run_engine(&proto, only, results);
	}
	if (json && json_object_to_file_ext(json, results, JSON_C_TO_STRING_PLAIN) < 0) {
		fprintf(stderr, "%s: %s\n", json, strerror(errno));
		failed++;
	}
	printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
	json_object_put(results);
	return failed || !(passed + skipped) ? 1 : 0;
}
