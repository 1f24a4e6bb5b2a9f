/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sessions of graft.bpf.c that return to their sockets, or are killed.  Packets between a socket and
 * the wire.
 */
#pragma once

#include "graft_icmp.h"
#include "graft_work.h"

/* Shift packets of S from now on: its socket has missed the carried bytes. */
static __always_inline void set_back(struct graft_side *s, const struct graft_side *other)
{
	s->back_read = (__u32)s->end - s->frozen_read;
	s->back_write = (__u32)other->end + other->seq_add - s->frozen_write;
}

/*
 * The sockets will be closed with RST.  Other CPUs may still send packets on, so an end may have
 * got more or fewer bytes than `end` counts.  Such an end challenges the reset (RFC 5961), and the
 * stack answers the challenge.
 */
static __always_inline int kill(struct graft_entry *g)
{
	set_back(&g->side[0], &g->side[1]);
	set_back(&g->side[1], &g->side[0]);
	g->killed = 1;
	return GRAFT_OK;
}

/*
 * Can the session return to its sockets with P?  The caller holds LOCKED_2.  If P asks IN_VAIN,
 * both streams go on from the last ACK: the senders will send all later bytes again, and after such
 * a silence no old packet is on its way.  An end may have got some of these bytes already, and may
 * acknowledge them before our socket has sent them.  TCP of the socket would drop such an ACK, and
 * send the first segment again for ever.  So to_socket() lowers the ACK to the end of the sent
 * bytes (`frozen_write`).
 */
static __always_inline int look_back(struct __sk_buff *skb, struct found *f, const struct packet *p,
				     bool in_vain)
{
	struct graft_side *mine = f->mine, *other = f->other;
	__u32 acked = acked_of(mine, other);
	struct seen *a, *b;

	if (p->flags & (FIN | SYN | RST) || !(p->flags & ACK) || mine->fin || other->fin)
		return GRAFT_CLOSING;
	/* an odd packet may repeat one that was sent on, and lost */
	if (p->odd || in_vain ? diff(p->seq, (__u32)mine->end) > 0 : p->seq != (__u32)mine->end)
		return GRAFT_ORDER;
	if (in_vain ? diff(p->seq, acked) > 0 || diff(p->ack, (__u32)mine->acked) < 0 :
		      p->seq != acked || p->ack + mine->ack_add != (__u32)other->end)
		return GRAFT_IN_HAND;
	a = seen_of(skb, mine, 0);
	b = seen_of(skb, other, 1);
	/* the daemon may have made both, and not hold them yet */
	if (!a || !b || !a->established || !b->established || f->g->syn_flags & GRAFT_SYN_BARE)
		return GRAFT_NO_SOCKET;
	/* a packet that bypassed the programs may have moved a socket's numbers */
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

/* The session is RETURNING or LOCKED_2.  Returns the state that P finds; 0: drop P. */
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
	/* before the state is unlocked: the next packet that looks must see P's numbers */
	if (!(p->flags & SYN) && !p->odd && is_inside(p, f.g, f.mine, f.other) &&
	    moves_soundly(skb, &f, p))
		note(f.mine, p);
	state = GRAFT_RETURNING;
	if (why == GRAFT_NO_SOCKET && f.g->syn_flags & GRAFT_SYN_BARE && f.g->far >= GRAFT_LONG &&
	    !f.g->why_back) {
		/* the daemon makes sockets in a moment: try again a leash later */
		f.g->looks++;
		f.mine->edge = (__u32)f.mine->end + GRAFT_LEASH;
		f.other->edge = (__u32)f.other->end + GRAFT_LEASH;
		state = GRAFT_ACTIVE;
	} else if (why == GRAFT_NO_SOCKET || f.mine->fin || f.other->fin) {
		if (in_vain || f.g->far >= GRAFT_LONG)
			state = GRAFT_ACTIVE;
		if (f.g->far >= GRAFT_LONG)
			f.g->far = GRAFT_ANYWHERE;
	}
	__sync_val_compare_and_swap(&f.g->head.state, GRAFT_LOCKED_2, state);
	return state;
}

/* Give P the numbers of the wire, if it goes OUT; else those of S's socket. */
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

/* Why P cannot be translated; 0: it can.  A GSO packet leaves in segments of its gso_size. */
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
 * P cannot be translated; p->odd says why.  If P is too big and has DF, its sender gets a message.
 * Any other P makes its session return to the sockets, which take all kinds of packets.  The
 * session returns with P if all bytes before P have arrived; if not, P is dropped, and will be sent
 * again.  The session ends if it has no sockets, or cannot return within GRAFT_STUCK_NS.
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
	if (g->head.worker == GRAFT_NOBODY) /* another relay has the session */
		return DROP;
	if (__sync_val_compare_and_swap(&g->head.state, GRAFT_ACTIVE, GRAFT_RETURNING) ==
		    GRAFT_ACTIVE ||
	    !g->why_back) {
		g->stuck_ns = now;
		g->why_back = p->odd;
	}
	if (try_return(skb, p, f->slot, f->side) == GRAFT_RETURNED)
		return shift(skb, f->mine, p, false);
	/* a session from another relay, or from the SYN on, gets its sockets in a moment */
	if (now - g->stuck_ns > GRAFT_STUCK_NS ||
	    (g->why_not == GRAFT_NO_SOCKET && !g->loose && !(g->syn_flags & GRAFT_SYN_BARE)))
		end(f, GRAFT_RETURNING);
	return DROP;
}
