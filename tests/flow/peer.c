/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation: a step sets goals (tx_goal, rx_goal, want_eof) when it is entered; the two
 * io functions move tx_off and rx_off towards them; the step is complete when they are reached.
 * Never is a byte read beyond the goal of the step: a peer that does not read really does not.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env.h"
#include "peer.h"

static _Thread_local char io_buf[PEER_IO_MAX];

const char *peer_result_name(enum peer_result r)
{
	static const char *const names[] = {
		[PEER_RUNNING] = "running",   [PEER_DONE] = "done",
		[PEER_WRONG] = "wrong byte",  [PEER_TRUNCATED] = "truncated",
		[PEER_EXTRA] = "extra bytes", [PEER_RESET] = "unexpected reset",
		[PEER_STALLED] = "stalled",   [PEER_FAILED] = "failed",
	};

	return names[r];
}

/* So that an urgent byte that arrives as one stays in its place in the stream. */
static void keep_urgent_inline(int fd)
{
	int one = 1;

	setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
}

int peer_init(struct peer *p, const char *name, const struct sockaddr *sa, socklen_t len)
{
	memset(p, 0, sizeof(*p));
	snprintf(p->name, sizeof(p->name), "%s", name);
	p->fd = p->listen_fd = -1;
	p->abort_tx = p->abort_rx = UINT64_MAX;
	p->write_size = p->read_size = 64 << 10;
	p->end_rule = STEP_EOF;
	p->last_progress = now_ms();
	if (!sa)
		return 0;
	memcpy(&p->to, sa, len);
	p->to_len = len;
	p->fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (p->fd < 0)
		return -errno;
	keep_urgent_inline(p->fd);
	return 0;
}

void peer_close(struct peer *p)
{
	if (p && p->fd >= 0) {
		close(p->fd);
		p->fd = -1;
	}
}

void peer_fail(struct peer *p, enum peer_result r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->why, sizeof(p->why), fmt, ap);
	va_end(ap);
	p->result = r;
	peer_close(p);
}

static void abort_now(struct peer *p)
{
	struct linger lin = { .l_onoff = 1 };

	setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &lin, sizeof(lin));
	peer_close(p);
	p->aborted = true;
	p->result = PEER_DONE;
}

/* The stream ended although the script goes on. */
static void ended(struct peer *p, int err, const char *what)
{
	bool reset = err == ECONNRESET || err == EPIPE;

	p->ended_by_eof = err == 0;
	p->ended_by_reset = reset;
	if (err && !reset) {
		peer_fail(p, PEER_FAILED, "%s: %s", what, strerror(err));
	} else if (p->end_rule == STEP_EOF) {
		peer_fail(p, reset ? PEER_RESET : PEER_TRUNCATED, "%s: %s", what,
			  reset ? strerror(err) : "end of the stream");
	} else if (p->end_rule == STEP_MUST_RESET && !reset) {
		peer_fail(p, PEER_FAILED, "end of the stream where a reset was due");
	} else {
		p->result = PEER_DONE;
		peer_close(p);
	}
}

static int io_error(struct peer *p, const char *what)
{
	if (errno == EAGAIN || errno == EINTR)
		return 0;
	ended(p, errno, what);
	return -1;
}

/* 1: bytes moved, 0: would block, -1: the peer's result is set. */
static int do_tx(struct peer *p, int64_t now)
{
	enum step_op op = p->steps[p->pos].op;
	int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
	size_t len = p->write_size;
	ssize_t n;

	if (len > p->tx_goal - p->tx_off)
		len = p->tx_goal - p->tx_off;
	if (op == STEP_LAST)
		flags |= MSG_MORE;
	else if (op == STEP_OOB)
		flags |= MSG_OOB;
	pattern_fill(&p->tx, p->tx_off, io_buf, len);
	n = send(p->fd, io_buf, len, flags);
	if (n < 0)
		return io_error(p, "send");
	p->tx_off += (uint64_t)n;
	p->last_progress = now;
	if (p->write_pause)
		p->tx_wake = now + p->write_pause;
	if (p->tx_off >= p->abort_tx) {
		abort_now(p);
		return -1;
	}
	return 1;
}

static void wrong_byte(struct peer *p, size_t len, uint64_t wrong)
{
	size_t skip = wrong - p->rx_off;
	uint64_t from = 0;
	int n;

	n = snprintf(p->why, sizeof(p->why), "first wrong byte at offset %llu",
		     (unsigned long long)wrong);
	if (pattern_locate(&p->rx, wrong, io_buf + skip, len - skip, &from))
		snprintf(p->why + n, sizeof(p->why) - (size_t)n,
			 ": the bytes of offset %llu (%lld %s)", (unsigned long long)from,
			 llabs((long long)(from - wrong)), from > wrong ? "lost" : "repeated");
	else
		snprintf(p->why + n, sizeof(p->why) - (size_t)n, ": bytes of unknown origin");
	p->result = PEER_WRONG;
	peer_close(p);
}

static int do_rx(struct peer *p, int64_t now)
{
	size_t len = p->read_size;
	uint64_t wrong;
	ssize_t n;

	if (p->rx_off == p->rx_goal)
		len = 1; /* want_eof: nothing may come */
	else if (len > p->rx_goal - p->rx_off)
		len = p->rx_goal - p->rx_off;
	n = recv(p->fd, io_buf, len, MSG_DONTWAIT);
	if (n < 0)
		return io_error(p, "recv");
	p->last_progress = now;
	if (n == 0) {
		p->eof_seen = true;
		if (p->rx_off == p->rx_goal)
			return 1;
		ended(p, 0, "recv");
		return -1;
	}
	if (p->rx_off == p->rx_goal) {
		peer_fail(p, PEER_EXTRA, "more bytes where the stream should end");
		return -1;
	}
	if (!pattern_check(&p->rx, p->rx_off, io_buf, (size_t)n, &wrong)) {
		wrong_byte(p, (size_t)n, wrong);
		return -1;
	}
	p->rx_off += (uint64_t)n;
	if (p->read_pause)
		p->rx_wake = now + p->read_pause;
	if (p->rx_off >= p->abort_rx) {
		abort_now(p);
		return -1;
	}
	return 1;
}

static bool wants_rx(const struct peer *p)
{
	return p->rx_off < p->rx_goal || (p->want_eof && !p->eof_seen);
}

static void set_int(struct peer *p, int level, int name, uint64_t value)
{
	int v = (int)value;

	if (setsockopt(p->fd, level, name, &v, sizeof(v)) < 0 && p->to.ss_family != AF_UNIX)
		peer_fail(p, PEER_FAILED, "setsockopt: %s", strerror(errno));
}

/* True if STEP is a setting; it is applied. */
static bool apply_setting(struct peer *p, const struct step *s)
{
	switch (s->op) {
	case STEP_WRITE_SIZE:
		p->write_size = s->a < PEER_IO_MAX ? s->a : PEER_IO_MAX;
		return true;
	case STEP_WRITE_PAUSE:
		p->write_pause = (int)s->a;
		return true;
	case STEP_READ_SIZE:
		p->read_size = s->a < PEER_IO_MAX ? s->a : PEER_IO_MAX;
		return true;
	case STEP_READ_PAUSE:
		p->read_pause = (int)s->a;
		return true;
	case STEP_RCVBUF:
		set_int(p, SOL_SOCKET, SO_RCVBUF, s->a);
		return true;
	case STEP_SNDBUF:
		set_int(p, SOL_SOCKET, SO_SNDBUF, s->a);
		return true;
	case STEP_NODELAY:
		set_int(p, IPPROTO_TCP, TCP_NODELAY, 1);
		return true;
	case STEP_MAY_END:
	case STEP_MUST_END:
	case STEP_MUST_RESET:
		p->end_rule = s->op;
		return true;
	default:
		return false;
	}
}

/* True once the peer has a connection. */
static bool connect_step(struct peer *p, int64_t now)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (!p->connecting) {
		p->connecting = true;
		if (!connect(p->fd, (struct sockaddr *)&p->to, p->to_len))
			goto connected;
		if (errno != EINPROGRESS)
			peer_fail(p, PEER_FAILED, "connect: %s", strerror(errno));
		return false;
	}
	struct pollfd pfd = { .fd = p->fd, .events = POLLOUT };

	if (poll(&pfd, 1, 0) <= 0)
		return false;
	getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &err, &len);
	if (err) { /* a reset may come so soon that connect() is the call that reports it */
		ended(p, err, "connect");
		return false;
	}
connected:
	p->connecting = false;
	p->connected = true;
	p->last_progress = now;
	return true;
}

static void enter_action(struct peer *p, const struct step *s, int64_t now)
{
	switch (s->op) {
	case STEP_SEND:
	case STEP_LAST:
		p->tx_goal += s->a;
		break;
	case STEP_OOB:
		p->tx_goal += 1;
		break;
	case STEP_RECV:
		p->rx_goal += s->a;
		break;
	case STEP_BOTH:
		p->tx_goal += s->a;
		p->rx_goal += s->b;
		break;
	case STEP_PING:
		p->rounds_left = s->a;
		p->tx_goal += s->b;
		p->rx_goal += s->c;
		break;
	case STEP_PONG:
		p->rounds_left = s->a;
		p->answering = false;
		p->rx_goal += s->b;
		break;
	case STEP_FIN:
		shutdown(p->fd, SHUT_WR);
		p->fin_sent = true;
		break;
	case STEP_EOF:
		p->want_eof = true;
		break;
	case STEP_RESET:
		abort_now(p);
		break;
	case STEP_PAUSE:
		p->step_wake = now + (int64_t)s->a;
		break;
	default:
		break;
	}
}

static bool accept_step(struct peer *p, int64_t now)
{
	p->fd = accept4(p->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (p->fd < 0 && errno != EAGAIN && errno != ECONNABORTED)
		peer_fail(p, PEER_FAILED, "accept: %s", strerror(errno));
	if (p->fd >= 0) {
		keep_urgent_inline(p->fd);
		p->last_progress = now;
	}
	return p->fd >= 0;
}

/* Both goals are reached; is that the end of the step? */
static bool next_round(struct peer *p, const struct step *s)
{
	if (s->op == STEP_PONG && !p->answering) {
		p->answering = true;
		p->tx_goal += s->c;
		return false;
	}
	if ((s->op == STEP_PING || s->op == STEP_PONG) && --p->rounds_left > 0) {
		p->answering = false;
		p->tx_goal += s->op == STEP_PING ? s->b : 0;
		p->rx_goal += s->op == STEP_PING ? s->c : s->b;
		return false;
	}
	if (s->op == STEP_LAST) {
		shutdown(p->fd, SHUT_WR);
		p->fin_sent = true;
	}
	return true;
}

static bool hook_step(struct peer *p, int64_t now)
{
	int r = p->hook ? p->hook(p, p->hook_arg) : 1;

	if (r < 0) {
		p->result = PEER_FAILED; /* the hook has set p->why */
		peer_close(p);
	}
	p->step_wake = now + 5;
	return r > 0;
}

static bool step_complete(struct peer *p, const struct step *s, int64_t now)
{
	if (s->op == STEP_ACCEPT)
		return accept_step(p, now);
	if (s->op == STEP_PAUSE)
		return now >= p->step_wake;
	if (s->op == STEP_HOOK)
		return hook_step(p, now);
	if (p->tx_off < p->tx_goal || wants_rx(p))
		return false;
	p->want_eof = false;
	return next_round(p, s);
}

/* Some io of the current step; true if anything moved. */
static bool step_io(struct peer *p, int64_t now)
{
	bool moved = false;
	int r;

	if (p->tx_off < p->tx_goal && now >= p->tx_wake) {
		r = do_tx(p, now);
		if (r < 0)
			return true;
		moved |= r > 0;
	}
	if (wants_rx(p) && now >= p->rx_wake) {
		r = do_rx(p, now);
		moved |= r != 0;
	}
	return moved;
}

static void finish(struct peer *p)
{
	if (p->end_rule == STEP_MUST_END || p->end_rule == STEP_MUST_RESET) {
		peer_fail(p, PEER_FAILED, "the stream was never ended");
		return;
	}
	p->result = PEER_DONE;
	peer_close(p);
}

enum peer_result peer_run(struct peer *p, int64_t now)
{
	p->again = false;
	if (p->tx_wake <= now) /* from here on the socket decides; peer_wake() relies on it */
		p->tx_wake = 0;
	if (p->rx_wake <= now)
		p->rx_wake = 0;
	for (int budget = 64; p->result == PEER_RUNNING; budget--) {
		const struct step *s = &p->steps[p->pos];
		bool moved;

		if (p->pos == p->n_steps) {
			finish(p);
			break;
		}
		if (!p->entered && !apply_setting(p, s)) {
			if (p->to_len && !p->connected && !connect_step(p, now))
				break;
			enter_action(p, s, now);
			p->entered = true;
			if (p->result != PEER_RUNNING)
				break;
		}
		moved = p->entered && step_io(p, now);
		if (p->result != PEER_RUNNING)
			break;
		if (!p->entered || step_complete(p, s, now)) {
			p->pos++;
			p->entered = false;
			p->last_progress = now;
		} else if (!moved) {
			break;
		}
		if (budget <= 0) { /* let others run, too */
			p->again = true;
			break;
		}
	}
	return p->result;
}

short peer_events(const struct peer *p, int64_t now, int *ret_fd)
{
	short events = 0;

	*ret_fd = p->fd;
	if (p->result != PEER_RUNNING)
		return 0;
	if (p->connecting)
		return POLLOUT;
	if (p->entered && p->steps[p->pos].op == STEP_ACCEPT) {
		*ret_fd = p->listen_fd;
		return POLLIN;
	}
	if (p->tx_off < p->tx_goal && now >= p->tx_wake)
		events |= POLLOUT;
	if (wants_rx(p) && now >= p->rx_wake)
		events |= POLLIN;
	return events;
}

int64_t peer_wake(const struct peer *p, int64_t now)
{
	int64_t at = INT64_MAX;

	if (p->result != PEER_RUNNING || p->connecting)
		return INT64_MAX;
	if (p->again || !p->entered)
		return now;
	if (p->steps[p->pos].op == STEP_PAUSE || p->steps[p->pos].op == STEP_HOOK)
		return p->step_wake;
	if (p->tx_off < p->tx_goal && p->tx_wake)
		at = p->tx_wake;
	if (wants_rx(p) && p->rx_wake && p->rx_wake < at)
		at = p->rx_wake;
	return at;
}
