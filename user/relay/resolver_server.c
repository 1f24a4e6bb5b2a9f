// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one loop, which takes what is asked, does what queue_next() says, and waits
 * until a process answers, somebody asks, or queue_due().  It waits for nothing else: not for a
 * process that it has killed, which may be stuck in the kernel (a file of a server that is gone);
 * those are reaped when they have ended, and until then take one of a number of places of their
 * own, so that there is an end to them, too.
 */
#include "relay/resolver_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/syscall_filter.h"
#include "relay/resolver.h"
#include "relay/resolver_queue.h"

#define PIPE 3 /* in a look-up */
#define REAP_MS 20
#define HINDERED_MS 200
#define STEPS 8
#define SILENT "the name server, or what else is asked, does not answer"
#define NO_PLACE "its turn has not come: too many other names are looked up and not answered"

struct server {
	struct queue queue;
	enum filter_mode filter;
	pid_t dying[2 * RESOLVER_PROCESSES]; /* killed, and not reaped */
	size_t n_dying;
	uint64_t hindered_ms; /* no process can be made: not before then */
};

int resolver_keep_only(int keep)
{
	if (keep != 3 && dup2(keep, 3) < 0)
		return -errno;
	return syscall(SYS_close_range, 4U, ~0U, 0U) ? -errno : 0;
}

int resolver_end_with_parent(void)
{
	return prctl(PR_SET_PDEATHSIG, SIGKILL) ? -errno : 0;
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
static void look_up(const struct server *s, int pipe, const struct resolver_request *q, int family)
{
	struct resolver_reply reply = { 0 };
	struct endpoint e;
	char err[LOOKUP_WHY_LEN];

	if (resolver_end_with_parent() || resolver_keep_only(pipe) ||
	    syscall_filter_resolver(s->filter, true, err, sizeof(err)))
		_exit(1);
	reply.error = endpoint_parse_family(q->text, q->passive != 0, family, &e, err, sizeof(err));
	if (reply.error)
		snprintf(reply.why, sizeof(reply.why), "%s", err);
	else
		fill(&reply, &e);
	write_reply(PIPE, &reply);
	_exit(0);
}

/* --- answers --- */

static void answer(uint32_t id, struct resolver_reply *p, size_t len)
{
	p->id = id;
	/* a daemon that does not read gets no more: it asks again */
	(void)send(RESOLVER_SOCKET, p, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void answer_error(uint32_t id, int error, const char *why, bool hung)
{
	struct resolver_reply p = { .error = error, .hung = hung };

	snprintf(p.why, sizeof(p.why), "%s", why);
	answer(id, &p, offsetof(struct resolver_reply, addrs));
}

void resolver_answer_error(uint32_t id, int error, const char *why)
{
	answer_error(id, error, why, false);
}

/* --- processes --- */

static void reap(struct server *s)
{
	size_t left = 0;

	for (size_t i = 0; i < s->n_dying; i++)
		if (waitpid(s->dying[i], NULL, WNOHANG) == 0)
			s->dying[left++] = s->dying[i];
	s->n_dying = left;
}

/* Its process may have closed the pipe and live on. */
static void end_runner(struct server *s, struct runner *r)
{
	kill(r->pid, SIGKILL);
	close(r->pipe);
	s->dying[s->n_dying++] = r->pid;
	queue_ended(&s->queue, r);
}

/* But the first that runs, if KEEP. */
static void end_runners(struct server *s, struct job *j, bool keep)
{
	for (unsigned int i = 0; i < j->begun; i++) {
		if (j->runners[i].pid && !keep)
			end_runner(s, &j->runners[i]);
		else if (j->runners[i].pid)
			keep = false;
	}
}

static void end_job(struct server *s, struct job *j)
{
	end_runners(s, j, false);
	queue_remove(&s->queue, j);
}

/* It ends by itself, and soon. */
static void explain(const struct runner *r, char *why, size_t size)
{
	int status = 0;

	kill(r->pid, SIGKILL);
	while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR)
		;
	snprintf(why, size, "the look-up ended without an answer (%s %d)",
		 WIFSIGNALED(status) ? "signal" : "exit code",
		 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void runner_answered(struct server *s, struct job *j, struct runner *r, uint64_t now)
{
	struct resolver_reply p = { 0 };
	ssize_t n = read(r->pipe, &p, sizeof(p));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n < (ssize_t)offsetof(struct resolver_reply, addrs)) {
		n = offsetof(struct resolver_reply, addrs);
		p = (struct resolver_reply){ .error = -EIO };
		explain(r, p.why, sizeof(p.why));
		close(r->pipe);
		queue_ended(&s->queue, r);
	} else {
		end_runner(s, r);
	}
	p.why[sizeof(p.why) - 1] = '\0';
	if (!queue_settles(j, r, p.error, p.why, now))
		return;
	if (j->error)
		answer_error(j->q.id, j->error, j->why, queue_has_hung(j, now));
	else
		answer(j->q.id, &p, (size_t)n);
	end_job(s, j);
}

/* -errno: there is no room for another process, or no memory. */
static int begin(struct server *s, struct job *j, uint64_t now)
{
	struct runner r;
	int ends[2];

	if (s->n_dying >= RESOLVER_PROCESSES)
		return -EAGAIN;
	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	r.pipe = ends[0];
	r.pid = fork();
	if (r.pid == 0)
		look_up(s, ends[1], &j->q, queue_family(j));
	close(ends[1]);
	if (r.pid > 0) {
		queue_begun(&s->queue, j, r, now);
		return 0;
	}
	close(ends[0]);
	return -EAGAIN;
}

/* --- the loop --- */

static void expire(struct server *s, uint64_t now)
{
	for (size_t i = 0; i < QUEUE_JOBS; i++) {
		struct job *j = &s->queue.jobs[i];

		if (!j->used || now < j->due_ms)
			continue;
		answer_error(j->q.id, -EAGAIN, j->begun ? SILENT : NO_PLACE,
			     queue_has_hung(j, now));
		end_job(s, j);
	}
}

/* Not too much before those who have an answer are heard; true: there is more to be done. */
static bool advance(struct server *s, uint64_t now)
{
	struct queue_step step;

	for (unsigned int i = 0; i < STEPS; i++) {
		if (now < s->hindered_ms)
			return false;
		step = queue_next(&s->queue, now);
		if (!step.what)
			return false;
		if (step.what == QUEUE_BEGIN && begin(s, step.job, now))
			s->hindered_ms = now + HINDERED_MS;
		if (step.what != QUEUE_BEGIN)
			end_runners(s, step.job, step.what == QUEUE_THIN);
		if (step.what == QUEUE_PUT_BACK)
			queue_put_back(&s->queue, step.job, now);
	}
	return true;
}

static int wait_ms(struct server *s, uint64_t now)
{
	uint64_t due = now < s->hindered_ms ? s->hindered_ms : queue_due(&s->queue, now);

	if (s->n_dying && due > now + REAP_MS)
		due = now + REAP_MS;
	return due == UINT64_MAX ? -1 : due > now ? (int)(due - now) : 0;
}

/* All that there are, and is room for.  -1: the daemon is gone. */
static int take_requests(struct server *s, uint64_t now)
{
	while (s->queue.n < QUEUE_JOBS) {
		struct resolver_request q;
		ssize_t n = recv(RESOLVER_SOCKET, &q, sizeof(q), MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n <= 0)
			return -1;
		q.text[sizeof(q.text) - 1] = '\0';
		if (n == sizeof(q))
			queue_add(&s->queue, &q, now);
	}
	return 0;
}

/* What is waited for: number 0 is the socket. */
struct watch {
	struct pollfd p[1 + RESOLVER_PROCESSES];
	struct job *jobs[1 + RESOLVER_PROCESSES];
	struct runner *runners[1 + RESOLVER_PROCESSES];
	nfds_t n;
};

static void watch(struct server *s, struct watch *w)
{
	bool full = s->queue.n == QUEUE_JOBS;

	w->p[0] = (struct pollfd){ .fd = RESOLVER_SOCKET,
				   .events = full ? POLLRDHUP : POLLIN | POLLRDHUP };
	w->n = 1;
	for (size_t i = 0; i < QUEUE_JOBS; i++) {
		struct job *j = &s->queue.jobs[i];

		for (unsigned int k = 0; j->used && k < j->begun; k++) {
			if (!j->runners[k].pid)
				continue;
			w->p[w->n] = (struct pollfd){ .fd = j->runners[k].pipe, .events = POLLIN };
			w->jobs[w->n] = j;
			w->runners[w->n++] = &j->runners[k];
		}
	}
}

/* False: the daemon is gone. */
static bool turn(struct server *s)
{
	uint64_t now = clock_ms();
	struct watch w;
	bool more;

	expire(s, now);
	more = advance(s, now);
	watch(s, &w);
	if (poll(w.p, w.n, more ? 0 : wait_ms(s, now)) <= 0) {
		reap(s);
		return true;
	}
	now = clock_ms();
	for (nfds_t i = 1; i < w.n; i++) /* one may have ended another one of its job */
		if (w.p[i].revents && w.runners[i]->pid && w.jobs[i]->used)
			runner_answered(s, w.jobs[i], w.runners[i], now);
	reap(s);
	return !(w.p[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) &&
	       (!(w.p[0].revents & POLLIN) || !take_requests(s, now));
}

void resolver_serve(enum filter_mode filter)
{
	static struct server s; /* what its processes do not touch, they have no copy of */

	s.filter = filter;
	while (turn(&s))
		;
	for (size_t i = 0; i < QUEUE_JOBS; i++)
		if (s.queue.jobs[i].used)
			end_job(&s, &s.queue.jobs[i]);
	_exit(0);
}
