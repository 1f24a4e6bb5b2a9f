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
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../flow/env.h"
#include "../flow/options.h"
#include "../flow/pattern.h"
#include "lanes.h"
#include "page.h"
#include "rig.h"

#define MOST_SITES 600
#define WARM_BATCHES 3
/* A fault without a limit ends after this while, and everything must then go on. */
#define FAULT_MS 60
#define TRIES 4
/* When during a batch the daemon is asked for its sessions. */
#define QUERY_MS 15

/* --- how each function can fail, and what may come of it --- */

#define CATALOGUE_MAX 12

struct failing {
	const char *function;
	int errors[CATALOGUE_MAX]; /* until the first 0 */
	bool can_be_short;
};

/* Instead of an error: less is done than was asked for; or it is done later. */
#define CATALOGUE_SHORT 0
#define CATALOGUE_LATE (-1)

/* One fault at one site, and what must hold after it. */

enum injection_mode {
	MODE_ONCE,   /* one call, picked at random from those of a batch */
	MODE_THIRD,  /* each third call for a while */
	MODE_ALWAYS, /* every call for a while */
};

static const char *const modes[] = { "once", "every third", "every" };

/* A site, as it is known whatever daemon runs: indices of the page change with the daemon. */
struct known {
	uint64_t key;
	const struct failing *failing;
	char name[200];
	uint64_t calls;            /* a batch; 0: it is called at the start only */
	const struct known *after; /* reached only while that one fails; NULL: always */
	struct fault trigger;      /* with AFTER: how that one fails; its .site is not used */
};

struct injection {
	const struct known *at;
	int error; /* or CATALOGUE_SHORT, CATALOGUE_LATE */
	enum injection_mode mode;
};

/* What came of it. */
struct outcome {
	struct batch batch;
	uint32_t hits;
	int64_t errors; /* that the daemon has counted */
	bool clean;     /* all is as before; else WHY says what is not */
	char why[1200];
};

/*
 * From the manual pages and the kernel: what these calls can return on the descriptors that the
 * daemon gives them.  EBADF, EFAULT and the like would be bugs of the daemon itself, and are left
 * out; EPERM and EACCES can come from a security module, EINVAL and ENOPROTOOPT from a kernel that
 * does not know an option.
 */
static const struct failing catalogue[] = {
	{ "accept4",
	  { EAGAIN, EINTR, ECONNABORTED, EMFILE, ENFILE, ENOMEM, ENOBUFS, EPERM, EPROTO, ENETDOWN },
	  false },
	{ "socket", { EMFILE, ENFILE, ENOMEM, ENOBUFS, EACCES, EAFNOSUPPORT }, false },
	{ "connect",
	  { ECONNREFUSED, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, EAGAIN, ENOBUFS,
	    EACCES, EPERM, ECONNRESET, EINTR },
	  false },
	{ "getsockopt", { ENOBUFS, ENOMEM, EPERM, EINVAL, ENOPROTOOPT }, false },
	{ "getsockname", { ENOBUFS, EINVAL }, false },
	{ "setsockopt", { ENOMEM, ENOBUFS, EPERM, EINVAL, ENOPROTOOPT }, false },
	/*
	 * The kernel does not say that nothing is there where something is, and a read without
	 * waiting ends short of what is there at an urgent byte or FIN only: edge-triggered
	 * sessions rely on both.  So neither is injected here; "peek" is recv(MSG_PEEK).
	 */
	{ "recv", { EINTR, ECONNRESET, ETIMEDOUT, ENOMEM, EHOSTUNREACH }, false },
	{ "peek", { EINTR, ECONNRESET, ETIMEDOUT, ENOMEM, EHOSTUNREACH }, false },
	/* on a unix socket with a time limit; short: without the descriptors */
	{ "recvmsg", { EINTR, EAGAIN, ENOMEM, ECONNRESET }, true },
	{ "send", { EINTR, EAGAIN, ENOBUFS, ENOMEM, EPIPE, ECONNRESET, ETIMEDOUT, EPERM }, true },
	{ "splice", { EINTR, EAGAIN, ENOMEM, EINVAL, EPIPE, ECONNRESET }, true },
	{ "pipe2", { EMFILE, ENFILE, ENOMEM }, false },
	{ "fcntl", { EMFILE, ENOMEM, EPERM, EBUSY, EINVAL }, false },
	{ "ioctl", { EINVAL, ENOMEM, EPERM }, false },
	{ "epoll_ctl", { ENOMEM, ENOSPC, EPERM }, false },
	{ "epoll_wait", { EINTR }, true },
	{ "close", { EINTR, EIO }, false },
	{ "shutdown", { ENOTCONN, ENOBUFS }, false },
	{ "read", { EAGAIN, EINTR }, false },
	{ "write", { EAGAIN, EINTR, EPIPE, ENOSPC }, false },
	{ "poll", { EINTR, ENOMEM }, false },
	{ "malloc", { ENOMEM }, false },
	{ "calloc", { ENOMEM }, false },
	{ "realloc", { ENOMEM }, false },
	{ "opendir", { EMFILE, ENOMEM, EACCES }, false },
	{ "pthread_cond_clockwait", { ETIMEDOUT }, false },
	{ "bpf_map_update_elem",
	  { ENOMEM, EBUSY, E2BIG, ENOSPC, EPERM, EOPNOTSUPP, EEXIST, EAGAIN },
	  false },
	{ "bpf_map_delete_elem", { EBUSY, EINVAL, EPERM, ENOMEM }, false },
};

/* NULL: a function that the catalogue does not know, which is a bug of the test. */
static const struct failing *catalogue_find(const char *function)
{
	for (size_t i = 0; i < sizeof(catalogue) / sizeof(catalogue[0]); i++)
		if (!strcmp(catalogue[i].function, function))
			return &catalogue[i];
	return NULL;
}

/* A failure that no session may notice: to be repeated, or less done than was asked for. */
static bool is_for_nothing(const char *function, int error)
{
	static const char *const repeated[] = { "recv", "peek",  "send", "splice", "epoll_wait",
						"read", "write", "poll", "accept4" };

	if (error == CATALOGUE_LATE)
		return true;
	if (error && error != EINTR && error != EAGAIN)
		return false;
	for (size_t i = 0; i < sizeof(repeated) / sizeof(repeated[0]); i++)
		if (!strcmp(repeated[i], function))
			return true;
	return false;
}

static const char *error_name(int error)
{
	if (error == CATALOGUE_LATE)
		return "late";
	return error == CATALOGUE_SHORT ? "short" : strerrorname_np(error) ?: "?";
}

/* IN's fault, at each call; its .site is not set. */
static struct fault fault_of(const struct injection *in)
{
	return (struct fault){
		.action = in->error == CATALOGUE_LATE  ? FAULTS_LATE :
			  in->error == CATALOGUE_SHORT ? FAULTS_SHORT :
							 FAULTS_ERROR,
		.error = in->error,
		.every = 1,
	};
}

/*
 * True if K is where the privileged process is asked, or does what it is asked for.  A failure
 * there may end it: the daemon says so, and goes on without it until the next start.
 */
static bool is_privileged(const struct known *k)
{
	return strstr(k->name, " privileged") || strstr(k->name, "(socket_set_mark)");
}

/*
 * If SO_LINGER and disconnecting are both refused, nothing is left that would reset a connection; a
 * map that refuses to delete an entry, and again when its slot has a new owner, keeps it until the
 * next.  A test has nothing to ask for.
 */
static bool is_last_resort(const struct known *k)
{
	return k->after &&
	       (strstr(k->name, "(tcp_arm_reset)") || strstr(k->name, "(sockmap_forget_cookie)"));
}

static bool may_end_privileged(const struct injection *in)
{
	const struct known *after = in->at->after;

	return in->error != CATALOGUE_LATE &&
	       (is_privileged(in->at) || (after && is_privileged(after)));
}

/*
 * A request that fails, takes too long or is cut is the end of the privileged process; and neither
 * side of it handles a signal, so that no call of theirs is interrupted.
 */
static bool is_harmless(const struct injection *in)
{
	/* a PROXY header goes out as a whole, or not at all */
	if (is_privileged(in->at) || strstr(in->at->name, "(session_header_send)"))
		return in->error == CATALOGUE_LATE;
	return is_for_nothing(in->at->failing->function, in->error);
}

/* NULL if the invariant held, else what it is that did not. */
static const char *broken_by(const struct injection *in, const struct outcome *out)
{
	const struct batch *b = &out->batch;
	unsigned int resets = b->results[PEER_RESET];

	if (lanes_fault(b) != PEER_DONE)
		return peer_result_name(lanes_fault(b));
	if (!out->clean)
		return "not as before";
	if (in->at->after)
		return NULL; /* two faults at once may cost more than one session */
	if (resets && is_harmless(in))
		return "a reset for nothing";
	if (is_privileged(in->at) ? resets > b->resets_marked : resets > 1 && in->mode == MODE_ONCE)
		return "other sessions were touched";
	if (resets > out->errors)
		return "a reset that no counter shows";
	return NULL;
}

/* --- the sweep --- */

static struct {
	const char *culvert; /* the program */
	char *preload;       /* the interposer */
	const char *engine;
	const char *only; /* sites whose description holds this; NULL: all */
	uint64_t most;    /* errors tried at a site, about; 0: all */
	bool verbose;
	uint64_t seed;
} opt = { .engine = "auto" };

struct sweep {
	struct rig rig;
	struct faults_page *page;
	uint64_t injections, hits, sessions, resets;
	struct known known[MOST_SITES];
	size_t n_known;
	size_t places; /* where a call has failed */
	uint64_t rng;
	int64_t armed_until, trigger_until, query_at;
	int bad;
};

/* --- the page that is shared with the daemon --- */

static int open_page(struct sweep *s)
{
	char path[120];
	int fd;

	snprintf(path, sizeof(path), "%s/page", env_dir());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*s->page)))
		return -errno;
	s->page = mmap(NULL, sizeof(*s->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (s->page == MAP_FAILED)
		return -errno;
	setenv(FAULTS_ENV, path, 1);
	return 0;
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
	a->fault = *f;
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

/* "recv carrier_copy.c:98 (copy_fill)", by addr2line. */
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
	int r;

	memset(s->page, 0, sizeof(*s->page));
	setenv("LD_PRELOAD", opt.preload ?: "", 1);
	r = rig_start(&s->rig, opt.culvert, opt.engine, options);
	unsetenv("LD_PRELOAD");
	if (!r) {
		r = check_page(s);
		if (r)
			fprintf(stderr, "FAIL: %s: %s\n", opt.preload, strerror(-r));
	}
	return r;
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
		k->trigger = fault_of(during);
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
	struct fault f = fault_of(in);

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
	s->sessions += out->batch.sessions;
	s->resets += out->batch.results[PEER_RESET];
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
			rig_kill(&s->rig);
			r = start_daemon(s);
		}
		r = r ?: rig_errors(&s->rig, &before);
		if (r) {
			fprintf(stderr, "FAIL: before %s: %s\n", k->name, strerror(-r));
			break;
		}
		arm(s, in, try);
		lanes_many_marked(is_privileged(k));
		run_batch(s, &out);
		lanes_many_marked(false);
		out.errors = out.clean && !rig_errors(&s->rig, &after) ? after - before : 0;
		fault = broken_by(in, &out);
	}
	if (!r && !k->after)
		r = learn_sites(s, in);
	*ret_hits = out.hits;
	s->injections += out.hits > 0;
	s->hits += out.hits;
	if (opt.verbose || fault)
		fprintf(stderr, "%s %-8s %s: %s, %s: hits %u, resets %u%s%s%s%s\n",
			fault ? "FAIL" : "ok  ", opt.engine, k->name, error_name(in->error),
			modes[in->mode], out.hits, out.batch.results[PEER_RESET], fault ? ": " : "",
			fault ?: "", fault ? ": " : "", fault ? out.why : "");
	if (!fault && (r || !may_end_privileged(in)))
		return r;
	s->bad += fault != NULL;
	if (fault)
		rig_show_broken_sessions();
	rig_kill(&s->rig);
	return start_daemon(s);
}

static int inject_modes(struct sweep *s, const struct known *at, int error, bool first)
{
	struct injection in = { .at = at, .error = error };
	uint32_t hits;
	int r = 0;

	for (unsigned int mode = MODE_ONCE; !r && mode <= MODE_ALWAYS; mode++) {
		if (mode != MODE_ONCE && !first)
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
	uint64_t before = s->injections;
	bool first = true;
	uint32_t hits;
	size_t n = 0;
	int r = 0;

	if (!at->calls || is_last_resort(at))
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
	s->places += s->injections > before;
	return r < 0 ? r : 0;
}

/* --- the whole --- */

static int warm_up(struct sweep *s)
{
	static uint64_t at_start[FAULTS_SITES];
	struct outcome out = { .hits = 0 };
	int r = 0;

	for (uint32_t i = 0; i < FAULTS_SITES; i++)
		at_start[i] = atomic_load(&s->page->sites[i].calls);
	for (int i = 0; !r && i < WARM_BATCHES; i++) {
		run_batch(s, &out);
		if (out.batch.results[PEER_RESET] || !out.clean || out.why[0])
			r = -EIO;
	}
	if (r)
		fprintf(stderr, "FAIL: engine %s, without any fault: %s\n", opt.engine, out.why);
	r = r ?: learn_sites(s, NULL);
	for (size_t i = 0; !r && i < s->n_known; i++) {
		uint32_t site = faults_find(s->page, s->known[i].key);

		if (atomic_load(&s->page->sites[site].calls) == at_start[site])
			s->known[i].calls = 0;
	}
	return r;
}

/* The number of injections after which the invariant did not hold, or -errno; -ENOTSUP: skip. */
static int sweep(struct sweep *s)
{
	char why[1000];
	int r;

	s->rng = opt.seed;
	r = open_page(s) ?: start_daemon(s);
	r = r ?: warm_up(s);
	for (size_t i = 0; !r && i < s->n_known; i++) /* which grows meanwhile */
		r = inject_site(s, &s->known[i]);
	if (!r && daemon_stop(s->rig.d, 10000, why, sizeof(why))) {
		fprintf(stderr, "FAIL: SIGTERM: %s\n", why);
		s->bad++;
	} else if (r) {
		rig_kill(&s->rig);
	}
	return r ?: s->bad;
}

/* --- the command line --- */

static const struct test_option options[] = {
	{ "engine", "E", "auto, sockmap, splice or copy (default auto)", TEXT, &opt.engine },
	{ "culvert", "PATH", "the daemon (default: the one built together)", TEXT, &opt.culvert },
	{ "only", "TEXT", "only places whose description holds TEXT, such as \"recv carrier\"",
	  TEXT, &opt.only },
	{ "most", "N", "about N of the errors of each place, picked by the seed (default all)",
	  NUMBER, &opt.most },
	{ "seed", "S", "of the random choices (default: from the clock; printed)", NUMBER,
	  &opt.seed },
	{ "verbose", "", "a line for each injection", FLAG, &opt.verbose },
};

int main(int argc, char **argv)
{
	static struct sweep s;
	char path[PATH_MAX];
	int r;

	beside_test(BUILT_CULVERT, path, sizeof(path));
	opt.culvert = realpath(path, NULL);
	beside_test("libculvert_faults.so", path, sizeof(path));
	opt.preload = realpath(path, NULL);
	opt.seed = (uint64_t)time(NULL);
	options_parse(argc, argv, options, sizeof(options) / sizeof(options[0]));
	if (!opt.culvert || !opt.preload) {
		fprintf(stderr, "FAIL: the daemon or libculvert_faults.so is missing\n");
		return 1;
	}
	env_enter("test_faults", 3600);
	lanes_open();
	fprintf(stderr, "faults: engine %s, seed %llu\n", opt.engine, (unsigned long long)opt.seed);
	r = sweep(&s);
	printf("%s: engine %s: %llu injections at %zu places, %llu calls failed; %llu sessions, %llu "
	       "reset; %d broken\n",
	       r ? "FAILED" : "ok", opt.engine, (unsigned long long)s.injections, s.places,
	       (unsigned long long)s.hits, (unsigned long long)s.sessions,
	       (unsigned long long)s.resets, s.bad);
	if (r == -ENOTSUP)
		return EXIT_SKIP;
	return r ? 1 : 0;
}
