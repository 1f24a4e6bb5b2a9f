/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * Streams whose bandwidth has a limit.  That no more passes than may is asserted at any time: that
 * holds on a slow machine, too.  Include after forward_rig.h.
 */

/* From the begin of what is limited on: no more than this, */
#define BURST_OF(rate) ((rate) / 25 + 2048)
/* and so much a second. */
#define PEAK_OF(rate) (rate)

/* So much may be under way, in one direction; what is limited needs its time. */
#define TAP_AHEAD (256 * 1024)

/* One end of a session: it reads all that comes, and may write. */
struct tap {
	int fd;
	bool writes;
	size_t group;
	uint64_t got, sent;
	struct tap *other;
};

/* What shares a limit; RATE 0: nothing is asserted. */
struct group {
	uint64_t rate, got;
	int64_t begin;
};

/* The byte at AT of any stream. */
static inline uint8_t tap_byte(uint64_t at)
{
	return (uint8_t)((at * 0x9e3779b1) >> 13);
}

static inline void tap_write(struct tap *t)
{
	static uint8_t buf[65536];
	ssize_t n;

	for (size_t i = 0; i < sizeof(buf); i++)
		buf[i] = tap_byte(t->sent + i);
	n = send(t->fd, buf, sizeof(buf), MSG_NOSIGNAL | MSG_DONTWAIT);
	assert_true(n > 0 || errno == EAGAIN);
	t->sent += n > 0 ? (uint64_t)n : 0;
}

static inline void tap_read(struct tap *t, struct group *groups)
{
	static uint8_t buf[65536];
	ssize_t n = recv(t->fd, buf, sizeof(buf), MSG_DONTWAIT);

	assert_true(n > 0 || (n < 0 && errno == EAGAIN));
	for (ssize_t i = 0; i < n; i++)
		if (buf[i] != tap_byte(t->got + (uint64_t)i))
			fail_msg("wrong byte at %llu", (unsigned long long)t->got + (uint64_t)i);
	if (n < 0)
		return;
	t->got += (uint64_t)n;
	groups[t->group].got += (uint64_t)n;
}

static inline void taps_check(const struct group *groups, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct group *g = &groups[i];
		uint64_t ms = (uint64_t)(now_ms() - g->begin) + 1;

		if (g->rate && g->got > PEAK_OF(g->rate) * ms / 1000 + BURST_OF(g->rate))
			fail_msg("group %zu: %llu bytes within %llu ms", i,
				 (unsigned long long)g->got, (unsigned long long)ms);
	}
}

/* What can be read and written now, or within MS. */
static inline void taps_once(struct tap *taps, size_t n, struct group *groups, size_t n_groups,
			     int ms)
{
	struct pollfd fds[64];

	assert_true(n <= 64);
	for (size_t i = 0; i < n; i++) {
		const struct tap *t = &taps[i];
		bool writes = t->writes && t->sent < t->other->got + TAP_AHEAD;

		fds[i] = (struct pollfd){ t->fd, (short)(POLLIN | (writes ? POLLOUT : 0)), 0 };
	}
	poll(fds, n, ms);
	for (size_t i = 0; i < n; i++) {
		if (fds[i].revents & POLLOUT)
			tap_write(&taps[i]);
		if (fds[i].revents & (POLLIN | POLLHUP | POLLERR))
			tap_read(&taps[i], groups);
	}
	taps_check(groups, n_groups);
}

/* Until all groups have got what comes in MS at full rate, but for the slowest of machines. */
static inline void taps_run(struct tap *taps, size_t n, struct group *groups, size_t n_groups,
			    uint64_t ms)
{
	int64_t deadline = now_ms() + RIG_PATIENCE_MS * env_slow();
	bool done = false;

	while (!done) {
		taps_once(taps, n, groups, n_groups, 20);
		done = true;
		for (size_t i = 0; i < n_groups; i++)
			done = done && groups[i].got >= groups[i].rate * ms / 1000;
		if (!done && now_ms() > deadline)
			fail_msg("too slow: %llu bytes of the first group",
				 (unsigned long long)groups[0].got);
	}
}

/* Nothing more is written, and all that was must come. */
static inline void taps_finish(struct tap *taps, size_t n, struct group *groups, size_t n_groups)
{
	int64_t deadline = now_ms() + RIG_PATIENCE_MS * env_slow();
	bool done = false;

	for (size_t i = 0; i < n; i++)
		taps[i].writes = false;
	while (!done) {
		taps_once(taps, n, groups, n_groups, 20);
		done = true;
		for (size_t i = 0; i < n; i++)
			done = done && taps[i].got == taps[i].other->sent;
		if (!done && now_ms() > deadline)
			fail_msg("not all that was sent has come");
	}
}

/*
 * A session from FROM (NULL: any) to TO, as two taps; what the upstream gets is of GROUP, and what
 * comes back of the next one.
 */
static inline void taps_open(struct tap *taps, const char *from, const char *to, bool up, bool down,
			     size_t group)
{
	taps[0] = (struct tap){ .fd = rig_dial(from, to), .writes = up, .group = group + 1 };
	taps[0].other = &taps[1];
	taps[1] = (struct tap){ .fd = rig_accept(), .writes = down, .group = group };
	taps[1].other = &taps[0];
}
