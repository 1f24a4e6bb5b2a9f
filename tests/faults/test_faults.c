/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every call of the session path made to fail in turn.
 *
 * Theory of operation: a few batches without faults show which sites there are.  Then, for each way
 * in which a site's function can fail, one site is armed, a batch is run, and the daemon must be
 * back where it was.  What only happens because of a fault (the second try after the first has
 * failed) shows as a new site; it is armed together with the fault that led to it.
 *
 * The daemon is replaced when the invariant did not hold, so that one fault is blamed once.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../flow/env.h"
#include "../flow/pattern.h"
#include "catalogue.h"
#include "rig.h"

#define MOST_SITES 600
#define WARM_BATCHES 3
/* A fault without a limit ends after this while, and everything must then go on. */
#define FAULT_MS 60
#define TRIES 4
/* When during a batch the daemon is asked for its sessions. */
#define QUERY_MS 15

static struct {
	char *culvert; /* the program */
	char *preload; /* the interposer */
	const char *engine;
	const char *only;     /* sites whose description holds this; NULL: all */
	const char *syscalls; /* have strace count system calls into this file; NULL: do not */
	const char *json;
	bool full;         /* every error in every mode */
	unsigned int most; /* errors tried at a site, about; 0: all */
	bool verbose;
	uint64_t seed;
} opt = { .engine = "auto" };

struct sweep {
	struct rig rig;
	struct faults_page *page; /* NULL: no daemon */
	char page_path[120];
	struct json_object *results;
	struct known known[MOST_SITES];
	size_t n_known;
	uint64_t rng;
	int64_t armed_until, trigger_until, query_at;
	int bad;
};

/* --- the page that is shared with the daemon --- */

static int open_page(struct sweep *s)
{
	static unsigned int count;
	int fd, r = 0;

	snprintf(s->page_path, sizeof(s->page_path), "%s/page-%u", env_dir(), ++count);
	fd = open(s->page_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*s->page)))
		r = -errno;
	if (!r) {
		s->page = mmap(NULL, sizeof(*s->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		r = s->page == MAP_FAILED ? -errno : 0;
	}
	if (r)
		s->page = NULL;
	if (fd >= 0)
		close(fd);
	return r;
}

static void close_page(struct sweep *s)
{
	if (!s->page)
		return;
	munmap(s->page, sizeof(*s->page));
	unlink(s->page_path);
	s->page = NULL;
}

/* 0 if the interposer works in the daemon, and has had room for every site. */
static int check_page(const struct sweep *s)
{
	if (atomic_load(&s->page->magic) != FAULTS_MAGIC)
		return -ENOENT;
	return atomic_load(&s->page->full) ? -ENOSPC : 0;
}

static void set_arm(struct sweep *s, unsigned int arm, const struct fault *f)
{
	struct faults_arm *a = &s->page->arms[arm];

	atomic_store(&a->on, 0);
	a->site = f->site;
	a->action = f->action;
	a->error = f->error;
	a->skip = f->skip;
	a->every = f->every;
	a->limit = f->limit;
	atomic_store(&a->seen, 0);
	atomic_store(&a->hits, 0);
	atomic_store(&a->on, 1);
}

static void disarm(struct sweep *s, unsigned int arm)
{
	atomic_store(&s->page->arms[arm].on, 0);
}

static const char *function_of(const struct sweep *s, uint64_t key)
{
	return s->page->functions[faults_function(key)];
}

static const char *after_last_slash(char *text)
{
	char *slash = strrchr(text, '/');

	return slash ? slash + 1 : text;
}

/* "recv carrier_copy.c:58 (fill)", by addr2line. */
static void describe(const struct sweep *s, uint64_t key, char *buf, size_t len)
{
	char command[700], function[120] = "?", line[300] = "?";
	FILE *f;

	/* the call itself lies before the address to which it returns */
	snprintf(command, sizeof(command), "addr2line -f -e '%s' 0x%llx 2>/dev/null", opt.culvert,
		 (unsigned long long)faults_address(key) - 1);
	f = popen(command, "re");
	if (f && fgets(function, sizeof(function), f))
		function[strcspn(function, ".\n")] = '\0'; /* "f.constprop.0" is f */
	if (f && fgets(line, sizeof(line), f))
		line[strcspn(line, " \n")] = '\0';
	if (f)
		pclose(f);
	snprintf(buf, len, "%s %s (%s)", function_of(s, key), after_last_slash(line), function);
}

/* --- the daemon --- */

static int start_daemon(struct sweep *s)
{
	const char *const options[] = { "--max-sessions", "128", NULL };
	int r = open_page(s);

	if (r) {
		fprintf(stderr, "FAIL: cannot make the page: %s\n", strerror(-r));
		return r;
	}
	setenv(FAULTS_ENV, s->page_path, 1);
	setenv("LD_PRELOAD", opt.preload, 1);
	r = rig_start(&s->rig, opt.culvert, opt.engine, options);
	unsetenv("LD_PRELOAD");
	unsetenv(FAULTS_ENV);
	if (!r) {
		r = check_page(s);
		if (r)
			fprintf(stderr, "FAIL: %s: %s\n", opt.preload, strerror(-r));
	}
	return r;
}

static void kill_daemon(struct sweep *s)
{
	rig_kill(&s->rig);
	close_page(s);
}

/* --- sites --- */

static struct known *find_known(struct sweep *s, uint64_t key)
{
	for (size_t i = 0; i < s->n_known; i++)
		if (s->known[i].key == key)
			return &s->known[i];
	return NULL;
}

static int learn_site(struct sweep *s, uint64_t key, uint64_t calls, const struct injection *during)
{
	struct known *k = &s->known[s->n_known];

	if (s->n_known == MOST_SITES)
		return -ENOSPC;
	*k = (struct known){ .key = key };
	k->failing = catalogue_find(function_of(s, key));
	k->calls = (calls + WARM_BATCHES - 1) / WARM_BATCHES;
	describe(s, key, k->name, sizeof(k->name));
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
	int r = 0;

	for (uint32_t i = 0; !r && i < FAULTS_SITES; i++) {
		struct faults_site *site = &s->page->sites[i];
		uint64_t key = atomic_load(&site->key);

		if (key && !find_known(s, key))
			r = learn_site(s, key, atomic_load(&site->calls), during);
	}
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
		disarm(s, 1);
		s->trigger_until = 0;
	}
	if (s->armed_until && now >= s->armed_until) {
		disarm(s, 0);
		s->armed_until = 0;
	}
}

/* A site that only another fault leads to is armed together with that. */
static void arm(struct sweep *s, const struct injection *in, unsigned int try)
{
	const struct known *k = in->at;
	struct fault f = injection_fault(in);

	f.site = faults_find(s->page, k->key);
	f.every = in->mode == MODE_THIRD ? 3 : 1;
	f.limit = in->mode == MODE_ONCE ? 1 : 0;
	if (in->mode == MODE_ONCE && k->calls > 1 && try == 0)
		f.skip = (uint32_t)rng_range(&s->rng, 0, k->calls - 1);
	s->armed_until = in->mode == MODE_ONCE ? 0 : now_ms() + FAULT_MS;
	if (k->after) {
		struct fault first = k->trigger;

		first.site = faults_find(s->page, k->after->key);
		s->trigger_until = now_ms() + FAULT_MS / 2;
		set_arm(s, 1, &first);
	}
	set_arm(s, 0, &f);
}

static void run_batch(struct sweep *s, struct outcome *out)
{
	char why[sizeof(out->why)] = "";
	bool right;

	s->query_at = now_ms() + QUERY_MS;
	right = lanes_run(tick, s, &out->batch);
	/* what a short batch has left armed */
	s->armed_until = s->trigger_until = 0;
	out->hits = atomic_load(&s->page->arms[0].hits);
	disarm(s, 0);
	disarm(s, 1);
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
	json_object_array_add(s->results, injection_row(in, opt.engine, &out, fault));
	if (opt.verbose || fault)
		fprintf(stderr, "%s %-8s %s: %s, %s: hits %u, resets %u%s%s%s%s\n",
			fault ? "FAIL" : "ok  ", opt.engine, k->name,
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
		if (mode != MODE_ONCE && !first && !opt.full)
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
	return !opt.most || n <= opt.most || rng_range(&s->rng, 1, n) <= opt.most;
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
	if (opt.only && !strstr(at->name, opt.only))
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
		r = inject_modes(s, at, CATALOGUE_SHORT, first || !opt.most);
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

	if (!opt.syscalls)
		return 0;
	snprintf(pid, sizeof(pid), "%lld", (long long)s->rig.pid);
	child = fork();
	if (child == 0) {
		execlp("strace", "strace", "-f", "-qq", "-c", "-o", opt.syscalls, "-p", pid,
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
		at_start[i] = atomic_load(&s->page->sites[i].calls);
	for (int i = 0; !r && i < WARM_BATCHES; i++) {
		run_batch(s, &out);
		if (out.batch.resets || !out.clean || out.why[0])
			r = -EIO;
	}
	if (stop_strace(strace))
		fprintf(stderr, "note: strace cannot be run\n");
	if (r)
		fprintf(stderr, "FAIL: engine %s, without any fault: %s\n", opt.engine,
			out.why);
	r = r ?: learn_sites(s, NULL);
	for (size_t i = 0; !r && i < s->n_known; i++) {
		uint32_t site = faults_find(s->page, s->known[i].key);

		if (atomic_load(&s->page->sites[site].calls) == at_start[site])
			s->known[i].calls = 0;
	}
	return r;
}

/* The number of injections after which the invariant did not hold, or -errno; -ENOTSUP: skip. */
static int sweep(struct json_object *results)
{
	static struct sweep whole;
	struct sweep *s = &whole;
	char why[1000];
	int r;

	s->results = results;
	s->rng = opt.seed;
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
	close_page(s);
	return r ?: s->bad;
}

/* --- the command line --- */

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
	"  --syscalls FILE have strace count the daemon's system calls meanwhile\n"
	"  --verbose       a line for each injection\n";

static const struct option long_options[] = {
	{ "engine", required_argument, NULL, 'e' },   { "culvert", required_argument, NULL, 'c' },
	{ "only", required_argument, NULL, 'o' },     { "full", no_argument, NULL, 'f' },
	{ "most", required_argument, NULL, 'm' },     { "help", no_argument, NULL, 'h' },
	{ "seed", required_argument, NULL, 's' },     { "json", required_argument, NULL, 'j' },
	{ "syscalls", required_argument, NULL, 'y' }, { "verbose", no_argument, NULL, 'v' },
	{ 0 },
};

static void usage(bool is_asked_for)
{
	fputs(help, is_asked_for ? stdout : stderr);
	exit(is_asked_for ? 0 : 2);
}

static void parse_options(int argc, char **argv)
{
	int c;

	opt.seed = (uint64_t)time(NULL);
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 'e': opt.engine = optarg; break;
		case 'c': opt.culvert = realpath(optarg, NULL); break;
		case 'o': opt.only = optarg; break;
		case 'm': opt.most = (unsigned int)atoi(optarg); break;
		case 'f': opt.full = true; break;
		case 's': opt.seed = strtoull(optarg, NULL, 0); break;
		case 'j': opt.json = optarg; break;
		case 'y': opt.syscalls = optarg; break;
		case 'v': opt.verbose = true; break;
		default: usage(c == 'h');
		}
	}
	if (optind < argc)
		usage(false);
}

int main(int argc, char **argv)
{
	struct json_object *results = json_object_new_array();
	char path[PATH_MAX];
	int r;

	beside_test(BUILT_CULVERT, path, sizeof(path));
	opt.culvert = realpath(path, NULL);
	beside_test("libculvert_faults.so", path, sizeof(path));
	opt.preload = realpath(path, NULL);
	parse_options(argc, argv);
	if (!opt.culvert || !opt.preload) {
		fprintf(stderr, "FAIL: the daemon or libculvert_faults.so is missing\n");
		return 1;
	}
	env_enter("test_faults", 3600);
	if (lanes_open())
		return 1;
	fprintf(stderr, "faults: engine %s, seed %llu\n", opt.engine, (unsigned long long)opt.seed);
	r = sweep(results);
	if (opt.json && json_object_to_file_ext(opt.json, results, JSON_C_TO_STRING_PLAIN) < 0) {
		fprintf(stderr, "FAIL: %s: %s\n", opt.json, strerror(errno));
		r = r ?: -EIO;
	}
	printf("%s: engine %s, %zu injections, %d broken\n", r ? "FAILED" : "ok", opt.engine,
	       json_object_array_length(results), r > 0 ? r : 0);
	if (r == -ENOTSUP)
		return EXIT_SKIP;
	return r ? 1 : 0;
}
