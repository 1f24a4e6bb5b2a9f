/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The carriers of user space between two pairs of unix sockets:
 *
 *	in ---> src =(pump)=> dst ---> out
 *
 * A known pattern goes into `in`, and each byte that comes out of `out` is checked.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "unit.h"
#include "datapath/carrier_copy.h"
#include "seeded.h"

#define ALL UINT64_MAX
#define CHUNK 65536

static struct {
	struct pool pool;
	size_t buffer_size;
	struct flow flow;
	int in, src, dst, out;
	uint64_t sent, received; /* of the pattern */
} rig;

static enum carrier carrier; /* of this round of tests */
static unsigned int descriptors_before;

static int rig_setup(void **state)
{
	int a[2], b[2];

	(void)state;
	memset(&rig, 0, sizeof(rig));
	descriptors_before = count_descriptors();
	rig.buffer_size = 5000;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, a) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, b))
		return -1;
	rig.in = a[0];
	rig.src = a[1];
	rig.dst = b[0];
	rig.out = b[1];
	return 0;
}

/* Make the target's send buffer as small as the kernel allows (4608 bytes, overhead included). */
static void narrow(void)
{
	int tiny = 1;

	assert_int_equal(setsockopt(rig.dst, SOL_SOCKET, SO_SNDBUF, &tiny, sizeof(tiny)), 0);
}

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int rig_teardown(void **state)
{
	(void)state;
	close_end(&rig.in);
	close_end(&rig.src);
	close_end(&rig.dst);
	close_end(&rig.out);
	carrier_release(&rig.flow, &rig.pool);
	if (rig.pool.buffers_lent || rig.pool.pipes_lent)
		return -1;
	pool_close(&rig.pool);
	return count_descriptors() == descriptors_before ? 0 : -1;
}

/* --- the two ends --- */

static uint8_t pattern(uint64_t at)
{
	return (uint8_t)((at + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

/* Up to N bytes into `in`.  Returns how many went. */
static uint64_t produce(uint64_t n)
{
	uint8_t buf[CHUNK];
	ssize_t r;

	n = n > CHUNK ? CHUNK : n;
	for (uint64_t i = 0; i < n; i++)
		buf[i] = pattern(rig.sent + i);
	if (!n)
		return 0;
	/* cppcheck-suppress uninitvar ; the loop above fills n bytes */
	r = send(rig.in, buf, n, MSG_NOSIGNAL);
	if (r < 0)
		assert_int_equal(errno, EAGAIN);
	else
		rig.sent += (uint64_t)r;
	return r < 0 ? 0 : (uint64_t)r;
}

/* Up to N bytes from `out`, each of them checked.  Returns how many came. */
static uint64_t consume(uint64_t n)
{
	uint8_t buf[CHUNK];
	ssize_t r = n ? recv(rig.out, buf, n > CHUNK ? CHUNK : n, 0) : 0;

	if (r < 0) {
		assert_int_equal(errno, EAGAIN);
		return 0;
	}
	for (uint64_t i = 0; i < (uint64_t)r; i++)
		if (buf[i] != pattern(rig.received + i))
			fail_msg("byte %llu is wrong", (unsigned long long)(rig.received + i));
	rig.received += (uint64_t)r;
	return (uint64_t)r;
}

static void consume_all(void)
{
	while (consume(CHUNK))
		;
}

/* --- the pump between them --- */

/* What is lent is what the flow holds, and what it holds is what is pending. */
static void check_loan(void)
{
	const struct flow *f = &rig.flow;
	const struct buffer *last_one = NULL;
	unsigned int n = 0;
	uint64_t bytes = 0;

	for (const struct buffer *b = f->head; b; b = b->next) {
		assert_true(b->at <= b->len && b->len <= rig.buffer_size);
		bytes += b->len - b->at;
		last_one = b;
		n++;
	}
	assert_ptr_equal(f->tail, last_one);
	assert_int_equal(rig.pool.buffers_lent, n);
	assert_int_equal(rig.pool.pipes_lent, f->pipe != NULL);
	assert_int_equal(f->user_in, f->user_out + f->pending);
	if (!f->pipe)
		assert_int_equal(f->pending, bytes);
	/* with nothing pending nothing is borrowed; otherwise buffers or a pipe, never both */
	assert_int_equal((n != 0) + (f->pipe != NULL), f->pending != 0);
}

static void check_result(enum pump r, const struct pump_io *io)
{
	bool error = r == PUMP_SRC_ERROR || r == PUMP_DST_ERROR;

	assert_int_equal(io->error != 0, error);
	assert_int_equal(io->read != 0, io->reads != 0);
	assert_true(io->read <= io->limit);
	check_loan();
	if (r == PUMP_EMPTY || r == PUMP_MORE || r == PUMP_EOF || r == PUMP_UNSUPPORTED)
		assert_int_equal(rig.flow.pending, 0);
	if (r == PUMP_BLOCKED)
		assert_int_not_equal(rig.flow.pending, 0);
}

static struct pump_io io_with(uint64_t limit, bool until_eof)
{
	return (struct pump_io){ .flow = &rig.flow,
				 .pool = &rig.pool,
				 .src = rig.src,
				 .dst = rig.dst,
				 .buffer_size = rig.buffer_size,
				 .limit = limit,
				 .until_eof = until_eof };
}

static enum pump pump_with(enum carrier c, struct pump_io *io)
{
	uint64_t user_in = rig.flow.user_in;
	enum pump r = carrier_pump(io, c);

	assert_int_equal(rig.flow.user_in - user_in, io->read);
	check_result(r, io);
	return r;
}

static struct pump_io last; /* what the last pump() has returned */

static enum pump pump(uint64_t limit, bool until_eof)
{
	last = io_with(limit, until_eof);
	return pump_with(carrier, &last);
}

/* Write and pump until the target takes no more. */
static void block(void)
{
	enum pump r;

	narrow();
	do {
		assert_true(produce(20000) > 0);
		r = pump(ALL, false);
	} while (r == PUMP_EMPTY || r == PUMP_MORE);
	assert_int_equal(r, PUMP_BLOCKED);
}

static void expect_all_arrived(void)
{
	consume_all();
	assert_int_equal(rig.received, rig.sent);
	assert_int_equal(rig.flow.user_in, rig.sent);
	assert_int_equal(rig.flow.user_out, rig.sent);
}

#define ON_RIG(f) TEST_WITH(f, rig_setup, rig_teardown)

/* --- reading and writing --- */

static unsigned int splices;

/* As that of the C library, but counted. */
ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t n, unsigned int flags)
{
	splices++;
	return syscall(SYS_splice, in, in_at, out, out_at, n, flags);
}

/* An idle pipe of which splice asks for SIZE bytes only; the pool itself would not keep it. */
static void offer_small_pipe(struct pool *p, uint32_t size)
{
	struct pipe *pipe = pool_pipe_get(p);

	pipe->size = size;
	p->pipes[p->pipes_idle++] = pipe;
	p->pipes_lent--;
}

/* Others have their turn after PUMP_ROUNDS reads. */
ON_RIG(test_fairness)
{
	uint64_t n = 100;

	rig.buffer_size = 100;
	produce(n * PUMP_ROUNDS * 2 + 1);
	for (int i = 0; i < 2; i++) {
		offer_small_pipe(&rig.pool, 100);
		assert_int_equal(pump(ALL, true), PUMP_MORE);
		assert_int_equal(last.read, n * PUMP_ROUNDS);
		assert_int_equal(last.reads, PUMP_ROUNDS);
		consume_all();
	}
	assert_int_equal(pump(ALL, false), PUMP_EMPTY);
	assert_int_equal(last.read, 1);
	expect_all_arrived();
}

/* What was little was all: splice does not ask again, unless it is to see the end. */
ON_RIG(test_short_read)
{
	for (int until_eof = 0; until_eof < 2; until_eof++) {
		produce(16384);
		splices = 0;
		assert_int_equal(pump(ALL, until_eof), PUMP_EMPTY);
		assert_int_equal(last.reads, 1 + (carrier == CARRIER_COPY) * 3);
		if (carrier == CARRIER_SPLICE)
			assert_int_equal(splices, 2 + until_eof);
		expect_all_arrived();
	}
}

/* A FIN was seen: one call goes to the end, whatever the sizes. */
TEST(test_until_eof)
{
	static const uint64_t sizes[] = { 0, 1, 2499, 2500, 2501, 3000 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		rig_setup(state);
		rig.buffer_size = 2500;
		produce(sizes[i]);
		shutdown(rig.in, SHUT_WR);
		assert_int_equal(pump(ALL, true), PUMP_EOF);
		assert_int_equal(last.read, sizes[i]);
		expect_all_arrived();
		assert_int_equal(rig_teardown(state), 0);
	}
}

/* What is pending survives, is written first, and is all that a limit of 0 lets pass. */
ON_RIG(test_pending)
{
	uint64_t pending;
	unsigned int rounds = 0;
	enum pump r;

	block();
	pending = rig.flow.pending;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pump(ALL, i & 1), PUMP_BLOCKED);
		assert_int_equal(last.read, 0);
		assert_int_equal(rig.flow.pending, pending);
	}
	produce(5000);
	do {
		consume(1500);
		r = pump(0, false);
		assert_int_equal(last.read, 0);
		assert_true(rig.flow.pending <= pending);
		pending = rig.flow.pending;
		assert_true(rounds++ < 1000);
	} while (r == PUMP_BLOCKED);
	assert_int_equal(r, PUMP_MORE);
	assert_true(rounds > 1);
	do {
		consume_all();
		r = pump(ALL, false);
	} while (r != PUMP_EMPTY);
	expect_all_arrived();
}

/* --- errors --- */

ON_RIG(test_target_closed_while_blocked)
{
	uint64_t written;

	block();
	written = rig.flow.user_out;
	close_end(&rig.out); /* unread bytes in it: the nearest thing to an RST */
	assert_int_equal(pump(ALL, false), PUMP_DST_ERROR);
	assert_true(last.error == EPIPE || last.error == ECONNRESET);
	assert_int_equal(last.read, 0);
	assert_int_equal(rig.flow.user_out, written);
	/* bytes of this session must not be left in a pipe that is lent again */
	carrier_release(&rig.flow, &rig.pool);
	assert_int_equal(rig.flow.pending, 0);
	assert_null(rig.flow.head);
	assert_null(rig.flow.tail);
	assert_null(rig.flow.pipe);
	assert_int_equal(rig.pool.buffers_lent + rig.pool.pipes_lent, 0);
	assert_int_equal(rig.pool.pipes_idle, 0);
	carrier_release(&rig.flow, &rig.pool); /* again: nothing to do */
}

/* Bytes before the reset are delivered, then the error is told. */
TEST(test_source_reset)
{
	for (int until_eof = 0; until_eof < 2; until_eof++) {
		enum pump r;

		rig_setup(state);
		produce(1000);
		assert_int_equal(send(rig.src, "unread", 6, MSG_NOSIGNAL), 6);
		close_end(&rig.in);
		r = pump(ALL, until_eof);
		if (r == PUMP_EMPTY && !until_eof)
			r = pump(ALL, false);
		assert_int_equal(r, PUMP_SRC_ERROR);
		assert_int_equal(last.error, ECONNRESET);
		expect_all_arrived();
		assert_int_equal(rig_teardown(state), 0);
	}
}

/* --- reading ahead --- */

/* carrier_read_ahead(): bytes are read now and written later, by carrier_pump(), in order. */

static enum pump read_ahead(uint64_t limit, uint32_t most)
{
	uint64_t user_in = rig.flow.user_in, user_out = rig.flow.user_out;
	enum pump r;

	last = io_with(limit, false);
	r = carrier_read_ahead(&last, most);
	assert_int_equal(rig.flow.user_out, user_out);
	assert_int_equal(rig.flow.user_in, user_in + last.read);
	assert_true(last.read <= limit);
	assert_int_equal(last.read != 0, last.reads != 0);
	assert_int_equal(last.error != 0, r == PUMP_SRC_ERROR);
	return r;
}

/* Write what was read, and no more. */
static void write_all(void)
{
	enum pump r;

	while ((r = pump(0, false)) == PUMP_BLOCKED)
		consume_all();
	assert_int_equal(r, PUMP_MORE);
	expect_all_arrived();
}

/* Over MOST by less than a buffer; at MOST nothing more is read. */
ON_RIG(test_read_ahead_most)
{
	uint32_t most = 12345, pending;

	produce(40000);
	assert_int_equal(read_ahead(ALL, most), PUMP_MORE);
	pending = rig.flow.pending;
	assert_true(pending >= most && pending < most + rig.buffer_size);
	assert_int_equal(read_ahead(ALL, most), PUMP_MORE);
	assert_int_equal(read_ahead(ALL, pending), PUMP_MORE);
	assert_int_equal(last.read, 0);
	check_loan();
	while (pump(ALL, false) != PUMP_EMPTY)
		consume_all();
	expect_all_arrived();
}

/* Many small reads share buffers: a flow's memory stays in proportion to its bytes. */
ON_RIG(test_small_reads_share)
{
	for (int i = 0; i < 1000; i++) {
		produce(7);
		assert_int_equal(read_ahead(7, UINT32_MAX), PUMP_MORE);
	}
	assert_true(rig.pool.buffers_lent <= 2 + 7000 / (rig.buffer_size - 4096));
	write_all();
	check_loan();
}

ON_RIG(test_read_ahead_eof)
{
	produce(6000);
	shutdown(rig.in, SHUT_WR);
	assert_int_equal(read_ahead(ALL, UINT32_MAX), PUMP_EOF);
	assert_int_equal(rig.flow.pending, 6000);
	assert_int_equal(pump(ALL, true), PUMP_EOF);
	expect_all_arrived();
}

ON_RIG(test_read_ahead_error)
{
	produce(6000);
	assert_int_equal(send(rig.src, "unread", 6, MSG_NOSIGNAL), 6);
	close_end(&rig.in);
	assert_int_equal(read_ahead(ALL, UINT32_MAX), PUMP_SRC_ERROR);
	assert_int_equal(last.error, ECONNRESET);
	assert_int_equal(rig.flow.pending, 6000);
	carrier_release(&rig.flow, &rig.pool);
	assert_int_equal(rig.pool.buffers_lent, 0);
	assert_int_equal(rig.flow.pending, 0);
}

/* --- random streams --- */

/*
 * Random streams: writes, pumps and reads of random sizes in random order, through a target that is
 * full most of the time.  pump_with() checks every byte and, after each pump, the books.
 */

#define STREAM (256 * 1024) /* bytes */

struct tally {
	unsigned int results[PUMP_DST_ERROR + 1];
	unsigned int partial; /* pumps that wrote some of what was pending, and not all */
};

static enum pump random_pump(struct seeded *r, enum carrier c, struct tally *tally)
{
	uint64_t out = rig.flow.user_out;
	uint32_t pending = rig.flow.pending;
	uint64_t limit = seeded_below(r, 2) ? ALL : seeded_size(r, 17);
	struct pump_io io = io_with(limit, seeded_below(r, 2));

	enum pump result = pump_with(c, &io);

	tally->results[result]++;
	out = rig.flow.user_out - out;
	tally->partial += out && out < pending;
	if (out < pending)
		assert_int_equal(io.read, 0); /* what is pending goes first */
	return result;
}

/* Who carries now: what is pending stays with the one who holds it. */
static enum carrier choose(struct seeded *r, bool mixed)
{
	if (!mixed)
		return carrier;
	if (rig.flow.pending)
		return rig.flow.pipe ? CARRIER_SPLICE : CARRIER_COPY;
	return seeded_below(r, 2) ? CARRIER_SPLICE : CARRIER_COPY;
}

static void random_stream(uint64_t seed, bool mixed, struct tally *tally)
{
	struct seeded r = { seed };
	unsigned int thrift = 9 + (unsigned int)seeded_below(&r, 6); /* of the reader */
	enum pump result;

	narrow();
	rig.buffer_size = 64 + seeded_size(&r, 17);
	while (rig.sent < STREAM) {
		switch (seeded_below(&r, mixed ? 5 : 4)) {
		case 0:
			produce(seeded_size(&r, 17));
			break;
		case 1:
			consume(seeded_size(&r, thrift));
			break;
		case 2: /* the reader wakes up */
			if (seeded_below(&r, 32) == 0)
				consume_all();
			break;
		case 3:
			random_pump(&r, choose(&r, mixed), tally);
			break;
		default:
			if (!rig.flow.pipe)
				read_ahead(seeded_size(&r, 15), (uint32_t)seeded_size(&r, 17));
		}
	}
	shutdown(rig.in, SHUT_WR);
	do {
		consume(seeded_size(&r, thrift));
		result = random_pump(&r, choose(&r, mixed), tally);
	} while (result == PUMP_BLOCKED || result == PUMP_MORE || result == PUMP_EMPTY);
	assert_int_equal(result, PUMP_EOF);
	expect_all_arrived();
	assert_int_equal(rig.pool.buffers_lent + rig.pool.pipes_lent, 0);
}

static void streams(void **state, uint64_t first_seed, bool mixed)
{
	struct tally tally = { 0 };

	for (uint64_t seed = first_seed; seed < first_seed + 10; seed++) {
		assert_int_equal(rig_setup(state), 0);
		random_stream(seed, mixed, &tally);
		assert_int_equal(rig_teardown(state), 0);
	}
	/* the streams were as rough as they should be */
	assert_true(tally.results[PUMP_EMPTY] > 10);
	assert_true(tally.results[PUMP_MORE] > 10);
	assert_true(tally.results[PUMP_BLOCKED] > 100);
	assert_true(tally.partial > 10);
	assert_int_equal(tally.results[PUMP_SRC_ERROR] + tally.results[PUMP_DST_ERROR], 0);
	assert_int_equal(tally.results[PUMP_STARVED] + tally.results[PUMP_UNSUPPORTED], 0);
}

TEST(test_streams)
{
	streams(state, 100, false);
}

/*
 * The flow changes its carrier whenever nothing is pending, and reads ahead at times, as it does
 * after a stay in the kernel.
 */
TEST(test_mixed_streams)
{
	streams(state, 200, true);
}

int main(void)
{
	int failed;

	carrier = CARRIER_COPY;
	signal(SIGPIPE, SIG_DFL); /* copy must not raise it */
	failed = unit_run(NULL, NULL);
	carrier = CARRIER_SPLICE;
	signal(SIGPIPE, SIG_IGN); /* splice(2) cannot be told not to; the daemon ignores it */
	return failed + unit_run(NULL, NULL);
}
