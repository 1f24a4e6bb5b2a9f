// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: what needs root is done first (setup.h).  Root is given up for good, and
 * only then do the threads start: one per worker, one for the session log, one that reloads, one for
 * the control socket; and this one, which waits for signals, looks up names, and has sockets made
 * that need privileges.  When all run, the seccomp filter is loaded for all of them.
 */
#include "daemon/daemon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "daemon/descriptors.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/advice.h"
#include "daemon/inspect.h"
#include "daemon/main_loop.h"
#include "daemon/operate.h"
#include "daemon/reload.h"
#include "relay/session_log.h"
#include "daemon/setup.h"
#include "daemon/syscall_filter.h"
#include "relay/limits.h"
#include "relay/names.h"
#include "daemon/watchdog.h"
#include "relay/worker.h"

SYSCALLS_NEEDED(
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

struct daemon {
	struct setup setup;
	struct stock_keeper *keeper; /* NULL: there is no privileged process */
	struct reload reload;
	struct threads threads;
	struct inspect inspect;
	struct watchdog watchdog;
	struct main_loop main_loop;
};

/* --- threads --- */

static struct json_object *answer(void *arg, const struct command_request *req,
				  const struct control_peer *peer)
{
	struct daemon *d = arg;

	return operate(&d->inspect, req, peer);
}

static int no_thread(const char *which, int r)
{
	log_error("cannot start %s: %s%s", which, strerror(-r), advice_thread(-r));
	return EXIT_CODE_FAILURE;
}

static int make_sockets(void *arg, uint32_t generation, size_t forward, int family, unsigned int n,
			int *fds, char *err, size_t errlen)
{
	return privileged_sockets(arg, generation, forward, family, n, fds, err, errlen);
}

/* Sockets in stock, for the forwards that need them. */
static int fill_stocks(struct daemon *d)
{
	struct forward *f = d->setup.forwards.first;
	char err[512];
	int r = 0;

	if (d->setup.privileged)
		r = stock_keeper_open(make_sockets, d->setup.privileged, d->setup.loop,
				      &d->keeper);
	if (r) {
		log_error("out of memory");
		return EXIT_CODE_FAILURE;
	}
	for (size_t i = 0; !r && i < d->setup.config.n_forwards; i++, f = f->next) {
		if (!forward_needs_privileges(f->conf))
			continue;
		r = socket_stock_open(d->keeper, &d->setup.config, i, &f->stock, err, sizeof(err));
		if (r)
			log_error("forward %s: %s", forward_name(f->conf), err);
	}
	return r ? EXIT_CODE_FAILURE : 0;
}

/* A look-up has ended that sessions wait for. */
static void tell_workers(void *arg)
{
	struct daemon *d = arg;

	atomic_fetch_add(&d->setup.shared.name_news, 1);
	for (unsigned int i = 0; i < d->threads.n; i++)
		loop_wake(&d->threads.workers[i]->loop);
}

static int start_threads(struct daemon *d)
{
	int r = threads_open(&d->threads, &d->setup.shared, d->setup.listening);

	if (r) {
		log_error("cannot make the workers: %s%s", strerror(-r), advice_workers(-r));
		return EXIT_CODE_FAILURE;
	}
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
	if (!syscall_filter_enter(s->config.seccomp, parts_in_use(s), err, sizeof(err)))
		return 0;
	log_error("%s", err);
	return EXIT_CODE_UNSUPPORTED;
}

static void wake_worker(void *arg)
{
	loop_wake(arg);
}

static void wake_control(void *arg)
{
	control_wake(arg);
}

/* What systemd's watchdog is for. */
static int watch_threads(struct daemon *d)
{
	int r = 0;

	watchdog_open(&d->watchdog);
	for (unsigned int i = 0; !r && i < d->setup.config.workers; i++) {
		struct loop *loop = &d->threads.workers[i]->loop;
		struct watched t = { .turns = &loop->turns, .wake = wake_worker, .arg = loop };

		snprintf(t.name, sizeof(t.name), "worker %u", i);
		r = watchdog_add(&d->watchdog, &t);
	}
	if (!r && d->setup.control)
		r = watchdog_add(&d->watchdog, &(struct watched){
			.name = "the control thread", .turns = control_turns(d->setup.control),
			.wake = wake_control, .arg = d->setup.control });
	return r;
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
		.no_splice = !probe_allows_later(&s->probe.splice, s->config.probe),
	};
	return reload_start(&d->reload);
}

static int begin(struct daemon *d)
{
	int r;

	d->inspect = (struct inspect){
		.shared = &d->setup.shared,
		.forwards = &d->setup.forwards,
		.reload = &d->reload,
		.n_workers = d->setup.config.workers,
		.kernel_reason = d->setup.kernel_reason,
		.probe = &d->setup.probe,
	};
	r = fill_stocks(d);
	if (r)
		return r;
	r = inspect_open(&d->inspect);
	if (r) {
		log_error("/proc/self/fd: %s (is /proc mounted?)", strerror(-r));
		return EXIT_CODE_FAILURE;
	}
	r = start_threads(d);
	if (r)
		return r;
	d->inspect.workers = d->threads.workers;
	r = d->setup.shared.session_log ? session_log_start(d->setup.shared.session_log) : 0;
	if (r)
		return no_thread("the thread of the session log", r);
	r = start_reload(d);
	if (r)
		return no_thread("the thread that reloads", r);
	r = d->setup.control ? control_start(d->setup.control, answer, d) : 0;
	if (r)
		return no_thread("the control thread", r);
	if (watch_threads(d)) {
		log_error("out of memory");
		return EXIT_CODE_FAILURE;
	}
	r = confine(&d->setup);
	if (!r)
		announce_ready(d);
	return r;
}

static bool have_ended(void *arg)
{
	struct daemon *d = arg;

	return threads_ended(&d->threads);
}

static void hurry(void *arg, int sig)
{
	struct daemon *d = arg;

	log_info("%s again: the %u sessions that still run are reset", strsignal(sig),
		 admission_sessions(d->setup.shared.admission));
	sd_notify(0, "STATUS=Resets the sessions that still run");
	threads_hurry(&d->threads);
}

/* Workers end with their last sessions, which whoever asks may see until then. */
static void end(struct daemon *d)
{
	struct setup *s = &d->setup;

	reload_stop(&d->reload);
	watchdog_close(&d->watchdog);
	threads_stop(&d->threads);
	main_loop_run_out(&d->main_loop, &(struct main_loop_end){ have_ended, hurry, d });
	threads_join(&d->threads);
	control_close(s->control);
	reload_close(&d->reload);
	if (!session_log_close(s->shared.session_log))
		s->privileged = NULL; /* left to the log's thread, which may yet ask it */
	threads_close(&d->threads);
	inspect_close(&d->inspect);
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
	s->loop = &d->main_loop.loop;
	s->name_news = tell_workers;
	s->name_news_arg = d;
	r = main_loop_open(&d->main_loop);
	if (r)
		log_error("no event loop: %s", strerror(-r));
	r = r ? EXIT_CODE_FAILURE : setup_open(s) ?: begin(d);
	if (!r) {
		int sig;

		d->main_loop.watchdog = &d->watchdog;
		d->main_loop.reload = &d->reload;
		d->main_loop.privileged = s->privileged;
		d->main_loop.session_log = s->shared.session_log;
		d->main_loop.names = s->shared.names;
		d->main_loop.keeper = d->keeper;
		sig = main_loop_run(&d->main_loop);
		log_info("%s: no new sessions; the %u that run may finish within %.1f s",
			 strsignal(sig), admission_sessions(s->shared.admission),
			 atomic_load(&s->shared.grace_ms) / 1000.0);
		sd_notifyf(0, "STOPPING=1\nSTATUS=Waits for sessions that run, %.1f s at most",
			   atomic_load(&s->shared.grace_ms) / 1000.0);
	}
	end(d);
	setup_close(s);
	main_loop_close(&d->main_loop);
	log_tell_suppressed(true);
	return r;
}

int daemon_run(int argc, char **argv)
{
	struct daemon d = { .setup = { .argc = argc, .argv = argv, .pid_file = -1 } };
	struct config *c = &d.setup.config;
	int r;

	d.setup.shared.config = c;
	if (descriptors_reserve_streams())
		return EXIT_CODE_FAILURE;
	endpoint_keep_services(); /* for a reload, which can open no file */
	r = config_parse(argc, argv, c);
	if (r) {
		config_close(c);
		return config_exit_code(r);
	}
	log_set_level(c->log_level);
	main_loop_take_signals(); /* before there are threads */
	r = run(&d);
	config_close(c);
	return r;
}
