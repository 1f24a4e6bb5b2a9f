/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_CARRIER_RIG_H
#define CULVERT_TESTS_CARRIER_RIG_H

/*
 * A carrier of user space between two pairs of unix sockets:
 *
 *	in ---> src =(pump)=> dst ---> out
 *
 * A known pattern goes into `in`, and each byte that comes out of `out` is checked.  Include after
 * cmocka.h.
 */

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "datapath/carrier.h"
#include "seeded.h"

#define ALL UINT64_MAX
#define CHUNK 65536

struct rig {
	struct pool pool;
	struct flow flow;
	int in, src, dst, out;
	uint64_t sent, received; /* of the pattern */
};

static enum carrier carrier; /* of this round of tests */
static unsigned int descriptors_before;

static inline int rig_setup(void **state)
{
	static struct rig rig;
	int a[2], b[2];

	memset(&rig, 0, sizeof(rig));
	descriptors_before = count_descriptors();
	pool_init(&rig.pool, 5000);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, a) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, b))
		return -1;
	rig.in = a[0];
	rig.src = a[1];
	rig.dst = b[0];
	rig.out = b[1];
	*state = &rig;
	return 0;
}

/* Make the target's send buffer as small as the kernel allows (4608 bytes, overhead included). */
static inline void narrow(struct rig *rig)
{
	int tiny = 1;

	assert_int_equal(setsockopt(rig->dst, SOL_SOCKET, SO_SNDBUF, &tiny, sizeof(tiny)), 0);
}

static inline void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static inline int rig_teardown(void **state)
{
	struct rig *rig = *state;

	close_end(&rig->in);
	close_end(&rig->src);
	close_end(&rig->dst);
	close_end(&rig->out);
	carrier_release(&rig->flow, &rig->pool);
	if (rig->pool.buffers_lent || rig->pool.pipes_lent)
		return -1;
	pool_close(&rig->pool);
	return count_descriptors() == descriptors_before ? 0 : -1;
}

/* --- the two ends --- */

static inline uint8_t pattern(uint64_t at)
{
	return (uint8_t)((at + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

/* Up to N bytes into `in`.  Returns how many went. */
static inline uint64_t produce(struct rig *rig, uint64_t n)
{
	uint8_t buf[CHUNK];
	ssize_t r;

	n = n > CHUNK ? CHUNK : n;
	for (uint64_t i = 0; i < n; i++)
		buf[i] = pattern(rig->sent + i);
	if (!n)
		return 0;
	/* cppcheck-suppress uninitvar ; the loop above fills n bytes */
	r = send(rig->in, buf, n, MSG_NOSIGNAL);
	if (r < 0)
		assert_int_equal(errno, EAGAIN);
	else
		rig->sent += (uint64_t)r;
	return r < 0 ? 0 : (uint64_t)r;
}

/* Up to N bytes from `out`, each of them checked.  Returns how many came. */
static inline uint64_t consume(struct rig *rig, uint64_t n)
{
	uint8_t buf[CHUNK];
	ssize_t r = n ? recv(rig->out, buf, n > CHUNK ? CHUNK : n, 0) : 0;

	if (r < 0) {
		assert_int_equal(errno, EAGAIN);
		return 0;
	}
	for (uint64_t i = 0; i < (uint64_t)r; i++)
		if (buf[i] != pattern(rig->received + i))
			fail_msg("byte %llu is wrong", (unsigned long long)(rig->received + i));
	rig->received += (uint64_t)r;
	return (uint64_t)r;
}

static inline void consume_all(struct rig *rig)
{
	while (consume(rig, CHUNK))
		;
}

/* --- the pump between them --- */

/* What is lent is what the flow holds, and what it holds is what is pending. */
static inline void check_loan(const struct rig *rig)
{
	const struct flow *f = &rig->flow;
	const struct buffer *last_one = NULL;
	unsigned int n = 0;
	uint64_t bytes = 0;

	for (const struct buffer *b = f->head; b; b = b->next) {
		assert_true(b->at <= b->len && b->len <= rig->pool.buffer_size);
		bytes += b->len - b->at;
		last_one = b;
		n++;
	}
	assert_ptr_equal(f->tail, last_one);
	assert_int_equal(rig->pool.buffers_lent, n);
	assert_int_equal(rig->pool.pipes_lent, f->pipe != NULL);
	assert_int_equal(f->user_in, f->user_out + f->pending);
	if (!f->pipe)
		assert_int_equal(f->pending, bytes);
	/* with nothing pending nothing is borrowed; otherwise buffers or a pipe, never both */
	assert_int_equal((n != 0) + (f->pipe != NULL), f->pending != 0);
}

static inline void check_result(const struct rig *rig, enum pump r, const struct pump_io *io)
{
	bool error = r == PUMP_SRC_ERROR || r == PUMP_DST_ERROR;

	assert_int_equal(io->error != 0, error);
	assert_int_equal(io->read != 0, io->reads != 0);
	assert_true(io->read <= io->limit);
	check_loan(rig);
	if (r == PUMP_EMPTY || r == PUMP_MORE || r == PUMP_EOF || r == PUMP_UNSUPPORTED)
		assert_int_equal(rig->flow.pending, 0);
	if (r == PUMP_BLOCKED)
		assert_int_not_equal(rig->flow.pending, 0);
}

static inline enum pump pump_with(struct rig *rig, enum carrier c, struct pump_io *io)
{
	uint64_t user_in = rig->flow.user_in;
	enum pump r;

	io->flow = &rig->flow;
	io->pool = &rig->pool;
	io->src = rig->src;
	io->dst = rig->dst;
	r = c == CARRIER_SPLICE ? splice_pump(io) : copy_pump(io);
	assert_int_equal(rig->flow.user_in - user_in, io->read);
	check_result(rig, r, io);
	return r;
}

static struct pump_io last; /* what the last pump() has returned */

static inline enum pump pump(struct rig *rig, uint64_t limit, bool until_eof)
{
	last = (struct pump_io){ .limit = limit, .until_eof = until_eof };
	return pump_with(rig, carrier, &last);
}

/* Write and pump until the target takes no more. */
static inline void block(struct rig *rig)
{
	enum pump r;

	narrow(rig);
	do {
		assert_true(produce(rig, 20000) > 0);
		r = pump(rig, ALL, false);
	} while (r == PUMP_EMPTY || r == PUMP_MORE);
	assert_int_equal(r, PUMP_BLOCKED);
}

static inline void expect_all_arrived(struct rig *rig)
{
	consume_all(rig);
	assert_int_equal(rig->received, rig->sent);
	assert_int_equal(rig->flow.user_in, rig->sent);
	assert_int_equal(rig->flow.user_out, rig->sent);
}

/* A group of tests runs once for each carrier. */
static inline int use_copy(void **state)
{
	(void)state;
	carrier = CARRIER_COPY;
	signal(SIGPIPE, SIG_DFL); /* copy must not raise it */
	return 0;
}

static inline int use_splice(void **state)
{
	(void)state;
	carrier = CARRIER_SPLICE;
	signal(SIGPIPE, SIG_IGN); /* splice(2) cannot be told not to; the daemon ignores it */
	return 0;
}

#define ON_RIG(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

#endif
