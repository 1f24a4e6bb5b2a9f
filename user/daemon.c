// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: everything that needs root is done first, in this order: descriptor limits,
 * probe of the kernel, the resolver's processes, BPF program and maps, listening sockets, control
 * socket.  Then root is given up for good, and only then do the threads start: one per worker, one
 * for the control socket, one for names, and this one, which waits for a signal.  When all run, the
 * seccomp filter is loaded for all of them.
 * What needs root after that is done by a process of its own, which is made before all of it.
 */
#include "daemon.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "admission.h"
#include "advice.h"
#include "balance.h"
#include "config.h"
#include "control.h"
#include "descriptors.h"
#include "exit_codes.h"
#include "forward.h"
#include "given.h"
#include "kernel.h"
#include "listener.h"
#include "log.h"
#include "main_loop.h"
#include "inspect.h"
#include "names.h"
#include "operate.h"
#include "pid_file.h"
#include "privileged_client.h"
#include "probe_start.h"
#include "reconfigure.h"
#include "sandbox.h"
#include "services.h"
#include "session.h"
#include "session_log.h"
#include "session_move.h"
#include "syscall_filter.h"
#include "threads.h"
#include "watchdog.h"
#include "worker.h"


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
	struct config config;
	int argc; /* what it was started with */
	char **argv;
	struct privileged *privileged; /* NULL: none */
	struct stock_keeper *keeper;   /* NULL: the same */
	struct reconfigure reconfigure;
	struct shared shared;
	struct balance balance;
	struct forwards forwards;
	struct listening *listening; /* list */
	struct account account;
	struct control *control;
	int pid_file; /* -1: none */
	struct threads threads;
	struct inspect inspect;
	struct watchdog watchdog;
	struct probe_start probe;
	char kernel_reason[PROBE_WHY_LEN];
};

/* --- set-up, as root --- */

/* The kernel side, or the reason why there is none.  Only the engine sockmap insists on it. */
static int open_kernel(struct daemon *d)
{
	const struct forward_conf *insists = config_forward_with(&d->config, ENGINE_SOCKMAP);
	struct kernel_limits limits = { d->config.max_sessions, d->config.workers };
	int r;

	if (!config_forward_with(&d->config, ENGINE_AUTO) && !insists) {
		probe_say_unused(&d->config, d->kernel_reason, sizeof(d->kernel_reason));
		return 0;
	}
	if (!probe_allows(&d->probe.sockmap)) {
		memcpy(d->kernel_reason, d->probe.sockmap.why, sizeof(d->kernel_reason));
		return 0;
	}
	r = kernel_open(&limits, &d->shared.kernel, d->kernel_reason, sizeof(d->kernel_reason));
	if (!r)
		return 0;
	if (insists) {
		probe_say_refused(&d->config, insists, d->kernel_reason);
		return EXIT_CODE_UNSUPPORTED;
	}
	log_warning("everything is carried in user space: %s", d->kernel_reason);
	return 0;
}

/* Is the right to make them there?  To find out at the start is better than for each session. */
static int try_privileges(struct daemon *d)
{
	const struct config *c = &d->config;
	char err[512];
	int fd, r;

	for (size_t i = 0; i < c->n_forwards; i++) {
		if (!forward_needs_privileges(&c->forwards[i]))
			continue;
		r = privileged_sockets(d->privileged, 0, i, AF_INET, 1, &fd, err, sizeof(err));
		if (r) {
			log_error("forward %s has a mark or is transparent, which needs "
				  "CAP_NET_ADMIN: %s", forward_name(&c->forwards[i]), err);
			return r == -EPERM ? EXIT_CODE_UNSUPPORTED : EXIT_CODE_FAILURE;
		}
		close(fd);
	}
	return 0;
}

/* If it is needed by the configuration that is, or that the file may be changed to. */
static int start_privileged(struct daemon *d)
{
	const struct config *c = &d->config;
	bool needed = c->file || session_log_is_file(c->session_log);
	char err[512];

	for (size_t i = 0; i < c->n_forwards; i++)
		needed = needed || forward_needs_privileges(&c->forwards[i]);
	if (!needed || !c->privileged_process)
		return 0;
	if (privileged_start(c, d->argc, d->argv, &d->privileged, err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_FAILURE;
	}
	log_info("the privileged process is %d", (int)privileged_pid(d->privileged));
	return try_privileges(d);
}

/* Without root the default path is out of reach: then culvert runs without a control socket. */
static int open_control(struct daemon *d)
{
	bool fallback = geteuid() && !strcmp(d->config.control, CONFIG_CONTROL_DEFAULT);
	char err[512];
	int r = control_open(d->config.control, d->account.uid, d->account.gid, &d->control, err,
			     sizeof(err));

	if (!r)
		return 0;
	if (fallback && r != -EADDRINUSE) {
		log_warning("no `culvert sessions` and `status`: %s", err);
		return 0;
	}
	log_error("%s", err);
	return EXIT_CODE_FAILURE;
}

static int make_forwards(struct daemon *d)
{
	const struct config *c = &d->config;

	for (size_t i = 0; i < c->n_forwards; i++) {
		struct forward *f;
		int r = forward_new(&c->forwards[i], c, NULL, NULL, &f);

		if (!r)
			forwards_add(&d->forwards, f);
		if (r || names_add(d->shared.names, &f->upstream)) {
			log_error("out of memory for %zu forwards: is there a limit, such as "
				  "MemoryMax= of the unit?", c->n_forwards);
			return EXIT_CODE_FAILURE;
		}
		f->policy.no_splice = !probe_allows_later(&d->probe.splice, c->probe);
	}
	return 0;
}

static int open_listening(struct daemon *d)
{
	struct forward *f = d->forwards.first;
	char err[512];

	if (given_take(err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_USAGE;
	}
	for (size_t i = 0; i < d->config.n_forwards; i++, f = f->next) {
		if (listening_open_endpoint(&listening_by_self, &d->config.forwards[i], f,
					    d->config.workers, &d->listening, err, sizeof(err))) {
			log_error("%s", err);
			return EXIT_CODE_FAILURE;
		}
	}
	if (given_check(err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_USAGE;
	}
	return 0;
}

static int reopen_session_log(void *arg)
{
	char err[512];

	return privileged_open_log(arg, err, sizeof(err));
}

static int open_session_log(struct daemon *d)
{
	const struct session_log_conf conf = {
		.path = d->config.session_log, .account = d->account,
		.sessions = d->config.max_sessions,
		.opener = d->privileged ? reopen_session_log : NULL, .opener_arg = d->privileged,
	};
	char err[512];

	if (!conf.path || !session_log_open(&conf, &d->shared.session_log, err, sizeof(err)))
		return 0;
	log_error("%s", err);
	return EXIT_CODE_USAGE;
}

static int open_names(struct daemon *d)
{
	char err[512];

	if ((!names_needed(&d->config) && !d->privileged) ||
	    !names_open(&d->account, d->config.seccomp, &d->shared.names, err, sizeof(err)))
		return 0;
	log_error("%s", err);
	return EXIT_CODE_FAILURE;
}

static int open_pid_file(struct daemon *d)
{
	char err[512];

	d->pid_file = d->config.pid_file ? pid_file_open(d->config.pid_file, err, sizeof(err)) : -1;
	if (!d->config.pid_file || d->pid_file >= 0)
		return 0;
	log_error("%s", err);
	return EXIT_CODE_FAILURE;
}

static int set_up(struct daemon *d)
{
	char err[512];
	int r;

	if (account_find(d->config.user, &d->account, err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_USAGE;
	}
	/* for a reload, of which the privileged process reads the file first */
	if (d->config.file && services_keep()) {
		log_error("out of memory for the names of services");
		return EXIT_CODE_FAILURE;
	}
	r = start_privileged(d);
	if (r)
		return r;
	descriptors_limit(d->config.max_sessions);
	r = probe_start(&d->config, &d->probe);
	if (r)
		return r;
	r = open_names(d) ?: make_forwards(d) ?: open_kernel(d);
	r = r ?: open_listening(d) ?: open_control(d) ?: open_session_log(d) ?: open_pid_file(d);
	if (r)
		return r;
	if (admission_open(&d->config, &d->shared.admission)) {
		log_error("out of memory for %u sessions: lower --max-sessions",
			  d->config.max_sessions);
		return EXIT_CODE_FAILURE;
	}
	if (sandbox_enter(&d->account, err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_FAILURE;
	}
	return 0;
}

/* --- threads --- */

static void steer(void *arg, unsigned int active)
{
	struct daemon *d = arg;

	log_debug("%u of %u workers carry sessions", active, d->config.workers);
	for (const struct listening *l = d->listening; l; l = l->next)
		listening_steer(l, active);
}

static struct json_object *answer(void *arg, const struct command_request *req,
				  const struct control_peer *peer)
{
	struct daemon *d = arg;

	return operate(&d->inspect, req, peer);
}

/* Sockets in stock, for the forwards that need them. */
static int fill_stocks(struct daemon *d)
{
	struct forward *f = d->forwards.first;
	char err[512];
	int r = d->privileged ? stock_keeper_open(d->privileged, &d->keeper) : 0;

	if (r)
		log_error("cannot start the thread that keeps sockets in stock: %s%s", strerror(-r),
			  advice_threads(-r));
	for (size_t i = 0; !r && i < d->config.n_forwards; i++, f = f->next) {
		if (!forward_needs_privileges(f->conf))
			continue;
		r = socket_stock_open(d->keeper, &d->config, i, &f->stock, err, sizeof(err));
		if (r)
			log_error("forward %s: %s", forward_name(f->conf), err);
	}
	return r ? EXIT_CODE_FAILURE : 0;
}

static int start_threads(struct daemon *d)
{
	int r = threads_open(&d->threads, &d->shared, d->listening);

	if (!r && d->shared.names)
		r = names_start(d->shared.names);
	if (!r)
		balance_start(&d->balance, d->threads.workers);
	return r ?: threads_start(&d->threads);
}

/* --- running --- */

static unsigned int parts_in_use(const struct daemon *d)
{
	unsigned int parts = d->shared.kernel ? PART_SOCKMAP : 0;

	if (d->privileged) /* the file may be changed so that it is needed */
		parts |= PART_PRIVILEGED | (d->config.file ? PART_SOURCE : 0);
	if (d->config.file)
		parts |= PART_UNIX; /* the next configuration may have one */
	for (size_t i = 0; i < d->config.n_forwards; i++) {
		const struct forward_conf *fc = &d->config.forwards[i];
		const struct endpoint *up = &fc->upstream;

		if (fc->source.len || fc->interface || fc->transparent)
			parts |= PART_SOURCE;
		for (size_t j = 0; j < up->n_addrs; j++)
			if (!addr_is_inet(&up->addrs[j]))
				parts |= PART_UNIX;
	}
	if (session_log_is_file(d->config.session_log))
		parts |= PART_SESSION_LOG;
	return parts | (getenv("NOTIFY_SOCKET") ? PART_NOTIFY : 0);
}

/* All threads run: from here on no new ones, no new files, no new listeners. */
static int confine(const struct daemon *d)
{
	const char *sanitizer = syscall_filter_hindrance();
	char err[256];

	if (sanitizer && d->config.seccomp != FILTER_OFF) {
		log_warning("no seccomp filter: built with -fsanitize=%s", sanitizer);
		return 0;
	}
	if (!syscall_filter_enter(d->config.seccomp, parts_in_use(d), err, sizeof(err)))
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
	for (unsigned int i = 0; !r && i < d->config.workers; i++) {
		struct loop *loop = &d->threads.workers[i]->loop;
		struct watched t = { .turns = &loop->turns, .wake = wake_worker, .arg = loop };

		snprintf(t.name, sizeof(t.name), "worker %u", i);
		r = watchdog_add(&d->watchdog, &t);
	}
	if (!r && d->shared.names)
		r = watchdog_add(&d->watchdog, &(struct watched){
			.name = "the thread for names", .turns = names_turns(d->shared.names),
			.wake = names_wake, .arg = d->shared.names });
	if (!r && d->control)
		r = watchdog_add(&d->watchdog, &(struct watched){
			.name = "the control thread", .turns = control_turns(d->control),
			.wake = wake_control, .arg = d->control });
	return r;
}

static void announce_ready(const struct daemon *d)
{
	int r;

	for (size_t i = 0; i < d->config.n_forwards; i++) {
		const struct forward_conf *fc = &d->config.forwards[i];

		log_info("listening on %s, upstream %s, engine %s", fc->listen.text,
			 fc->upstream.text, engine_name(fc->engine));
	}
	log_info("culvert: ready, engine %s, %u workers, user %s%s", engine_name(d->config.engine),
		 d->config.workers, d->account.name,
		 d->shared.kernel ? "" : ", without the kernel path");
	r = sd_notify(0, "READY=1");
	if (r < 0)
		log_warning("systemd cannot be told that culvert is ready, and may stop it: %s (is "
			    "NOTIFY_SOCKET right?)", strerror(-r));
}

static int open_reconfigure(struct daemon *d)
{
	d->reconfigure = (struct reconfigure){
		.argc = d->argc,
		.argv = d->argv,
		.start = &d->config,
		.privileged = d->privileged,
		.names = d->shared.names,
		.reload = {
			.start = &d->config,
			.shared = &d->shared,
			.forwards = &d->forwards,
			.listening = &d->listening,
			.workers = d->threads.workers,
			.keeper = d->keeper,
			.no_splice = !probe_allows_later(&d->probe.splice, d->config.probe),
		},
	};
	return reconfigure_open(&d->reconfigure);
}

static int begin(struct daemon *d)
{
	int r;

	d->inspect = (struct inspect){
		.shared = &d->shared,
		.forwards = &d->forwards,
		.reconfigure = &d->reconfigure,
		.n_workers = d->config.workers,
		.kernel_reason = d->kernel_reason,
		.probe = &d->probe,
	};
	r = fill_stocks(d);
	if (r)
		return r;
	r = inspect_open(&d->inspect) ?: start_threads(d);
	if (r) {
		log_error("cannot start the workers: %s%s", strerror(-r), advice_threads(-r));
		return EXIT_CODE_FAILURE;
	}
	d->inspect.workers = d->threads.workers;
	r = d->shared.session_log ? session_log_start(d->shared.session_log) : 0;
	if (r) {
		log_error("cannot start the thread of the session log: %s%s", strerror(-r),
			  advice_threads(-r));
		return EXIT_CODE_FAILURE;
	}
	r = open_reconfigure(d);
	if (r) {
		log_error("cannot start the thread that reloads: %s%s", strerror(-r),
			  advice_threads(-r));
		return EXIT_CODE_FAILURE;
	}
	r = d->control ? control_start(d->control, answer, d) : 0;
	if (r) {
		log_error("cannot start the control thread: %s%s", strerror(-r),
			  advice_threads(-r));
		return EXIT_CODE_FAILURE;
	}
	if (watch_threads(d)) {
		log_error("out of memory");
		return EXIT_CODE_FAILURE;
	}
	r = confine(d);
	if (d->shared.names) /* from here on this process cannot look up anything itself */
		endpoint_look_up_by(names_look_up, d->shared.names);
	if (!r)
		announce_ready(d);
	return r;
}

static int run(struct daemon *d)
{
	int r;

	forwards_init(&d->forwards);
	d->shared.grace_ms = d->config.grace_ms;
	balance_open(&d->balance, d->config.spread, d->config.workers, steer, d);
	d->shared.balance = &d->balance;
	r = set_up(d);

	if (!r)
		r = begin(d);
	if (!r) {
		int sig = main_loop_run(&(struct main_loop){
			.watchdog = &d->watchdog,
			.reconfigure = &d->reconfigure,
			.privileged = d->privileged,
			.session_log = d->shared.session_log,
		});

		log_info("%s: no new sessions; the %u that run may finish within %.1f s",
			 strsignal(sig), admission_sessions(d->shared.admission),
			 atomic_load(&d->shared.grace_ms) / 1000.0);
		sd_notify(0, "STOPPING=1");
	}
	reconfigure_stop(&d->reconfigure);
	watchdog_close(&d->watchdog);
	balance_stop(&d->balance);
	threads_stop(&d->threads);
	control_close(d->control);
	reconfigure_close(&d->reconfigure);
	session_log_close(d->shared.session_log);
	threads_close(&d->threads);
	inspect_close(&d->inspect);
	admission_close(d->shared.admission);
	balance_close(&d->balance);
	listening_close_all(d->listening);
	given_close();
	names_close(d->shared.names);
	forwards_close(&d->forwards);
	stock_keeper_close(d->keeper);
	kernel_close(d->shared.kernel);
	privileged_stop(d->privileged);
	log_tell_suppressed(true);
	pid_file_close(d->pid_file);
	services_forget();
	return r;
}

int daemon_run(int argc, char **argv)
{
	struct daemon d = { .shared.config = &d.config, .argc = argc, .argv = argv,
			    .pid_file = -1 };
	int r;

	if (descriptors_reserve_streams())
		return EXIT_CODE_FAILURE;
	r = config_parse(argc, argv, &d.config);
	if (r) {
		config_close(&d.config);
		return config_exit_code(r);
	}
	log_set_level(d.config.log_level);
	main_loop_take_signals(); /* before there are threads */
	r = run(&d);
	config_close(&d.config);
	return r;
}
