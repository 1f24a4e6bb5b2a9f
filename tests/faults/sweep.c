/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation: a few batches without faults show which sites there are.  Then, for each way
 * in which a site's function can fail, one site is armed, a batch is run, and the daemon must be
 * back where it was.  What only happens because of a fault (the second try after the first has
 * failed) shows as a new site; it is armed together with the fault that led to it.
 *
 * The daemon is replaced when the invariant did not hold, so that one fault is blamed once.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../flow/env.h"
#include "../flow/pattern.h"
#include "catalogue.h"
#include "lanes.h"
#include "rig.h"
#include "sites.h"
#include "sweep.h"

#define MOST_SITES 600
#define WARM_BATCHES 3
/* A fault without a limit ends after this, and everything must then go on. */
#define FAULT_MS 60
#define TRIES 4
/* When during a batch the daemon is asked for its sessions. */
#define QUERY_MS 15

enum mode {
	MODE_ONCE,   /* one call, picked at random from those of a batch */
	MODE_THIRD,  /* each third call for FAULT_MS */
	MODE_ALWAYS, /* every call for FAULT_MS */
};

static const char *const mode_names[] = { "once", "every third", "every" };

struct known {
	uint64_t key; /* indices of the page change with the daemon */
	const struct failing *failing;
	char name[200];
	uint64_t calls; /* a batch; 0: it is called at the start only */
	bool has_trigger;
	struct fault trigger; /* .site is an index into known */
};

struct sweep {
	const struct sweep_options *opt;
	struct rig rig;
	struct sites *sites;
	struct json_object *results;
	struct known known[MOST_SITES];
	size_t n_known;
	uint64_t rng;
	int64_t armed_until, trigger_until, query_at;
	int bad;
};

struct injection {
	size_t at; /* in known */
	int error; /* or CATALOGUE_SHORT, CATALOGUE_LATE */
	enum mode mode;
	uint32_t hits; /* result */
};

static enum faults_action action_of(const struct injection *in)
{
	if (in->error == CATALOGUE_LATE)
		return FAULTS_LATE;
	return in->error == CATALOGUE_SHORT ? FAULTS_SHORT : FAULTS_ERROR;
}

/* --- the daemon --- */

static int start_daemon(struct sweep *s)
{
	const char *const options[] = { "--max-sessions", "128", "--spread", s->opt->spread, NULL };
	int r = sites_open(env_dir(), &s->sites);

	if (r) {
		fprintf(stderr, "FAIL: cannot make the page: %s\n", strerror(-r));
		return r;
	}
	setenv(FAULTS_ENV, sites_path(s->sites), 1);
	setenv("LD_PRELOAD", s->opt->preload, 1);
	r = rig_start(&s->rig, s->opt->culvert, s->opt->engine, options);
	unsetenv("LD_PRELOAD");
	unsetenv(FAULTS_ENV);
	if (!r) {
		r = sites_check(s->sites);
		if (r)
			fprintf(stderr, "FAIL: %s: %s\n", s->opt->preload, strerror(-r));
	}
	return r;
}

static void kill_daemon(struct sweep *s)
{
	rig_kill(&s->rig);
	sites_close(s->sites);
	s->sites = NULL;
}

/* --- sites --- */

static struct known *find_known(struct sweep *s, uint64_t key)
{
	for (size_t i = 0; i < s->n_known; i++)
		if (s->known[i].key == key)
			return &s->known[i];
	return NULL;
}

static int learn_site(struct sweep *s, uint32_t site, const struct fault *trigger)
{
	struct known *k = &s->known[s->n_known];

	if (s->n_known == MOST_SITES)
		return -ENOSPC;
	*k = (struct known){ .key = sites_key(s->sites, site) };
	k->failing = catalogue_find(sites_function(s->sites, site));
	k->calls = (sites_calls(s->sites, site) + WARM_BATCHES - 1) / WARM_BATCHES;
	sites_describe(s->sites, site, s->opt->culvert, k->name, sizeof(k->name));
	if (!k->failing) {
		fprintf(stderr, "FAIL: the catalogue does not know %s\n", k->name);
		return -EINVAL;
	}
	k->has_trigger = trigger != NULL;
	if (trigger)
		k->trigger = *trigger;
	s->n_known++;
	return 0;
}

/* Add the sites that are new; TRIGGER (may be NULL) is the fault during which they appeared. */
static int learn_sites(struct sweep *s, const struct fault *trigger)
{
	static uint32_t indices[FAULTS_SITES];
	size_t n = sites_list(s->sites, indices, FAULTS_SITES);
	int r = 0;

	for (size_t i = 0; !r && i < n; i++)
		if (!find_known(s, sites_key(s->sites, indices[i])))
			r = learn_site(s, indices[i], trigger);
	return r;
}

/* --- one injection --- */

/* A batch is not without the control socket: its calls fail like the others. */
static void query_both(struct sweep *s, int64_t now)
{
	static const char *const commands[] = { "sessions", "status" };

	if (!s->query_at || now < s->query_at)
		return;
	s->query_at = 0;
	for (size_t i = 0; i < 2; i++) {
		struct json_object *o = NULL;

		daemon_query(s->rig.d, commands[i], 300, &o);
		json_object_put(o);
	}
}

static void tick(void *arg)
{
	struct sweep *s = arg;
	int64_t now = now_ms();

	query_both(s, now);
	if (s->trigger_until && now >= s->trigger_until) {
		sites_disarm(s->sites, 1);
		s->trigger_until = 0;
	}
	if (s->armed_until && now >= s->armed_until) {
		sites_disarm(s->sites, 0);
		s->armed_until = 0;
	}
}

/* A site that only another fault leads to is armed together with that. */
static void arm(struct sweep *s, const struct injection *in, unsigned int try)
{
	const struct known *k = &s->known[in->at];
	struct fault f = {
		.site = sites_find(s->sites, k->key),
		.action = action_of(in),
		.error = in->error,
		.every = in->mode == MODE_THIRD ? 3 : 1,
		.limit = in->mode == MODE_ONCE ? 1 : 0,
	};

	if (in->mode == MODE_ONCE && k->calls > 1 && try == 0)
		f.skip = (uint32_t)rng_range(&s->rng, 0, k->calls - 1);
	s->armed_until = in->mode == MODE_ONCE ? 0 : now_ms() + FAULT_MS;
	if (k->has_trigger) {
		struct fault first = k->trigger;

		first.site = sites_find(s->sites, s->known[k->trigger.site].key);
		s->trigger_until = now_ms() + FAULT_MS / 2;
		sites_arm(s->sites, 1, &first);
	}
	sites_arm(s->sites, 0, &f);
}

struct outcome {
	struct batch batch;
	uint32_t hits;
	int64_t errors; /* that the daemon has counted */
	bool clean;
	char why[1200];
};

static void run_batch(struct sweep *s, struct outcome *out)
{
	char why[sizeof(out->why)] = "";
	bool right;

	s->query_at = now_ms() + QUERY_MS;
	right = lanes_run(tick, s, &out->batch);
	/* what a short batch has left armed */
	s->armed_until = s->trigger_until = 0;
	out->hits = sites_hits(s->sites, 0);
	sites_disarm(s->sites, 0);
	sites_disarm(s->sites, 1);
	out->clean = rig_clean(&s->rig, why, sizeof(why));
	snprintf(out->why, sizeof(out->why), "%s%s%.500s", out->batch.why,
		 right || out->clean ? "" : "; ", out->clean ? "" : why);
}

/*
 * Where the privileged process is asked, or does what it is asked for.  What fails there may be the
 * end of it: the daemon then says so, and goes on without until it is started again.
 */
static bool is_at_privileged(const struct known *k)
{
	return strstr(k->name, " privileged") || strstr(k->name, "(socket_set_mark)");
}

static bool may_end_privileged(const struct sweep *s, const struct injection *in)
{
	const struct known *k = &s->known[in->at];

	return in->error != CATALOGUE_LATE &&
	       (is_at_privileged(k) ||
		(k->has_trigger && is_at_privileged(&s->known[k->trigger.site])));
}

/* A request that takes too long, or is cut, is the end of the privileged process. */
static bool is_harmless(const struct known *k, int error)
{
	return catalogue_harmless(k->failing->function, error) &&
	       (!is_at_privileged(k) || error == EINTR || error == CATALOGUE_LATE);
}

/* NULL if the invariant held, else what it is that did not. */
static const char *broken(const struct known *k, const struct injection *in,
			  const struct outcome *out)
{
	const struct batch *b = &out->batch;

	if (b->wrong || b->extra)
		return "wrong bytes";
	if (b->truncated)
		return "a stream cut off";
	if (b->stuck)
		return "a session is stuck";
	if (b->failed)
		return "a session failed";
	if (!out->clean)
		return "not as before";
	if (k->has_trigger)
		return NULL; /* two faults at once may cost more than one session */
	if (b->resets && is_harmless(k, in->error))
		return "a reset for nothing";
	if (is_at_privileged(k) ? b->resets > b->resets_marked :
				  b->resets > 1 && in->mode == MODE_ONCE)
		return "other sessions were touched";
	if (b->resets > out->errors)
		return "a reset that no counter shows";
	return NULL;
}

static void add_result(struct sweep *s, const struct injection *in, const struct outcome *out,
		       const char *fault)
{
	const struct known *k = &s->known[in->at];
	const struct batch *b = &out->batch;
	struct json_object *o = json_object_new_object();
	const struct {
		const char *key, *value;
	} texts[] = {
		{ "engine", s->opt->engine }, { "function", k->failing->function },
		{ "place", k->name }, { "error", catalogue_error_name(in->error) },
		{ "mode", mode_names[in->mode] }, { "broken", fault ?: "" },
		{ "why", fault ? out->why : "" },
		{ "after", k->has_trigger ? s->known[k->trigger.site].name : "" },
	};
	const struct {
		const char *key;
		int64_t value;
	} numbers[] = {
		{ "hits", out->hits }, { "sessions", b->sessions }, { "resets", b->resets },
		{ "wrong", b->wrong + b->extra }, { "truncated", b->truncated },
		{ "stuck", b->stuck + b->failed }, { "leaks", !out->clean },
		{ "errors", out->errors },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		json_object_object_add(o, texts[i].key, json_object_new_string(texts[i].value));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		json_object_object_add(o, numbers[i].key, json_object_new_int64(numbers[i].value));
	json_object_array_add(s->results, o);
}

/* The fault as the trigger of what it leads to. */
static struct fault as_trigger(const struct injection *in)
{
	return (struct fault){
		.site = (uint32_t)in->at,
		.action = action_of(in),
		.error = in->error,
		.every = 1,
	};
}

static int inject(struct sweep *s, struct injection *in)
{
	struct known *k = &s->known[in->at];
	struct fault trigger = as_trigger(in);
	struct outcome out = { .hits = 0 };
	int64_t before, after;
	const char *fault = NULL;
	int r = 0;

	for (unsigned int try = 0; !r && try < TRIES && !out.hits && !fault; try++) {
		if (try == 2) { /* some things are done once, and then kept */
			kill_daemon(s);
			r = start_daemon(s);
		}
		r = r ?: rig_errors(&s->rig, &before);
		if (r) {
			fprintf(stderr, "FAIL: before %s: %s\n", k->name, strerror(-r));
			break;
		}
		arm(s, in, try);
		lanes_many_marked(is_at_privileged(k));
		run_batch(s, &out);
		lanes_many_marked(false);
		out.errors = out.clean && !rig_errors(&s->rig, &after) ? after - before : 0;
		fault = broken(k, in, &out);
	}
	if (!r && !k->has_trigger)
		r = learn_sites(s, &trigger);
	in->hits = out.hits;
	add_result(s, in, &out, fault);
	if (s->opt->verbose || fault)
		fprintf(stderr, "%s %-8s %s: %s, %s: hits %u, resets %u%s%s%s%s\n",
			fault ? "FAIL" : "ok  ", s->opt->engine, k->name,
			catalogue_error_name(in->error), mode_names[in->mode], out.hits,
			out.batch.resets, fault ? ": " : "", fault ?: "", fault ? ": " : "",
			fault ? out.why : "");
	if (!fault && (r || !may_end_privileged(s, in)))
		return r;
	s->bad += fault != NULL;
	kill_daemon(s);
	return start_daemon(s);
}

static int inject_modes(struct sweep *s, size_t at, int error, bool first)
{
	struct injection in = { .at = at, .error = error };
	int r = 0;

	for (unsigned int mode = MODE_ONCE; !r && mode <= MODE_ALWAYS; mode++) {
		if (mode != MODE_ONCE && !first && !s->opt->full)
			break;
		in.mode = mode;
		r = inject(s, &in);
		/* where nobody comes by, other errors are no use */
		if (!r && first && mode == MODE_ONCE && !in.hits)
			return 1;
	}
	return r;
}

/*
 * What is tried because the first way has failed.  If SO_LINGER and disconnecting are both refused,
 * nothing is left that would reset a connection; a map that refuses to delete an entry, and again
 * when its slot has a new owner, keeps it until the next.  A test has nothing to ask for.
 */
static bool is_last_resort(const struct known *k)
{
	return k->has_trigger && (strstr(k->name, "(session_arm_reset)") ||
				  strstr(k->name, "(forget_cookie)"));
}

/* About so many of the N errors of a site, and others with another seed. */
static bool is_picked(struct sweep *s, size_t n)
{
	return !s->opt->most || n <= s->opt->most || rng_range(&s->rng, 1, n) <= s->opt->most;
}

/*
 * A site of the session path belongs to one of the sweeps that share the work, by its key, which is
 * the same in all of them.  What a fault leads to belongs to the sweep that has made the fault.
 */
static bool is_ours(const struct sweep *s, const struct known *k)
{
	uint64_t mixed = (k->key ^ k->key >> 33) * 0xff51afd7ed558ccdULL;

	mixed = (mixed ^ mixed >> 33) * 0xc4ceb9fe1a85ec53ULL;
	return k->has_trigger || s->opt->shares < 2 ||
	       (mixed >> 33) % s->opt->shares == s->opt->share;
}

static int inject_site(struct sweep *s, size_t at)
{
	const struct failing *f = s->known[at].failing;
	bool first = true;
	size_t n = 0;
	int r = 0;

	if (!s->known[at].calls || is_last_resort(&s->known[at]))
		return 0;
	if (s->opt->only && !strstr(s->known[at].name, s->opt->only))
		return 0;
	if (!is_ours(s, &s->known[at]))
		return 0;
	while (n < CATALOGUE_MAX && f->errors[n])
		n++;
	for (size_t i = 0; !r && i < n; i++) {
		if (!is_picked(s, n))
			continue;
		r = inject_modes(s, at, f->errors[i], first);
		first = false;
	}
	if (!r && f->can_be_short)
		r = inject_modes(s, at, CATALOGUE_SHORT, first || !s->opt->most);
	if (r >= 0) {
		struct injection late = { .at = at, .error = CATALOGUE_LATE, .mode = MODE_ALWAYS };

		r = inject(s, &late);
	}
	return r < 0 ? r : 0;
}

/* --- the whole --- */

/* Count the daemon's system calls for as long as the batches last. */
static pid_t start_strace(const struct sweep *s)
{
	char pid[16];
	pid_t child;

	if (!s->opt->syscalls)
		return 0;
	snprintf(pid, sizeof(pid), "%lld", (long long)s->rig.pid);
	child = fork();
	if (child == 0) {
		execlp("strace", "strace", "-f", "-qq", "-c", "-o", s->opt->syscalls, "-p", pid,
		       NULL);
		_exit(127);
	}
	return child;
}

static int stop_strace(pid_t child)
{
	int status = 0;

	if (child <= 0)
		return child;
	kill(child, SIGINT);
	waitpid(child, &status, 0);
	return WIFEXITED(status) && WEXITSTATUS(status) == 127 ? -ENOENT : 0;
}

static int warm_up(struct sweep *s)
{
	static uint64_t at_start[FAULTS_SITES];
	struct outcome out = { .hits = 0 };
	pid_t strace = start_strace(s);
	int r = 0;

	for (uint32_t i = 0; i < FAULTS_SITES; i++)
		at_start[i] = sites_calls(s->sites, i);
	for (int i = 0; !r && i < WARM_BATCHES; i++) {
		run_batch(s, &out);
		if (out.batch.resets || !out.clean || out.why[0])
			r = -EIO;
	}
	if (stop_strace(strace))
		fprintf(stderr, "note: strace cannot be run\n");
	if (r)
		fprintf(stderr, "FAIL: engine %s, without any fault: %s\n", s->opt->engine,
			out.why);
	r = r ?: learn_sites(s, NULL);
	for (size_t i = 0; !r && i < s->n_known; i++) {
		uint32_t site = sites_find(s->sites, s->known[i].key);

		if (sites_calls(s->sites, site) == at_start[site])
			s->known[i].calls = 0;
	}
	return r;
}

int sweep_run(const struct sweep_options *o, struct json_object *results)
{
	struct sweep *s = calloc(1, sizeof(*s));
	char why[1000];
	int r;

	if (!s)
		return -ENOMEM;
	s->opt = o;
	s->results = results;
	s->rng = o->seed;
	r = start_daemon(s);
	r = r ?: warm_up(s);
	for (size_t at = 0; !r && at < s->n_known; at++)
		r = inject_site(s, at);
	if (!r && daemon_stop(s->rig.d, 10000, why, sizeof(why))) {
		fprintf(stderr, "FAIL: SIGTERM: %s\n", why);
		s->bad++;
	} else if (r) {
		rig_kill(&s->rig);
	}
	sites_close(s->sites);
	r = r ?: s->bad;
	free(s);
	return r;
}
