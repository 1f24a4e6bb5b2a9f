// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: what needs root is done first (setup.h).  Root is given up for good, and
 * only then do the threads start: one per worker, one for the session log, one that reloads, one for
 * the control socket; and this one, whose event loop takes signals, by a signalfd(2), looks up names,
 * and has sockets made that need privileges.  When all run, the seccomp filter is loaded for all of
 * them.
 */
#include "daemon/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/advice.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/loop.h"
#include "base/syscalls_needed.h"
#include "daemon/operate.h"
#include "daemon/reload.h"
#include "daemon/setup.h"
#include "daemon/syscall_filter.h"
#include "relay/limits.h"
#include "relay/names.h"
#include "relay/session_log.h"
#include "relay/socket_stock.h"
#include "relay/worker.h"

SYSCALLS_NEEDED(
	SYSCALL(read), /* signalfd(2) */
	/* sd_notify(3) */
	SYSCALL_IF(PART_NOTIFY, socket, SYSCALL_ARG(0, AF_UNIX),
		   SYSCALL_ARG(1, SOCK_DGRAM | SOCK_CLOEXEC), SYSCALL_ARG(2, 0)),
	SYSCALL_IF(PART_NOTIFY, getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_SNDBUF)),
	SYSCALL_IF(PART_NOTIFY, setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_SNDBUF)),
	SYSCALL_IF(PART_NOTIFY, setsockopt, SYSCALL_ARG(1, SOL_SOCKET),
		   SYSCALL_ARG(2, SO_SNDBUFFORCE)),
	SYSCALL_IF(PART_NOTIFY, sendmsg),
	SYSCALL_IF(PART_NOTIFY, getuid),
	SYSCALL_IF(PART_NOTIFY, geteuid),
	SYSCALL_IF(PART_NOTIFY, getgid),
	SYSCALL_IF(PART_NOTIFY, getegid));

/* What the watchdog knows of one thread. */
struct watched {
	uint64_t seen; /* turns when it was asked */
	bool asked;
	bool late;     /* and said to be */
};

struct daemon {
	struct setup setup;
	struct stock_keeper *keeper; /* NULL: there is no privileged process */
	struct reload reload;
	struct threads threads;
	struct operate operate;

	/* the main thread */
	struct watched *watched;  /* of each worker and, at the end, of the control thread; owned */
	uint64_t watchdog_ms;     /* between two looks; 0: systemd has no watchdog */
	uint64_t watchdog_due_ms; /* the next look */
	struct loop loop;
	struct source signals;
	struct timer look;      /* at what may be due although no signal comes */
	int sig;                /* that ends culvert; 0: none has come */
	bool ending;
	uint64_t one_until_ms;  /* signals until then are one with the first */
};

/* --- threads --- */

static int no_thread(const char *which, int r)
{
	return log_failure(EXIT_CODE_FAILURE, "cannot start %s: %s%s", which, strerror(-r),
			   advice(ADVICE_RESOURCES, -r));
}

/* Sockets in stock, for the forwards that need them.  The first of them shows if they can be made. */
static int fill_stocks(struct daemon *d)
{
	struct forward *f = d->setup.forwards.first;
	char err[512];
	int r = 0;

	if (d->setup.privileged && stock_keeper_open(privileged_sockets, d->setup.privileged,
						     d->setup.loop, &d->keeper))
		return log_failure(EXIT_CODE_FAILURE, "out of memory");
	for (size_t i = 0; i < d->setup.config.n_forwards; i++, f = f->next) {
		if (forward_needs_privileges(f->conf))
			r = socket_stock_open(d->keeper, f->conf, &f->stock, err, sizeof(err));
		if (r)
			return log_failure(r == -EPERM ? EXIT_CODE_UNSUPPORTED : EXIT_CODE_FAILURE,
					   "forward %s has a mark or is transparent, which needs "
					   "CAP_NET_ADMIN: %s", forward_name(f->conf), err);
	}
	return 0;
}

/* A look-up has ended that sessions wait for. */
static void tell_workers(void *arg)
{
	struct daemon *d = arg;

	atomic_fetch_add(&d->setup.shared.name_news, 1);
	for (unsigned int i = 0; i < d->threads.n; i++)
		loop_wake(&d->threads.workers[i].loop);
}

static int start_threads(struct daemon *d)
{
	int r = threads_open(&d->threads, &d->setup.shared, d->setup.listening);

	if (r)
		return log_failure(EXIT_CODE_FAILURE, "cannot make the workers: %s%s",
				   strerror(-r), advice(ADVICE_RESOURCES, -r));
	r = threads_start(&d->threads);
	return r ? no_thread("the thread of a worker", r) : 0;
}

/* --- running --- */

static unsigned int parts_in_use(const struct setup *s)
{
	unsigned int parts = (s->shared.kernel ? PART_SOCKMAP : 0) |
			     (s->shared.names ? PART_NAMES : 0);

	if (s->privileged) /* the file may be changed so that it is needed */
		parts |= PART_PRIVILEGED | (s->config.file ? PART_SOURCE : 0);
	if (s->config.file)
		parts |= PART_UNIX; /* the next configuration may have one */
	for (size_t i = 0; i < s->config.n_forwards; i++) {
		const struct forward_conf *fc = &s->config.forwards[i];
		const struct endpoint *up = &fc->upstream;

		if (fc->source.len || fc->interface || fc->transparent)
			parts |= PART_SOURCE;
		for (size_t j = 0; j < up->n_addrs; j++)
			if (!addr_is_inet(&up->addrs[j]))
				parts |= PART_UNIX;
	}
	if (log_file_is_path(s->config.session_log))
		parts |= PART_SESSION_LOG;
	return parts | (getenv("NOTIFY_SOCKET") ? PART_NOTIFY : 0);
}

/* All threads run: from here on no new ones, no new files, no new listeners. */
static int confine(const struct setup *s)
{
	const char *sanitizer = syscall_filter_hindrance();
	char err[256];

	if (sanitizer && s->config.seccomp != FILTER_OFF) {
		log_warning("no seccomp filter: built with -fsanitize=%s", sanitizer);
		return 0;
	}
	if (syscall_filter_enter(s->config.seccomp, parts_in_use(s), err, sizeof(err)))
		return log_failure(EXIT_CODE_UNSUPPORTED, "%s", err);
	return 0;
}

/*
 * systemd's watchdog is told by WATCHDOG=1 that the workers and the control thread still take their
 * turns.  The main thread tells it, so that one is watched as well.
 *
 * At each look all threads are asked to take a turn, and must have taken it by the next look: a
 * thread may be busy with one thing for half of WATCHDOG_USEC without any harm.
 */
#define WATCHDOG_LOOKS 4 /* within WATCHDOG_USEC */

static void watch_threads(struct daemon *d)
{
	uint64_t usec;
	int r = sd_watchdog_enabled(0, &usec);

	if (r < 0)
		log_warning("no watchdog: WATCHDOG_USEC or WATCHDOG_PID is not a number");
	if (r > 0)
		d->watched = calloc(d->threads.n + 1, sizeof(*d->watched));
	if (d->watched)
		d->watchdog_ms = usec / 1000 / WATCHDOG_LOOKS ?: 1;
}

/* Has thread I taken the turn that it was asked for?  If so, or if it was not asked yet, ask again. */
static bool is_alive(struct daemon *d, unsigned int i)
{
	bool worker = i < d->threads.n;
	struct loop *loop = worker ? &d->threads.workers[i].loop : control_loop(d->setup.control);
	uint64_t turns = atomic_load(&loop->turns);
	struct watched *t = &d->watched[i];
	char name[32] = "the control thread";

	if (worker)
		snprintf(name, sizeof(name), "worker %u", i);
	if (t->asked && turns == t->seen) {
		if (!t->late)
			log_error("%s has hung for %.1f s: systemd is no longer told that culvert "
				  "is alive, and may restart it", name,
				  (double)d->watchdog_ms / 1000);
		t->late = true;
		return false;
	}
	if (t->late)
		log_warning("%s goes on", name);
	*t = (struct watched){ .seen = turns, .asked = true };
	loop_wake(loop);
	return true;
}

static void watchdog_look(struct daemon *d)
{
	unsigned int n = d->threads.n + (d->setup.control != NULL);
	bool alive = true;

	if (!d->watchdog_ms || d->loop.now_ms < d->watchdog_due_ms)
		return;
	d->watchdog_due_ms = d->loop.now_ms + d->watchdog_ms;
	for (unsigned int i = 0; i < n; i++)
		alive = is_alive(d, i) && alive;
	if (alive)
		sd_notify(0, "WATCHDOG=1");
}

static void announce_ready(const struct daemon *d)
{
	const struct config *c = &d->setup.config;
	int r;

	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct forward_conf *fc = &c->forwards[i];

		log_info("listening on %s, upstream %s, engine %s", fc->listen.text,
			 fc->upstream.text, engine_name(fc->engine));
		forward_warn(fc);
	}
	log_info("culvert: ready, engine %s, %u workers, user %s%s", engine_name(c->defaults.engine),
		 c->workers, d->setup.account.name,
		 d->setup.shared.kernel ? "" : ", without the kernel path");
	r = sd_notifyf(0, "READY=1\nSTATUS=%zu forward%s%s", c->n_forwards,
		       c->n_forwards == 1 ? "" : "s",
		       d->setup.shared.kernel ? "" : ", without the kernel path");
	if (r < 0)
		log_warning("systemd cannot be told that culvert is ready, and may stop it: %s (is "
			    "NOTIFY_SOCKET right?)", strerror(-r));
}

static int start_reload(struct daemon *d)
{
	struct setup *s = &d->setup;

	d->reload = (struct reload){
		.argc = s->argc,
		.argv = s->argv,
		.start = &s->config,
		.privileged = s->privileged,
		.shared = &s->shared,
		.forwards = &s->forwards,
		.listening = &s->listening,
		.workers = d->threads.workers,
		.n_workers = s->config.workers,
		.keeper = d->keeper,
	};
	return reload_start(&d->reload);
}

static int begin(struct daemon *d)
{
	int r;

	d->operate = (struct operate){
		.reload = &d->reload,
		.kernel_reason = d->setup.kernel_reason,
		.probe = &d->setup.probe,
	};
	r = fill_stocks(d);
	if (r)
		return r;
	r = operate_open(&d->operate);
	if (r)
		return log_failure(EXIT_CODE_FAILURE, "/proc/self/fd: %s (is /proc mounted?)",
				   strerror(-r));
	r = start_threads(d);
	if (r)
		return r;
	r = d->setup.shared.session_log ? session_log_start(d->setup.shared.session_log) : 0;
	if (r)
		return no_thread("the thread of the session log", r);
	r = start_reload(d);
	if (r)
		return no_thread("the thread that reloads", r);
	r = d->setup.control ? control_start(d->setup.control, operate, &d->operate) : 0;
	if (r)
		return no_thread("the control thread", r);
	watch_threads(d);
	r = confine(&d->setup);
	if (!r)
		announce_ready(d);
	return r;
}

/* --- the main thread --- */

#define LOOK_MS 5000
#define LOOK_ENDING_MS 20 /* between two looks whether the workers have ended */
/* What comes so soon after the first signal was meant as one: timeout(1) sends its own twice. */
#define ONE_SIGNAL_MS 100

static const int taken[] = { SIGTERM, SIGINT, SIGQUIT, SIGCHLD, SIGHUP, SIGUSR1 };
/* SIGXFSZ: a log at its RLIMIT_FSIZE; write(2) says so, too */
static const int ignored[] = { SIGPIPE, SIGUSR2, SIGALRM, SIGXFSZ };

static sigset_t taken_set(void)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		sigaddset(&set, taken[i]);
	return set;
}

/* Before there are threads: all of them inherit that. */
static void take_signals(void)
{
	sigset_t set = taken_set();

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void on_look(struct timer *t)
{
	struct daemon *d = container_of(t, struct daemon, look);
	uint64_t now = d->loop.now_ms, due = now + LOOK_MS;

	if (d->ending) {
		d->loop.stop = threads_ended(&d->threads);
		due = now + LOOK_ENDING_MS;
	} else {
		watchdog_look(d);
		if (d->watchdog_ms && d->watchdog_due_ms < due)
			due = d->watchdog_due_ms;
	}
	timer_set(&d->loop, t, due);
}

static void hurry(struct daemon *d, int sig)
{
	log_info("%s again: the %u sessions that still run are reset", strsignal(sig),
		 admission_sessions(d->setup.shared.admission));
	sd_notify(0, "STATUS=Resets the sessions that still run");
	threads_hurry(&d->threads);
}

static void take_end_signal(struct daemon *d, int sig)
{
	if (!d->ending) {
		d->sig = sig;
		d->loop.stop = true;
	} else if (d->loop.now_ms >= d->one_until_ms) {
		hurry(d, sig);
	}
}

static void serve(struct daemon *d, int sig)
{
	switch (sig) {
	case SIGUSR1:
		if (d->setup.shared.session_log)
			session_log_reopen(d->setup.shared.session_log);
		break;
	case SIGCHLD:
		privileged_reap(d->setup.privileged);
		break;
	case SIGHUP:
		if (!d->ending)
			reload_ask(&d->reload);
		break;
	default:
		take_end_signal(d, sig);
	}
}

static void on_signals(struct source *s, uint32_t events)
{
	struct daemon *d = container_of(s, struct daemon, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (read(s->fd, &info, sizeof(info)) == sizeof(info))
		serve(d, (int)info.ssi_signo);
}

static void after_batch(void *arg)
{
	struct daemon *d = arg;

	if (d->setup.shared.names)
		names_after_batch(d->setup.shared.names);
	if (d->keeper)
		stock_keeper_after_batch(d->keeper);
}

static int open_loop(struct daemon *d)
{
	sigset_t set = taken_set();
	int r = loop_open(&d->loop, after_batch, d);

	d->look.fire = on_look;
	d->signals = (struct source){ .handle = on_signals, .fd = -1 };
	if (!r) {
		d->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
		r = d->signals.fd < 0 ? -errno : loop_watch(&d->loop, &d->signals, EPOLLIN, true);
	}
	return r ? log_failure(EXIT_CODE_FAILURE, "no event loop: %s", strerror(-r)) : 0;
}

static void close_loop(struct daemon *d)
{
	if (d->signals.fd >= 0)
		close(d->signals.fd);
	loop_close(&d->loop);
}

/* Until a signal ends culvert; then until all workers have ended. */
static void run_loop(struct daemon *d)
{
	int r;

	d->loop.stop = false;
	timer_set(&d->loop, &d->look, clock_ms());
	r = loop_run(&d->loop);
	if (r)
		log_error("the main thread cannot wait for signals any more: %s", strerror(-r));
	if (!d->sig)
		d->sig = SIGTERM;
}

/* --- start and end --- */

/* Workers end with their last sessions, which whoever asks may see until then. */
static void end(struct daemon *d)
{
	struct setup *s = &d->setup;

	reload_stop(&d->reload);
	free(d->watched);
	d->watchdog_ms = 0;
	threads_stop(&d->threads);
	if (!threads_ended(&d->threads)) {
		d->ending = true;
		d->one_until_ms = clock_ms() + ONE_SIGNAL_MS;
		run_loop(d);
	}
	threads_join(&d->threads);
	control_close(s->control);
	reload_close(&d->reload);
	session_log_close(s->shared.session_log);
	threads_close(&d->threads);
	operate_close(&d->operate);
	names_close(s->shared.names);
	forwards_close(&s->forwards);
	stock_keeper_close(d->keeper);
}

static int run(struct daemon *d)
{
	struct setup *s = &d->setup;
	int r;

	forwards_init(&s->forwards);
	s->shared.grace_ms = s->config.grace_ms;
	s->loop = &d->loop;
	s->name_news = tell_workers;
	s->name_news_arg = d;
	r = open_loop(d) ?: setup_open(s) ?: begin(d);
	if (!r) {
		run_loop(d);
		log_info("%s: no new sessions; the %u that run may finish within %.1f s",
			 strsignal(d->sig), admission_sessions(s->shared.admission),
			 atomic_load(&s->shared.grace_ms) / 1000.0);
		sd_notifyf(0, "STOPPING=1\nSTATUS=Waits for sessions that run, %.1f s at most",
			   atomic_load(&s->shared.grace_ms) / 1000.0);
	}
	end(d);
	setup_close(s);
	close_loop(d);
	return r;
}

static void end_at_once(int sig)
{
	(void)sig;
	_exit(EXIT_CODE_OK);
}

/*
 * The only names that are waited for, since they must be bound.  getaddrinfo(3) may take long: a
 * signal ends culvert meanwhile, which has nothing yet that would have to be ended.
 */
static int find_listeners(struct config *c)
{
	char err[512];
	int r;

	signal(SIGTERM, end_at_once);
	signal(SIGINT, end_at_once);
	signal(SIGQUIT, end_at_once);
	r = names_find_listeners(c, false, err, sizeof(err));
	return r ? log_failure(config_exit_code(r), "%s", err) : 0;
}

int daemon_run(int argc, char **argv)
{
	struct daemon d = { .setup = { .argc = argc, .argv = argv, .pid_file = -1 } };
	struct config *c = &d.setup.config;
	int r;

	d.setup.shared.config = c;
	if (setup_reserve_streams())
		return EXIT_CODE_FAILURE;
	endpoint_keep_services(); /* for a reload, which can open no file */
	addr_has_ipv6();          /* the same for sockets */
	r = config_parse(argc, argv, c);
	if (r) {
		config_close(c);
		return config_exit_code(r);
	}
	log_set_level(c->log_level);
	r = find_listeners(c);
	if (!r) {
		take_signals();
		r = run(&d);
	}
	config_close(c);
	return r;
}
