// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: daemon_start() does all that needs root; the sessions of the daemon before
 * this one come, if there is one; then root is given up for good.  Only then do the threads start,
 * since capabilities are each thread's own.  There is a thread for each
 * worker, one for the session log, one that reloads, and a few each for the control socket and
 * metrics.  When all threads run, the seccomp filter is loaded for all of them.
 *
 * All of this file runs on the main thread, whose event loop takes signals from a signalfd(2),
 * looks up names, checks servers, fills the stocks of sockets, and tells systemd's watchdog.
 */
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "config/read.h"
#include "daemon/adopt.h"
#include "daemon/check.h"
#include "daemon/daemon_start.h"
#include "daemon/metrics.h"
#include "daemon/take_over.h"
#include "datapath/policy.h"
#include "relay/health_check.h"
#include "relay/names.h"
#include "relay/session_log.h"
#include "relay/session_syn.h"

SYSCALLS_ALLOWED(
	SYSCALL(read), /* signalfd(2) */
	SYSCALL(write), SYSCALL(close),
	/* sd_notify(3) */
	SYSCALL_IF(PART_NOTIFY, socket, SYSCALL_ARG(0, AF_UNIX),
		   SYSCALL_ARG(1, SOCK_DGRAM | SOCK_CLOEXEC), SYSCALL_ARG(2, 0)),
	SYSCALL_IF(PART_NOTIFY, getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_SNDBUF)),
	SETSOCKOPT_IF(PART_NOTIFY, SOL_SOCKET, SO_SNDBUF),
	SETSOCKOPT_IF(PART_NOTIFY, SOL_SOCKET, SO_SNDBUFFORCE), SYSCALL_IF(PART_NOTIFY, sendmsg),
	SYSCALL_IF(PART_NOTIFY, getuid), SYSCALL_IF(PART_NOTIFY, geteuid),
	SYSCALL_IF(PART_NOTIFY, getgid), SYSCALL_IF(PART_NOTIFY, getegid));

/*
 * Open /dev/null as 0, 1 and 2 where these descriptors are missing.  Else a socket or a map would
 * get such a number, and the log would write into it.
 */
static int daemon_reserve_streams(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return log_complain(-EBADF, "/dev/null cannot be opened: %s",
					    strerror(errno));
	return 0;
}

/* --- running --- */

/* All threads run: from here on no new ones, no new listeners, no new file but a session log. */
static int daemon_confine(const struct daemon *d)
{
	const char *sanitizer = BUILT_WITH_SANITIZER;
	unsigned int parts = (d->shared.kernel ? PART_SOCKMAP : 0) |
			     (d->shared.grafts ? PART_GRAFT : 0) |
			     (d->shared.names ? PART_NAMES : 0) |
			     (d->service.privileged ? PART_PRIVILEGED : 0) |
			     (log_file_is_path(d->config.session_log) ? PART_SESSION_LOG : 0) |
			     (getenv("NOTIFY_SOCKET") ? PART_NOTIFY : 0);

	if (sanitizer && d->config.seccomp != FILTER_OFF) {
		log_warning("no seccomp filter: built with -fsanitize=%s", sanitizer);
		return 0;
	}
	return syscall_filter_enter(d->config.seccomp, NULL, parts) ? EXIT_CODE_UNSUPPORTED : 0;
}

/*
 * WATCHDOG=1 tells systemd that all workers take their turns.  The main thread sends it, so the
 * main thread is watched as well.  Other threads are not watched: sessions go on while such a
 * thread hangs, and a restart would end all sessions.
 *
 * At each look all workers are asked to take a turn, and must have taken it by the next look: a
 * worker may be busy with one thing for half of WATCHDOG_USEC without any harm.
 */
#define WATCHDOG_LOOKS 4 /* within WATCHDOG_USEC */

static void watchdog_look(struct daemon *d)
{
	struct threads *ts = &d->service.threads;
	bool alive = true;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++) {
		uint32_t seen = w->loop.turns_seen;

		w->loop.turns_seen = atomic_load(&w->loop.turns);
		loop_wake(&w->loop);
		if (w->loop.turns_seen != seen)
			continue;
		alive = false;
		log_error("worker %u has hung for %.1f s: systemd is no longer told that culvert "
			  "is alive, and may restart it",
			  w->index, (double)d->look_ms / 1000);
	}
	if (alive)
		sd_notify(0, "WATCHDOG=1");
}

/*
 * Copy serves clients until the kernel has been tried.  READY=1 waits for the trial at most this
 * long, so that units ordered after culvert find its carriers.
 */
#define READY_MS 2000

static void daemon_on_ready(struct timer *t)
{
	const struct daemon *d = container_of(t, struct daemon, ready);
	const char *less = d->probe.runs ? ", the kernel path is tried" :
			   probe_hindrance(&d->probe, ENGINE_SOCKMAP) ?
					   ", without the kernel path" :
					   "";
	const struct config *c = &d->config;
	int r;

	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++)
		log_info("%s %s, upstream %s, engine %s", fc->sni ? "names" : "listening on",
			 fc->sni ?: fc->listen.text, fc->upstream.n ? fc->upstream.text : "none",
			 engine_name(fc->engine));
	log_info("culvert: ready, engine %s, %u workers, user %s%s",
		 engine_name(c->defaults.engine), c->workers, d->account.name, less);
	r = sd_notifyf(0, "READY=1\nSTATUS=%zu forward%s%s", c->n_forwards,
		       c->n_forwards == 1 ? "" : "s", less);
	if (r < 0)
		log_warning("systemd cannot be told that culvert is ready, and may stop it: %s (is "
			    "NOTIFY_SOCKET right?)",
			    strerror(-r));
}

/* From now on all sessions, also older ones, may have the carriers that have passed the trial. */
static void daemon_on_tried(struct source *s, uint32_t events)
{
	struct daemon *d = container_of(s, struct daemon, tried);
	int r = probe_end(&d->config, &d->probe);

	(void)events;
	policy_allow_splice(!probe_hindrance(&d->probe, ENGINE_SPLICE));
	if (!d->ready.prev) {
		log_info("the kernel path was %s", d->probe.summary);
		return;
	}
	timer_cancel(&d->ready);
	d->code = r;
	d->loop.stop = r;
	if (!r)
		daemon_on_ready(&d->ready);
}

/* Warn if descriptors are too few for max-sessions.  All other descriptors are open by now. */
static void daemon_count_descriptors(const struct daemon *d)
{
	unsigned long limit = d->actions.descriptors_max;
	unsigned long used = status_descriptors(&d->actions) + 1; /* the directory's own */
	unsigned long sessions = limit > used ? (limit - used) / SOCKETS_EACH : 0;

	if (sessions < d->config.max_sessions)
		log_warning("there are descriptors for %lu sessions, and not for the %u of "
			    "max-sessions: more are refused (no-descriptor)",
			    sessions, d->config.max_sessions);
}

/*
 * Take the sessions of the daemon before this one.  From then on that daemon is out, so a graft that
 * cannot begin is no reason to fail.
 */
static int daemon_take_over(struct daemon *d)
{
	struct graft_table *gs = d->shared.grafts;
	int r = take_over_sessions(d->take_over, &d->service);

	if (r || !gs || !take_over_of_grafts(d->take_over))
		return r;
	if (!graft_table_begin(gs, d->err, sizeof(d->err)) &&
	    !threads_follow_grafts(&d->service.threads)) {
		take_over_grafts(d->take_over, gs, &d->standby.addresses);
		graft_table_revive(gs, d->account.uid);
		return 0;
	}
	log_error("take-over: grafted sessions are left alone: %s", d->err);
	d->probe.of[ENGINE_GRAFT] = (struct probe_finding){ false,
							    "it could not begin: see the log" };
	netlink_watch_close(&d->routes);
	d->service.sockets = NULL;
	d->shared.grafts = NULL;
	d->shared.syn = NULL;
	d->actions.standby = NULL;
	return 0;
}

static int daemon_begin(struct daemon *d)
{
	struct threads *ts = &d->service.threads;
	uint64_t usec;
	int r;

	d->actions = (struct actions){
		.service = &d->service,
		.standby = d->shared.grafts ? &d->standby : NULL,
		.control = d->control,
		.metrics = d->metrics,
		.started_ms = clock_ms(),
		.began_ms = clock_real_ms(),
		.descriptors_max = sandbox_raise_nofile(0),
		.descriptors = opendir("/proc/self/fd"),
	};
	r = threads_open(ts, &d->shared, &d->service.listening);
	if (!r && d->take_over && daemon_take_over(d))
		return EXIT_CODE_FAILURE;
	if (!r) {
		adopt_sessions(&d->shared, ts, &d->service.forwards);
		if (sandbox_enter(&d->account, 0))
			return EXIT_CODE_UNSUPPORTED;
		r = threads_start(ts);
	}
	if (!take_over_lacks(d->take_over)) {
		netlink_watch_end_of(&d->routes, take_over_end(d->take_over, d->shared.grafts));
		d->take_over = NULL;
	}
	if (!r && d->shared.session_log)
		r = session_log_start(d->shared.session_log);
	r = r ?: service_start(&d->service);
	if (!r && d->control)
		r = control_start(d->control, actions_run, actions_stream,
				  d->actions.standby ? STREAMS_MAX : 0, &d->actions);
	if (!r && d->metrics)
		r = control_serve(d->metrics, metrics_serve, 0, &d->actions);
	if (r)
		return log_failure(EXIT_CODE_FAILURE, "cannot start the threads: %s%s",
				   strerror(-r), error_hint(HINT_RESOURCES, -r));
	daemon_count_descriptors(d);
	if (sd_watchdog_enabled(0, &usec) > 0) {
		d->look_ms = usec / 1000 / WATCHDOG_LOOKS ?: 1;
		for (unsigned int i = 0; i < ts->n; i++)
			loop_wake(&ts->workers[i].loop);
	}
	r = daemon_confine(d);
	if (r)
		return r;
	d->ready.fire = daemon_on_ready;
	timer_set(&d->loop, &d->ready, clock_ms() + (d->probe.runs ? READY_MS : 0));
	d->tried = (struct source){ .handle = daemon_on_tried, .fd = d->probe.fd };
	r = d->probe.runs ? loop_watch(&d->loop, &d->tried, EPOLLIN, true) : 0;
	return r ? log_failure(EXIT_CODE_FAILURE, "cannot make the event loop: %s", strerror(-r)) :
		   0;
}

/* --- the main thread --- */

#define LOOK_ENDING_MS 20 /* between two looks whether the workers have ended */
/* A second signal this soon is a repetition of the first: timeout(1) sends its signal twice. */
#define ONE_SIGNAL_MS 100

static void daemon_on_look(struct timer *t)
{
	struct daemon *d = container_of(t, struct daemon, look);

	if (d->ended_ms)
		d->loop.stop = threads_ended(&d->service.threads);
	else
		watchdog_look(d);
	timer_set(&d->loop, t, d->loop.now_ms + d->look_ms);
}

static void daemon_take_end_signal(struct daemon *d, int sig)
{
	if (!d->ended_ms) {
		d->sig = sig;
		d->loop.stop = true;
		return;
	}
	if (d->loop.now_ms < d->ended_ms + ONE_SIGNAL_MS)
		return;
	log_info("%s again: the %u sessions that still run are reset", strsignal(sig),
		 atomic_load(&d->shared.live));
	sd_notify(0, "STATUS=Resets the sessions that still run");
	atomic_store(&d->shared.grace_ms, 0);
	threads_stop(&d->service.threads);
}

static void daemon_on_signals(struct source *s, uint32_t events)
{
	struct daemon *d = container_of(s, struct daemon, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (read(s->fd, &info, sizeof(info)) == sizeof(info)) {
		int sig = (int)info.ssi_signo;

		if (sig != SIGUSR1 && sig != SIGHUP)
			daemon_take_end_signal(d, sig);
		else if (sig == SIGHUP && !d->ended_ms)
			reload_ask(&d->service);
		else if (sig == SIGUSR1 && d->shared.session_log)
			session_log_reopen(d->shared.session_log);
	}
}

static void daemon_after_batch(void *arg)
{
	struct daemon *d = arg;

	if (d->shared.names)
		names_after_batch(d->shared.names);
	checks_after_batch(d->shared.checks);
	if (atomic_load(&d->shared.handed_over) && !d->ended_ms)
		d->loop.stop = true;
	socket_keeper_after_batch(&d->service.keeper);
}

/* SIGXFSZ: a log has reached RLIMIT_FSIZE; write(2) returns an error, too */
static const int ignored[] = { SIGPIPE, SIGUSR2, SIGALRM, SIGXFSZ };

/* Open the loops of the main thread, which gets signals, and of the thread that reloads. */
static int daemon_open_loops(struct daemon *d)
{
	sigset_t set = daemon_signals();
	int e = service_open(&d->service), r = loop_open(&d->loop, daemon_after_batch, d) ?: e;

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
	d->look.fire = daemon_on_look;
	d->signals = (struct source){ .handle = daemon_on_signals,
				      .fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK) };
	r = r ?: loop_watch(&d->loop, &d->signals, EPOLLIN, true);
	return r ? log_failure(EXIT_CODE_FAILURE, "cannot make the event loop: %s", strerror(-r)) :
		   0;
}

/* The first run ends at a signal or a failed trial, the second when all workers have ended. */
static void daemon_run_loop(struct daemon *d)
{
	d->loop.stop = false;
	if (d->look_ms)
		timer_set(&d->loop, &d->look, clock_ms() + d->look_ms);
	if (loop_run(&d->loop))
		d->sig = SIGTERM;
}

/* --- start and end --- */

/*
 * The control socket is closed after the workers have ended, so operators see the last sessions.
 * Memory and descriptors are left to the kernel; the privileged process then ends, too.
 */
static void daemon_end(struct daemon *d)
{
	struct threads *ts = &d->service.threads;
	enum handed_over handed_over = atomic_load(&d->shared.handed_over);

	d->ended_ms = clock_ms();
	timer_cancel(&d->ready);
	pthread_mutex_lock(&d->service.forwards.lock); /* a hand-over needs all workers */
	d->shared.ends = true;
	pthread_mutex_unlock(&d->service.forwards.lock);
	service_stop(&d->service);
	if (handed_over) {
		control_close(d->control, true);
		control_close(d->metrics, true);
	}
	d->look_ms = LOOK_ENDING_MS;
	threads_stop(ts);
	if (!threads_ended(ts))
		daemon_run_loop(d);
	if (!handed_over) {
		control_close(d->control, false);
		control_close(d->metrics, false);
	}
	session_log_close(d->shared.session_log);
	if (handed_over == HANDED_OVER)
		graft_table_close(d->shared.grafts, false);
	if (handed_over)
		return; /* all else is the next daemon's */
	listening_close_all(&d->service.listening);
	if (d->shared.grafts && graft_table_live(d->shared.grafts))
		log_info("%u grafted sessions go on without the daemon; the next one adopts them",
			 graft_table_live(d->shared.grafts));
	session_syn_close(d->shared.syn);
	graft_table_close(d->shared.grafts, true);
}

/*
 * The count begins with the time, at 4,096 ids a second: it goes on above the ids of an earlier daemon,
 * and comes round after a year.
 */
static uint64_t daemon_first_id(const char *relay)
{
	uint64_t count = clock_real_ms() / 1000 << 12;

	return id_relay(relay) << ID_COUNTER_BITS |
	       (count & ((UINT64_C(1) << ID_COUNTER_BITS) - 1));
}

int daemon_run(int argc, char **argv)
{
	static struct daemon d;
	struct config *c = &d.config;
	double grace_s;
	int r;

	d.shared.config = c;
	d.shared.probe = &d.probe;
	d.service = (struct service){
		.argc = argc, .argv = argv, .start = c, .shared = &d.shared, .main = &d.loop
	};
	if (daemon_reserve_streams())
		return EXIT_CODE_FAILURE;
	endpoint_keep_services(); /* for a reload, which can open no file */
	addr_has_ipv6();          /* also for a reload: the first call opens a socket */
	r = config_read(argc, argv, -1, c);
	if (r)
		return config_exit_code(r);
	log_set_level(c->log_level);
	if (c->relay)
		d.shared.last_id = daemon_first_id(c->relay);
	r = daemon_open_loops(&d) ?: daemon_start(&d) ?: daemon_begin(&d);
	if (!r) {
		daemon_run_loop(&d);
		r = d.code;
		atomic_store(&d.shared.grace_ms, r ? 0 : atomic_load(&d.shared.grace_ms));
	}
	if (take_over_lacks(d.take_over)) /* sockets and maps are still the other daemon's */
		atomic_store(&d.shared.handed_over, HANDED_OVER_MAPS);
	if (!r && !atomic_load(&d.shared.handed_over)) {
		grace_s = atomic_load(&d.shared.grace_ms) / 1000.0;
		log_info("%s: no new sessions; the %u that run may finish within %.1f s",
			 strsignal(d.sig), session_syn_live(&d.shared), grace_s);
		sd_notifyf(0, "STOPPING=1\nSTATUS=Waits for sessions that run, %.1f s at most",
			   grace_s);
	}
	daemon_end(&d);
	if (take_over_lacks(d.take_over))
		graft_table_close(d.shared.grafts, true);
	return r;
}
