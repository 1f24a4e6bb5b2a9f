// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: everything that needs root is done first, in this order: the privileged
 * process, which keeps some of it, descriptor limits, BPF program and maps, and whether they can be
 * trusted, names to listen at, listening sockets, control socket, logs.
 * Then root is given up for good.  There are no threads yet: capabilities are each thread's own.
 */
#include "daemon/setup.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/descriptors.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/pid_file.h"
#include "config/file.h"
#include "relay/given.h"
#include "relay/session_log.h"
#include "relay/limits.h"
#include "relay/names.h"
#include "relay/connect.h"

/* Where the file says NAME; "" if it does not. */
static const char *place(const struct setup *s, const char *name, char *buf)
{
	return config_place(s->config.file, config_option_line(&s->config, name), buf);
}

/* The kernel side, or the reason why there is none. */
static int open_kernel(struct setup *s)
{
	int r = probe_start(&s->config, &s->shared.kernel, &s->probe);

	if (!s->shared.kernel)
		memcpy(s->kernel_reason, s->probe.sockmap.why, sizeof(s->kernel_reason));
	return r;
}

/* Is the right to make them there?  To find out at the start is better than for each session. */
static int try_privileges(struct setup *s)
{
	const struct config *c = &s->config;
	char err[512];
	int fd, r;

	for (size_t i = 0; i < c->n_forwards; i++) {
		if (!forward_needs_privileges(&c->forwards[i]))
			continue;
		r = privileged_sockets(s->privileged, 0, i, AF_INET, 1, &fd, err, sizeof(err));
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
static int start_privileged(struct setup *s)
{
	const struct config *c = &s->config;
	bool needed = c->file || log_file_is_path(c->session_log);
	char err[512];
	int r;

	for (size_t i = 0; i < c->n_forwards; i++)
		needed = needed || forward_needs_privileges(&c->forwards[i]);
	if (!needed || !c->privileged_process)
		return 0;
	r = privileged_start(c, s->argc, s->argv, &s->privileged, err, sizeof(err));
	if (r) {
		log_error("%s", err);
		return r == -EPERM ? EXIT_CODE_UNSUPPORTED : EXIT_CODE_FAILURE;
	}
	log_info("the privileged process is %d", (int)privileged_pid(s->privileged));
	return try_privileges(s);
}

/* Without root the default path is out of reach: then culvert runs without a control socket. */
static int open_control(struct setup *s)
{
	bool fallback = geteuid() && !strcmp(s->config.control, CONFIG_CONTROL_DEFAULT);
	char err[512];
	int r = control_open(s->config.control, s->account.uid, s->account.gid, &s->control, err,
			     sizeof(err));

	if (!r)
		return 0;
	if (fallback && r != -EADDRINUSE) {
		log_warning("no `culvert sessions` and `status`: %s", err);
		return 0;
	}
	log_error("%s", err);
	/* as of the other files: no new start finds the directory */
	return r == -ENOENT || r == -ENOTDIR ? EXIT_CODE_USAGE : EXIT_CODE_FAILURE;
}

static int make_forwards(struct setup *s)
{
	const struct config *c = &s->config;

	for (size_t i = 0; i < c->n_forwards; i++) {
		struct forward *f;
		int r = forward_new(&c->forwards[i], c, NULL, NULL, &f);

		if (!r)
			forwards_add(&s->forwards, f);
		if (r || names_add(s->shared.names, &f->upstream)) {
			log_error("out of memory for %zu forwards: is there a limit, such as "
				  "MemoryMax= of the unit?", c->n_forwards);
			return EXIT_CODE_FAILURE;
		}
		f->policy.no_splice = !probe_allows_later(&s->probe.splice, c->probe);
	}
	return 0;
}

/* All addresses of F, which is made of FC. */
static int listen_for(struct setup *s, struct forward *f, struct forward_conf *fc)
{
	struct endpoint *e = &fc->listen;
	char err[512];

	for (size_t i = 0; i < e->n_addrs; i++) {
		struct listening *l;

		if (listening_open(NULL, fc, f, &e->addrs[i], false, s->config.workers, &l, err,
				   sizeof(err))) {
			log_error("%s", err);
			return EXIT_CODE_FAILURE;
		}
		listening_adopt(l, e, &e->addrs[i]);
		l->next = s->listening;
		s->listening = l;
	}
	return 0;
}

static int open_listening(struct setup *s)
{
	struct forward *f = s->forwards.first;
	char err[512];
	int r = 0;

	if (given_take(err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_USAGE;
	}
	for (size_t i = 0; !r && i < s->config.n_forwards; i++, f = f->next)
		r = listen_for(s, f, &s->config.forwards[i]);
	if (r)
		return r;
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

static int open_session_log(struct setup *s)
{
	const struct session_log_conf conf = {
		.path = s->config.session_log, .account = s->account,
		.sessions = s->config.max_sessions,
		.opener = s->privileged ? reopen_session_log : NULL, .opener_arg = s->privileged,
	};
	char err[512], at[CONFIG_PLACE_LEN];

	if (!conf.path || !session_log_open(&conf, &s->shared.session_log, err, sizeof(err)))
		return 0;
	log_error("%s%s", place(s, "session-log", at), err);
	return EXIT_CODE_USAGE;
}

static int open_names(struct setup *s)
{
	char err[512];

	if ((!names_needed(&s->config) && !s->privileged) ||
	    !names_open(s->loop, s->name_news, s->name_news_arg, &s->shared.names, err,
			sizeof(err)))
		return 0;
	log_error("%s", err);
	return EXIT_CODE_FAILURE;
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
static int find_listeners(struct setup *s)
{
	const struct sigaction end = { .sa_handler = end_at_once };
	static const int signals[] = { SIGTERM, SIGINT, SIGQUIT };
	sigset_t set, before;
	char err[512];
	int r;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		sigaction(signals[i], &end, NULL);
		sigaddset(&set, signals[i]);
	}
	pthread_sigmask(SIG_UNBLOCK, &set, &before);
	r = names_find_listeners(NULL, &s->config, err, sizeof(err));
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		log_error("%s", err);
	return config_exit_code(r);
}

static int open_pid_file(struct setup *s)
{
	char err[512], at[CONFIG_PLACE_LEN];

	s->pid_file = s->config.pid_file ? pid_file_open(s->config.pid_file, err, sizeof(err)) : -1;
	if (!s->config.pid_file || s->pid_file >= 0)
		return 0;
	log_error("%s%s", place(s, "pid-file", at), err);
	return s->pid_file == -ENOENT || s->pid_file == -ENOTDIR ? EXIT_CODE_USAGE :
								    EXIT_CODE_FAILURE;
}

int setup_open(struct setup *s)
{
	char err[512], at[CONFIG_PLACE_LEN];
	int r;

	if (account_find(s->config.user, &s->account, err, sizeof(err))) {
		log_error("%s%s", place(s, "user", at), err);
		return EXIT_CODE_USAGE;
	}
	r = start_privileged(s);
	if (r)
		return r;
	descriptors_limit(&s->config);
	r = open_kernel(s) ?: open_names(s) ?: find_listeners(s) ?: make_forwards(s);
	r = r ?: open_listening(s) ?: open_control(s) ?: open_session_log(s) ?: open_pid_file(s);
	if (r)
		return r;
	if (admission_open(&s->config, &s->shared.admission)) {
		log_error("out of memory for %u sessions: lower --max-sessions",
			  s->config.max_sessions);
		return EXIT_CODE_FAILURE;
	}
	connect_learn_ports();
	if (sandbox_enter(&s->account, err, sizeof(err))) {
		log_error("%s", err);
		return EXIT_CODE_UNSUPPORTED;
	}
	return 0;
}

void setup_close(struct setup *s)
{
	admission_close(s->shared.admission);
	listening_close_all(s->listening);
	given_close();
	kernel_close(s->shared.kernel);
	privileged_stop(s->privileged);
	pid_file_close(s->pid_file);
}
