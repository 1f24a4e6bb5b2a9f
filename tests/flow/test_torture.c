/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The torture peer: thousands of sessions of every kind through the daemon, every byte verified by
 * content and position, while the daemon is stopped and continued at random (--storm), or an
 * operator moves the sessions from engine to engine (--moves).  Prints a summary in JSON.  The
 * options of the daemon stand behind "--".
 */
#include <err.h>
#include <errno.h>
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
#include "options.h"
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
	uint64_t concurrency;
	double minutes, stall; /* stall: seconds */
	bool storm, moves;
} opt = {
	.engine = "auto",
	.listen = UPSTREAM,
	.concurrency = 48,
	.stall = 60,
	.torture = { .sessions = 1000, .threads = 2 },
};

static struct daemon *the_daemon;
static atomic_bool over;
static atomic_ullong stops, moves;

static const struct test_option options[] = {
	{ "culvert", "PATH", "the daemon (default: the one built together)", TEXT, &opt.culvert },
	{ "engine", "E", "auto, graft, sockmap, splice or copy (default auto)", TEXT, &opt.engine },
	{ "sessions", "N", "how many (default 1000)", NUMBER, &opt.torture.sessions },
	{ "minutes", "M", "run until the time is over instead", SECONDS, &opt.minutes },
	{ "concurrency", "C", "at once (default 48)", NUMBER, &opt.concurrency },
	{ "seed", "S", "default: from the clock; printed", NUMBER, &opt.torture.seed },
	{ "only", "K", "only what session K of the seed does, once", NUMBER, &opt.torture.only_id },
	{ "soft-limit", "BYTES", "for the daemon", TEXT, &opt.soft_limit },
	{ "hard-limit", "BYTES", "for the daemon", TEXT, &opt.hard_limit },
	{ "kernel-memory", "BYTES", "for the daemon", TEXT, &opt.kernel_memory },
	{ "storm", "", "stop and continue the daemon at random", FLAG, &opt.storm },
	{ "moves", "", "change the engine of all sessions at random", FLAG, &opt.moves },
	{ "stall-timeout", "S", "most time without progress (default 60)", SECONDS, &opt.stall },
	{ "connect", "ADDR:PORT", "of a daemon that somebody else has started", TEXT, &opt.connect },
	{ "listen", "ADDR:PORT", "its upstream, which is this program", TEXT, &opt.listen },
};

static void parse_options(int argc, char **argv)
{
	struct torture_conf *t = &opt.torture;
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	t->seed = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
	t->only_id = UINT64_MAX;
	options_parse(argc, argv, options, sizeof(options) / sizeof(options[0]));
	t->concurrency = opt.concurrency ? (unsigned int)opt.concurrency : 1;
	t->stall_ms = (int)(opt.stall * 1000);
	t->only = t->only_id != UINT64_MAX;
	if (t->only)
		t->sessions = 1;
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
	static const char text[] = "[forward other]\nlisten = 127.0.0.1:9001\n"
				   "upstream = " UPSTREAM "\nengine = auto\n";
	static char path[128];

	snprintf(path, sizeof(path), "%s/moves.conf", env_dir());
	if (chown(env_dir(), 0, 0) || !env_put(path, text))
		err(1, "%s", path);
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

static void print_summary(double seconds, struct json_object *status, bool passed)
{
	static const char *const parts[] = { "handovers", "errors" };
	const struct torture_stats *s = &torture_stats;
	struct json_object *o = json_object_new_object();
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = {
		{ "seed", opt.torture.seed },
		{ "sessions", s->finished },
		{ "bytes", s->bytes },
		{ "aborted_by_plan", s->aborted_by_plan },
		{ "eof_for_rst", s->eof_for_rst },
		{ "wrong", s->results[PEER_WRONG] },
		{ "truncated", s->results[PEER_TRUNCATED] },
		{ "extra", s->results[PEER_EXTRA] },
		{ "stalls", s->results[PEER_STALLED] },
		{ "failed", s->results[PEER_FAILED] },
		{ "reset_by_daemon", s->results[PEER_RESET] },
		{ "strangers", s->strangers },
		{ "stops", stops },
		{ "moves", moves },
	};

	json_object_object_add(o, "engine", json_object_new_string(opt.engine));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		json_object_object_add(o, numbers[i].key,
				       json_object_new_int64((int64_t)numbers[i].value));
	json_object_object_add(o, "seconds", json_object_new_double(seconds));
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
	uint64_t allowed = 1 + s->finished / 2000, resets = s->results[PEER_RESET];
	char why[1000], text[1200];
	bool ok = torture_failures() == 0;

	if (!status)
		ok = complain("no status from the daemon at the end");
	if (resets > allowed)
		ok = complain("the daemon reset too many sessions");
	if (json_int(status, "errors.idle-timeout") || json_int(status, "errors.fin-timeout"))
		ok = complain("the daemon took sessions for silent that were not");
	if (opt.moves && (moves < 10 || json_int(status, "handovers.to_copy") < 10))
		ok = complain("hardly any session was moved");
	if (resets > errors)
		ok = complain("the daemon reset sessions that its error counters do not show");
	if (s->anonymous > s->aborted_by_plan + resets)
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

	daemon_query(the_daemon, "status", 5000 * env_slow(), &status);
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
	pthread_t storm, mover;
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
	if ((opt.storm && pthread_create(&storm, NULL, storm_main, NULL)) ||
	    (opt.moves && pthread_create(&mover, NULL, moves_main, NULL)))
		errx(1, "no thread");
	torture_run(t);
	over = true;
	if (opt.storm)
		pthread_join(storm, NULL);
	if (opt.moves)
		pthread_join(mover, NULL);
	return summary(start);
}
