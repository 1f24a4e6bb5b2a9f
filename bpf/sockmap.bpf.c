// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The verdict program: one run per skb that arrives on a socket in rx.  And the gate, a socket
 * filter that keeps data out of TCP while that program must not run.
 *
 * Theory of operation
 *   - A flow is redirected to the other socket of its session, through tx.
 *   - The target's backlog (psock->ingress_skb) is the redirected bytes that are not yet part of
 *     the target's write_seq.  The kernel neither bounds the backlog nor charges it to anybody, so
 *     the program bounds it, by a look every CULVERT_CHECK_BYTES or CULVERT_CHECK_PACKETS.
 *   - Over the soft limit the daemon is told, and takes the flow out of the kernel.  The hard limit
 *     is for a daemon that does not react.  Over it the program passes skbs to user space, where
 *     TCP's own window bounds them.  Where the window would not, the program closes the gate: see
 *     reverse_has_backlog().
 *   - All flows' backlogs together are bounded as well: see charge() and is_pressed().
 *   - An skb may begin with bytes that were seen before: see trim().
 *   - The run is serialised per source socket: the kernel calls it with the socket lock held.
 *
 * The order of the stream across redirect and pass is argued in include/sockmap_contract.h.
 *
 * Memory order.  A run sees all that earlier runs on the same socket have written to stat, on any
 * CPU: the socket lock is between them.  These readers look without that lock:
 *   - The daemon reads stat.  `passed` synchronises it: see pass().  Everything else is read after
 *     `passed`, or is a statistic.  Each field is one aligned word, so it is old or new, never
 *     half.
 *   - The program reads ctl, which the daemon writes.  `credit` and `no_pass` may change at any
 *     time and are read with READ_ONCE(), so that the compiler loads them at that very place.  All
 *     else of a flow's own ctl changes only while its socket is out of rx; the map update that
 *     brings the socket back takes the socket lock.  The reverse flow's epoch may change at any
 *     time.
 *   - The reverse flow's run reads this flow's stat.packets, a statistic.  It reads expected_seq
 *     and epoch by READ_ONCE(): see reverse_has_backlog().
 *   - All flows' runs read `memory` and `pressure` by READ_ONCE(), and add to `memory` atomically.
 *     A difference of sums may lack charges that come meanwhile; the next look sees them.
 *   - The gate, which holds no lock, reads closed, fence and epoch by READ_ONCE().  A segment that
 *     an old value lets in counts as one that TCP held already.
 *   - The program reads TCP's write_seq and copied_seq by READ_ONCE().  The target's write_seq may
 *     be late: then a backlog looks larger than it is, by the bytes that TCP has just taken.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "sockmap_contract.h"
#include "vmlinux.h"

/* map sizes are placeholders: the daemon sets them before it loads */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} rx SEC(".maps"), tx SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__type(key, __u64);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct culvert_stat);
} stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct culvert_ctl);
} ctls SEC(".maps");

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct ring);
} rings SEC(".maps");

/* Events that found the ring full; the daemon then looks at every flow itself. */
__u64 events_lost;

/* The limit of `memory`; set before the program is loaded, so that it is a constant here. */
const volatile __s64 memory_limit = ~0ULL >> 1;

/* All flows' backlogs use `charged` minus `released` bytes; see include/sockmap_contract.h. */
struct {
	__u64 charged;
	__u64 released; /* by the daemon */
} memory __attribute__((aligned(64)));

/*
 * 1: more than memory_limit is in use, so each run looks at the backlog.  Each run reads `on`, and
 * few runs change it.  So `on` has a cache line to itself, which all CPUs share; `memory` changes
 * with many a look.  Each look sets or clears `on`.  If two looks do so at a time, the next look
 * corrects the result.  After a quiet time the first skb clears `on`.
 */
struct {
	__u32 on;
} pressure __attribute__((aligned(64)));

#define TCP_FLAG_FIN_BIT 0x01
#define TCP_FLAG_RST_BIT 0x04

/* bpf_skb_adjust_room() cuts less than 4 KiB at a time; skbs have up to 512 KiB (BIG TCP). */
#define TRIM_STEP 4095
#define TRIM_STEPS 256

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))

/* Tell the daemon.  An event that does not fit is counted; tell_once() tries it again. */
static void tell(const struct culvert_ctl *ctl, struct culvert_stat *st, __u32 slot, __u16 kind)
{
	struct culvert_event ev = { .slot = slot, .kind = kind, .epoch = (__u16)ctl->epoch };
	__u32 worker = ctl->worker;
	void *ring = bpf_map_lookup_elem(&rings, &worker);

	if (ring && !bpf_ringbuf_output(ring, &ev, sizeof(ev), 0))
		st->told |= 1U << kind;
	else
		__sync_fetch_and_add(&events_lost, 1);
}

static void tell_once(const struct culvert_ctl *ctl, struct culvert_stat *st, __u32 slot,
		      __u16 kind)
{
	if (!(st->told & (1U << kind)))
		tell(ctl, st, slot, kind);
}

/* The target's write_seq: all that TCP has accepted for sending.  False: the target is gone. */
static bool target_write_seq(__u32 target, __u32 *seq)
{
	struct bpf_sock *sk = bpf_map_lookup_elem(&tx, &target);
	struct tcp_sock *tp;

	if (!sk)
		return false;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		*seq = READ_ONCE(tp->write_seq);
	bpf_sk_release(sk);
	return tp;
}

/* The socket that the skb has come to; NULL: it is gone. */
static struct tcp_sock *source_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	return sk ? bpf_skc_to_tcp_sock(sk) : NULL;
}

/*
 * Estimate the memory of the target's backlog.  Its payload is known exactly.  Its skbs occupy more
 * than that (small segments: a thousand times the payload).  Two points of the stream bound this
 * overhead from above.  All skbs before the older point have left the backlog, so the overhead is
 * at most that of the later skbs.  When write_seq reaches the younger point, the younger point
 * becomes the older one.
 */
static __u64 backlog_memory(struct culvert_stat *st, __u32 write_seq)
{
	__s32 payload = (__s32)(st->expected_seq - write_seq);

	if (payload <= 0 || (__s32)(write_seq - st->mark_seq) >= 0) {
		st->sent_overhead = payload <= 0 ? st->overhead : st->mark_overhead;
		st->mark_overhead = st->overhead;
		st->mark_seq = st->expected_seq;
	}
	return payload <= 0 ? 0 : (__u64)payload + (st->overhead - st->sent_overhead);
}

/* Bulk: much in one direction, in big skbs, with hardly an answer.  All else begins a new turn. */
static void watch_turn(const struct culvert_ctl *ctl, struct culvert_stat *st,
		       const struct culvert_stat *reverse, __u32 slot)
{
	__u64 bytes = st->bytes - st->turn_bytes;
	__u32 answers = (__u32)READ_ONCE(reverse->packets) - st->turn_answers;
	__u32 packets = (__u32)st->packets - st->turn_packets;

	if (!ctl->bulk_bytes || bytes < ctl->bulk_bytes)
		return;
	if (bytes >= (__u64)answers * ctl->bulk_ratio && bytes >= (__u64)packets * ctl->bulk_skb) {
		tell_once(ctl, st, slot, CULVERT_EVENT_BULK);
		return;
	}
	st->turn_bytes = st->bytes;
	st->turn_packets += packets;
	st->turn_answers += answers;
}

/* Charge the flow for a backlog of so many BYTES.  Returns what all flows are charged. */
static __s64 charge(struct culvert_stat *st, __u64 bytes)
{
	__u64 more;

	if (bytes <= CULVERT_UNCHARGED)
		bytes = 0;
	more = bytes - st->backlog; /* or less, modulo 2^64 */
	if (more) {
		st->backlog = bytes;
		__sync_fetch_and_add(&memory.charged, more);
	}
	return (__s64)(READ_ONCE(memory.charged) - READ_ONCE(memory.released));
}

/*
 * All flows together have USED bytes.  True if that is too much and this flow is charged: the flow
 * then counts as over its hard limit, however high that limit is.
 */
static bool is_pressed(const struct culvert_ctl *ctl, struct culvert_stat *st, __u32 slot,
		       __s64 used)
{
	__u32 over = used > memory_limit;

	if (READ_ONCE(pressure.on) != over)
		pressure.on = over;
	if (!st->backlog || used <= memory_limit - (memory_limit >> 2))
		return false;
	tell_once(ctl, st, slot, CULVERT_EVENT_MEMORY);
	return over;
}

/* True if the flow is over its hard limit. */
static bool check_backlog(const struct culvert_ctl *ctl, struct culvert_stat *st, __u32 slot)
{
	__u64 bytes;
	__u32 seq;

	if (!target_write_seq(slot ^ 1, &seq))
		return false; /* the redirect will fail and say so */
	bytes = backlog_memory(st, seq);
	if (bytes > st->backlog_max)
		st->backlog_max = bytes;
	if (bytes > ctl->soft_limit)
		tell_once(ctl, st, slot, CULVERT_EVENT_SOFT);
	return is_pressed(ctl, st, slot, charge(st, bytes)) || bytes > ctl->hard_limit;
}

/*
 * Over the hard limit: does the reverse flow have a backlog at this flow's source?  If not, a
 * passed skb goes to the source's receive queue, where it is charged, and TCP's window closes.  If
 * so, a passed skb is queued behind the backlog, in the source's ingress_skb
 * (sk_psock_verdict_apply()).  There the skb is charged to nobody, the window stays open, and user
 * space cannot read the skb before the peer has read the backlog, which the peer may never do.  So
 * the gate is closed in that case, and the bytes that TCP holds already, at most a receive buffer,
 * are redirected.
 *
 * The backlog is read without the reverse flow's lock.  An skb that the reverse flow redirects at
 * the same time is seen at the next skb of this flow.  Bytes that the reverse flow has passed, and
 * the daemon has not yet written, count as well, so the gate may be closed where passing would be
 * enough.
 */
static bool reverse_has_backlog(struct __sk_buff *skb, const struct culvert_stat *reverse,
				__u32 rslot)
{
	const struct culvert_ctl *ctl = bpf_map_lookup_elem(&ctls, &rslot);
	struct tcp_sock *tp;

	if (!ctl)
		return true;
	/* the reverse flow has redirected nothing since it entered, or has left and drained */
	if (READ_ONCE(reverse->epoch) != READ_ONCE(ctl->epoch))
		return false;
	tp = source_of(skb);
	return !tp || (__s32)(READ_ONCE(reverse->expected_seq) - READ_ONCE(tp->write_seq)) > 0;
}

/*
 * Hand the skb to user space; tell the daemon if all passed bytes are credited: it may be asleep.
 *
 * The program's half of Dekker's pattern: count, full barrier, look at credit.  An atomic add whose
 * result is used compiles to BPF_ADD | BPF_FETCH, which is atomic64_fetch_add(): fully ordered in
 * the kernel's memory model, before and after (x86: lock xadd; arm64: ldaddal, or ldxr and stlxr
 * with dmb ish). Without the result it would be BPF_ADD alone, and no barrier at all (arm64:
 * stadd); tests/kernel/test_verifier.c looks which it is.  The add is a release as well: a daemon
 * that sees this `passed` sees the `bytes` of all skbs that were redirected before.
 */
static int pass(const struct culvert_ctl *ctl, struct culvert_stat *st, __u32 slot, __u32 len)
{
	__u64 before = __sync_fetch_and_add(&st->passed, (__u64)len);

	st->expected_seq += len;
	if (READ_ONCE(ctl->credit) == before)
		tell(ctl, st, slot, CULVERT_EVENT_PASSED);
	return SK_PASS;
}

/*
 * The stream cannot go on in the kernel, nor anywhere: the daemon must reset the session.  Until
 * then, even if the daemon is stopped, the target must get nothing that came later: `lost` drops
 * what TCP holds already, and the gate keeps the rest out of TCP.
 */
static int lose(const struct culvert_ctl *ctl, struct culvert_stat *st, __u32 slot, __u32 len)
{
	st->dropped += len;
	if (st->lost != ctl->epoch) {
		st->lost = ctl->epoch;
		st->closed = ctl->epoch;
		st->told &= ~(1U << CULVERT_EVENT_LOST); /* an earlier epoch's, if enter() failed */
	}
	tell_once(ctl, st, slot, CULVERT_EVENT_LOST);
	return SK_DROP;
}

static int redirect(struct __sk_buff *skb, const struct culvert_ctl *ctl, struct culvert_stat *st,
		    __u32 slot, __u32 len)
{
	const struct sk_buff *k = (const struct sk_buff *)skb;
	__u32 truesize = 0;

	if (bpf_sk_redirect_map(skb, &tx, slot ^ 1, 0) != SK_PASS)
		return lose(ctl, st, slot, len);
	bpf_core_read(&truesize, sizeof(truesize), &k->truesize);
	st->bytes += len;
	st->packets++;
	st->expected_seq += len;
	st->overhead += CULVERT_SKB_EXTRA + (truesize > len ? truesize - len : 0);
	return SK_PASS;
}

struct cutting {
	struct __sk_buff *skb;
	__u32 left; /* bytes still to be cut */
};

static long cut_step(__u32 i, struct cutting *c)
{
	__u32 step = c->left < TRIM_STEP ? c->left : TRIM_STEP;

	(void)i;
	if (bpf_skb_adjust_room(c->skb, -(__s32)step, 0, 0))
		return 1;
	c->left -= step;
	return !c->left;
}

/*
 * After a retransmission an skb may begin with bytes that an earlier one had: tcp_data_queue()
 * keeps such a "partial packet" whole, and recvmsg() skips the old bytes by sequence number.  A
 * verdict gets the whole skb, and must cut the old bytes off.  When the flow enters, the new bytes
 * begin at copied_seq.  From then on next_seq counts: copied_seq lags until user space has read the
 * passed bytes.  False: the stream has a gap, or the cut failed.
 *
 * The verifier walks the body of bpf_loop() a few times only.  The verifier would walk a plain loop
 * anew for every step and for every path to the loop.  A plain loop took 80 % of the allowed
 * instructions, and 0.8 s of each start.
 */
static bool trim(struct __sk_buff *skb, struct culvert_stat *st)
{
	const struct sk_buff *k = (const struct sk_buff *)skb;
	struct cutting c = { .skb = skb };
	__u32 seq = 0, end, old;

	if (bpf_core_read(&seq, sizeof(seq), k->cb + bpf_core_field_offset(struct tcp_skb_cb, seq)))
		return false;
	old = st->next_seq - seq;
	end = seq + skb->len;
	if (old > skb->len)
		return false;
	if (old) { /* else the cache line of `overlap` stays clean */
		c.left = old;
		bpf_loop(TRIM_STEPS, cut_step, &c, 0);
		if (c.left)
			return false;
		st->overlap += old;
	}
	st->next_seq = end;
	return true;
}

/*
 * The first skb of a stay in rx.  The daemon enters a flow only when nothing is queued for the
 * target outside its TCP, so write_seq is exactly where the redirected bytes will begin.  False: a
 * socket is gone.
 */
static bool enter(struct __sk_buff *skb, struct culvert_stat *st,
		  const struct culvert_stat *reverse, __u32 slot, __u32 epoch)
{
	struct tcp_sock *tp = source_of(skb);
	__u32 seq = 0;

	if (!tp || !target_write_seq(slot ^ 1, &seq))
		return false;
	st->next_seq = READ_ONCE(tp->copied_seq);
	st->epoch = epoch;
	st->expected_seq = seq;
	st->mark_seq = seq;
	st->mark_overhead = st->overhead;
	st->sent_overhead = st->overhead;
	st->turn_bytes = st->bytes;
	st->turn_packets = (__u32)st->packets;
	st->turn_answers = (__u32)READ_ONCE(reverse->packets);
	st->unchecked_bytes = 0;
	st->unchecked_packets = 0;
	st->told = 0;
	st->backlog = 0; /* the daemon has released what it was */
	return true;
}

/* Redirect, or pass? */
static int carry(struct __sk_buff *skb, const struct culvert_ctl *ctl, struct culvert_stat *st,
		 const struct culvert_stat *reverse, __u32 slot, __u32 len)
{
	/*
	 * Pass even with no_pass: the daemon must first write the bytes that it has read ahead.  A
	 * byte that is passed now makes the removal or its audit fail, but never comes out of
	 * order.
	 */
	if (st->passed != READ_ONCE(ctl->credit)) {
		if (reverse_has_backlog(skb, reverse, slot ^ 1))
			st->closed = ctl->epoch;
		return pass(ctl, st, slot, len);
	}
	if (READ_ONCE(ctl->no_pass))
		return redirect(skb, ctl, st, slot, len);
	st->unchecked_bytes += len;
	st->unchecked_packets++;
	if (st->unchecked_bytes >= CULVERT_CHECK_BYTES ||
	    st->unchecked_packets >= CULVERT_CHECK_PACKETS || READ_ONCE(pressure.on)) {
		st->unchecked_bytes = 0;
		st->unchecked_packets = 0;
		watch_turn(ctl, st, reverse, slot);
		if (check_backlog(ctl, st, slot)) {
			if (!reverse_has_backlog(skb, reverse, slot ^ 1))
				return pass(ctl, st, slot, len);
			st->closed = ctl->epoch;
		}
	}
	return redirect(skb, ctl, st, slot, len);
}

/* The flow of the socket that the skb has come to.  False: it is being closed. */
static __always_inline bool find(struct __sk_buff *skb, __u32 *slot, struct culvert_stat **st,
				 struct culvert_ctl **ctl)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	__u32 *found = bpf_map_lookup_elem(&slots, &cookie);

	if (!found)
		return false;
	*slot = *found;
	*st = bpf_map_lookup_elem(&stats, slot);
	*ctl = bpf_map_lookup_elem(&ctls, slot);
	return *st && *ctl;
}

SEC("sk_skb/stream_verdict")
int culvert_verdict(struct __sk_buff *skb)
{
	struct culvert_stat *st, *reverse;
	struct culvert_ctl *ctl;
	__u32 slot, rslot;

	/*
	 * A FIN without data.  TCP has noted the FIN already.  In a queue it would end the target
	 * (EPIPE), because the kernel's worker takes "0 bytes sent" for an error.
	 */
	if (!skb->len)
		return SK_DROP;

	if (!find(skb, &slot, &st, &ctl))
		return SK_PASS; /* nobody will read it */
	rslot = slot ^ 1;
	reverse = bpf_map_lookup_elem(&stats, &rslot);
	if (!reverse)
		return SK_PASS;

	if (st->lost == ctl->epoch ||
	    (st->epoch != ctl->epoch && !enter(skb, st, reverse, slot, ctl->epoch)) ||
	    !trim(skb, st))
		return lose(ctl, st, slot, skb->len);
	if (!skb->len)
		return SK_DROP; /* all of it had come before */
	return carry(skb, ctl, st, reverse, slot, skb->len);
}

/*
 * The gate.  TCP runs socket filters before it looks at a segment, with the data pointer at the TCP
 * header (tcp_filter() in net/ipv4/tcp_ipv4.c): what is dropped here was never received, and the
 * peer sends it again.  Pure ACKs and RST always pass, so the other direction is not disturbed.
 */
SEC("socket")
int culvert_gate(struct __sk_buff *skb)
{
	struct culvert_stat *st;
	struct culvert_ctl *ctl;
	__u32 slot;
	__u8 bytes[2]; /* 12: data offset in words, 13: flags */

	if (bpf_skb_load_bytes(skb, 12, bytes, sizeof(bytes)) || bytes[1] & TCP_FLAG_RST_BIT ||
	    (skb->len <= (__u32)(bytes[0] >> 4) * 4 && !(bytes[1] & TCP_FLAG_FIN_BIT)) ||
	    !find(skb, &slot, &st, &ctl))
		return skb->len;
	if (READ_ONCE(ctl->fence) || READ_ONCE(st->closed) == READ_ONCE(ctl->epoch))
		return 0;
	return skb->len;
}

char _license[] SEC("license") = "Dual BSD/GPL";
