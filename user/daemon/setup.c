// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: everything that needs root is done first, in this order: the privileged
 * process, which keeps some of it, descriptor limits, BPF program and maps, and whether they can be
 * trusted, listening sockets, control socket, logs.
 * Then root is given up for good.  There are no threads yet: capabilities are each thread's own.
 */
#include "daemon/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/sandbox.h"
#include "base/syscalls_needed.h"
#include "config/file.h"
#include "datapath/pool.h"
#include "relay/connect.h"
#include "relay/limits.h"
#include "relay/names.h"
#include "relay/session_log.h"
#include "relay/socket_stock.h"

SYSCALLS_NEEDED(SYSCALL(write), SYSCALL(close)); /* the pid file */

/* --- descriptors --- */

/* A session has two sockets, and two pipes while both its directions hold spliced bytes. */
#define SOCKETS_EACH 2UL
#define DESCRIPTORS_EACH (SOCKETS_EACH + 2 * 2)
/*
 * Beside those of sessions and forwards: maps, epoll, logs, the control socket's clients, forwards
 * that a reload adds; and idle pipes.
 */
#define OWN_DESCRIPTORS 256
#define SPARE_DESCRIPTORS 1024

int setup_reserve_streams(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return log_complain(-EBADF, "/dev/null cannot be opened: %s",
					    strerror(errno));
	return 0;
}

/*
 * Raise the limit as far as C needs.  Pipes, without which a flow is copied, leave descriptors for
 * sockets, without which there is no session: where there are hardly enough for all sockets, pipes
 * get a quarter.
 */
static void limit_descriptors(const struct config *c)
{
	unsigned long forwards = 0, sockets, want, limit, pipes;

	for (size_t i = 0; i < c->n_forwards; i++)
		forwards += c->forwards[i].listen.n_addrs * c->workers +
			    2UL * SOCKET_STOCK * forward_needs_privileges(&c->forwards[i]);
	sockets = SOCKETS_EACH * c->max_sessions + forwards + OWN_DESCRIPTORS;
	want = DESCRIPTORS_EACH * c->max_sessions + forwards + SPARE_DESCRIPTORS;
	limit = sandbox_raise_nofile(want);
	pipes = limit / 4;
	if (limit > sockets && limit - sockets > pipes)
		pipes = limit - sockets;
	pipes = pipes / 2 < UINT_MAX ? pipes / 2 : UINT_MAX;
	pool_limit_pipes((unsigned int)pipes);
	if (limit < sockets)
		log_warning("only %lu descriptors: %u sessions need %lu, and %lu to splice both "
			    "ways: raise RLIMIT_NOFILE or lower --max-sessions", limit,
			    c->max_sessions, sockets, want);
	else if (limit < want)
		log_warning("only %lu descriptors: enough for %u sessions, but for %lu pipes only "
			    "(RLIMIT_NOFILE %lu gives each two); flows without a pipe are copied",
			    limit, c->max_sessions, pipes, want);
}

/* --- what the kernel has, what needs privileges --- */

/* The kernel side, or the reason why there is none. */
static int open_kernel(struct setup *s)
{
	int r = probe_start(&s->config, &s->shared.kernel, &s->probe);

	if (!s->shared.kernel)
		memcpy(s->kernel_reason, s->probe.sockmap.why, sizeof(s->kernel_reason));
	return r;
}

/* If it is needed by the configuration that is, or that the file may be changed to. */
static int start_privileged(struct setup *s)
{
	const struct config *c = &s->config;
	bool needed = c->file;
	char err[512];
	int r;

	for (size_t i = 0; i < c->n_forwards; i++)
		needed = needed || forward_needs_privileges(&c->forwards[i]);
	if (!needed || !c->privileged_process)
		return 0;
	r = privileged_start(c, s->argc, s->argv, &s->privileged, err, sizeof(err));
	if (r)
		return log_failure(r == -EPERM ? EXIT_CODE_UNSUPPORTED : EXIT_CODE_FAILURE, "%s",
				   err);
	log_info("the privileged process is %d", (int)s->privileged->pid);
	return 0;
}

/* A directory that is missing is missing at the next start, too. */
static int code_of_file(int r)
{
	return r == -ENOENT || r == -ENOTDIR ? EXIT_CODE_USAGE : EXIT_CODE_FAILURE;
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
	return log_failure(code_of_file(r), "%s", err);
}

static int make_forwards(struct setup *s)
{
	const struct config *c = &s->config;

	if (!probe_allows_later(&s->probe.splice, c->probe))
		policy_forbid_splice();
	policy_settle(c->settle_ms);
	for (size_t i = 0; i < c->n_forwards; i++) {
		struct forward *f;
		int r = forward_new(&c->forwards[i], c, NULL, NULL, &f);

		if (!r)
			forwards_add(&s->forwards, f);
		if (r || names_add(s->shared.names, &f->upstream))
			return log_failure(EXIT_CODE_FAILURE, "out of memory for %zu forwards: is "
					   "there a limit, such as MemoryMax= of the unit?",
					   c->n_forwards);
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
				   sizeof(err)))
			return log_failure(EXIT_CODE_FAILURE, "%s", err);
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

	if (given_take(err, sizeof(err)))
		return log_failure(EXIT_CODE_USAGE, "%s", err);
	for (size_t i = 0; !r && i < s->config.n_forwards; i++, f = f->next)
		r = listen_for(s, f, &s->config.forwards[i]);
	if (!r && given_check(err, sizeof(err)))
		r = log_failure(EXIT_CODE_USAGE, "%s", err);
	return r;
}

static int open_session_log(struct setup *s)
{
	const struct session_log_conf conf = {
		.path = s->config.session_log, .account = s->account,
		.sessions = s->config.max_sessions,
	};
	char err[512] = "cannot be duplicated", at[CONFIG_PLACE_LEN];

	if (!conf.path || !session_log_open(&conf, &s->shared.session_log, err, sizeof(err)))
		return 0;
	return log_failure(EXIT_CODE_USAGE, "%ssession log %s: %s",
			   config_option_place(&s->config, "session-log", at), conf.path, err);
}

static int open_names(struct setup *s)
{
	char err[512];

	if ((!names_needed(&s->config) && !s->privileged) ||
	    !names_open(s->loop, s->name_news, s->name_news_arg, &s->shared.names, err,
			sizeof(err)))
		return 0;
	return log_failure(EXIT_CODE_FAILURE, "%s", err);
}

/* --- the pid file --- */

#define BLANKS "                    \n" /* in place of any number */

/* Another file of that name is kept: it may be a device, or a link of somebody else. */
static int write_pid_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
		      0644);
	char pid[sizeof(BLANKS)];
	struct stat st;
	int r = fd < 0 || fstat(fd, &st) ? -errno : 0;

	if (!r && (!S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_uid != geteuid()))
		r = -EEXIST;
	/* the offset stays at the beginning, where the blanks go */
	snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
	if (!r && (ftruncate(fd, 0) || pwrite(fd, pid, strlen(pid), 0) < 0))
		r = -errno;
	if (!r)
		return fd;
	if (fd >= 0)
		close(fd);
	return r;
}

/* To remove it is root's, and the filter keeps ftruncate(2) away: it would do for logs as well. */
static void blank_pid_file(int fd)
{
	if (fd < 0)
		return;
	(void)!write(fd, BLANKS, strlen(BLANKS));
	close(fd);
}

static int open_pid_file(struct setup *s)
{
	char at[CONFIG_PLACE_LEN];

	s->pid_file = s->config.pid_file ? write_pid_file(s->config.pid_file) : -1;
	if (!s->config.pid_file || s->pid_file >= 0)
		return 0;
	return log_failure(code_of_file(s->pid_file), "%spid-file %s: %s",
			   config_option_place(&s->config, "pid-file", at), s->config.pid_file,
			   strerror(-s->pid_file));
}

/* --- all of it --- */

int setup_open(struct setup *s)
{
	char err[512], at[CONFIG_PLACE_LEN];
	int r;

	if (account_find(s->config.user, &s->account, err, sizeof(err)))
		return log_failure(EXIT_CODE_USAGE, "%s%s",
				   config_option_place(&s->config, "user", at), err);
	r = start_privileged(s);
	if (r)
		return r;
	limit_descriptors(&s->config);
	r = open_kernel(s) ?: open_names(s) ?: make_forwards(s) ?: open_listening(s) ?:
	    open_control(s) ?: open_session_log(s) ?: open_pid_file(s);
	if (r)
		return r;
	s->shared.admission = admission_open(&s->config);
	connect_learn_ports();
	r = sandbox_enter(&s->account, err, sizeof(err));
	return r ? log_failure(EXIT_CODE_UNSUPPORTED, "%s", err) : 0;
}

void setup_close(struct setup *s)
{
	admission_close(s->shared.admission);
	listening_close_all(s->listening);
	kernel_close(s->shared.kernel);
	privileged_stop(s->privileged);
	blank_pid_file(s->pid_file);
}
