/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The torture peer: thousands of sessions of every kind through the daemon, every byte verified by
 * content and position, while the daemon is stopped and continued at random (--storm), or an
 * operator moves the sessions from engine to engine (--moves).
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"
#include "env.h"
#include "peer.h"
#include "plan.h"
#include "torture.h"

#define LISTEN "127.0.0.1:9000"
#define UPSTREAM "127.0.0.1:9100"

#define STORM_MS 250 /* the daemon is stopped at least so often, */
#define MOVE_MS 50   /* and moves its sessions */

static struct options {
	const char *culvert, *engine, *soft_limit, *hard_limit, *kernel_memory;
	const char *connect, *listen;
	struct torture_conf torture;
	double minutes;
	bool storm, moves;
} opt = {
	.engine = "auto",
	.listen = UPSTREAM,
	.torture = { .sessions = 1000, .concurrency = 48, .threads = 2, .stall_ms = 60000 },
};

static struct daemon *the_daemon;
static atomic_bool over;
static atomic_uint carriers_seen; /* bit: index in carrier_names */
static atomic_ullong stops, moves;

static const char *const carrier_names[] = { "copy", "splice", "sockmap", "graft" };
#define N_CARRIERS 4

static const char help[] =
	"test_torture [options] [-- options of the daemon]\n"
	"  --culvert PATH       the daemon (default: the one built together with this program)\n"
	"  --engine E           auto, graft, sockmap, splice or copy (default auto)\n"
	"  --sessions N         how many (default 1000)\n"
	"  --minutes M          run until the time is over instead\n"
	"  --concurrency C      at once (default 48)\n"
	"  --seed S             default: from the clock; printed\n"
	"  --only K             only what session K of the seed does, once\n"
	"  --soft-limit, --hard-limit, --kernel-memory\n"
	"                       for the daemon\n"
	"  --storm              stop and continue the daemon at random\n"
	"  --moves              change the engine of all sessions at random\n"
	"  --stall-timeout S    a session without progress for so long has failed (default 60)\n"
	"  --connect ADDR:PORT  of a daemon that somebody else has started, in this namespace\n"
	"  --listen ADDR:PORT   its upstream, which is this program\n"
	"Prints a summary in JSON.\n";

static const struct option long_options[] = {
	{ "culvert", required_argument, NULL, 'c' },
	{ "engine", required_argument, NULL, 'e' },
	{ "sessions", required_argument, NULL, 'n' },
	{ "minutes", required_argument, NULL, 'm' },
	{ "concurrency", required_argument, NULL, 'C' },
	{ "seed", required_argument, NULL, 'r' },
	{ "only", required_argument, NULL, 'o' },
	{ "soft-limit", required_argument, NULL, 'S' },
	{ "hard-limit", required_argument, NULL, 'H' },
	{ "kernel-memory", required_argument, NULL, 'k' },
	{ "storm", no_argument, NULL, 's' },
	{ "moves", no_argument, NULL, 'M' },
	{ "stall-timeout", required_argument, NULL, 't' },
	{ "connect", required_argument, NULL, 'x' },
	{ "listen", required_argument, NULL, 'l' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static void set_option(int c)
{
	struct torture_conf *t = &opt.torture;

	switch (c) {
	case 'c':
		opt.culvert = optarg;
		break;
	case 'e':
		opt.engine = optarg;
		break;
	case 'S':
		opt.soft_limit = optarg;
		break;
	case 'H':
		opt.hard_limit = optarg;
		break;
	case 'k':
		opt.kernel_memory = optarg;
		break;
	case 'm':
		opt.minutes = atof(optarg);
		break;
	case 's':
		opt.storm = true;
		break;
	case 'M':
		opt.moves = true;
		break;
	case 'x':
		opt.connect = optarg;
		break;
	case 'l':
		opt.listen = optarg;
		break;
	case 'C':
		t->concurrency = (unsigned int)atoi(optarg);
		break;
	case 'r':
		t->seed = strtoull(optarg, NULL, 0);
		break;
	case 't':
		t->stall_ms = (int)(atof(optarg) * 1000);
		break;
	case 'n':
		t->sessions = strtoull(optarg, NULL, 0);
		break;
	case 'o':
		t->only = true;
		t->only_id = strtoull(optarg, NULL, 0);
		t->sessions = 1;
		break;
	default:
		fputs(help, c == 'h' ? stdout : stderr);
		exit(c == 'h' ? 0 : 2);
	}
}

static void parse_options(int argc, char **argv)
{
	struct timespec ts;
	int c;

	clock_gettime(CLOCK_REALTIME, &ts);
	opt.torture.seed = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		set_option(c);
	if (!opt.torture.concurrency)
		set_option('?');
}

/*
 * Longer than a session pauses and the storm stops the daemon, and short enough that there are
 * looks: at flows in every phase.
 */
static const char *some_timeout(uint64_t salt, char *buf, size_t len)
{
	uint64_t rng = opt.torture.seed ^ salt;

	snprintf(buf, len, "%llu",
		 (unsigned long long)rng_range(&rng, 8, 20) * (unsigned int)env_slow());
	return buf;
}

/* With a forward that nobody connects to, the daemon has all that `auto` may use. */
static const char *config_of_moves(void)
{
	static char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/moves.conf", env_dir());
	f = fopen(path, "we");
	if (!f || chown(env_dir(), 0, 0) ||
	    fputs("[forward other]\nlisten = 127.0.0.1:9001\nupstream = " UPSTREAM "\n"
		  "engine = auto\n",
		  f) < 0 ||
	    fclose(f)) {
		perror(path);
		exit(1);
	}
	return path;
}

/* MORE: options of its own. */
static void start_daemon(char **more)
{
	const char *args[64];
	char idle[24], half[24];
	struct daemon_conf conf = { .culvert = opt.culvert, .engine = opt.engine, .args = args };
	const char *const pairs[][2] = {
		{ "--soft-limit", opt.soft_limit },
		{ "--hard-limit", opt.hard_limit },
		{ "--kernel-memory", opt.kernel_memory },
		{ "--idle-timeout", some_timeout(0x1d1e, idle, sizeof(idle)) },
		{ "--fin-timeout", some_timeout(0xf1f1, half, sizeof(half)) },
		{ "--config", opt.moves ? config_of_moves() : NULL },
	};
	char why[1000];
	int n = 0, r;

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		if (!pairs[i][1])
			continue;
		args[n++] = pairs[i][0];
		args[n++] = pairs[i][1];
	}
	while (*more && n < 60)
		args[n++] = *more++;
	args[n++] = LISTEN;
	args[n++] = UPSTREAM;
	args[n] = NULL;
	r = daemon_start(&conf, &the_daemon, why, sizeof(why));
	if (r == -ENOTSUP) {
		printf("skip torture: engine %s: %s\n", opt.engine, why);
		exit(EXIT_SKIP);
	}
	if (r < 0) {
		fprintf(stderr, "FAIL: the daemon does not start: %s\n", why);
		exit(1);
	}
}

/* Sleep, but wake up soon after the end of the run. */
static void nap(unsigned int ms)
{
	int64_t until = now_ms() + ms, left;

	/* asked for once: time that has passed since is no -1, for which poll(2) waits for ever */
	while (!over && (left = until - now_ms()) > 0)
		poll(NULL, 0, left > 50 ? 50 : (int)left);
}

static void *storm_main(void *arg)
{
	uint64_t rng = opt.torture.seed ^ 0x5707;

	(void)arg;
	while (!over) {
		uint64_t kind = rng_range(&rng, 0, 199);
		unsigned int stop_ms = (unsigned int)rng_range(&rng, 1, 30);

		nap((unsigned int)rng_range(&rng, 1, STORM_MS));
		if (kind == 0)
			stop_ms = (unsigned int)rng_range(&rng, 1500, 4000);
		else if (kind < 40)
			stop_ms = (unsigned int)rng_range(&rng, 30, 300);
		daemon_signal(the_daemon, SIGSTOP);
		nap(stop_ms);
		daemon_signal(the_daemon, SIGCONT);
		stops++;
	}
	daemon_signal(the_daemon, SIGCONT);
	return NULL;
}

/* The engine of all sessions, old and new, is another one every now and then. */
static void *moves_main(void *arg)
{
	static const char *const engines[] = { "copy", "auto", "sockmap", "splice", "default" };
	uint64_t rng = opt.torture.seed ^ 0x3073;

	(void)arg;
	while (!over) {
		struct json_object *o = NULL;
		char line[100];

		nap((unsigned int)rng_range(&rng, 1, MOVE_MS));
		snprintf(line, sizeof(line),
			 "{\"command\":\"engine\",\"forward\":\"" LISTEN "\",\"engine\":\"%s\"}",
			 engines[rng_range(&rng, 0, 4)]);
		if (!daemon_ask(the_daemon, line, 5000, &o))
			moves += *json_text(o, "engine") != '\0';
		json_object_put(o);
	}
	return NULL;
}

static void note_carriers(struct json_object *status)
{
	struct json_object *list = json_at(status, "carriers");
	size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		for (unsigned int k = 0; k < N_CARRIERS; k++)
			if (!strcmp(json_text(o, "carrier"), carrier_names[k]) &&
			    (json_int(o, "bytes") > 0 || json_int(o, "flows") > 0))
				carriers_seen |= 1U << k;
	}
}

static void *progress_main(void *arg)
{
	const struct torture_stats *s = &torture_stats;

	(void)arg;
	while (!over) {
		struct json_object *o = NULL;

		nap(5000);
		if (over)
			break;
		if (!daemon_query(the_daemon, "status", 5000, &o))
			note_carriers(o);
		fprintf(stderr, "%llu sessions, %llu MB, bad %llu, reset %llu, handovers %s\n",
			(unsigned long long)s->finished, (unsigned long long)(s->bytes >> 20),
			(unsigned long long)torture_failures(),
			(unsigned long long)s->reset_by_daemon, json_text(o, "handovers"));
		json_object_put(o);
	}
	return NULL;
}

/* Once, at the first failure, while the culprit may still be there. */
static void on_failure(void)
{
	static atomic_flag done = ATOMIC_FLAG_INIT;
	struct json_object *o = NULL;

	if (atomic_flag_test_and_set(&done))
		return;
	daemon_signal(the_daemon, SIGCONT);
	if (!daemon_query(the_daemon, "sessions", 3000, &o))
		fprintf(stderr, "  sessions at that time: %.6000s\n", json_object_get_string(o));
	json_object_put(o);
}

static uint64_t sum_errors(struct json_object *status)
{
	struct json_object *errors = json_at(status, "errors");
	uint64_t sum = 0;

	if (!json_object_is_type(errors, json_type_object))
		return 0;
	json_object_object_foreach(errors, key, value) {
		(void)key;
		sum += (uint64_t)json_object_get_int64(value);
	}
	return sum;
}

static void carriers_text(char *text, size_t len)
{
	size_t at = 0;

	text[0] = '\0';
	for (unsigned int k = 0; k < N_CARRIERS; k++)
		if (carriers_seen & (1U << k))
			at += (size_t)snprintf(text + at, len - at, "%s%s", at ? " " : "",
					       carrier_names[k]);
}

static void print_summary(double seconds, struct json_object *status, bool passed)
{
	static const char *const parts[] = { "handovers", "errors" };
	const struct torture_stats *s = &torture_stats;
	struct json_object *o = json_object_new_object();
	char carriers[80];
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = {
		{ "seed", opt.torture.seed },
		{ "sessions", s->finished },
		{ "bytes", s->bytes },
		{ "aborted_by_plan", s->aborted_by_plan },
		{ "eof_for_rst", s->eof_for_rst },
		{ "wrong", s->wrong },
		{ "truncated", s->truncated },
		{ "extra", s->extra },
		{ "stalls", s->stalls },
		{ "failed", s->failed },
		{ "reset_by_daemon", s->reset_by_daemon },
		{ "strangers", s->strangers },
		{ "stops", stops },
		{ "moves", moves },
	};

	carriers_text(carriers, sizeof(carriers));
	json_object_object_add(o, "engine", json_object_new_string(opt.engine));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		json_object_object_add(o, numbers[i].key,
				       json_object_new_int64((int64_t)numbers[i].value));
	json_object_object_add(o, "seconds", json_object_new_double(seconds));
	json_object_object_add(o, "carriers", json_object_new_string(carriers));
	json_object_object_add(o, "passed", json_object_new_boolean(passed));
	for (size_t i = 0; status && i < 2; i++) {
		struct json_object *part = json_at(status, parts[i]);

		if (part)
			json_object_object_add(o, parts[i], json_object_get(part));
	}
	printf("%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));
	json_object_put(o);
}

static bool complain(const char *text)
{
	fprintf(stderr, "FAIL seed=%llu: %s\n", (unsigned long long)opt.torture.seed, text);
	return false;
}

/* What must hold of the run as a whole. */
static bool verdict(struct json_object *status, uint64_t errors)
{
	const struct torture_stats *s = &torture_stats;
	uint64_t allowed = 1 + s->finished / 2000;
	char why[1000], text[1200];
	bool ok = torture_failures() == 0;

	if (!status)
		ok = complain("no status from the daemon at the end");
	if (s->reset_by_daemon > allowed)
		ok = complain("the daemon reset too many sessions");
	if (json_int(status, "errors.idle-timeout") || json_int(status, "errors.fin-timeout"))
		ok = complain("the daemon took sessions for silent that were not");
	if (opt.moves && (moves < 10 || json_int(status, "handovers.to_copy") < 10))
		ok = complain("hardly any session was moved");
	if (s->reset_by_daemon > errors)
		ok = complain("the daemon reset sessions that its error counters do not show");
	if (s->anonymous > s->aborted_by_plan + s->reset_by_daemon)
		ok = complain("upstream connections that ended before the first line");
	if (daemon_check(the_daemon, text, sizeof(text)) < 0)
		ok = complain(text);
	else if (daemon_wait_idle(the_daemon, 10000 * env_slow(), why, sizeof(why)) < 0)
		ok = complain(why);
	if (daemon_stop(the_daemon, 20000 * env_slow(), why, sizeof(why)) < 0) {
		snprintf(text, sizeof(text), "SIGTERM: %s", why);
		ok = complain(text);
	}
	return ok;
}

static int summary(int64_t start)
{
	double seconds = (double)(now_ms() - start) / 1000;
	struct json_object *status = NULL;
	bool ok;

	if (!daemon_query(the_daemon, "status", 5000 * env_slow(), &status))
		note_carriers(status);
	ok = verdict(status, sum_errors(status));
	print_summary(seconds, status, ok);
	json_object_put(status);
	return ok ? 0 : 1;
}

/* For scripts/soak: only the sessions. */
static int run_peers(struct torture_conf *t)
{
	int64_t start = now_ms();

	t->strangers = true; /* of the last run, which may have been killed */
	t->threads = 1;
	t->deadline = start + (int64_t)(opt.minutes * 60000);
	torture_run(t);
	print_summary((double)(now_ms() - start) / 1000, NULL, !torture_failures());
	return torture_failures() ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct torture_conf *t = &opt.torture;
	pthread_t storm, mover, progress;
	int64_t start;

	parse_options(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	if (!opt.connect)
		env_enter("test_torture",
			  opt.minutes ? (unsigned int)(opt.minutes * 60) + 300 : 3600);
	t->listen_fd = net_listen(opt.listen, 4096);
	if (t->listen_fd < 0 || net_addr(opt.connect ?: LISTEN, &t->to, &t->to_len) < 0) {
		fprintf(stderr, "FAIL: cannot listen at %s\n", opt.listen);
		return 1;
	}
	if (opt.connect)
		return run_peers(t);
	start_daemon(argv + optind);
	fprintf(stderr, "torture: engine %s, seed %llu\n", opt.engine, (unsigned long long)t->seed);
	start = now_ms();
	if (opt.minutes > 0)
		t->deadline = start + (int64_t)(opt.minutes * 60000);
	t->on_failure = on_failure;
	if (pthread_create(&progress, NULL, progress_main, NULL) ||
	    (opt.storm && pthread_create(&storm, NULL, storm_main, NULL)) ||
	    (opt.moves && pthread_create(&mover, NULL, moves_main, NULL))) {
		perror("pthread_create");
		return 1;
	}
	torture_run(t);
	over = true;
	if (opt.storm)
		pthread_join(storm, NULL);
	if (opt.moves)
		pthread_join(mover, NULL);
	pthread_join(progress, NULL);
	return summary(start);
}
