/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A session at work, in graft.bpf.c: whether a packet is believed, what its numbers tell of the
 * session, far sessions, and the way to the other end.
 */
#pragma once

#include "graft_begin.h"
#include "graft_decide.h"
#include "graft_packet.h"
#include "graft_translate.h"

/* The least window in a check: windows may shrink, and our numbers are a packet late. */
#define WINDOW_LEAST 65536

static __always_inline __s32 window_of(const struct graft_side *s)
{
	__u32 window = READ_ONCE(s->window);

	return window > WINDOW_LEAST ? window : WINDOW_LEAST;
}

/* The highest ACK of the other end, in the numbers of this side. */
static __always_inline __u32 acked_of(const struct graft_side *mine, const struct graft_side *other)
{
	return (__u32)READ_ONCE(other->acked) + other->ack_add;
}

/* Does P fit ACKED and END, numbers of the other end? */
static __always_inline bool fits(const struct packet *p, const struct graft_entry *g,
				 const struct graft_side *mine, const struct graft_side *other,
				 __u32 acked, __u32 end)
{
	__s32 window = window_of(other), back = window_of(mine);
	__u32 sent = end + other->seq_add; /* in the numbers of this side, as ACKED below */

	acked += other->ack_add;
	if (diff(p->seq, acked) > window || diff(end_of(p), acked) < -window)
		return false;
	if (!(p->flags & ACK))
		return p->flags & RST;
	/*
	 * A receiver may hold bytes that a dead relay carried, behind a hole in the stream.  Once
	 * the hole is filled, the receiver may acknowledge up to one window more than was seen
	 * here.  That is safe: the sender knows which bytes were sent.
	 */
	return diff(p->ack, sent) <= (g->loose ? back : 0) && diff(p->ack, sent) >= -back * 2;
}

/*
 * Is P in the window?  A blind attacker has to guess numbers in the window, as with plain TCP: a
 * packet outside does not change the session's numbers.
 */
static __always_inline bool is_inside(const struct packet *p, const struct graft_entry *g,
				      const struct graft_side *mine, const struct graft_side *other)
{
	return fits(p, g, mine, other, (__u32)READ_ONCE(other->acked),
		    (__u32)READ_ONCE(other->end));
}

/* The stream of S goes on at END.  The bytes before END count at the relay that carried them. */
static __always_inline void go_on_at(struct graft_side *s, __u32 end, __u32 acked)
{
	__u64 carried = s->end - s->begun;

	if (!s->fin) {
		s->end = (1ULL << 32) + end;
		s->begun = s->end - carried;
	}
	s->acked = (1ULL << 32) + acked;
}

/* The FIN of a stream that ends at P stays noted. */
static __always_inline void keep_apart(struct graft_side *s, const struct packet *p)
{
	bool more = s->apart && s->apart_end != end_of(p);

	s->apart = GRAFT_APART | (more ? 0 : s->apart) | (p->flags & FIN ? GRAFT_APART_FIN : 0);
	s->apart_end = end_of(p);
	s->apart_acked = p->ack;
	s->apart_ms = (__u32)(bpf_ktime_get_coarse_ns() / 1000000);
}

/*
 * P is a reset that does not fit.  Is its number the next one of a stream whose numbers are kept apart?
 * The other end, which checks the number itself, may know that stream by another relay.
 */
__noinline int resets_apart(const struct packet *p, __u32 slot, __u32 side)
{
	struct found f;

	if (!p || !find_slot(slot, side, &f) || !f.mine->apart || p->seq != f.mine->apart_end)
		return 0;
	f.mine->apart |= GRAFT_APART_RESET;
	return 1;
}

/*
 * Let the session's numbers follow P, if they may (graft_follow()).  True: P is believed.  P alone
 * proves nothing, since anybody can send it: its numbers are kept apart, until a packet of the
 * other end fits them.
 */
__noinline int confirm(const struct packet *p, __u32 slot, __u32 side)
{
	struct found f;
	enum graft_follow follow;
	bool fit, agrees;

	if (!p || !find_slot(slot, side, &f))
		return 0;
	fit = is_inside(p, f.g, f.mine, f.other);
	agrees = !fit && f.other->apart &&
		 fits(p, f.g, f.mine, f.other, f.other->apart_acked, f.other->apart_end);
	follow = graft_follow(fit, agrees, f.mine->believed);
	if (follow == GRAFT_FOLLOW_APART) {
		keep_apart(f.mine, p);
		return 0;
	}
	if (follow == GRAFT_FOLLOW_BOTH) {
		go_on_at(f.other, f.other->apart_end, f.other->apart_acked);
		if (f.other->apart & GRAFT_APART_FIN && !f.other->fin) {
			f.other->begun--; /* a FIN counts as a byte */
			f.other->fin_end = f.other->apart_end;
			f.other->fin = GRAFT_FIN_SENT;
		}
		f.other->believed = 1;
	}
	if (follow != GRAFT_FOLLOW_NOTHING)
		go_on_at(f.mine, p->seq, p->ack);
	f.mine->believed = 1;
	f.mine->apart = f.other->apart = 0;
	if (f.other->believed)
		f.g->loose = GRAFT_FOUND;
	return 1;
}

/*
 * May P be sent on?  If another relay knows the session, earlier packets may have gone by that
 * relay; then a good packet may not fit.  A reset ends the session only if it fits: no later
 * packet can confirm the reset's numbers.
 */
static __always_inline enum graft_verdict judge(const struct found *f, const struct packet *p)
{
	return graft_judge(f->g->loose, f->g->head.mirrored, is_inside(p, f->g, f->mine, f->other),
			   p->flags & ACK && !(p->flags & RST));
}

/* Note the ends of both streams.  A reset moves no end: it has no bytes, and may be forged. */
static __always_inline void note(struct graft_side *mine, const struct packet *p)
{
	bool more = !(p->flags & RST) && diff(end_of(p), (__u32)mine->end) > 0;
	bool acked = p->flags & ACK && diff(p->ack, (__u32)mine->acked) > 0;

	if (more)
		grow(&mine->end, end_of(p));
	if (acked)
		grow(&mine->acked, p->ack);
	if (more || acked)
		mine->data_ns = bpf_ktime_get_coarse_ns();
}

/*
 * Is P a reset that the other end takes?  That end takes three numbers: that after all acknowledged
 * bytes, that after all sent bytes, and that of a FIN (Linux: tcp_reset_check()).  The third is
 * there because a closed end answers late bytes by a reset with the number of its FIN.  Any other
 * reset is only challenged (RFC 5961), and the challenge tells the reset's sender the number.
 */
static __always_inline bool is_reset(const struct found *f, const struct packet *p)
{
	__u32 end = (__u32)f->mine->end;

	return p->flags & RST && (p->seq == acked_of(f->mine, f->other) || p->seq == end ||
				  (f->mine->fin && p->seq == end - 1));
}

/*
 * Is P the reset that ends its session?  Inlined, the check would make the stack of graft_in() and its
 * calls larger than the 512 bytes that the verifier of Linux 6.1 allows.
 */
__noinline int ends_session(const struct packet *p, __u32 slot, __u32 side)
{
	struct found f;

	return p && find_slot(slot, side, &f) && is_reset(&f, p);
}

/*
 * Is what P says, which got VERDICT, said by the session's end?  A reset needs no ACK, so a blind
 * attacker hits the window once in 32768 packets.  If it ends nothing, it says nothing: neither
 * that its end lives, nor how large that end's window is.
 */
static __always_inline bool believe(struct __sk_buff *skb, const struct found *f,
				    const struct packet *p, enum graft_verdict verdict)
{
	if (p->flags & RST && !ends_session(p, f->slot, f->side))
		return false;
	return verdict == GRAFT_BELIEVE ||
	       (verdict == GRAFT_CONFIRM && is_sound(skb, p) && confirm(p, f->slot, f->side));
}

/*
 * True: both ends have the other's FIN.  If both close at once, two CPUs may have the last two
 * ACKs: the barriers show one CPU's ACK to the other CPU.
 */
static __always_inline bool track_fin(struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;

	if (p->flags & FIN && !mine->fin) {
		mine->fin_end = end_of(p);
		__sync_val_compare_and_swap(&mine->fin, GRAFT_FIN_NONE, GRAFT_FIN_SENT);
	}
	if (other->fin == GRAFT_FIN_SENT && p->flags & ACK &&
	    diff(p->ack + mine->ack_add, other->fin_end) >= 0)
		__sync_val_compare_and_swap(&other->fin, GRAFT_FIN_SENT, GRAFT_FIN_ACKED);
	return READ_ONCE(mine->fin) == GRAFT_FIN_ACKED && READ_ONCE(other->fin) == GRAFT_FIN_ACKED;
}

static __always_inline void end(struct found *f, __u32 state)
{
	__u32 was = __sync_val_compare_and_swap(&f->g->head.state, state, GRAFT_DONE);

	if (was == GRAFT_ACTIVE && state == GRAFT_ANSWERED) { /* the client's ACK came meanwhile */
		state = GRAFT_ACTIVE;
		was = __sync_val_compare_and_swap(&f->g->head.state, state, GRAFT_DONE);
	}
	if (was != state)
		return;
	if (state == GRAFT_ANSWERED)
		__sync_fetch_and_add(&graft_half, -1);
	f->g->ended_ns = f->mine->heard_ns;
	tell(f->g, f->slot);
}

/*
 * The client of F, a session from the SYN on, is there: its ACK has come.  Returns the state that
 * its packet finds.  The SYN is over, so its fields are those of offers again.
 */
static __always_inline __u32 opened(struct found *f)
{
	__u32 near_us = f->g->syn.near_us;
	__u64 us = (bpf_ktime_get_ns() - f->g->offered_ns) / 1000;

	if (__sync_val_compare_and_swap(&f->g->head.state, GRAFT_ANSWERED, GRAFT_ACTIVE) !=
	    GRAFT_ANSWERED)
		return f->g->head.state & GRAFT_STATE_MASK;
	__sync_fetch_and_add(&graft_half, -1);
	if (near_us && us > near_us)
		f->g->far = GRAFT_LONG;
	f->g->looks = f->g->why_not = f->g->hold = f->g->held_ms = 0;
	return GRAFT_ACTIVE;
}

/* --- far sessions --- */

/*
 * Cut P's window at the edge of the other end.  A P with payload that acknowledges all bytes of the
 * other end is an answer: the other end's next turn begins.
 */
static __always_inline void leash(struct found *f, struct packet *p, __u32 state)
{
	struct graft_side *other = f->other;
	__u32 ack = p->ack + f->mine->ack_add, end = (__u32)READ_ONCE(other->end), room = 0;
	__u32 unit = 1U << (f->mine->window_right & 15);

	if (state == GRAFT_ACTIVE && p->len && ack == end)
		WRITE_ONCE(other->edge, end + GRAFT_LEASH);
	if (diff(READ_ONCE(other->edge), ack) > 0)
		room = (READ_ONCE(other->edge) - ack + unit - 1) >> (f->mine->window_left & 15);
	if (room < p->window)
		p->window = room;
}

/*
 * Bulk of a far session begins with P.  At its edge, a sender of a session whose return was withdrawn
 * sends probes alone.
 */
static __always_inline bool begins_bulk(const struct found *f, const struct packet *p)
{
	return f->g->far >= GRAFT_LONG &&
	       diff(READ_ONCE(f->mine->edge), end_of(p)) <= GRAFT_LEASH / 4;
}

/*
 * Does P ask in vain?  A packet asks if it is a probe, or brings bytes that were sent on before.  P
 * asks in vain if its end has asked for GRAFT_SILENT_NS, and no ACK has come for either stream
 * since.  Then the way of an end may be dead, though no route has changed.  TCP of the sockets
 * notices that, and takes another way.
 */
static __always_inline bool asks_in_vain(struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;
	__u32 at = p->seq + p->ack + (__u32)READ_ONCE(other->acked);
	__u64 now;

	if (diff(end_of(p), (__u32)mine->end) >= !!p->len || p->flags & (SYN | FIN | RST) ||
	    mine->fin || other->fin || f->g->loose == GRAFT_LOOSE ||
	    !is_inside(p, f->g, mine, other))
		return false;
	now = bpf_ktime_get_coarse_ns();
	if (mine->asked_ns && mine->asked_at == at &&
	    (p->len || READ_ONCE(other->heard_ns) < mine->asked_ns))
		return now - mine->asked_ns >=
		       (f->g->head.mirrored ? GRAFT_SILENT_TOLD_NS : GRAFT_SILENT_NS);
	mine->asked_ns = now;
	mine->asked_at = at;
	return false;
}

/* Packets of G may go by other relays, so sockets here do not get all of them. */
static __always_inline bool is_split(const struct graft_entry *g)
{
	return g->head.mirrored == GRAFT_HELPED || g->head.worker == GRAFT_NOBODY;
}

/* Begin to return F, if sockets carry it better from P on.  Returns the state that P finds. */
static __always_inline __u32 return_if_better(struct found *f, const struct packet *p, __u32 state)
{
	/* in this order: in the other one the frame of graft_in() is too large for Linux 6.1 */
	if (is_split(f->g) || state != GRAFT_ACTIVE ||
	    (!asks_in_vain(f, p) && (!begins_bulk(f, p) || !is_inside(p, f->g, f->mine, f->other))))
		return state;
	state = __sync_val_compare_and_swap(&f->g->head.state, GRAFT_ACTIVE, GRAFT_RETURNING);
	return state == GRAFT_ACTIVE ? GRAFT_RETURNING : state & GRAFT_STATE_MASK;
}

/*
 * A far session goes back to its sockets with P.  A P without payload is sent on all the same,
 * because a sender at its edge waits for that ACK.  P lets the sender send as much as the socket
 * has room for.
 */
static __always_inline int unleash(struct __sk_buff *skb, struct found *f, const struct packet *p,
				   const struct seen *a, const struct seen *b)
{
	__u32 ts[2];

	if (!p->len && f->mine->timestamps) {
		if (!timestamp_of(skb, p, ts))
			return GRAFT_NO_TIMESTAMP;
		grow_32(&f->other->tsval_sent, ts[0] + f->mine->tsval_add);
	}
	f->mine->edge = (__u32)f->mine->end + a->room;
	f->other->edge = (__u32)f->other->end + b->room;
	f->g->why_back = f->g->far == GRAFT_LONG ? GRAFT_FAR : GRAFT_LOSS;
	return GRAFT_OK;
}

/*
 * P is not the next segment.  An earlier segment was lost before it came to this relay; or P was
 * lost after this relay, and is sent again.  All losses of one window count as one: a slow start
 * that overshoots does not prove that the way loses packets.
 */
static __always_inline void note_loss(struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;
	__u32 end = (__u32)mine->end;

	if (mine->lost && diff(p->seq, mine->lost_to) < 0)
		return;
	mine->lost_to = diff(end_of(p), end) > 0 ? end_of(p) : end;
	mine->lost++;
	if (mine->lost < GRAFT_LOSSES ||
	    mine->end - mine->begun > (__u64)mine->lost * GRAFT_LOSS_BYTES)
		return;
	mine->edge = end + GRAFT_LEASH;
	other->edge = (__u32)other->end + GRAFT_LEASH;
	f->g->far = GRAFT_LOSSY;
}

static __always_inline void track(struct found *f, const struct packet *p, __u32 state)
{
	struct graft_side *mine = f->mine;
	__u32 window = (__u32)p->window << (mine->window_left & 15);
	bool last = is_reset(f, p);

	mine->heard_ns = bpf_ktime_get_coarse_ns();
	if (window > mine->window)
		mine->window = window;
	if (state == GRAFT_ANSWERED && !f->side && !(p->flags & RST))
		state = opened(f);
	if (p->len && p->seq != (__u32)mine->end && f->g->far == GRAFT_NEAR)
		note_loss(f, p);
	note(mine, p);
	if (!(p->flags & RST) && (p->flags & FIN || f->other->fin))
		last = track_fin(f, p);
	if (last && (state == GRAFT_ACTIVE || state == GRAFT_RETURNING || state == GRAFT_ANSWERED)) {
		mine->reset = !!(p->flags & RST);
		end(f, state);
	}
}

/*
 * May the numbers of P be tracked?  A packet that ends a stream, or moves it by more than its
 * payload, needs a right checksum.  The harm of any other bit error is undone by the next packet.
 */
static __always_inline bool moves_soundly(struct __sk_buff *skb, const struct found *f,
					  const struct packet *p)
{
	return (!(p->flags & (FIN | RST)) && diff(p->seq, (__u32)f->mine->end) <= 0) ||
	       is_sound(skb, p);
}

/* Translate P and send it to the other end. */
static __always_inline int pass_on(struct __sk_buff *skb, struct found *f, struct packet *p,
				   __u32 state)
{
	const struct graft_side *mine = f->mine;
	struct change c = { .source = f->other->tuple.local_port,
			    .dest = f->other->tuple.remote_port,
			    .seq_add = mine->seq_add,
			    .ack_add = mine->ack_add,
			    .tsval_add = mine->tsval_add,
			    .tsecr_add = mine->tsecr_add,
			    .left = mine->window_left & 15,
			    .right = mine->window_right & 15,
			    .slot = f->slot,
			    .side = f->side };

	if (p->flags & SYN) { /* the other end's segments must fit into the way to this one */
		c.mss = mine->way.mtu - ip_len(mine->ipv6) - sizeof(struct tcphdr);
		if (state == GRAFT_ANSWERED) /* the answer was lost, but the client is there */
			f->mine->heard_ns = bpf_ktime_get_coarse_ns();
	}

	/* no way to the other end: drop P, as a router without a route does */
	if (diff(READ_ONCE(f->other->way.ways), graft_ways_least) < 0 || f->other->refused)
		return DROP;
	/* a SYN is not judged: the other end challenges it, and its sender resets the session */
	c.grafted = f->g->loose != GRAFT_LOOSE;
	if (!(p->flags & SYN)) {
		enum graft_verdict verdict = judge(f, p);

		if (verdict < GRAFT_BELIEVE && p->flags & RST && resets_apart(p, f->slot, f->side))
			verdict = GRAFT_SEND;
		if (verdict == GRAFT_DROP) {
			__sync_fetch_and_add(&graft_outside, 1);
			return DROP;
		}
		c.grafted = believe(skb, f, p, verdict);
		if (c.grafted && moves_soundly(skb, f, p))
			track(f, p, state);
	}
	if (f->g->far >= GRAFT_LONG && p->flags & ACK && !is_split(f->g))
		leash(f, p, state);
	if (change_header(skb, p, &c, c.grafted ? f : NULL))
		return DROP;
	return send_on(skb, p, &f->other->leg, c.diff);
}
