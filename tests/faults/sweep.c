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
#include "injection.h"
#include "rig.h"
#include "sweep.h"

#define MOST_SITES 600
#define WARM_BATCHES 3
/* A fault without a limit ends after this while, and everything must then go on. */
#define FAULT_MS 60
#define TRIES 4
/* When during a batch the daemon is asked for its sessions. */
#define QUERY_MS 15

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

/* --- the daemon --- */

static int start_daemon(struct sweep *s)
{
	const char *const options[] = { "--max-sessions", "128", NULL };
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

static int learn_site(struct sweep *s, uint32_t site, const struct injection *during)
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
	if (during) {
		k->after = during->at;
		k->trigger = injection_fault(during);
	}
	s->n_known++;
	return 0;
}

/* Add the sites that are new, and appeared DURING a fault; NULL: without any. */
static int learn_sites(struct sweep *s, const struct injection *during)
{
	static uint32_t indices[FAULTS_SITES];
	size_t n = sites_list(s->sites, indices, FAULTS_SITES);
	int r = 0;

	for (size_t i = 0; !r && i < n; i++)
		if (!find_known(s, sites_key(s->sites, indices[i])))
			r = learn_site(s, indices[i], during);
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
	const struct known *k = in->at;
	struct fault f = injection_fault(in);

	f.site = sites_find(s->sites, k->key);
	f.every = in->mode == MODE_THIRD ? 3 : 1;
	f.limit = in->mode == MODE_ONCE ? 1 : 0;
	if (in->mode == MODE_ONCE && k->calls > 1 && try == 0)
		f.skip = (uint32_t)rng_range(&s->rng, 0, k->calls - 1);
	s->armed_until = in->mode == MODE_ONCE ? 0 : now_ms() + FAULT_MS;
	if (k->after) {
		struct fault first = k->trigger;

		first.site = sites_find(s->sites, k->after->key);
		s->trigger_until = now_ms() + FAULT_MS / 2;
		sites_arm(s->sites, 1, &first);
	}
	sites_arm(s->sites, 0, &f);
}

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

/* *RET_HITS: how many calls have failed. */
static int inject(struct sweep *s, const struct injection *in, uint32_t *ret_hits)
{
	const struct known *k = in->at;
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
		lanes_many_marked(known_is_privileged(k));
		run_batch(s, &out);
		lanes_many_marked(false);
		out.errors = out.clean && !rig_errors(&s->rig, &after) ? after - before : 0;
		fault = injection_broken(in, &out);
	}
	if (!r && !k->after)
		r = learn_sites(s, in);
	*ret_hits = out.hits;
	json_object_array_add(s->results, injection_row(in, s->opt->engine, &out, fault));
	if (s->opt->verbose || fault)
		fprintf(stderr, "%s %-8s %s: %s, %s: hits %u, resets %u%s%s%s%s\n",
			fault ? "FAIL" : "ok  ", s->opt->engine, k->name,
			catalogue_error_name(in->error), injection_mode_name(in->mode), out.hits,
			out.batch.resets, fault ? ": " : "", fault ?: "", fault ? ": " : "",
			fault ? out.why : "");
	if (!fault && (r || !injection_may_end_privileged(in)))
		return r;
	s->bad += fault != NULL;
	kill_daemon(s);
	return start_daemon(s);
}

static int inject_modes(struct sweep *s, const struct known *at, int error, bool first)
{
	struct injection in = { .at = at, .error = error };
	uint32_t hits;
	int r = 0;

	for (unsigned int mode = MODE_ONCE; !r && mode <= MODE_ALWAYS; mode++) {
		if (mode != MODE_ONCE && !first && !s->opt->full)
			break;
		in.mode = mode;
		r = inject(s, &in, &hits);
		/* where nobody comes by, other errors are no use */
		if (!r && first && mode == MODE_ONCE && !hits)
			return 1;
	}
	return r;
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
	return k->after || s->opt->shares < 2 ||
	       (mixed >> 33) % s->opt->shares == s->opt->share;
}

static int inject_site(struct sweep *s, const struct known *at)
{
	const struct failing *f = at->failing;
	bool first = true;
	uint32_t hits;
	size_t n = 0;
	int r = 0;

	if (!at->calls || known_is_last_resort(at))
		return 0;
	if (s->opt->only && !strstr(at->name, s->opt->only))
		return 0;
	if (!is_ours(s, at))
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

		r = inject(s, &late, &hits);
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
	for (size_t i = 0; !r && i < s->n_known; i++) /* which grows meanwhile */
		r = inject_site(s, &s->known[i]);
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
