// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a child that the daemon makes before it gives up root.  A child, and not the
 * parent that others make of such a process: so the process that was started stays the daemon, and
 * its PID, its exit code, its signals and what it tells systemd need nobody to pass them on.
 *
 * It keeps its uid, two capabilities at most, stderr, and one end of a pair of sockets, and loads a
 * system call filter of its own; then it answers requests, one after the other, until that socket
 * is at its end because the daemon is.  It takes no signal that can be blocked: a terminal and
 * systemd send theirs to the daemon as well, which has its reasons to live on for a while.
 *
 * It keeps no descriptor that it has handed over, and tells the daemon when it has closed them all
 * (PRIVILEGED_CLOSED).  Until then the daemon must not use them: see close_side() in session.c.
 *
 * The daemon is not trusted.  All that comes from it is one struct of a fixed size, with
 * one socket to be made transparent, and
 * privileged_judge() says whether it is allowed.  What is not allowed is refused; who sends what
 * the daemon would never send is somebody else in its place, and gets nothing any more.
 */
#include "daemon/privileged.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/log_file.h"
#include "base/advice.h"
#include "config/file.h"
#include "daemon/privileged_confine.h"
#include "daemon/privileged_rules.h"
#include "base/sandbox.h"
#include "relay/listener.h"
#include "relay/socket_options.h"

struct server {
	int argc;
	char **argv;
	struct privileged_known known;
	uint32_t last; /* number of a configuration */
};

/* --- answers --- */

/* The daemon is gone if it cannot be told. */
static void send_answer(const struct privileged_answer *a, int *fds, size_t n)
{
	union {
		char room[CMSG_SPACE(sizeof(int) * PRIVILEGED_FDS)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { (void *)a, sizeof(*a) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	const char closed = PRIVILEGED_CLOSED;

	if (n) {
		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int) * n);
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, sizeof(int) * n);
	}
	if (sendmsg(PRIVILEGED_FD, &m, MSG_NOSIGNAL) < 0)
		_exit(1);
	if (!n)
		return;
	while (n)
		close(fds[--n]);
	if (send(PRIVILEGED_FD, &closed, sizeof(closed), MSG_NOSIGNAL) < 0)
		_exit(1);
}

static void refuse(int error, const char *text)
{
	struct privileged_answer a = { .error = error };

	snprintf(a.text, sizeof(a.text), "%s", text);
	send_answer(&a, NULL, 0);
}

/* --- the configuration file --- */

static void send_text(const char *text, size_t len)
{
	for (size_t n; len; text += n, len -= n) {
		n = len < PRIVILEGED_PIECE ? len : PRIVILEGED_PIECE;
		if (send(PRIVILEGED_FD, text, n, MSG_NOSIGNAL) < 0)
			_exit(1);
	}
}

/* One byte more than a file may have: then the parser says that there are too many. */
static int read_file(const char *path, char *buf, size_t *ret_len)
{
	FILE *f;
	int r = config_file_open(path, &f);

	if (r)
		return r;
	*ret_len = fread(buf, 1, CONFIG_FILE_MAX + 1, f);
	if (ferror(f))
		r = log_complain(-EIO, "%s: cannot be read", path);
	fclose(f);
	return r;
}

/* IN_USE stays; the other one that was kept gives way. */
static void read_config(struct server *s, const struct config *in_use)
{
	static char text[CONFIG_FILE_MAX + 1];
	struct config *place = &s->known.configs[in_use == &s->known.configs[0]];
	struct config_source from = { .text = text };
	struct privileged_answer a = { 0 };
	struct config c = { 0 };
	int r;

	log_keep_complaint(a.text, sizeof(a.text));
	r = read_file(in_use->file, text, &from.len);
	r = r ?: config_parse_from(s->argc, s->argv, &from, &c);
	log_keep_complaint(NULL, 0);
	if (r) {
		a.error = r < 0 ? -r : EINVAL;
		config_close(&c);
		send_answer(&a, NULL, 0);
		return;
	}
	config_close(place);
	*place = c;
	place->generation = a.generation = ++s->last;
	a.size = (uint32_t)from.len;
	send_answer(&a, NULL, 0);
	send_text(text, from.len);
}

/* --- sockets --- */

/* One that can be connected. */
static int make_socket(const struct forward_conf *fc, int family, int *ret_fd)
{
	int r = 0, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	*ret_fd = fd;
	if (fd < 0)
		return -errno;
	if (fc->mark)
		r = socket_set_mark(fd, fc->mark);
	if (!r && fc->transparent)
		r = socket_set_transparent(fd, family);
	if (r)
		close(fd);
	return r;
}

static void make_sockets(const struct privileged_request *q, const struct forward_conf *fc)
{
	int fds[PRIVILEGED_FDS], r = 0;
	size_t n = 0;

	while (!r && n < q->count) {
		r = make_socket(fc, (int)q->family, &fds[n]);
		n += !r;
	}
	if (!r) {
		send_answer(&(struct privileged_answer){ 0 }, fds, n);
		return;
	}
	while (n)
		close(fds[--n]);
	refuse(-r, strerror(-r));
}

static void make_listeners(const struct privileged_request *q, const struct forward_conf *fc)
{
	struct privileged_answer a = { .addr = q->addr };
	int fds[PRIVILEGED_FDS], r = listener_sockets(fc, &a.addr, q->joins, q->count, fds);
	char why[PRIVILEGED_TEXT];

	if (!r) {
		send_answer(&a, fds, q->count);
		return;
	}
	snprintf(why, sizeof(why), "%s%s", strerror(-r), advice_listen(-r));
	refuse(-r, why);
}

/* FD is closed before the answer, so that the daemon's is the only one. */
static void make_transparent(const struct privileged_request *q, int fd)
{
	struct addr a = { .len = sizeof(a.ss) };
	int r = getsockname(fd, (struct sockaddr *)&a.ss, &a.len) ? -errno : 0;

	if (!r)
		r = addr_equal(&a, &q->addr) ? socket_set_transparent(fd, a.ss.ss_family) : -EPERM;
	close(fd);
	if (r)
		refuse(-r, strerror(-r));
	else
		send_answer(&(struct privileged_answer){ 0 }, NULL, 0);
}

/* --- the session log --- */

static void open_log(const char *path)
{
	/* who this process is: nobody else's file is a log of ours */
	const struct account self = { .name = "root", .uid = geteuid(), .gid = getegid() };
	char err[PRIVILEGED_TEXT];
	int fd = log_file_open(path, &self, err, sizeof(err));

	if (fd < 0)
		refuse(-fd, err);
	else
		send_answer(&(struct privileged_answer){ 0 }, &fd, 1);
}

/* --- requests --- */

/* FD came with the request, or is -1. */
static void take_request(struct server *s, const struct privileged_request *q, size_t len, int fd)
{
	const struct config *c;
	const char *why;
	int r = privileged_judge(q, len, &s->known, &c, &why);

	if (r) {
		log_limited(LOG_ERR, "privileged process: refused: %s%s", why,
			    r != -EBADMSG ? "" :
			    ", which culvert would not ask for: it does not seem to be itself");
		if (r == -EBADMSG)
			_exit(1);
		if (fd >= 0)
			close(fd);
		refuse(-r, why);
		return;
	}
	if (q->op == PRIVILEGED_TRANSPARENT) {
		make_transparent(q, fd);
		return;
	}
	if (fd >= 0)
		close(fd);
	if (q->op == PRIVILEGED_OPEN_LOG)
		open_log(s->known.log);
	else if (q->op == PRIVILEGED_READ_CONFIG)
		read_config(s, c);
	else if (q->op == PRIVILEGED_LISTEN)
		make_listeners(q, &c->forwards[q->forward]);
	else
		make_sockets(q, &c->forwards[q->forward]);
}

/* A request, and the descriptor that came with it, or -1.  Returns its length, as recv(2). */
static ssize_t receive(struct privileged_request *q, int *ret_fd)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { q, sizeof(*q) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room,
			    .msg_controllen = CMSG_LEN(sizeof(int)) }; /* one, no more */
	ssize_t n = recvmsg(PRIVILEGED_FD, &m, MSG_TRUNC | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;

	*ret_fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	return n;
}

void privileged_run(int fd, const struct config *c, int argc, char **argv)
{
	struct server s = { .argc = argc, .argv = argv, .known.configs[0] = *c };
	struct privileged_request q;
	struct privileged_answer ready = { 0 };
	ssize_t n;
	int fd_sent;

	if (log_file_is_path(c->session_log))
		s.known.log = strdup(c->session_log); /* the configuration may go */
	ready.error = -privileged_confine(fd, c, ready.text, sizeof(ready.text));
	send_answer(&ready, NULL, 0);
	if (ready.error)
		_exit(1);
	for (;;) {
		n = receive(&q, &fd_sent);
		if (n == 0 || (n < 0 && errno != EINTR))
			_exit(0);
		if (n > 0)
			take_request(&s, &q, (size_t)n, fd_sent);
	}
}
