// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet programs: they join the two TCP connections of a session, or both legs of a flow of
 * UDP.  include/graft_contract.h
 * has the states and who writes what; docs/design.md ("Graft") the whole story.
 *
 * Theory of operation
 *   - graft_offer is run by the daemon (BPF_PROG_TEST_RUN) when it has none of the session's bytes
 *     in its hands.  It notes both sockets' sequence numbers, from which all offsets follow, and
 *     enters both tuples in `flows`.
 *   - graft_in sees what arrives on an interface.  While a session is OFFERED it looks at both
 *     sockets: if neither has anything unread, unsent or unacknowledged, and packets of both have
 *     been seen entering and leaving here, this very packet may be the first one that is
 *     translated.  Each of the numbers looked at only grows, and is at its bound when they are all
 *     equal, so no socket lock is needed.
 *   - From then on graft_in translates addresses, ports, sequence and acknowledgement numbers,
 *     windows and options, and sends the packet to the other end.
 *   - graft_out sees what leaves, and learns the way from it.  The frozen sockets' packets do not
 *     leave: they are dropped, or given back as the ACK that the socket waits for.
 *   - What cannot be translated sends its session back to its sockets: see go_back().
 *   - graft_udp.h does the same for UDP, which is simpler.
 *   - What was sent by us carries a mark in skb->cb, so that graft_out lets it go.
 *
 * Memory order.  g->head.state is changed by atomic operations with a result, which are full barriers:
 * whoever sees ACTIVE sees the offsets.  What is "tracked" may be behind by the packets that other
 * CPUs have in hand.
 */
#include "graft_decide.h"
#include "graft_begin.h"
#include "graft_packet.h"
#include "graft_shape.h"
#include "graft_translate.h"
#include "graft_icmp.h"
#include "graft_udp.h"

/* --- a session at work --- */

/* Accept what a TCP would accept, and some more: windows shrink, and our view is a packet late. */
#define WINDOW_LEAST 65536

static __always_inline __s32 window_of(const struct graft_side *s)
{
	__u32 window = READ_ONCE(s->window);

	return window > WINDOW_LEAST ? window : WINDOW_LEAST;
}

/* The segments that the other end has acknowledged, in the numbers of this side. */
static __always_inline __u32 acked_of(const struct graft_side *mine, const struct graft_side *other)
{
	return (__u32)READ_ONCE(other->acked) + other->ack_add;
}

/* Does P fit ACKED and END, which the other end has said? */
static __always_inline bool fits(const struct packet *p, const struct graft_entry *g,
				 const struct graft_side *mine, const struct graft_side *other,
				 __u32 acked, __u32 end)
{
	__s32 window = window_of(other), back = window_of(mine);
	__u32 sent = end + other->seq_add; /* in the numbers of this side, as ACKED is then */

	acked += other->ack_add;
	if (diff(p->seq, acked) > window || diff(end_of(p), acked) < -window)
		return false;
	if (!(p->flags & ACK))
		return p->flags & RST;
	/*
	 * When a relay dies, a receiver may hold what went by that one, behind a hole: it acknowledges
	 * more than was seen here, but no more than its window.  Its peer knows what it has sent.
	 */
	return diff(p->ack, sent) <= (g->loose ? back : 0) && diff(p->ack, sent) >= -back * 2;
}

/*
 * Is P in the window?  A blind attacker has to guess that, as with plain TCP: a packet outside does
 * not change our numbers.
 */
static __always_inline bool is_inside(const struct packet *p, const struct graft_entry *g,
				      const struct graft_side *mine, const struct graft_side *other)
{
	return fits(p, g, mine, other, (__u32)READ_ONCE(other->acked),
		    (__u32)READ_ONCE(other->end));
}

/* The stream of S goes on at END.  Bytes before were counted where they went by. */
static __always_inline void go_on_at(struct graft_side *s, __u32 end, __u32 acked)
{
	__u64 carried = s->end - s->begun;

	if (!s->fin) {
		s->end = (1ULL << 32) + end;
		s->begun = s->end - carried;
	}
	s->acked = (1ULL << 32) + acked;
}

/*
 * P proves its numbers, or not (graft_follow()).  Returns whether P is believed.  P alone proves
 * nothing, since anybody can send it: its numbers are kept apart, until a packet of the other end
 * fits them.
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
		f.mine->apart_end = end_of(p);
		f.mine->apart_acked = p->ack;
		f.mine->apart = 1;
		return 0;
	}
	if (follow == GRAFT_FOLLOW_BOTH) {
		go_on_at(f.other, f.other->apart_end, f.other->apart_acked);
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
 * May P be sent on?  A packet that does not fit may have its reason at another relay, if that knows
 * the session.  A packet that ends the session fits: nobody can know its number who does not see the
 * other end's packets.
 */
static __always_inline enum graft_verdict judge(const struct found *f, const struct packet *p)
{
	return graft_judge(f->g->loose, f->g->head.mirrored, is_inside(p, f->g, f->mine, f->other),
			   p->flags & ACK && !(p->flags & RST));
}

/* Is P, of which that is the VERDICT, where it must be, so its numbers are the session's? */
static __always_inline bool believe(struct __sk_buff *skb, const struct found *f,
				    const struct packet *p, enum graft_verdict verdict)
{
	return verdict == GRAFT_BELIEVE ||
	       (verdict == GRAFT_CONFIRM && is_sound(skb, p) && confirm(p, f->slot, f->side));
}

/* What P tells of both streams.  A reset has no bytes, and may be one that is only challenged. */
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
 * P is a reset that the other end takes: it has the number that is expected there, behind all that
 * was acknowledged, or behind all that was sent; or the number of FIN, which Linux takes as well
 * (tcp_reset_check()): who has closed, and then gets bytes, answers with that if they were sent
 * before his FIN came.  Any other is only challenged (RFC 5961), and who is challenged knows the
 * number.
 */
static __always_inline bool is_reset(const struct found *f, const struct packet *p)
{
	__u32 end = (__u32)f->mine->end;

	return p->flags & RST && (p->seq == acked_of(f->mine, f->other) || p->seq == end ||
				  (f->mine->fin && p->seq == end - 1));
}

/*
 * Returns true if both ends have the other's FIN.  Where both close at once, the last two ACKs are
 * on two CPUs: with a barrier before the last look one of them sees the other.
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
	if (__sync_val_compare_and_swap(&f->g->head.state, state, GRAFT_DONE) != state)
		return;
	f->g->ended_ns = f->mine->heard_ns;
	tell(f->g, f->slot);
}

/* --- far sessions --- */

/*
 * P offers no window beyond the edge of the other end.  If P answers all that the other end has
 * sent, the next turn of the other end begins.
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

/* Bulk of a far session begins with P. */
static __always_inline bool begins_bulk(const struct found *f, const struct packet *p)
{
	return f->g->far >= GRAFT_LONG && p->len &&
	       diff(READ_ONCE(f->mine->edge), end_of(p)) <= GRAFT_LEASH / 4;
}

/*
 * P asks again: it brings what was sent on before, or it is a probe.  True: so did another one some
 * time ago, and nothing was acknowledged since, of either stream.  The way of an end may be dead,
 * without news of routes: TCP finds out, and takes another one.
 */
static __always_inline bool asks_in_vain(struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;
	__u32 at = p->ack + (__u32)READ_ONCE(other->acked);
	__u64 now;

	if (diff(end_of(p), (__u32)mine->end) >= !!p->len || p->flags & (SYN | FIN | RST) ||
	    mine->fin || other->fin || f->g->loose == GRAFT_LOOSE ||
	    !is_inside(p, f->g, mine, other))
		return false;
	now = bpf_ktime_get_coarse_ns();
	if (mine->asked_ns && mine->asked_at == at &&
	    (p->len || READ_ONCE(other->heard_ns) < mine->asked_ns))
		return now - mine->asked_ns >= GRAFT_SILENT_NS;
	mine->asked_ns = now;
	mine->asked_at = at;
	return false;
}

/* Sockets may carry F better from P on.  Returns the state in which P finds its session. */
static __always_inline __u32 return_if_better(struct found *f, const struct packet *p, __u32 state)
{
	if (state != GRAFT_ACTIVE ||
	    (!asks_in_vain(f, p) && (!begins_bulk(f, p) || !is_inside(p, f->g, f->mine, f->other))))
		return state;
	state = __sync_val_compare_and_swap(&f->g->head.state, GRAFT_ACTIVE, GRAFT_RETURNING);
	return state == GRAFT_ACTIVE ? GRAFT_RETURNING : state & GRAFT_STATE_MASK;
}

/*
 * A far session goes back to its sockets with P.  Without payload P is sent on all the same: a
 * sender at its edge waits for it.  The sender may then send as much as the socket has room for.
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
 * P is not the next segment: one before it was lost, or it was lost itself behind us.  A window of
 * which several were lost counts once: a slow start that goes too far is no loss of the way.
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
	if (p->len && p->seq != (__u32)mine->end && f->g->far == GRAFT_NEAR)
		note_loss(f, p);
	note(mine, p);
	if (!(p->flags & RST) && (p->flags & FIN || f->other->fin))
		last = track_fin(f, p);
	if (last && (state == GRAFT_ACTIVE || state == GRAFT_RETURNING)) {
		mine->reset = !!(p->flags & RST);
		end(f, state);
	}
}

/*
 * May P end something, or move its stream by more than its payload?  A bit error would make it do so.
 * All else that a bit error moves the next packet moves again.
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

	/* as a network without a route */
	if (diff(READ_ONCE(f->other->way.ways), graft_ways_least) < 0 || f->other->refused)
		return DROP;
	/* SYN: the end has forgotten the connection; what the other one answers tells it so */
	c.grafted = f->g->loose != GRAFT_LOOSE;
	if (!(p->flags & SYN)) {
		enum graft_verdict verdict = judge(f, p);

		if (verdict == GRAFT_DROP) {
			__sync_fetch_and_add(&graft_outside, 1);
			return DROP;
		}
		c.grafted = believe(skb, f, p, verdict);
		if (c.grafted && moves_soundly(skb, f, p))
			track(f, p, state);
	}
	if (f->g->far >= GRAFT_LONG && p->flags & ACK)
		leash(f, p, state);
	if (change_header(skb, p, &c, c.grafted ? f : NULL))
		return DROP;
	return send_on(skb, p, &f->other->leg, c.diff);
}

/* --- back to the sockets --- */

/* From now on packets of S are shifted: its socket has missed what was carried. */
static __always_inline void set_back(struct graft_side *s, const struct graft_side *other)
{
	s->back_read = (__u32)s->end - s->frozen_read;
	s->back_write = (__u32)other->end + other->seq_add - s->frozen_write;
}

/*
 * The sockets will be closed with RST.  What others have in hand may go by: an end that has got
 * less than our number says, or more, challenges the reset (RFC 5961), and the stack answers.
 */
static __always_inline int kill(struct graft_entry *g)
{
	set_back(&g->side[0], &g->side[1]);
	set_back(&g->side[1], &g->side[0]);
	g->killed = 1;
	return GRAFT_OK;
}

/*
 * May the session go back to its sockets with P?  The caller holds LOCKED_2.  If P asks IN_VAIN, both
 * streams go on from what is acknowledged: their senders have the rest, and nothing is on its way.  An
 * end may have got more, and acknowledge it before its socket has sent it again.  TCP would drop that,
 * and send the first segment again for ever: so that is lowered to what has left
 * (`frozen_write`).
 */
static __always_inline int look_back(struct __sk_buff *skb, struct found *f, const struct packet *p,
				     bool in_vain)
{
	struct graft_side *mine = f->mine, *other = f->other;
	__u32 acked = acked_of(mine, other);
	struct seen *a, *b;

	if (p->flags & (FIN | SYN | RST) || !(p->flags & ACK) || mine->fin || other->fin)
		return GRAFT_CLOSING;
	/* what is odd now may have been sent on before, and lost: nobody else will bring it */
	if (p->odd || in_vain ? diff(p->seq, (__u32)mine->end) > 0 : p->seq != (__u32)mine->end)
		return GRAFT_ORDER;
	if (in_vain ? diff(p->seq, acked) > 0 || diff(p->ack, (__u32)mine->acked) < 0 :
		      p->seq != acked || p->ack + mine->ack_add != (__u32)other->end)
		return GRAFT_IN_HAND;
	a = seen_of(skb, mine, 0);
	b = seen_of(skb, other, 1);
	if (!a || !b || !a->established || !b->established)
		return GRAFT_NO_SOCKET;
	/* what has come past the programs has other numbers than what is shifted */
	if (a->write_seq != mine->frozen_write || a->rcv_nxt != mine->frozen_read ||
	    b->write_seq != other->frozen_write || b->rcv_nxt != other->frozen_read ||
	    a->unordered || b->unordered)
		return GRAFT_IN_HAND;
	if (!is_sound(skb, p))
		return GRAFT_ORDER;
	if (f->g->far >= GRAFT_LONG && !f->g->why_back && unleash(skb, f, p, a, b))
		return GRAFT_NO_TIMESTAMP;
	mine->end -= (__u32)mine->end - acked;
	other->end -= (__u32)other->end - (p->ack + mine->ack_add);
	set_back(mine, other);
	set_back(other, mine);
	mine->back_ts = mine->tsval_sent - a->clock + 1;
	other->back_ts = other->tsval_sent - b->clock + 1;
	f->g->shifted = 1;
	return GRAFT_OK;
}

/* RETURNING or LOCKED_2.  Returns the state in which P finds its session; 0: drop it. */
__noinline int try_return(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 side)
{
	struct found f;
	__u32 state = GRAFT_LOCKED_2;
	bool in_vain;
	int why;

	if (!p || !find_slot(slot, side, &f))
		return 0;
	in_vain = !p->odd && asks_in_vain(&f, p);
	for (int i = 0; i < 32 && state == GRAFT_LOCKED_2; i++)
		state = __sync_val_compare_and_swap(&f.g->head.state, GRAFT_RETURNING,
						    GRAFT_LOCKED_2);
	if (state != GRAFT_RETURNING)
		return state == GRAFT_LOCKED_2 ? 0 : state; /* 0: it will be sent again */
	why = look_back(skb, &f, p, in_vain);
	if (!why) {
		__sync_val_compare_and_swap(&f.g->head.state, GRAFT_LOCKED_2, GRAFT_RETURNED);
		tell(f.g, slot);
		return GRAFT_RETURNED;
	}
	f.g->why_not = why;
	/* before it is unlocked: the next one that looks must know of it */
	if (!(p->flags & SYN) && !p->odd && is_inside(p, f.g, f.mine, f.other) &&
	    moves_soundly(skb, &f, p))
		note(f.mine, p);
	state = GRAFT_RETURNING;
	if (why == GRAFT_NO_SOCKET || f.mine->fin || f.other->fin) {
		if (in_vain || f.g->far >= GRAFT_LONG)
			state = GRAFT_ACTIVE;
		if (f.g->far >= GRAFT_LONG)
			f.g->far = GRAFT_ANYWHERE;
	}
	__sync_val_compare_and_swap(&f.g->head.state, GRAFT_LOCKED_2, state);
	return state;
}

/* Give P, on its way between the wire and S's socket, the numbers of where it goes. */
static __always_inline int shift(struct __sk_buff *skb, const struct graft_side *s,
				 const struct packet *p, bool out)
{
	struct change in = { .source = s->tuple.remote_port,
			     .dest = s->tuple.local_port,
			     .seq_add = -s->back_read,
			     .ack_add = -s->back_write,
			     .tsecr_add = -s->back_ts };
	struct change c = { .source = s->tuple.local_port,
			    .dest = s->tuple.remote_port,
			    .seq_add = s->back_write,
			    .ack_add = s->back_read,
			    .tsval_add = s->back_ts };

	if (p->flags & SYN) /* of another connection */
		return PASS;
	return change_alone(skb, p, out ? &c : &in);
}

/* Why P cannot be translated; 0: it can.  GSO packets are cut to the size that they say. */
static __always_inline __u8 hindrance_for(const struct __sk_buff *skb, const struct found *f,
					  const struct packet *p)
{
	__u32 payload = skb->gso_size && skb->gso_size < p->len ? skb->gso_size : p->len;

	if (p->odd)
		return p->odd;
	if (!is_plain(p) && !f->other->ipv6)
		return GRAFT_HEADERS;
	return ip_len(f->other->ipv6) + p->header + payload > f->other->way.mtu ? GRAFT_TOO_BIG : 0;
}

/*
 * P cannot be translated; p->odd says why.  If it is too big and has DF, its sender is told.  Else
 * send its session back to its sockets, which take anything.  P is the packet that goes back, if
 * all bytes before it have arrived.  Else P is dropped, and its sender sends it again.  The session
 * ends if it has no sockets, or finds no such moment within GRAFT_STUCK_NS.
 */
static __always_inline int go_back(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	enum graft_verdict verdict = p->flags & SYN ? GRAFT_DROP : judge(f, p);
	struct graft_entry *g = f->g;
	__u64 now = bpf_ktime_get_ns();

	if (verdict == GRAFT_DROP || !is_sound(skb, p)) {
		__sync_fetch_and_add(&graft_outside, 1);
		return DROP;
	}
	if (verdict == GRAFT_CONFIRM)
		confirm(p, f->slot, f->side);
	if (p->odd == GRAFT_TOO_BIG && p->df && is_plain(p))
		return too_big(skb, p, &f->mine->leg, &f->other->leg, f->other->way.mtu);
	if (__sync_val_compare_and_swap(&g->head.state, GRAFT_ACTIVE, GRAFT_RETURNING) ==
		    GRAFT_ACTIVE ||
	    !g->why_back) {
		g->stuck_ns = now;
		g->why_back = p->odd;
	}
	if (try_return(skb, p, f->slot, f->side) == GRAFT_RETURNED)
		return shift(skb, f->mine, p, false);
	/* one that comes from another relay gets its sockets in a moment */
	if (now - g->stuck_ns > GRAFT_STUCK_NS || (g->why_not == GRAFT_NO_SOCKET && !g->loose))
		end(f, GRAFT_RETURNING);
	return DROP;
}

/* --- what arrives --- */

/* Find the session of P; but if it is over, a SYN is of a new connection. */
static __always_inline bool find_session(const struct packet *p, struct found *f)
{
	__u32 state;

	if (!find(&p->tuple, p->ipv6, f))
		return false;
	state = READ_ONCE(f->g->head.state);
	if (!(p->flags & SYN) || (state != GRAFT_DONE && state != GRAFT_CLOSED &&
				  (state != GRAFT_RETURNED || !f->g->over)))
		return true;
	forget(f->g, f->slot);
	return false;
}

static __always_inline __u32 state_of(const struct graft_entry *g)
{
	return READ_ONCE(g->head.state) & GRAFT_STATE_MASK;
}

/* P goes to its own socket; FREE: to nobody. */
static __always_inline bool is_for_socket(__u32 state)
{
	return state == GRAFT_FREE || state == GRAFT_OFFERED || state == GRAFT_RETURNED;
}

static __always_inline int to_socket(struct __sk_buff *skb, struct found *f, struct packet *p,
				     __u32 state)
{
	if (state == GRAFT_FREE)
		return READ_ONCE(f->g->head.state) ? DROP : PASS;
	if (p->ce && is_deaf(skb, p, f->mine->ecn))
		return DROP;
	if (state == GRAFT_OFFERED && !f->g->shifted)
		return PASS;
	if (diff(p->ack, f->mine->frozen_write + f->mine->back_write) > 0)
		p->ack = f->mine->frozen_write + f->mine->back_write; /* see look_back() */
	return shift(skb, f->mine, p, false);
}

/* P is translated, or its session goes back to its sockets. */
static __always_inline int to_work(struct __sk_buff *skb, struct found *f, struct packet *p,
				   __u32 state)
{
	p->odd = hindrance_for(skb, f, p);
	if (p->odd)
		return go_back(skb, f, p);
	/* behind what was lost as odd nothing goes on: or that would find no moment */
	if (state != GRAFT_ACTIVE && f->g->why_back && !(p->flags & (SYN | RST)) &&
	    diff(p->seq, (__u32)f->mine->end) > 0)
		return DROP;
	state = return_if_better(f, p, state);
	if (state == GRAFT_RETURNING || state == GRAFT_LOCKED_2) {
		state = try_return(skb, p, f->slot, f->side);
		if (state == GRAFT_RETURNED && f->g->why_back >= GRAFT_FAR && !p->len)
			state = GRAFT_STATES; /* it is sent on: see unleash() */
	}
	return is_for_socket(state) ? to_socket(skb, f, p, state) : pass_on(skb, f, p, state);
}

static __always_inline int arrived(struct __sk_buff *skb, struct found *f, struct packet *p)
{
	__u32 state = state_of(f->g);
	bool here = state != GRAFT_STANDBY || is_here(&f->mine->tuple, &f->g->side[0].tuple);
	enum graft_arrival to;

	if (state == GRAFT_STANDBY && here) {
		__sync_val_compare_and_swap(&f->g->head.state, GRAFT_STANDBY, GRAFT_ACTIVE);
		state = state_of(f->g);
	}
	to = graft_arrival(state, here, f->g->killed,
			   state != GRAFT_CLOSED || is_inside(p, f->g, f->mine, f->other));
	if (to == GRAFT_TO_LOOK) {
		p->odd = p->odd ?: hindrance_in(skb);
		state = try_offer(skb, p, f->slot, f->side);
		to = is_for_socket(state) ? GRAFT_TO_SOCKET : GRAFT_TO_WORK;
	}
	switch (to) {
	case GRAFT_TO_WORK:
		return to_work(skb, f, p, state);
	case GRAFT_TO_SOCKET:
		return to_socket(skb, f, p, state);
	case GRAFT_TO_SHIFTED:
		return shift(skb, f->mine, p, false);
	case GRAFT_TO_NOWHERE:
		return DROP;
	case GRAFT_TO_FORGET: /* another relay's, say, which had the address: the stack answers */
		forget(f->g, f->slot);
		return PASS;
	default:
		return PASS; /* by a router, as others */
	}
}

static __always_inline int in(struct __sk_buff *skb, __u32 l2)
{
	struct packet p;
	struct found f;

	if (is_kind(skb, TO_NOBODY))
		return DROP;
	if (is_kind(skb, TO_SOCKET)) {
		skb->mark = 0;
		bpf_skb_change_type(skb, PACKET_TO_US); /* it was on its way out */
		return PASS;
	}
	if (graft_bridged && interface_is(skb->ifindex, GRAFT_IF_BRIDGE))
		return PASS;
	/* as TCP does: promiscuous devices see others' packets, and copies of ours */
	if (skb->pkt_type != PACKET_TO_US &&
	    !(graft_bridged && interface_is(skb->ifindex, GRAFT_IF_PORT)))
		return PASS;
	if (!parse(skb, l2, &p))
		return not_ours(skb, l2);
	if (is_udp(&p))
		return udp_in(skb, &p);
	if (find_session(&p, &f))
		return arrived(skb, &f, &p);
	if (p.ce && is_deaf(skb, &p, 0))
		return DROP;
	if (!(p.flags & SYN))
		return PASS;
	note_handshake(skb, &p, false);
	if ((p.flags & ACK && !(p.flags & ECE)) || !has_shape(skb, &p))
		return PASS;
	return shape_syn(skb, &p, p.tuple.remote_port, p.tuple.local_port);
}

/* --- what leaves --- */

/*
 * Turn P, which the frozen socket of S has sent, into an answer to it, with ACK and FLAGS.  The
 * stack has left the checksum to the device, so nobody looks at it.
 */
__noinline int give_back(struct __sk_buff *skb, const struct packet *p, const struct graft_side *s,
			 __u32 ack, __u32 flags)
{
	__u32 zero = 0, len, l3, *words;
	struct scratch *at = bpf_map_lookup_elem(&scratch, &zero);
	struct tcphdr *t;

	if (!p || !s || !at)
		return DROP;
	l3 = p->l3 & L3_BITS;
	len = p->header == 32 ? 32 : 20;
	if (p->odd || p->l4 != l3 + ip_len(s->ipv6) || bpf_skb_load_bytes(skb, p->l4, at->was, len))
		return DROP;
	words = (void *)at->was;
	if (words[5] == TIMESTAMP_WORD) { /* of no use with 20 bytes */
		words[6] = words[7];
		words[7] = 0; /* or the socket would measure a round trip to this machine itself */
	} else {              /* SACK: NOP instead */
		words[5] = words[6] = words[7] = bpf_htonl(0x01010101);
	}
	t = (void *)at->was;
	t->source = p->tuple.remote_port;
	t->dest = p->tuple.local_port;
	t->seq = bpf_htonl(s->frozen_read);
	t->ack_seq = bpf_htonl(ack);
	at->was[12] = len << 2;
	at->was[13] = flags;
	t->urg_ptr = 0;
	fill_ip(at->is, &s->leg, true, IPPROTO_TCP, len, 0, OWN_TTL);
	if (bpf_skb_change_tail(skb, p->l4 + len, 0) ||
	    bpf_skb_store_bytes(skb, l3, at->is, ip_len(s->ipv6), 0) ||
	    bpf_skb_store_bytes(skb, p->l4, at->was, len, 0))
		return DROP;
	set_kind(skb, TO_SOCKET);
	/*
	 * The second one tells that both the segment and its probe have arrived: after one alone
	 * tcp_process_tlp_ack() would take the segment for lost, and halve the window (Linux 6.18).
	 */
	if (p->len && skb->ifindex != LOOPBACK)
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	/* it keeps its route there, without which 127.0.0.0/8 is martian */
	return skb->ifindex == LOOPBACK ? PASS : bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * Has the remote end been heard since the frozen socket probed it last (SO_KEEPALIVE)?  Then the
 * socket is told so, and it asks again after its interval.
 */
static __always_inline bool is_heard(struct graft_side *mine)
{
	bool heard = mine->heard_ns >= mine->probed_ns;

	mine->probed_ns = bpf_ktime_get_coarse_ns();
	return heard;
}

/*
 * Let P, a keepalive probe or a reset, go out with the numbers of the wire.  If the remote end is
 * there it answers a probe, and is heard; if not, the frozen socket gives up as any other.
 *
 * Linux 6.18 does not answer a probe with an old timestamp.  What a session has sent by another relay
 * is not known, so its clock goes on at the usual rate.  A probe that is ahead does no harm: its
 * number is not in the window, so nobody remembers its clock.
 */
static __always_inline int let_out(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;
	struct change c = { .source = mine->tuple.local_port, .dest = mine->tuple.remote_port };
	__u32 ts[2], tsval = mine->tsval_sent;

	c.seq_add = (__u32)other->end + other->seq_add - !(p->flags & RST) - p->seq;
	c.ack_add = (__u32)mine->end - p->ack;
	if (f->g->loose || f->g->head.mirrored)
		tsval += graft_clock((__u32)(bpf_ktime_get_ns() >> GRAFT_CLOCK_SHIFT) -
				     (__u32)(other->heard_ns >> GRAFT_CLOCK_SHIFT));
	if (timestamp_of(skb, p, ts) && diff(tsval, ts[0]) > 0)
		c.tsval_add = tsval - ts[0];
	return change_alone(skb, p, &c);
}

/*
 * A packet of a frozen socket.  It may send again what the first translated packet has
 * acknowledged, or probe the peer: it gets an ACK for that.  It sends FIN because the daemon died:
 * it gets a reset, so that the next daemon can make it anew.  A new socket that was given the same
 * tuple is refused.  It sends RST because it has died (ss -K), or because the session is over: that
 * one is dropped, or because it was handed back to another relay.
 */
static __always_inline int of_frozen(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	__u32 ack = f->mine->frozen_write;

	if (p->flags & SYN)
		return give_back(skb, p, f->mine, p->seq + 1, RST | ACK);
	if (p->flags & RST)
		return f->g->ended_ns || f->g->head.worker == GRAFT_NOBODY ? DROP :
									     let_out(skb, f, p);
	if (!p->len && !(p->flags & FIN) && diff(p->seq, ack) >= 0)
		return DROP;
	if (!p->len && !(p->flags & FIN) && p->seq == ack - 1 && !is_heard(f->mine))
		return let_out(skb, f, p);
	if (diff(end_of(p), ack) > 0)
		ack = end_of(p);
	return give_back(skb, p, f->mine, ack, p->flags & FIN ? RST | ACK : ACK);
}

/*
 * Hold: the right edge of the window that our socket offers stays where it is, so the sender runs
 * dry, without loss, and the session is quiet for a moment.  That ends after GRAFT_HOLD_MS by
 * itself: nothing may happen that would let the daemon end it, and the daemon may be stopped.  The
 * next window probe is then told of the real window.
 */
static __always_inline void hold(struct __sk_buff *skb, struct found *f, struct packet *p)
{
	struct graft_side *mine = f->mine;
	__u32 shift = mine->read_shift & 15, edge = p->ack + ((__u32)p->window << shift), room;
	__u16 was = bpf_htons(p->window), is;

	if (!f->g->hold || (__u32)(bpf_ktime_get_ns() / 1000000) - f->g->held_ms >= GRAFT_HOLD_MS ||
	    !(p->flags & ACK) || p->flags & (SYN | RST | FIN))
		return;
	if (!mine->has_edge) {
		mine->edge = edge;
		mine->has_edge = 1;
	}
	room = diff(mine->edge, p->ack) > 0 ? mine->edge - p->ack : 0;
	is = bpf_htons(room >> shift);
	if (room >> shift >= p->window)
		return;
	bpf_skb_store_bytes(skb, p->l4 + 14, &is, sizeof(is), 0);
	bpf_l4_csum_replace(skb, p->l4 + 16, was, is, 2);
	p->window = room >> shift;
}

/*
 * The state in which a packet that leaves finds its session; GRAFT_STATES: drop it.  It
 * acknowledges, and who looks just now may have read the numbers of before: so it counts.  That one
 * may as well begin a moment later; then the barrier lets it see what is acknowledged.
 */
static __always_inline __u32 state_for_leaving(struct graft_entry *g)
{
	for (int i = 0; i < 32; i++) {
		__u32 state = READ_ONCE(g->head.state);

		if (state == GRAFT_OFFERED)
			state = __sync_fetch_and_add(&g->head.state, 0);
		if ((state & GRAFT_STATE_MASK) != GRAFT_LOCKED)
			return state & GRAFT_STATE_MASK;
		if (__sync_val_compare_and_swap(&g->head.state, state, state + GRAFT_PASSED_ONE) ==
		    state)
			return GRAFT_LOCKED;
	}
	return GRAFT_STATES;
}

/* A packet of a socket at work: it shows the way, and the first interface that it comes by. */
static __always_inline void note_leaving(struct __sk_buff *skb, struct found *f,
					 const struct packet *p)
{
	__u32 end = end_of(p);

	if (p->odd)
		return;
	if (!p->len && end + 1 == f->mine->base_write)
		end++; /* a keepalive probe */
	if (diff(end, f->mine->left) > 0 || f->mine->way.ways != graft_ways)
		learn_way(skb, p, &f->mine->way);
	grow_32(&f->mine->left, end);
}

static __always_inline int leaves(struct __sk_buff *skb, struct found *f, struct packet *p)
{
	if (f->g->killed)
		return shift(skb, f->mine, p, true);
	switch (state_for_leaving(f->g)) {
	case GRAFT_STATES:
		return DROP;
	case GRAFT_FREE:
		return PASS;
	case GRAFT_OFFERED:
	case GRAFT_LOCKED:
		note_leaving(skb, f, p);
		hold(skb, f, p);
		if (!f->g->shifted)
			return PASS;
		__attribute__((fallthrough));
	case GRAFT_RETURNED:
		grow_32(&f->mine->frozen_write, end_of(p));
		return shift(skb, f->mine, p, true);
	case GRAFT_STANDBY: /* the stack's answers, and what sockets had that are closed */
	case GRAFT_SETTING:
		return p->flags & SYN ? of_frozen(skb, f, p) : DROP;
	default:
		if (f->mine->way.ways != graft_ways)
			learn_way(skb, p, &f->mine->way);
		return of_frozen(skb, f, p);
	}
}

/*
 * DROP on the way out is congestion to the socket: __tcp_transmit_skb() calls tcp_enter_cwr(), and
 * bulk that goes back to it begins with half of its window.  On the way in nobody hears of a drop.
 */
static __always_inline int swallow(struct __sk_buff *skb)
{
	set_kind(skb, TO_NOBODY);
	return skb->ifindex == LOOPBACK ? PASS : bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

static __always_inline int out(struct __sk_buff *skb, __u32 l2)
{
	struct packet p;
	struct found f;

	if (is_kind(skb, SENT) || !parse(skb, l2, &p))
		return PASS;
	reverse(&p);
	if (is_udp(&p))
		return udp_out(skb, &p);
	if (find_session(&p, &f)) {
		int to = leaves(skb, &f, &p);

		return to == DROP ? swallow(skb) : to;
	}
	if (p.flags & SYN) {
		note_handshake(skb, &p, true);
		return p.flags & ACK ? PASS : shape_leaving(skb, &p);
	}
	/* so the stack, and no socket, answers what it does not know */
	if ((p.flags & (RST | ACK)) == RST && !skb->ingress_ifindex &&
	    (graft_unsynced[p.tuple.local_port] & GRAFT_PORT_LISTENS ||
	     graft_unsynced[p.tuple.remote_port] & GRAFT_PORT_SERVER))
		return DROP;
	return PASS;
}

/* --- entry points: devices with an Ethernet header, and those without --- */

SEC("tc")
int graft_offer(struct __sk_buff *skb)
{
	struct graft_request q;
	struct graft_entry *g;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &q, sizeof(q)))
		return GRAFT_BAD_REQUEST;
	g = bpf_map_lookup_elem(&grafts, &q.slot);
	if (!g)
		return GRAFT_BAD_REQUEST;
	switch (q.op) {
	case GRAFT_KILL:
		return kill(g);
	case GRAFT_WAYS:
		return judge_way(skb, &g->side[0]) ?: judge_way(skb, &g->side[1]);
	case GRAFT_ROUTES:
		return count_routes();
	case GRAFT_STRAYS:
		return look_for_stray(skb, &g->side[0]) ?: look_for_stray(skb, &g->side[1]);
	case GRAFT_ENTER:
		if (enter(g, q.slot))
			return GRAFT_NO_SLOT;
		return is_connected(skb, &g->side[0]) || is_connected(skb, &g->side[1]) ?
			       GRAFT_IN_HAND :
			       GRAFT_OK;
	case GRAFT_FORGET:
		return forget(g, q.slot);
	}
	return offer(skb, &q, g);
}

SEC("tc")
int graft_in(struct __sk_buff *skb)
{
	return in(skb, ETH_HLEN);
}

SEC("tc")
int graft_out(struct __sk_buff *skb)
{
	return out(skb, ETH_HLEN);
}

SEC("tc")
int graft_in_l3(struct __sk_buff *skb)
{
	return in(skb, 0);
}

SEC("tc")
int graft_out_l3(struct __sk_buff *skb)
{
	return out(skb, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
