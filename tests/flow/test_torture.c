/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The torture peer: thousands of sessions of every kind through the daemon, every byte verified by
 * content and position, while (with --storm) the daemon is stopped and continued at random.
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

#include "daemon.h"
#include "env.h"
#include "peer.h"
#include "plan.h"
#include "torture.h"

#define LISTEN "127.0.0.1:9000"
#define UPSTREAM "127.0.0.1:9100"

static struct options {
	const char *culvert, *engine, *soft_limit, *hard_limit, *kernel_memory, *copy_buffer;
	const char *workers, *log_level;
	const char *idle_timeout, *fin_timeout;
	struct torture_conf torture;
	double minutes;
	bool storm, json;
	unsigned int storm_ms;
	uint64_t storm_seed;
} opt = {
	.engine = "auto",
	.storm_ms = 250,
	.torture = { .sessions = 1000, .concurrency = 48, .threads = 2, .stall_ms = 60000 },
};

static struct daemon *the_daemon;
static atomic_bool over;
static atomic_uint carriers_seen; /* bit: index in carrier_names */
static atomic_ullong stops;

static const char *const carrier_names[] = { "copy", "splice", "sockmap", "graft" };
#define N_CARRIERS 4

static const char help[] =
	"test_torture [options]\n"
	"  --culvert PATH       the daemon (default: the one built together with this program)\n"
	"  --engine E           auto, sockmap, splice or copy (default auto)\n"
	"  --sessions N         how many (default 1000)\n"
	"  --minutes M          run until the time is over instead\n"
	"  --concurrency C      at once (default 48)\n"
	"  --threads T          of this program (default 2)\n"
	"  --seed S             default: from the clock; printed\n"
	"  --only K             only what session K of the seed does (default: once)\n"
	"  --soft-limit, --hard-limit, --kernel-memory, --copy-buffer, --workers,\n"
	"  --log-level          for the daemon\n"
	"  --idle-timeout, --fin-timeout S\n"
	"                       for the daemon, whose sessions must never be silent for so long\n"
	"                       (default: from the seed)\n"
	"  --storm              stop and continue the daemon at random\n"
	"  --storm-ms N         ... every 1..N ms (default 250)\n"
	"  --stall-timeout S    a session without progress for so long has failed (default 60)\n"
	"  --json               a summary in JSON on stdout\n"
	"  --show K             print the scripts of session K of the seed and exit\n";

enum {
	OPT_CULVERT = 256, OPT_ENGINE, OPT_SESSIONS, OPT_MINUTES, OPT_CONCURRENCY, OPT_THREADS,
	OPT_SEED, OPT_ONLY, OPT_SOFT, OPT_HARD, OPT_MEMORY, OPT_COPY, OPT_WORKERS,
	OPT_LOG, OPT_STORM,
	OPT_IDLE, OPT_FIN,
	OPT_STORM_MS, OPT_STALL, OPT_JSON, OPT_SHOW, OPT_HELP,
};

static const struct option long_options[] = {
	{ "culvert", required_argument, NULL, OPT_CULVERT },
	{ "engine", required_argument, NULL, OPT_ENGINE },
	{ "sessions", required_argument, NULL, OPT_SESSIONS },
	{ "minutes", required_argument, NULL, OPT_MINUTES },
	{ "concurrency", required_argument, NULL, OPT_CONCURRENCY },
	{ "threads", required_argument, NULL, OPT_THREADS },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "only", required_argument, NULL, OPT_ONLY },
	{ "soft-limit", required_argument, NULL, OPT_SOFT },
	{ "hard-limit", required_argument, NULL, OPT_HARD },
	{ "kernel-memory", required_argument, NULL, OPT_MEMORY },
	{ "copy-buffer", required_argument, NULL, OPT_COPY },
	{ "workers", required_argument, NULL, OPT_WORKERS },
	{ "log-level", required_argument, NULL, OPT_LOG },
	{ "idle-timeout", required_argument, NULL, OPT_IDLE },
	{ "fin-timeout", required_argument, NULL, OPT_FIN },
	{ "storm", no_argument, NULL, OPT_STORM },
	{ "storm-ms", required_argument, NULL, OPT_STORM_MS },
	{ "stall-timeout", required_argument, NULL, OPT_STALL },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "show", required_argument, NULL, OPT_SHOW },
	{ "help", no_argument, NULL, OPT_HELP },
	{ 0 },
};

static void show(uint64_t id)
{
	struct plan plan;
	char text[2000];

	plan_make(opt.torture.seed, id, &plan);
	for (int side = 0; side < 2; side++) {
		peer_script_format(plan.side[side].steps, plan.side[side].n, SIZE_MAX, text,
				   sizeof(text));
		printf("%s: %s\n", side ? "server" : "client", text);
	}
	if (plan.aborts != PLAN_NOBODY)
		printf("the %s aborts after sending %lld or receiving %lld\n",
		       plan.aborts == PLAN_SERVER ? "server" : "client", (long long)plan.abort_tx,
		       (long long)plan.abort_rx);
	exit(0);
}

static void set_option(int c, int64_t *show_id, bool *sessions_given)
{
	struct torture_conf *t = &opt.torture;

	switch (c) {
	case OPT_CULVERT: opt.culvert = optarg; break;
	case OPT_ENGINE: opt.engine = optarg; break;
	case OPT_SOFT: opt.soft_limit = optarg; break;
	case OPT_HARD: opt.hard_limit = optarg; break;
	case OPT_MEMORY: opt.kernel_memory = optarg; break;
	case OPT_COPY: opt.copy_buffer = optarg; break;
	case OPT_WORKERS: opt.workers = optarg; break;
	case OPT_LOG: opt.log_level = optarg; break;
	case OPT_IDLE: opt.idle_timeout = optarg; break;
	case OPT_FIN: opt.fin_timeout = optarg; break;
	case OPT_MINUTES: opt.minutes = atof(optarg); break;
	case OPT_STORM: opt.storm = true; break;
	case OPT_STORM_MS: opt.storm_ms = (unsigned int)atoi(optarg); break;
	case OPT_JSON: opt.json = true; break;
	case OPT_CONCURRENCY: t->concurrency = (unsigned int)atoi(optarg); break;
	case OPT_THREADS: t->threads = (unsigned int)atoi(optarg); break;
	case OPT_SEED: t->seed = strtoull(optarg, NULL, 0); break;
	case OPT_STALL: t->stall_ms = (int)(atof(optarg) * 1000); break;
	case OPT_SHOW: *show_id = atoll(optarg); break;
	case OPT_SESSIONS:
		t->sessions = strtoull(optarg, NULL, 0);
		*sessions_given = true;
		break;
	case OPT_ONLY:
		t->only = true;
		t->only_id = strtoull(optarg, NULL, 0);
		break;
	case OPT_HELP:
		fputs(help, stdout);
		exit(0);
	default:
		fputs(help, stderr);
		exit(2);
	}
}

static void parse_options(int argc, char **argv)
{
	struct timespec ts;
	int64_t show_id = -1;
	bool sessions_given = false;
	int c;

	clock_gettime(CLOCK_REALTIME, &ts);
	opt.torture.seed = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		set_option(c, &show_id, &sessions_given);
	if (optind < argc || !opt.torture.threads || !opt.torture.concurrency || !opt.storm_ms) {
		fputs(help, stderr);
		exit(2);
	}
	if (opt.torture.only && !sessions_given)
		opt.torture.sessions = 1;
	if (show_id >= 0)
		show((uint64_t)show_id);
}

/*
 * Longer than a session pauses and the storm stops the daemon, and short enough that there are
 * looks: at flows in every phase.
 */
static const char *some_timeout(const char *given, uint64_t salt, char *buf, size_t len)
{
	uint64_t rng = opt.torture.seed ^ salt;

	if (given)
		return given;
	snprintf(buf, len, "%llu",
		 (unsigned long long)rng_range(&rng, 8, 20) * (unsigned int)env_slow());
	return buf;
}

static void start_daemon(void)
{
	const char *args[32];
	char idle[24], half[24];
	struct daemon_conf conf = { .culvert = opt.culvert, .engine = opt.engine, .args = args };
	const char *const pairs[][2] = {
		{ "--soft-limit", opt.soft_limit }, { "--hard-limit", opt.hard_limit },
		{ "--kernel-memory", opt.kernel_memory },
		{ "--copy-buffer", opt.copy_buffer }, { "--workers", opt.workers },
		{ "--log-level", opt.log_level },
		{ "--idle-timeout", some_timeout(opt.idle_timeout, 0x1d1e, idle, sizeof(idle)) },
		{ "--fin-timeout", some_timeout(opt.fin_timeout, 0xf1f1, half, sizeof(half)) },
	};
	char why[1000];
	int n = 0, r;

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		if (!pairs[i][1])
			continue;
		args[n++] = pairs[i][0];
		args[n++] = pairs[i][1];
	}
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

		nap((unsigned int)rng_range(&rng, 1, opt.storm_ms));
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
	int64_t start = now_ms();
	uint64_t before = 0;

	(void)arg;
	while (!over) {
		struct json_object *o = NULL;

		nap(5000);
		if (over)
			break;
		if (!daemon_query(the_daemon, "status", 5000, &o))
			note_carriers(o);
		fprintf(stderr,
			"%4lld s: %llu sessions (%llu/s), %llu MB, bad %llu, reset %llu, "
			"handovers %s\n",
			(long long)(now_ms() - start) / 1000, (unsigned long long)s->finished,
			(unsigned long long)(s->finished - before) / 5,
			(unsigned long long)(s->bytes >> 20),
			(unsigned long long)torture_failures(),
			(unsigned long long)s->reset_by_daemon, json_text(o, "handovers"));
		before = s->finished;
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

/* Sum of all counted errors, and the list of those that are not zero. */
static uint64_t list_errors(struct json_object *status, char *text, size_t len)
{
	struct json_object *errors = json_at(status, "errors");
	uint64_t sum = 0;
	size_t at = 0;

	snprintf(text, len, "none");
	if (!json_object_is_type(errors, json_type_object))
		return 0;
	json_object_object_foreach(errors, key, value) {
		int64_t n = json_object_get_int64(value);

		sum += (uint64_t)n;
		if (n && at + 1 < len)
			at += (size_t)snprintf(text + at, len - at, "%s%s %lld", at ? ", " : "",
					       key, (long long)n);
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

static void print_json(double seconds, struct json_object *status, const char *carriers,
		       bool passed)
{
	static const char *const parts[] = { "handovers", "errors" };
	const struct torture_stats *s = &torture_stats;
	struct json_object *o = json_object_new_object();
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = {
		{ "seed", opt.torture.seed }, { "sessions", s->finished }, { "bytes", s->bytes },
		{ "aborted_by_plan", s->aborted_by_plan }, { "wrong", s->wrong },
		{ "truncated", s->truncated }, { "extra", s->extra }, { "stalls", s->stalls },
		{ "failed", s->failed }, { "reset_by_daemon", s->reset_by_daemon },
		{ "stops", stops },
	};

	json_object_object_add(o, "engine", json_object_new_string(opt.engine));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		json_object_object_add(o, numbers[i].key,
				       json_object_new_int64((int64_t)numbers[i].value));
	json_object_object_add(o, "seconds", json_object_new_double(seconds));
	json_object_object_add(o, "carriers", json_object_new_string(carriers));
	json_object_object_add(o, "passed", json_object_new_boolean(passed));
	for (size_t i = 0; i < 2; i++) {
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
	const struct torture_stats *s = &torture_stats;
	double seconds = (double)(now_ms() - start) / 1000;
	struct json_object *status = NULL;
	char errors[1000], carriers[80], handovers[200];
	uint64_t sum;
	bool ok;

	if (!daemon_query(the_daemon, "status", 5000 * env_slow(), &status))
		note_carriers(status);
	sum = list_errors(status, errors, sizeof(errors));
	carriers_text(carriers, sizeof(carriers));
	snprintf(handovers, sizeof(handovers), "%s", json_text(status, "handovers"));
	ok = verdict(status, sum);
	fprintf(opt.json ? stderr : stdout,
		"torture %s: engine %s, seed %llu, %llu sessions in %.1f s (%.0f/s), "
		"%llu MB verified, %llu aborted by plan (%llu seen as EOF)\n"
		"  wrong %llu, truncated %llu, extra %llu, stalls %llu, failed %llu, "
		"reset_by_daemon %llu, stops %llu\n"
		"  carriers: %s; handovers: %s; errors: %s\n",
		ok ? "ok" : "FAILED", opt.engine, (unsigned long long)opt.torture.seed,
		(unsigned long long)s->finished, seconds, (double)s->finished / seconds,
		(unsigned long long)(s->bytes >> 20), (unsigned long long)s->aborted_by_plan,
		(unsigned long long)s->eof_for_rst, (unsigned long long)s->wrong,
		(unsigned long long)s->truncated, (unsigned long long)s->extra,
		(unsigned long long)s->stalls, (unsigned long long)s->failed,
		(unsigned long long)s->reset_by_daemon, (unsigned long long)stops, carriers,
		handovers, errors);
	if (opt.json)
		print_json(seconds, status, carriers, ok);
	json_object_put(status);
	return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
	struct torture_conf *t = &opt.torture;
	pthread_t storm, progress;
	int64_t start;

	parse_options(argc, argv);
	env_enter("test_torture", opt.minutes ? (unsigned int)(opt.minutes * 60) + 300 : 3600);
	t->listen_fd = net_listen(UPSTREAM, 4096);
	if (t->listen_fd < 0 || net_addr(LISTEN, &t->to, &t->to_len) < 0) {
		fprintf(stderr, "FAIL: cannot listen at %s\n", UPSTREAM);
		return 1;
	}
	start_daemon();
	fprintf(stderr, "torture: engine %s, seed %llu\n", opt.engine, (unsigned long long)t->seed);
	start = now_ms();
	if (opt.minutes > 0)
		t->deadline = start + (int64_t)(opt.minutes * 60000);
	t->on_failure = on_failure;
	if (pthread_create(&progress, NULL, progress_main, NULL) ||
	    (opt.storm && pthread_create(&storm, NULL, storm_main, NULL))) {
		perror("pthread_create");
		return 1;
	}
	torture_run(t);
	over = true;
	if (opt.storm)
		pthread_join(storm, NULL);
	pthread_join(progress, NULL);
	return summary(start);
}
