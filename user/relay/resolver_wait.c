// SPDX-License-Identifier: BSD-2-Clause
#include "relay/resolver_wait.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"

/* A question's number is its place, and one. */
struct wait {
	int fd;
	struct question *questions;
	size_t n;
	size_t asked; /* the first so many */
	size_t done;  /* of those */
};

/* One without a number is of all that wait, and then there is an error. */
static void settle(struct wait *w, const struct resolver_reply *reply)
{
	for (size_t i = 0; i < w->asked; i++) {
		struct question *q = &w->questions[i];

		if (q->done || (reply->id && reply->id != q->id))
			continue;
		q->reply = *reply;
		q->done = true;
		w->done++;
	}
}

static void fail_all(struct wait *w, int error, const char *why)
{
	for (size_t i = 0; i < w->n; i++)
		if (!w->questions[i].done)
			question_fail(&w->questions[i], error, why);
	w->asked = w->done = w->n;
}

static void ask_more(struct wait *w)
{
	while (w->asked < w->n) {
		struct question *q = &w->questions[w->asked];
		struct resolver_query query = { .id = (uint32_t)w->asked + 1, .text = q->text,
						.passive = q->passive };
		int r;

		q->id = query.id;
		q->done = false;
		r = resolver_ask(w->fd, &query);
		if (r == -EAGAIN && w->asked > w->done)
			return; /* after the next answer */
		w->asked++;
		if (!r)
			continue;
		question_fail(q, r, strerror(-r));
		w->done++;
	}
}

static void take_replies(struct wait *w)
{
	struct resolver_reply reply;
	int r;

	while ((r = resolver_read(w->fd, &reply)) > 0 || r == -EBADMSG)
		if (r > 0)
			settle(w, &reply);
	if (r < 0)
		fail_all(w, r, "the resolver has ended");
}

/*
 * Readable when a signal that ends culvert is pending, which stays so: it is not read from.  Where
 * they are not blocked, they end the process themselves.  -1: without it the wait is longer.
 */
static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGQUIT);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

void resolver_wait(int fd, struct question *questions, size_t n, unsigned int patience_ms)
{
	struct wait w = { .fd = fd, .questions = questions, .n = n };
	uint64_t now = clock_ms(), due = now + patience_ms;
	int signals = open_signals();

	for (size_t i = 0; i < n; i++)
		questions[i].done = false;
	for (; w.done < n && now < due; now = clock_ms()) {
		struct pollfd p[] = { { .fd = fd, .events = POLLIN },
				      { .fd = signals, .events = POLLIN } };

		ask_more(&w);
		if (w.asked == w.done || poll(p, 2, (int)(due - now)) <= 0)
			continue;
		if (p[1].revents)
			fail_all(&w, -EINTR, "culvert is to end");
		else
			take_replies(&w);
	}
	if (signals >= 0)
		close(signals);
	fail_all(&w, -EAGAIN, RESOLVER_SILENT);
}
