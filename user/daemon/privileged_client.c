// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/privileged_client.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"
#include "base/advice.h"
#include "config/file.h"
#include "daemon/privileged.h"

SYSCALLS_NEEDED(
	SYSCALL_IF(PART_PRIVILEGED, sendto),
	SYSCALL_IF(PART_PRIVILEGED, recvmsg),
	SYSCALL_IF(PART_PRIVILEGED, recvfrom),
	SYSCALL_IF(PART_PRIVILEGED, shutdown),
	SYSCALL_IF(PART_PRIVILEGED, wait4, SYSCALL_ARG(2, WNOHANG)),
	SYSCALL_IF(PART_PRIVILEGED, close));

struct privileged {
	int fd;
	pid_t pid;
	pthread_mutex_t lock; /* one request at a time */
	bool reaped;
	_Atomic bool ended; /* changed with the lock */
};

static int complain(int error, char *err, size_t errlen, const char *text)
{
	snprintf(err, errlen, "%s", text);
	return error;
}

/* With the lock. */
static int give_up(struct privileged *p, const char *why)
{
	if (!p->ended)
		log_error("%s: no reload, no new listener, no new file, until culvert is started "
			  "again; all else goes on", why);
	p->ended = true;
	/* whatever it still says belongs to no request */
	shutdown(p->fd, SHUT_RDWR);
	return -EPIPE;
}

/* --- start and end --- */

static int first_word(struct privileged *p, char *err, size_t errlen)
{
	struct privileged_answer a;
	ssize_t n;

	do
		n = recv(p->fd, &a, sizeof(a), 0);
	while (n < 0 && errno == EINTR);
	if (n != sizeof(a))
		return complain(n < 0 ? -errno : -EPIPE, err, errlen,
				"the privileged process does not start");
	if (a.error)
		snprintf(err, errlen, "the privileged process %.*s", PRIVILEGED_TEXT - 1, a.text);
	return -a.error;
}

static int cannot_start(int error, char *err, size_t errlen)
{
	snprintf(err, errlen, "cannot start the privileged process: %s%s", strerror(-error),
		 advice(ADVICE_RESOURCES, -error));
	return error;
}

int privileged_start(const struct config *c, int argc, char **argv, struct privileged **ret,
		     char *err, size_t errlen)
{
	const struct timeval patience = { .tv_sec = PRIVILEGED_PATIENCE_S };
	struct privileged *p = calloc(1, sizeof(*p));
	int fds[2], r;

	if (!p || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds)) {
		r = p ? -errno : -ENOMEM;
		free(p);
		return cannot_start(r, err, errlen);
	}
	pthread_mutex_init(&p->lock, NULL);
	p->fd = fds[0];
	p->pid = fork();
	if (!p->pid)
		privileged_run(fds[1], c, argc, argv);
	r = p->pid < 0 ? cannot_start(-errno, err, errlen) : 0;
	close(fds[1]);
	setsockopt(p->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(p->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	r = r ?: first_word(p, err, errlen);
	if (r) {
		privileged_stop(p);
		return r;
	}
	*ret = p;
	return 0;
}

void privileged_stop(struct privileged *p)
{
	if (!p)
		return;
	close(p->fd);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

pid_t privileged_pid(const struct privileged *p)
{
	return p ? p->pid : -1;
}

/* Its end of the socket is closed as soon as it ends, which is before anybody has reaped it. */
bool privileged_runs(const struct privileged *p)
{
	char c;

	return p && !p->ended && recv(p->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

void privileged_reap(struct privileged *p)
{
	char why[128];
	int status;

	if (!p || p->reaped || waitpid(p->pid, &status, WNOHANG) != p->pid)
		return;
	p->reaped = true;
	if (WIFSIGNALED(status))
		snprintf(why, sizeof(why), "the privileged process was ended by signal %d",
			 WTERMSIG(status));
	else
		snprintf(why, sizeof(why), "the privileged process has ended with exit code %d",
			 WEXITSTATUS(status));
	pthread_mutex_lock(&p->lock);
	give_up(p, why);
	pthread_mutex_unlock(&p->lock);
}

/* --- requests --- */

/* The descriptors that came with M: at most MAX are kept.  Returns how many. */
static size_t take_descriptors(struct msghdr *m, int *fds, size_t max)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t len = c->cmsg_len - CMSG_LEN(0);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; at + sizeof(int) <= len; at += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
			if (n < max)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	return n;
}

/* An answer, and the descriptors that came with it.  Returns how many, or -errno. */
static int receive(struct privileged *p, struct privileged_answer *a, int *fds, size_t max)
{
	union {
		char room[CMSG_SPACE(sizeof(int) * PRIVILEGED_FDS)];
		struct cmsghdr align;
	} control;
	struct iovec iov = { a, sizeof(*a) };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control.room, .msg_controllen = sizeof(control.room),
	};
	ssize_t n;

	do
		n = recvmsg(p->fd, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (n != sizeof(*a))
		return -EPIPE;
	a->text[sizeof(a->text) - 1] = '\0';
	return (int)take_descriptors(&m, fds, max);
}

static void close_all(int *fds, int n)
{
	while (n > 0)
		close(fds[--n]);
}

/* PRIVILEGED_CLOSED.  0, or -errno: the descriptors may not be used. */
static int receive_closed(const struct privileged *p)
{
	char byte = 0;
	ssize_t n;

	do
		n = recv(p->fd, &byte, sizeof(byte), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n && byte == PRIVILEGED_CLOSED ? 0 : -EPIPE;
}

/*
 * The answer to Q, and the descriptors that came with it, which nobody else holds any more.
 * Returns how many, or -errno; -EAGAIN: it has not answered in time.
 */
static int exchange(struct privileged *p, const struct privileged_request *q,
		    struct privileged_answer *a, int *fds)
{
	int n, r;

	if (p->ended || send(p->fd, q, sizeof(*q), MSG_NOSIGNAL) != sizeof(*q))
		return -EPIPE;
	n = receive(p, a, fds, q->count);
	if (n < 0 || a->error || !q->count)
		return n;
	r = receive_closed(p);
	if (r) {
		close_all(fds, n);
		return r;
	}
	return n;
}

/*
 * With the lock.  The answer to Q, and as many descriptors as it asks for.  Where there is no room
 * for all of them the kernel passes some: then none are kept.
 */
static int ask(struct privileged *p, const struct privileged_request *q,
	       struct privileged_answer *a, int *fds, char *err, size_t errlen)
{
	int n;

	a->error = 0; /* receive() fills it; the analysis cannot see that */
	n = exchange(p, q, a, fds);
	if (n < 0)
		return complain(give_up(p, n == -EAGAIN ?
					"the privileged process does not answer" :
					"the privileged process has ended"),
				err, errlen, "the privileged process has ended: start culvert "
				"again");
	if (a->error) {
		close_all(fds, n);
		return complain(-a->error, err, errlen, a->text);
	}
	if ((uint32_t)n != q->count) {
		close_all(fds, n);
		return complain(-EMFILE, err, errlen, strerror(EMFILE));
	}
	return 0;
}

static int have(const struct privileged *p, char *err, size_t errlen)
{
	return p ? 0 : complain(-EPERM, err, errlen, "this needs the privileged process, which "
				"culvert does not have: it was started without a configuration "
				"file (--config), or with --privileged-process no");
}

/* With the lock: the LEN bytes that follow an answer. */
static int receive_text(struct privileged *p, size_t len, char *text)
{
	size_t have_len = 0;

	if (len > CONFIG_FILE_MAX)
		return give_up(p, "the privileged process says what it never would");
	while (have_len < len) {
		ssize_t n = recv(p->fd, text + have_len, len - have_len, 0);

		if (n > 0)
			have_len += (size_t)n;
		else if (n == 0 || errno != EINTR)
			return give_up(p, "the privileged process has ended");
	}
	text[len] = '\0';
	return 0;
}

/* The room comes first: what is on its way and is not read would be taken for other answers. */
int privileged_read_config(struct privileged *p, uint32_t in_use, char **ret_text, size_t *ret_len,
			   uint32_t *ret_generation, char *err, size_t errlen)
{
	const struct privileged_request q = { .op = PRIVILEGED_READ_CONFIG, .generation = in_use };
	struct privileged_answer a = { 0 };
	int r = have(p, err, errlen);
	char *text;

	*ret_len = *ret_generation = 0;
	if (r)
		return r;
	text = malloc(CONFIG_FILE_MAX + 1);
	if (!text)
		return complain(-ENOMEM, err, errlen, strerror(ENOMEM));
	pthread_mutex_lock(&p->lock);
	r = ask(p, &q, &a, NULL, err, errlen);
	if (!r) {
		r = receive_text(p, a.size, text);
		if (r)
			complain(r, err, errlen, strerror(-r));
	}
	pthread_mutex_unlock(&p->lock);
	if (r) {
		free(text);
		return r;
	}
	*ret_text = text;
	*ret_len = a.size;
	*ret_generation = a.generation;
	return 0;
}

static int lock_soon(struct privileged *p, char *err, size_t errlen)
{
	struct timespec until = clock_timespec(clock_real_ms() +
					       PRIVILEGED_BUSY_S * UINT64_C(1000));

	if (!pthread_mutex_timedlock(&p->lock, &until))
		return 0;
	return complain(-EBUSY, err, errlen, "the privileged process has not answered somebody "
			"else yet; ask again");
}

/* N descriptors, in as many requests as it takes; what Q asks for next may depend on an answer. */
static int ask_for_many(struct privileged *p, struct privileged_request *q, unsigned int n,
			int *fds, char *err, size_t errlen)
{
	struct privileged_answer answer;
	unsigned int done = 0;
	int r = have(p, err, errlen);

	while (!r && done < n) {
		q->count = n - done < PRIVILEGED_FDS ? n - done : PRIVILEGED_FDS;
		r = lock_soon(p, err, errlen);
		if (!r) {
			r = ask(p, q, &answer, fds + done, err, errlen);
			pthread_mutex_unlock(&p->lock);
		}
		if (r) {
			close_all(fds, (int)done);
			break;
		}
		q->addr = answer.addr;
		q->joins = q->op == PRIVILEGED_LISTEN;
		done += q->count;
	}
	return r;
}

int privileged_listen(struct privileged *p, uint32_t generation, size_t forward, struct addr *a,
		      bool joins, unsigned int n, int *fds, char *err, size_t errlen)
{
	struct privileged_request q = {
		.op = PRIVILEGED_LISTEN, .generation = generation,
		.forward = (uint32_t)forward, .joins = joins, .addr = *a,
	};
	int r = ask_for_many(p, &q, n, fds, err, errlen);

	if (!r)
		*a = q.addr;
	return r;
}

int privileged_sockets(struct privileged *p, uint32_t generation, size_t forward, int family,
		       unsigned int n, int *fds, char *err, size_t errlen)
{
	struct privileged_request q = {
		.op = PRIVILEGED_SOCKETS, .generation = generation,
		.forward = (uint32_t)forward, .family = (uint32_t)family,
	};

	return ask_for_many(p, &q, n, fds, err, errlen);
}

int privileged_open_log(struct privileged *p, char *err, size_t errlen)
{
	const struct privileged_request q = { .op = PRIVILEGED_OPEN_LOG, .count = 1 };
	struct privileged_answer a;
	int fd = -1, r = have(p, err, errlen);

	if (r)
		return r;
	pthread_mutex_lock(&p->lock);
	r = ask(p, &q, &a, &fd, err, errlen);
	pthread_mutex_unlock(&p->lock);
	return r ?: fd;
}
