/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "carrier_rig.h"
#include "datapath/carrier.h"
#include "sanitizer.h" /* for a malloc() that fails */

static unsigned int splices;

/* As that of the C library, but counted. */
ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t n, unsigned int flags)
{
	splices++;
	return syscall(SYS_splice, in, in_at, out, out_at, n, flags);
}

static void test_empty(void **state)
{
	struct rig *rig = *state;

	for (int until_eof = 0; until_eof < 2; until_eof++) {
		assert_int_equal(pump(rig, ALL, until_eof), PUMP_EMPTY);
		assert_int_equal(last.read, 0);
		produce(rig, 1234);
		assert_int_equal(pump(rig, ALL, until_eof), PUMP_EMPTY);
		assert_int_equal(last.read, 1234);
		assert_true(last.reads > 0);
		assert_int_equal(pump(rig, ALL, until_eof), PUMP_EMPTY);
		assert_int_equal(last.read, 0);
		expect_all_arrived(rig);
	}
}

static void test_limit(void **state)
{
	struct rig *rig = *state;

	produce(rig, 2000);
	assert_int_equal(pump(rig, 0, false), PUMP_MORE);
	assert_int_equal(last.read, 0);
	assert_int_equal(pump(rig, 1, false), PUMP_MORE);
	assert_int_equal(last.read, 1);
	assert_int_equal(pump(rig, 999, true), PUMP_MORE);
	assert_int_equal(last.read, 999);
	consume_all(rig);
	assert_int_equal(rig->received, 1000);
	assert_int_equal(pump(rig, 1000, false), PUMP_MORE); /* exactly all: it cannot know */
	assert_int_equal(pump(rig, 1000, false), PUMP_EMPTY);
	assert_int_equal(last.read, 0);
	produce(rig, 10);
	assert_int_equal(pump(rig, 11, false), PUMP_EMPTY);
	expect_all_arrived(rig);
}

/* An idle pipe of which splice asks for SIZE bytes only; the pool itself would not keep it. */
static void offer_small_pipe(struct pool *p, uint32_t size)
{
	struct pipe *pipe = pool_pipe_get(p);

	pipe->size = size;
	pipe->next = p->pipes;
	p->pipes = pipe;
	p->pipes_lent--;
	p->pipes_idle++;
}

/* Others have their turn after PUMP_ROUNDS reads. */
static void test_fairness(void **state)
{
	struct rig *rig = *state;
	uint64_t n = 100;

	rig->pool.buffer_size = 100;
	produce(rig, n * PUMP_ROUNDS * 2 + 1);
	for (int i = 0; i < 2; i++) {
		offer_small_pipe(&rig->pool, 100);
		assert_int_equal(pump(rig, ALL, true), PUMP_MORE);
		assert_int_equal(last.read, n * PUMP_ROUNDS);
		assert_int_equal(last.reads, PUMP_ROUNDS);
		consume_all(rig);
	}
	assert_int_equal(pump(rig, ALL, false), PUMP_EMPTY);
	assert_int_equal(last.read, 1);
	expect_all_arrived(rig);
}

/* ... and splice after PUMP_BYTES, however much a read gives. */
static void test_fair_bytes(void **state)
{
	struct rig *rig = *state;
	uint64_t n = 3 * PUMP_BYTES;

	if (carrier != CARRIER_SPLICE)
		return;
	close(rig->src);
	close(rig->dst);
	rig->src = memfd_create("source", MFD_CLOEXEC);
	rig->dst = open("/dev/null", O_WRONLY | O_CLOEXEC);
	assert_int_equal(ftruncate(rig->src, (off_t)n), 0);
	for (uint64_t at = 0; at < n; at += PUMP_BYTES) {
		assert_int_equal(pump(rig, ALL, true), PUMP_MORE);
		assert_int_equal(last.read, PUMP_BYTES);
	}
	assert_int_equal(rig->flow.user_out, n);
}

/* What was little was all: splice does not ask again, unless it is to see the end. */
static void test_short_read(void **state)
{
	struct rig *rig = *state;

	for (int until_eof = 0; until_eof < 2; until_eof++) {
		produce(rig, 16384);
		splices = 0;
		assert_int_equal(pump(rig, ALL, until_eof), PUMP_EMPTY);
		assert_int_equal(last.reads, 1 + (carrier == CARRIER_COPY) * 3);
		if (carrier == CARRIER_SPLICE)
			assert_int_equal(splices, 2 + until_eof);
		expect_all_arrived(rig);
	}
}

/* A pipe without a free slot makes a short read, too. */
static void test_full_pipe(void **state)
{
	struct rig *rig = *state;
	struct pipe *pipe;

	if (carrier != CARRIER_SPLICE || sysconf(_SC_PAGESIZE) != 4096)
		return;
	pipe = pool_pipe_get(&rig->pool);
	assert_int_equal(fcntl(pipe->read_fd, F_SETPIPE_SZ, 65536), 65536);
	pipe->size = 65536;
	pool_pipe_put(&rig->pool, pipe, true);
	for (int i = 0; i < 16 + 2; i++)
		assert_int_equal(produce(rig, 1100), 1100);
	assert_int_equal(pump(rig, ALL, false), PUMP_EMPTY);
	assert_int_equal(last.reads, 2);
	expect_all_arrived(rig);
}

static void test_eof(void **state)
{
	struct rig *rig = *state;
	enum pump r;

	produce(rig, 3000);
	shutdown(rig->in, SHUT_WR);
	r = pump(rig, ALL, false);
	if (r == PUMP_EMPTY) /* a short read was taken for the end of what is there */
		r = pump(rig, ALL, false);
	assert_int_equal(r, PUMP_EOF);
	expect_all_arrived(rig);
	/* EOF stays EOF */
	assert_int_equal(pump(rig, ALL, false), PUMP_EOF);
	assert_int_equal(pump(rig, ALL, true), PUMP_EOF);
	assert_int_equal(last.read, 0);
	/* ... but a limit of 0 reads nothing, not even that */
	assert_int_equal(pump(rig, 0, true), PUMP_MORE);
}

/* A FIN was seen: one call goes to the end, whatever the sizes. */
static void test_until_eof(void **state)
{
	static const uint64_t sizes[] = { 0, 1, 2499, 2500, 2501, 3000 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct rig *rig;

		rig_setup(state);
		rig = *state;
		rig->pool.buffer_size = 2500;
		produce(rig, sizes[i]);
		shutdown(rig->in, SHUT_WR);
		assert_int_equal(pump(rig, ALL, true), PUMP_EOF);
		assert_int_equal(last.read, sizes[i]);
		expect_all_arrived(rig);
		assert_int_equal(rig_teardown(state), 0);
	}
}

/* EOF is told only once everything before it has been written. */
static void test_eof_behind_pending(void **state)
{
	struct rig *rig = *state;
	enum pump r;
	unsigned int blocked = 0;

	block(rig);
	shutdown(rig->in, SHUT_WR);
	while ((r = pump(rig, ALL, true)) != PUMP_EOF) {
		assert_true(r == PUMP_BLOCKED || r == PUMP_MORE);
		blocked += r == PUMP_BLOCKED;
		consume(rig, 3000);
		assert_true(blocked < 1000);
	}
	assert_true(blocked > 1);
	expect_all_arrived(rig);
}

/* What is pending survives, is written first, and is all that a limit of 0 lets pass. */
static void test_pending(void **state)
{
	struct rig *rig = *state;
	uint64_t pending;
	unsigned int rounds = 0;
	enum pump r;

	block(rig);
	pending = rig->flow.pending;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pump(rig, ALL, i & 1), PUMP_BLOCKED);
		assert_int_equal(last.read, 0);
		assert_int_equal(rig->flow.pending, pending);
	}
	produce(rig, 5000);
	do {
		consume(rig, 1500);
		r = pump(rig, 0, false);
		assert_int_equal(last.read, 0);
		assert_true(rig->flow.pending <= pending);
		pending = rig->flow.pending;
		assert_true(rounds++ < 1000);
	} while (r == PUMP_BLOCKED);
	assert_int_equal(r, PUMP_MORE);
	assert_true(rounds > 1);
	do {
		consume_all(rig);
		r = pump(rig, ALL, false);
	} while (r != PUMP_EMPTY);
	expect_all_arrived(rig);
}

/* --- errors --- */

/* The target's peer is gone.  Copy must not even raise SIGPIPE (see use_copy()). */
static void test_target_closed(void **state)
{
	struct rig *rig = *state;

	close_end(&rig->out);
	assert_int_equal(pump(rig, ALL, false), PUMP_EMPTY); /* nothing was written yet */
	produce(rig, 100);
	assert_int_equal(pump(rig, ALL, false), PUMP_DST_ERROR);
	assert_int_equal(last.error, EPIPE);
	assert_int_equal(last.read, 100);
	assert_int_equal(rig->flow.pending, 100);
	assert_int_equal(rig->flow.user_out, 0);
}

static void test_target_closed_while_blocked(void **state)
{
	struct rig *rig = *state;
	uint64_t written;

	block(rig);
	written = rig->flow.user_out;
	close_end(&rig->out); /* unread bytes in it: the nearest thing to an RST */
	assert_int_equal(pump(rig, ALL, false), PUMP_DST_ERROR);
	assert_true(last.error == EPIPE || last.error == ECONNRESET);
	assert_int_equal(last.read, 0);
	assert_int_equal(rig->flow.user_out, written);
	/* bytes of this session must not be left in a pipe that is lent again */
	carrier_release(&rig->flow, &rig->pool);
	assert_int_equal(rig->flow.pending, 0);
	assert_null(rig->flow.head);
	assert_null(rig->flow.tail);
	assert_null(rig->flow.pipe);
	assert_int_equal(rig->pool.buffers_lent + rig->pool.pipes_lent, 0);
	assert_int_equal(rig->pool.pipes_idle, 0);
	carrier_release(&rig->flow, &rig->pool); /* again: nothing to do */
}

/* Bytes before the reset are delivered, then the error is told. */
static void test_source_reset(void **state)
{
	for (int until_eof = 0; until_eof < 2; until_eof++) {
		struct rig *rig;
		enum pump r;

		rig_setup(state);
		rig = *state;
		produce(rig, 1000);
		assert_int_equal(send(rig->src, "unread", 6, MSG_NOSIGNAL), 6);
		close_end(&rig->in);
		r = pump(rig, ALL, until_eof);
		if (r == PUMP_EMPTY && !until_eof)
			r = pump(rig, ALL, false);
		assert_int_equal(r, PUMP_SRC_ERROR);
		assert_int_equal(last.error, ECONNRESET);
		expect_all_arrived(rig);
		assert_int_equal(rig_teardown(state), 0);
	}
}

static void test_dst_error(void **state)
{
	static const struct {
		int error;
		enum pump result;
	} cases[] = {
		{ EAGAIN, PUMP_BLOCKED },     { EWOULDBLOCK, PUMP_BLOCKED },
		{ ENOBUFS, PUMP_STARVED },    { ENOMEM, PUMP_STARVED },
		{ EPIPE, PUMP_DST_ERROR },    { ECONNRESET, PUMP_DST_ERROR },
		{ ETIMEDOUT, PUMP_DST_ERROR }, { EINVAL, PUMP_DST_ERROR },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pump_io io = { 0 };

		assert_int_equal(carrier_dst_error(&io, cases[i].error), cases[i].result);
		assert_int_equal(io.error,
				 cases[i].result == PUMP_DST_ERROR ? cases[i].error : 0);
	}
}

/* A source that the carrier cannot read loses nothing by the attempt. */
static void test_unsupported(void **state)
{
	struct rig *rig = *state;
	uint64_t value;

	close(rig->src);
	rig->src = eventfd(77, EFD_NONBLOCK | EFD_CLOEXEC);
	if (carrier == CARRIER_SPLICE) {
		assert_int_equal(pump(rig, ALL, false), PUMP_UNSUPPORTED);
	} else {
		assert_int_equal(pump(rig, ALL, false), PUMP_SRC_ERROR);
		assert_int_equal(last.error, ENOTSOCK);
	}
	assert_int_equal(rig->flow.user_in, 0);
	assert_int_equal(read(rig->src, &value, sizeof(value)), sizeof(value));
	assert_int_equal(value, 77);
}

/* Runs one pump without a single free descriptor. */
static enum pump pump_without_descriptors(struct rig *rig)
{
	struct rlimit old, none;
	enum pump r;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	none = old;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	r = pump(rig, ALL, false);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	return r;
}

static void test_no_descriptors(void **state)
{
	bool splice_run = carrier == CARRIER_SPLICE;
	struct rig *rig = *state;

	produce(rig, 500);
	assert_int_equal(pump_without_descriptors(rig), splice_run ? PUMP_STARVED : PUMP_EMPTY);
	assert_int_equal(rig->flow.user_in, splice_run ? 0 : 500);
	assert_int_equal(pump(rig, ALL, false), PUMP_EMPTY);
	expect_all_arrived(rig);
	/* an idle pipe, or one that is lent, needs no descriptor */
	produce(rig, 500);
	assert_int_equal(pump_without_descriptors(rig), PUMP_EMPTY);
	block(rig);
	consume(rig, 1);
	assert_int_equal(pump_without_descriptors(rig), PUMP_BLOCKED);
	do
		consume_all(rig);
	while (pump_without_descriptors(rig) != PUMP_EMPTY);
	expect_all_arrived(rig);
}

static void test_no_memory(void **state)
{
	struct rig *rig = *state;

	if (carrier != CARRIER_COPY)
		return; /* splice has no buffer */
	produce(rig, 500);
	rig->pool.buffer_size = SIZE_MAX / 4;
	assert_int_equal(pump(rig, ALL, false), PUMP_STARVED);
	assert_int_equal(last.read, 0);
	assert_int_equal(pump(rig, 0, false), PUMP_MORE); /* nothing to read, nothing needed */
	rig->pool.buffer_size = 5000;
	assert_int_equal(pump(rig, ALL, false), PUMP_EMPTY);
	expect_all_arrived(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_RIG(test_empty),
		ON_RIG(test_limit),
		ON_RIG(test_fairness),
		ON_RIG(test_fair_bytes),
		ON_RIG(test_short_read),
		ON_RIG(test_full_pipe),
		ON_RIG(test_eof),
		cmocka_unit_test(test_until_eof),
		ON_RIG(test_eof_behind_pending),
		ON_RIG(test_pending),
		ON_RIG(test_target_closed),
		ON_RIG(test_target_closed_while_blocked),
		cmocka_unit_test(test_source_reset),
		cmocka_unit_test(test_dst_error),
		ON_RIG(test_unsupported),
		ON_RIG(test_no_descriptors),
		ON_RIG(test_no_memory),
	};
	int failed = cmocka_run_group_tests_name("copy", tests, use_copy, NULL);

	return failed + cmocka_run_group_tests_name("splice", tests, use_splice, NULL);
}
