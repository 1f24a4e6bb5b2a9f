// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Entering.  The verdict gets whole skbs, and does not know which bytes user space has read.  So a
 * flow enters only when its receive queue was just seen empty.  Bytes that arrive between that look
 * and the insertion stay in the queue until the kick runs the verdict over it.
 *
 * Drained.  Bytes that the program redirects wait on the target's psock until a kernel worker gives
 * them to TCP.  No event reports that.  But TCP says how many bytes it has been given since the
 * connection began: acknowledged ones (tcpi_bytes_acked, which counts our SYN) plus those not yet
 * acknowledged (SIOCOUTQ).  Once the sum equals the redirected bytes plus those that user space
 * wrote, the backlog is empty.  TCP_INFO is read first: an ACK between the two calls can only make
 * the sum too small, which means "look again", never "done".  (tcpi_bytes_sent -
 * tcpi_bytes_retrans + tcpi_notsent_bytes needs one call less, but counts a segment twice when the
 * local queueing discipline drops it: __tcp_transmit_skb() adds to bytes_sent before it knows, and
 * snd_nxt does not move.)
 *
 * Leaving.  Removal from rx races with the socket's receive path: sk_psock_verdict_recv() may find
 * that the program is gone and drop the skb in its hand.  The fence keeps that function from
 * running, in two parts.  The gate, a socket filter that is attached as long as the socket is in
 * rx, keeps segments with payload or FIN out of TCP for these microseconds; the peer sends them
 * again.  setsockopt(SO_RCVLOWAT) stops segments that have passed the filter.  The call takes the
 * socket lock, so no verdict runs when the call returns; afterwards tcp_data_ready() stays quiet
 * below the low-water mark.  The mark alone leaks: under memory pressure, with a nearly closed
 * window, with FIN.  Passing stays on until the very end, so that a daemon stopped in the middle
 * leaves the hard limit in force.  Where passing would not bound memory the program closes the gate
 * itself (include/sockmap_contract.h); the gate stays closed until the flow has left.
 *
 * Receive buffer.  The program takes bytes as fast as they come, and passed bytes count as taken,
 * so tcp_rcv_space_adjust() sees a fast reader.  The source's buffer would grow up to tcp_rmem[2]
 * (33 MB were seen), and then fill with passed bytes.  So the buffer has a fixed size while a flow
 * is in rx, and with --engine sockmap as long as the flow lives: the hard limit, or the size to
 * which it had grown before.  (A buffer much smaller than the backlog's limit makes removals slow:
 * the fence drops the last segment of a window.  No later segment shows that loss, so the peer
 * waits for its timer.)
 *
 * Audit.  A segment between the filter and the lock could still slip through, so each removal is
 * audited: received == redirected + read + unread.  A session without that proof is reset.
 */
#include "datapath/sockmap/carrier_sockmap.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>

#include "base/built_with.h"
#include "datapath/policy.h"
#include "datapath/tcp.h"

#if BUILT_WITH_TSAN && !defined(__clang__)
/*
 * ThreadSanitizer does not model fences, and gcc says so.  Nothing is missed here: these fences
 * order accesses against the kernel, which ThreadSanitizer does not see anyway.  Threads of the
 * daemon are ordered by the mutex.
 */
#pragma GCC diagnostic ignored "-Wtsan"
#endif

/*
 * The most looks at a receive queue.  Two looks prove nothing if the queue has grown between them;
 * but the source's window closes before so many looks.
 */
#define AUDIT_TRIES 2000
/* So many looks at a queue at rest must disagree before bytes count as lost. */
#define AUDIT_LOOKS 4
/* Inside this file: go round once more. */
#define STEP_AGAIN ((enum step) - 1)
/* Fairness: buffers of passed bytes written in one go. */
#define SETTLE_ROUNDS 64
/* Looks, up to 128 ms apart, at a FIN whose bytes do not add up, before it is called a loss. */
#define FIN_LOOKS 60

static uint64_t passed_bytes(const struct sockmap_io *io)
{
	return io->kernel->stats[io->slot].passed;
}

static uint64_t redirected(const struct sockmap_io *io)
{
	return io->kernel->stats[io->slot].bytes;
}

static volatile struct culvert_ctl *ctl_of(const struct sockmap_io *io)
{
	return &io->kernel->ctls[io->slot];
}

/* Passed bytes that are not read yet: neither pending, nor written to the target (credited). */
static uint64_t unread(const struct sockmap_io *io)
{
	return passed_bytes(io) - ctl_of(io)->credit - io->pump.flow->pending;
}

/*
 * True if every passed byte has been read: written, and so credited, or pending.  The daemon's half
 * of Dekker's pattern with pass() of the program: all stores to ctl so far (credit, no_pass) are
 * visible before `passed` is looked at.
 */
static bool all_read(const struct sockmap_io *io)
{
	atomic_thread_fence(memory_order_seq_cst);
	return !unread(io);
}

/* True if every passed byte is on the target.  Pairs with pass() in the program. */
static bool settled(const struct sockmap_io *io)
{
	return !io->pump.flow->pending && all_read(io);
}

/* Note errno ERROR of a socket.  Returns WHAT. */
static int failed(struct sockmap_io *io, int error, int what)
{
	io->pump.error = error;
	return what;
}

/* STEP_DONE if the target's backlog is empty. */
static enum step look_drained(struct sockmap_io *io)
{
	struct flow_books *books = &io->books;
	struct flow *f = io->pump.flow;
	int r = tcp_accepted(io->pump.dst, io->dst_connected, io->header_out, &books->accepted);

	if (r)
		return failed(io, -r, STEP_DST_ERROR);
	books->redirected = redirected(io);
	if (flow_drained(f, books))
		return STEP_DONE;
	if (books->accepted > books->redirected + f->user_out)
		return STEP_UNPROVED;
	flow_await_target(f, io->now_ms);
	return STEP_WAIT;
}

static enum step wait_longer(struct sockmap_io *io)
{
	flow_look_later(io->pump.flow, io->now_ms);
	return STEP_WAIT;
}

int sockmap_enter(struct sockmap_io *io, const struct forward_conf *limits, unsigned int worker)
{
	volatile struct culvert_ctl *ctl = ctl_of(io);
	char c;
	int r;

	if (tcp_recv(io->pump.src, &c, 1, MSG_PEEK) >= 0)
		return -EAGAIN;
	if (errno != EAGAIN)
		return failed(io, errno, -EPROTO);
	io->pump.flow->drained_at = redirected(io);
	ctl->credit = passed_bytes(io);
	ctl->soft_limit = limits->soft_limit;
	ctl->hard_limit = limits->hard_limit;
	ctl->bulk_bytes = io->bulk_bytes;
	ctl->bulk_ratio = KERNEL_BULK_RATIO;
	ctl->bulk_skb = KERNEL_BULK_SKB;
	ctl->worker = worker;
	ctl->no_pass = 0;
	ctl->fence = 0;
	ctl->epoch++; /* opens the gate, too */
	r = tcp_fix_buffer(io->pump.src, limits->hard_limit);
	if (r)
		return failed(io, -r, -EPROTO);
	/* a full barrier comes with these calls: the program sees ctl */
	r = sockmap_gate(io->kernel, io->pump.src, true) ?:
		    sockmap_rx_add(io->kernel, io->slot, io->pump.src);
	if (r) {
		sockmap_gate(io->kernel, io->pump.src, false);
		tcp_unfix_buffer(io->pump.src);
	}
	/* -EAGAIN has its own meaning here; the kernel is not known to return it */
	return r == -EAGAIN ? -EBUSY : r;
}

enum step sockmap_kick(struct sockmap_io *io)
{
	char c;

	if (tcp_recv(io->pump.src, &c, 1, MSG_PEEK) < 0 && errno != EAGAIN)
		return failed(io, errno, STEP_SRC_ERROR);
	return settled(io) ? STEP_DONE : STEP_WAIT;
}

/*
 * Of the first PASSED bytes, read the unread ones, and write them to the target.  ctl.credit
 * follows the written bytes.
 */
static enum step settle_some(struct sockmap_io *io, uint64_t passed)
{
	volatile struct culvert_ctl *ctl = ctl_of(io);
	struct flow *f = io->pump.flow;
	uint64_t before = f->user_out, read = io->pump.read;
	enum pump r;

	/* pending bytes are read already, but not yet credited */
	io->pump.limit = read + passed - ctl->credit - f->pending;
	r = carrier_pump(&io->pump, CARRIER_COPY);
	f->starved = r == PUMP_STARVED;
	f->blocked = r == PUMP_BLOCKED;
	/*
	 * The program redirects as soon as it sees the credit, so the bytes written above must
	 * come first.  send(2) has taken and released the target's lock, and the redirect takes
	 * that lock, too.  The release fence keeps the compiler and the CPU from storing the
	 * credit earlier.
	 */
	atomic_thread_fence(memory_order_release);
	ctl->credit += f->user_out - before;
	if (f->user_out != before)
		flow_look_reset(f);
	if (r == PUMP_SRC_ERROR)
		return STEP_SRC_ERROR;
	if (r == PUMP_DST_ERROR)
		return STEP_DST_ERROR;
	if (r == PUMP_BLOCKED)
		return STEP_WAIT;
	/* none read: no buffer, or they wait behind the other flow's backlog (trap T8) */
	return r == PUMP_MORE || io->pump.read != read ? STEP_DONE : wait_longer(io);
}

/*
 * Between two redirected bytes the program passes one unbroken run of bytes.  The backlog must have
 * drained before the first byte of a run is written; nothing is redirected during the run, so the
 * backlog stays drained until the count of redirected bytes moves.  PASSED is read before that
 * count: the program counts in the order of the stream, so a run that begins after a redirect is
 * never taken for part of the run before it.
 */
static enum step settle_round(struct sockmap_io *io)
{
	uint64_t passed = passed_bytes(io);

	/* with the atomic add in pass(): `bytes` is at least as new as `passed` */
	atomic_thread_fence(memory_order_acquire);
	if (redirected(io) != io->pump.flow->drained_at) {
		enum step r = look_drained(io);

		if (r != STEP_DONE)
			return r;
		io->pump.flow->drained_at = io->books.redirected;
	}
	return passed == ctl_of(io)->credit ? STEP_DONE : settle_some(io, passed);
}

enum step sockmap_settle(struct sockmap_io *io)
{
	for (int round = 0; round < SETTLE_ROUNDS; round++) {
		enum step r;

		if (settled(io))
			return STEP_DONE;
		r = settle_round(io);
		if (r != STEP_DONE)
			return r;
	}
	/* the source is faster than we are: let others have their turn, a millisecond at least */
	return wait_longer(io);
}

static int remove_from_rx(struct sockmap_io *io)
{
	volatile struct culvert_ctl *ctl = ctl_of(io);
	int r;

	if (!all_read(io))
		return -EAGAIN;
	ctl->no_pass = 1;
	r = all_read(io) ? sockmap_rx_del(io->kernel, io->slot) : -EAGAIN;
	if (r)
		ctl->no_pass = 0;
	return r;
}

/* -EIO: the fence is up, in part at least, and would stop the flow for ever: end the session. */
static int remove_fenced(struct sockmap_io *io)
{
	volatile struct culvert_ctl *ctl = ctl_of(io);
	int r;

	ctl->fence = 1;
	/* before the lock is taken: no segment after the lock sees the old value */
	atomic_thread_fence(memory_order_seq_cst);
	/* takes the socket lock: segments that had passed the filter are queued */
	tcp_set_lowat(io->pump.src, INT_MAX);
	r = remove_from_rx(io);
	if (!r && sockmap_gate(io->kernel, io->pump.src, false))
		r = -EIO;
	ctl->fence = 0;
	if (tcp_set_lowat(io->pump.src, 1))
		return -EIO;
	if (!r && !io->returns)
		tcp_unfix_buffer(io->pump.src);
	return r;
}

/*
 * received == redirected + read + unread, seen at one instant: nobody but us reads.
 *
 * A FIN that comes while we look makes one look disagree: tcp_get_info() reads the state before it
 * takes the socket lock, so the FIN may be in bytes_received and not yet in the state.  The FIN
 * makes `received` too large and never too small, so looking again cannot hide a loss.
 *
 * An urgent byte makes all looks disagree: MSG_PEEK ends before it.  SIOCINQ does not help: in a
 * sockmap Linux 6.18 counts tcp_bpf's sk_msg alone, and returns 0.  Then the bytes before the
 * urgent byte are read, and the next look begins at that byte.
 */
static enum step audit_left(struct sockmap_io *io)
{
	struct flow_books *books = &io->books;
	uint64_t again = 0;
	int r = 0, disagree = 0;

	for (int i = 0; !r && i < AUDIT_TRIES; i++) {
		enum pump read;

		r = tcp_unread(io->pump.src, &books->unread);
		r = r ?: tcp_received(io->pump.src, io->header_in, &books->received);
		r = r ?: tcp_unread(io->pump.src, &again);
		if (r || again != books->unread)
			continue;
		books->redirected = redirected(io);
		if (flow_accounted(io->pump.flow, books))
			return STEP_DONE;
		if (++disagree < AUDIT_LOOKS)
			continue;
		if (!books->unread)
			return STEP_UNPROVED;
		io->pump.limit = io->pump.read + books->unread;
		read = carrier_read_ahead(&io->pump, UINT32_MAX); /* it is written later */
		if (read == PUMP_SRC_ERROR)
			return STEP_SRC_ERROR;
		if (read == PUMP_STARVED)
			return STEP_UNPROVED;
		disagree = 0;
	}
	return r ? failed(io, -r, STEP_SRC_ERROR) : STEP_UNPROVED;
}

/*
 * Read passed bytes without writing them, until MOST bytes are pending.  A flow can leave once all
 * passed bytes are read.  If it had to write them, too, it would wait for the backlog.  A fast
 * source would have more bytes passed meanwhile, without end.
 */
static enum step read_passed(struct sockmap_io *io, uint32_t most)
{
	struct flow *f = io->pump.flow;
	uint64_t before = io->pump.read;
	enum pump r;

	io->pump.limit = before + unread(io);
	r = carrier_read_ahead(&io->pump, most);
	f->starved = r == PUMP_STARVED;
	if (r == PUMP_SRC_ERROR)
		return STEP_SRC_ERROR;
	if (io->pump.read != before || r == PUMP_MORE)
		return STEP_DONE;
	return wait_longer(io);
}

/*
 * A source that is faster than our reading has filled the read-ahead, and would fill it again after
 * each write.  Under the fence no more bytes come, and at most a receive buffer, whose size is
 * fixed, is left to read.  The fence is lowered before anything waits for the target: the target
 * may take longer than the source's TCP goes on trying.  STEP_DONE: all is read, the fence is up.
 */
static enum step read_fenced(struct sockmap_io *io)
{
	volatile struct culvert_ctl *ctl = ctl_of(io);
	enum step r = STEP_DONE;

	ctl->fence = 1;
	while (r == STEP_DONE && !all_read(io)) /* a barrier: the gate sees the fence */
		r = read_passed(io, UINT32_MAX);
	if (r != STEP_DONE)
		ctl->fence = 0;
	if (r != STEP_WAIT)
		return r;
	r = settle_round(io); /* the bytes are behind the reverse flow's backlog: write first */
	return r == STEP_DONE ? STEP_AGAIN : r;
}

static enum step leave_round(struct sockmap_io *io)
{
	enum step r = STEP_DONE;
	int e;

	if (!all_read(io) && io->pump.flow->pending < io->read_ahead) {
		r = read_passed(io, io->read_ahead);
		return r == STEP_DONE ? STEP_AGAIN : r;
	}
	if (!all_read(io))
		r = read_fenced(io);
	if (r != STEP_DONE)
		return r;
	e = remove_fenced(io); /* raises the fence, if it is not up, and lowers it */
	if (e == -EAGAIN)
		return STEP_AGAIN;
	return e || !all_read(io) ? STEP_UNPROVED : audit_left(io);
}

enum step sockmap_leave(struct sockmap_io *io)
{
	for (int round = 0; round < SETTLE_ROUNDS; round++) {
		enum step r = leave_round(io);

		if (r != STEP_AGAIN)
			return r;
	}
	return wait_longer(io);
}

enum step sockmap_drain(struct sockmap_io *io)
{
	enum step r = look_drained(io);

	if (r == STEP_DONE) /* for the reverse flow's program: there is no backlog any more */
		sockmap_stay_over(io->kernel, io->slot);
	return r;
}

enum step sockmap_finish(struct sockmap_io *io)
{
	struct flow_books *books = &io->books;
	enum step r = sockmap_kick(io);
	int e;

	if (r == STEP_SRC_ERROR)
		return r;
	r = sockmap_settle(io);
	if (r != STEP_DONE)
		return r;
	e = tcp_received(io->pump.src, io->header_in, &books->received);
	if (e)
		return failed(io, -e, STEP_SRC_ERROR);
	books->redirected = redirected(io);
	books->unread = 0;
	if (!flow_accounted(io->pump.flow, books)) /* yet */
		return ++io->pump.flow->stuck > FIN_LOOKS ? STEP_UNPROVED : wait_longer(io);
	return sockmap_drain(io); /* still in rx, but nothing can come any more */
}

enum step sockmap_take_rest(struct sockmap_io *io)
{
	enum step r = io->pump.flow->phase == FLOW_DRAINING ? STEP_DONE : sockmap_settle(io);

	return r == STEP_DONE ? look_drained(io) : r;
}

bool sockmap_ended(const struct sockmap_io *io)
{
	uint64_t received = 0;

	return !tcp_received(io->pump.src, io->header_in, &received) &&
	       received == redirected(io) + io->pump.flow->user_in;
}
