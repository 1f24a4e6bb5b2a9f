// SPDX-License-Identifier: BSD-2-Clause
/* The checks of what carrier_splice.c relies on, by means of it. */
#include "probe/probe_checks.h"

#include <errno.h>
#include <sys/socket.h>

#define KIB 1024
#define MIB (1024 * 1024)

/* One go of the carrier, as the daemon does it. */
static enum pump pump(struct probe *p, unsigned int dir, int *ret_error)
{
	struct rig *g = &p->rig;
	struct pump_io io = {
		.flow = &g->flows[dir],
		.pool = &p->pool,
		.src = dir == UP ? g->a : g->b,
		.dst = dir == UP ? g->b : g->a,
		.limit = UINT64_MAX,
	};
	enum pump r = splice_pump(&io);

	*ret_error = io.error ? -io.error : -EIO;
	return r;
}

/* Bytes flow until WANT is what the carrier says, and so far all is received. */
static int until(struct probe *p, unsigned int dir, enum pump want, const char *what)
{
	const struct stream *s = &p->rig.streams[dir];

	do {
		ssize_t n;
		int error;
		enum pump r = pump(p, dir, &error);

		if (r == PUMP_SRC_ERROR || r == PUMP_DST_ERROR || r == PUMP_STARVED)
			return rig_step(p, error, what);
		n = want == PUMP_BLOCKED ? 0 : rig_pull_some(p, dir, SIZE_MAX);
		if (n < 0)
			return rig_step(p, (int)n, what);
		if (r == want && (want != PUMP_EMPTY || s->got == s->sent))
			return 0;
		if (r == PUMP_EOF || r == PUMP_UNSUPPORTED)
			return rig_step(p, r == PUMP_EOF ? -ENODATA : -EOPNOTSUPP, what);
	} while (rig_patience(p));
	return rig_step(p, -ETIMEDOUT, what);
}

/* LEN bytes, in portions that fit into the buffers. */
static int carry(struct probe *p, unsigned int dir, size_t len)
{
	int r = 0;

	for (size_t done = 0; !r && done < len; done += 64 * KIB) {
		r = rig_step(p, rig_push(p, dir, 64 * KIB), "sending");
		r = r ?: until(p, dir, PUMP_EMPTY, "bytes through a pipe");
	}
	return r;
}

int probe_check_splice(struct probe *p)
{
	struct rig *g = &p->rig;
	int r = rig_open(p, 0);

	for (unsigned int dir = 0; !r && dir < 2; dir++) {
		r = until(p, dir, PUMP_EMPTY, "an empty source");
		r = r ?: carry(p, dir, MIB);
	}
	for (unsigned int dir = 0; !r && dir < 2; dir++) {
		struct stream *s = &g->streams[dir];

		r = rig_step(p, rig_push(p, dir, 1000), "sending");
		r = r ?: rig_step(p, shutdown(s->tx, SHUT_WR) ? -errno : 0, "shutdown");
		r = r ?: until(p, dir, PUMP_EOF, "the end of a source");
		r = r ?: rig_step(p, shutdown(dir == UP ? g->b : g->a, SHUT_WR) ? -errno : 0,
				  "shutdown of the target");
		r = r ?: rig_step(p, rig_pull(p, dir), "the last bytes");
		r = r ?: rig_step(p, rig_pull_eof(p, s->rx), "end of file");
	}
	if (!r)
		rig_note(p, "1 MiB each way unchanged in pipes, and both ends of file");
	return r;
}

int probe_check_splice_stall(struct probe *p)
{
	struct rig *g = &p->rig;
	int r = rig_open(p, RIG_SMALL_B);
	uint64_t kept;

	r = r ?: rig_step(p, rig_push_until_halt(p, UP, 512 * KIB), "sending");
	r = r ?: until(p, UP, PUMP_BLOCKED, "a target that is full");
	kept = g->flows[UP].pending;
	if (!r && !kept)
		r = rig_step(p, -EPROTO, "bytes kept in the pipe");
	if (r)
		return r;
	rig_widen(p, UP, true);
	r = until(p, UP, PUMP_EMPTY, "what had been kept");
	if (!r)
		rig_note(p, "%llu KiB kept and delivered, %llu KiB in all",
			 (unsigned long long)kept / KIB,
			 (unsigned long long)g->streams[UP].got / KIB);
	return r;
}

/* The urgent byte is the next of the stream, so that the receiver can verify it. */
static int send_urgent(struct probe *p, unsigned char c)
{
	struct stream *s = &p->rig.streams[UP];

	if (send(s->tx, &c, 1, MSG_OOB | MSG_NOSIGNAL) != 1)
		return -errno;
	s->sent++;
	return 0;
}

/* The byte that splice(2) has left in the source, as copy_pump() takes it. */
static int take_urgent(struct probe *p)
{
	struct rig *g = &p->rig;
	struct pump_io io = {
		.flow = &g->flows[UP],
		.pool = &p->pool,
		.src = g->a,
		.dst = g->b,
		.limit = 1,
	};
	enum pump r = copy_pump(&io);

	if (r != PUMP_MORE && r != PUMP_EMPTY)
		return io.error ? -io.error : -EPROTO;
	return io.read == 1 ? 0 : -EPROTO;
}

int probe_check_splice_urgent(struct probe *p)
{
	struct rig *g = &p->rig;
	int one = 1, r = rig_open(p, 0);

	r = r ?: rig_step(p, setsockopt(g->a, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one)) ? -errno
											  : 0,
			  "SO_OOBINLINE");
	r = r ?: rig_step(p, rig_push(p, UP, 1000), "sending");
	r = r ?: until(p, UP, PUMP_EMPTY, "bytes before the urgent one");
	r = r ?: rig_step(p, send_urgent(p, rig_next_byte(p, UP)), "sending an urgent byte");
	r = r ?: rig_step(p, rig_push(p, UP, 1000), "sending");
	r = r ?: until(p, UP, PUMP_UNSUPPORTED, "a halt at the urgent byte");
	r = r ?: rig_step(p, take_urgent(p), "reading the urgent byte");
	r = r ?: until(p, UP, PUMP_EMPTY, "bytes after the urgent one");
	if (!r)
		rig_note(p, "kept in the stream between 1000 bytes and 1000 more");
	return r;
}
