// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the guardian starts a server and waits for it; the server takes requests
 * from the socket, and makes a process for each, which is given one end of a pipe and nothing else.
 * So whoever takes over a look-up, by an answer that a bug in a C library cannot stand, can give a
 * wrong address for the name that was asked, as the name server could anyway, and nothing more: not
 * see or answer what else is asked, not signal or trace another process, not start one.  The server
 * itself only copies packets.  It reads no answer of a name server, and does not trust what comes
 * from a pipe with more than that one answer.
 *
 * The number of look-ups is bounded; who comes then waits in the socket, and when that is full the
 * daemon is told by EAGAIN.
 */
#include "resolver_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "syscall_filter.h"

#define SOCKET 3 /* in guardian and server, where 0 to 2 are /dev/null */
#define PIPE 3   /* in a look-up */
#define DESCRIPTORS 128
#define RESTART_MS 200
#define PROCESS_NAME "culvert-resolve"

/* One look-up; pid 0: none. */
struct job {
	pid_t pid;
	uint32_t id;
	int pipe;
	uint64_t due_ms;
};

struct server {
	struct job jobs[RESOLVER_AT_ONCE];
	enum filter_mode filter;
};

/* Keep descriptor KEEP as number 3, and nothing above. */
static int keep_only(int keep)
{
	if (keep != 3 && dup2(keep, 3) < 0)
		return -errno;
	return syscall(SYS_close_range, 4U, ~0U, 0U) ? -errno : 0;
}

/* --- a look-up --- */

static void fill(struct resolver_reply *p, const struct endpoint *e)
{
	for (size_t i = 0; i < e->n_addrs && p->n < RESOLVER_ADDRS_MAX; i++)
		if (addr_is_inet(&e->addrs[i]))
			memcpy(&p->addrs[p->n++], &e->addrs[i].ss, e->addrs[i].len);
	if (!p->n)
		p->error = -EINVAL;
}

static void write_reply(int fd, const struct resolver_reply *p)
{
	size_t len = offsetof(struct resolver_reply, addrs) + p->n * sizeof(p->addrs[0]);

	if (write(fd, p, len) != (ssize_t)len) /* below PIPE_BUF: all or nothing */
		_exit(1);
}

_Static_assert(sizeof(struct resolver_reply) <= 4096, "PIPE_BUF");

__attribute__((noreturn))
static void look_up(struct server *s, int pipe, const struct resolver_request *q)
{
	struct resolver_reply reply = { 0 };
	struct endpoint e;
	char err[LOOKUP_WHY_LEN];

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || keep_only(pipe) ||
	    syscall_filter_resolver(s->filter, true, err, sizeof(err)))
		_exit(1);
	reply.error = endpoint_parse(q->text, q->passive != 0, &e, err, sizeof(err));
	if (reply.error)
		snprintf(reply.why, sizeof(reply.why), "%s", err);
	else
		fill(&reply, &e);
	write_reply(PIPE, &reply);
	_exit(0);
}

/* --- the server --- */

static void answer(uint32_t id, struct resolver_reply *p, size_t len)
{
	p->id = id;
	/* a daemon that does not read gets no more: it asks again */
	(void)send(SOCKET, p, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void answer_error(uint32_t id, int error, const char *why)
{
	struct resolver_reply p = { .error = error };

	snprintf(p.why, sizeof(p.why), "%s", why);
	answer(id, &p, offsetof(struct resolver_reply, addrs));
}

/* Its process may have closed the pipe and live on. */
static int end_job(struct job *j)
{
	int status = 0;

	kill(j->pid, SIGKILL);
	while (waitpid(j->pid, &status, 0) < 0 && errno == EINTR)
		;
	close(j->pipe);
	j->pid = 0;
	return status;
}

static void job_answered(struct job *j)
{
	struct resolver_reply p;
	ssize_t n = read(j->pipe, &p, sizeof(p));
	char why[LOOKUP_WHY_LEN];
	int status;

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	status = end_job(j);
	if (n >= (ssize_t)offsetof(struct resolver_reply, addrs)) {
		answer(j->id, &p, (size_t)n);
		return;
	}
	snprintf(why, sizeof(why), "the look-up ended without an answer (%s %d)",
		 WIFSIGNALED(status) ? "signal" : "exit code",
		 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	answer_error(j->id, -EIO, why);
}

static void job_begin(struct server *s, struct job *j, const struct resolver_request *q)
{
	int ends[2];
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC)) {
		answer_error(q->id, -EAGAIN, strerror(errno));
		return;
	}
	pid = fork();
	if (pid == 0)
		look_up(s, ends[1], q);
	if (pid < 0) {
		answer_error(q->id, -EAGAIN, strerror(errno));
		close(ends[0]);
	} else {
		*j = (struct job){ .pid = pid, .id = q->id, .pipe = ends[0],
				   .due_ms = clock_ms() + RESOLVER_PATIENCE_MS };
	}
	close(ends[1]);
}

/* 0, or -1 when the daemon is gone. */
static int take_request(struct server *s, struct job *free)
{
	struct resolver_request q;
	ssize_t n = recv(SOCKET, &q, sizeof(q), MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	if (n == 0)
		return -1;
	q.text[sizeof(q.text) - 1] = '\0';
	if (n == sizeof(q))
		job_begin(s, free, &q);
	return 0;
}

/* What to wait for: P[0] is the socket, P[1 + i] job I.  Returns a job that is free, or NULL. */
static struct job *plan(struct server *s, struct pollfd *p, int *ret_wait_ms)
{
	uint64_t now = clock_ms(), due = UINT64_MAX;
	struct job *free = NULL;

	for (size_t i = 0; i < RESOLVER_AT_ONCE; i++) {
		struct job *j = &s->jobs[i];

		if (j->pid && j->due_ms <= now) {
			end_job(j);
			answer_error(j->id, -EAGAIN, "the name server, or what else is asked, does "
						     "not answer");
		}
		p[1 + i] = (struct pollfd){ .fd = j->pid ? j->pipe : -1, .events = POLLIN };
		if (!j->pid)
			free = j;
		else if (j->due_ms < due)
			due = j->due_ms;
	}
	p[0] = (struct pollfd){ .fd = SOCKET, .events = POLLRDHUP };
	if (free)
		p[0].events |= POLLIN;
	*ret_wait_ms = due == UINT64_MAX ? -1 : (int)(due - now);
	return free;
}

__attribute__((noreturn))
static void serve(enum filter_mode filter)
{
	struct server s = { .filter = filter };

	for (;;) {
		struct pollfd p[1 + RESOLVER_AT_ONCE];
		struct job *free;
		int wait_ms;

		free = plan(&s, p, &wait_ms);
		if (poll(p, 1 + RESOLVER_AT_ONCE, wait_ms) <= 0)
			continue;
		for (size_t i = 0; i < RESOLVER_AT_ONCE; i++)
			if (p[1 + i].revents)
				job_answered(&s.jobs[i]);
		if (p[0].revents & (POLLRDHUP | POLLHUP | POLLERR) ||
		    (p[0].revents & POLLIN && free && take_request(&s, free)))
			break;
	}
	for (size_t i = 0; i < RESOLVER_AT_ONCE; i++)
		if (s.jobs[i].pid)
			end_job(&s.jobs[i]);
	_exit(0);
}

/* --- the guardian --- */

/* Service managers signal every process of a service; these end when the daemon does. */
static void ignore_signals(void)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM,
				       SIGPIPE };

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		signal(signals[i], SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
}

static int become_nobody(const struct account *a, enum filter_mode filter, int sock, char *err,
			 size_t errlen)
{
	struct rlimit descriptors = { DESCRIPTORS, DESCRIPTORS };
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int r = null < 0 ? -errno : 0;

	for (int fd = 0; !r && fd < 3; fd++)
		r = dup2(null, fd) < 0 ? -errno : 0;
	r = r ?: keep_only(sock);
	(void)setrlimit(RLIMIT_NOFILE, &descriptors); /* a service manager may not let us */
	if (r) {
		snprintf(err, errlen, "descriptors: %s", strerror(-r));
		return r;
	}
	prctl(PR_SET_NAME, PROCESS_NAME);
	return sandbox_enter(a, err, errlen) ?:
	       syscall_filter_resolver(filter, false, err, errlen);
}

/* Tells the daemon, too: what was under way will not be answered. */
__attribute__((noreturn))
static void guard(enum filter_mode filter)
{
	for (;; answer_error(0, -ECHILD, "the resolver had to be started again")) {
		pid_t pid = fork();
		int status = 0;

		if (pid == 0)
			serve(filter);
		while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (pid > 0 && WIFEXITED(status) && !WEXITSTATUS(status))
			_exit(0);
		usleep(RESTART_MS * 1000);
	}
}

/* The first packet tells the daemon how it went. */
__attribute__((noreturn))
static void guardian(const struct account *a, enum filter_mode filter, int sock)
{
	struct resolver_reply hello = { 0 };

	ignore_signals();
	hello.error = become_nobody(a, filter, sock, hello.why, sizeof(hello.why));
	if (send(SOCKET, &hello, offsetof(struct resolver_reply, addrs), MSG_NOSIGNAL) < 0 ||
	    hello.error)
		_exit(1);
	guard(filter);
}

pid_t resolver_fork(const struct account *a, enum filter_mode filter, int sock)
{
	pid_t pid = fork();

	if (pid == 0)
		guardian(a, filter, sock);
	return pid < 0 ? -errno : pid;
}
