/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The hand-over protocol between the verdict program and the daemon, for one flow.
 *
 * docs/evidence.md says what the model proves. scripts/model
 * runs it, and its mutations: each M_... removes one precaution, and spin must find the damage.
 *
 * Bytes are numbered from 1 in the order of the stream. The target's TCP takes byte n + 1 after
 * byte n or an assertion fails: so a lost, doubled or reordered byte is found where it does harm. A
 * wait for a clock is a wait for what the clock's handler looks for. So every run is finite
 * (checked: no cycle exists), and the daemon must not be stuck in any of its waits (checked: no
 * invalid end state).
 */
#ifndef N
#define N 4          /* bytes that the source's peer sends at most */
#endif
#ifndef SKB
#define SKB 1        /* bytes of an skb */
#endif
#ifndef SNDBUF
#define SNDBUF 1     /* bytes that the target's TCP takes before an ACK */
#endif
#ifndef SOFT
#define SOFT 0       /* ctl.soft_limit, in bytes */
#endif
#ifndef HARD
#define HARD 1       /* ctl.hard_limit, in bytes */
#endif
#ifndef CHECK
#define CHECK 1      /* CULVERT_CHECK_PACKETS */
#endif
#ifndef READ_AHEAD
#define READ_AHEAD 1 /* passed bytes that may be read before they can be written */
#endif
#ifndef ENTRIES
#define ENTRIES 2    /* stays in rx, at most */
#endif
#ifndef REVERSE
#define REVERSE 1    /* skbs of the other flow on the source's own psock */
#endif
#ifndef LEAK
#define LEAK 0       /* 1: tcp_data_ready() may ignore the low-water mark (memory pressure) */
#endif
#ifndef STAY
#define STAY 0       /* 1: the daemon may settle and let the flow stay in rx (sockmap_contract.h) */
#endif
#ifndef PRESSURE
#define PRESSURE 0   /* 1: all flows together may have too much memory, at any time */
#endif
#ifndef RING
#define RING 2       /* events that the ring holds */
#endif

#ifndef LOOKS
#define LOOKS 2      /* AUDIT_LOOKS: one more than a FIN can spoil */
#endif
#define ROOM (accepted - acked < SNDBUF)
#define UNREAD (recvd - taken - part)
#define FROM_REVERSE 100
#define FIN_SKB 101

/* --- the source's socket --- */
bool lock;           /* its socket lock */
byte recvd;          /* bytes received by TCP */
byte taken;          /* bytes of skbs that left the receive queue */
byte part;           /* bytes read of the first skb there */
bool fin, fin_skb;   /* FIN received; its skb without payload is in the receive queue */
bool filter, lowat;  /* the two halves of the fence */
bool prog, ready;    /* psock->progs.stream_verdict; sk_data_ready is the verdict's */
bool gate;           /* the program has closed it: the same filter */
bool running;          /* a verdict run: holds the lock for its caller */
chan own = [N + REVERSE + 2] of { byte };      /* psock->ingress_skb: passed bytes, behind others */
byte others;         /* skbs of the other flow there */
chan readable = [N + 1] of { byte };           /* psock->ingress_msg: passed bytes */

/* --- the target's socket --- */
chan backlog = [N + 2] of { byte };            /* psock->ingress_skb: redirected bytes */
byte accepted, acked;

/* --- stats and ctls: include/sockmap_contract.h --- */
byte bytes, passed;
byte ctl_credit, ctl_epoch;
bool no_pass;
chan ring = [RING] of { byte };
bool events_lost;

/* --- what only the assertions know --- */
bool fencing;        /* the daemon believes that the fence is up */
bool removing;       /* ... and has looked for the last time before it removes */
bool owing;          /* ... while bytes were read ahead and not yet written */
bool unfiltered;     /* the segment in hand passed the filter's place after the fence was put up */
bool leaked;         /* the verdict run in progress began in spite of the fence, as it may */
byte held;           /* what TCP had received, and nobody had taken, when the gate was closed */
bool excused;        /* such a run came too late for the last look: a reset is right */

/* The target's TCP takes a byte. */
inline accept(b)
{
	assert(b == accepted + 1);
	accepted++
}

/*
 * tcp_data_ready(), with the lock held: the verdict's sk_data_ready runs over the receive queue.
 * It ignores the low-water mark with a FIN (SOCK_DONE), and under memory pressure (LEAK).
 */
inline data_ready()
{
	if
	:: ready && (!lowat || fin || LEAK) && (taken < recvd || fin_skb) ->
		running = true;
		leaked = lowat && !unfiltered;
		excused = excused || (leaked && removing && (!prog || owing))
#if LEAK
	:: ready && lowat && !fin
#endif
	:: !ready || (lowat && !fin && !LEAK) || (taken == recvd && !fin_skb)
	fi
}

inline unlock()
{
	atomic { !running -> leaked = false; unfiltered = false; lock = false }
}

/* --- the source's peer, its segments, and softirq: tcp_v4_rcv() --- */

/* From the filter to the end of the receive path. */
inline segment(with_data, with_fin)
{
	atomic { !filter && !gate -> unfiltered = fencing }
	atomic {
		!lock -> lock = true;
		recvd = recvd + (with_data -> SKB : 0);
		fin = with_fin;
		fin_skb = (with_fin && !with_data);
		data_ready()
	}
	unlock()
}

active proctype Peer()
{
	do
	:: recvd + SKB < N -> segment(1, 0)
	:: recvd + SKB == N -> segment(1, 0); break
	:: recvd + SKB <= N -> segment(1, 1); goto done
	:: break
	od;
	if
	:: skip
	:: skip ->
end_answer:	acked == recvd		/* first it wants the answer to all that it has said */
	fi;
	segment(0, 1);
done:
	skip
}

#include "handover_program.pml"

/* --- the kernel's workers: sk_psock_backlog() --- */

active proctype Target_worker()
{
	byte b;

end:	do
	:: atomic { len(backlog) > 0 && ROOM -> backlog?b; accept(b); b = 0 }
	od
}

active proctype Source_worker()
{
	byte b;

end:	do
	:: atomic { own?b ->
		assert(b != FIN_SKB);		/* trap T5: breaks the pipe of the other flow */
		if
		:: b != FROM_REVERSE -> readable!b
		:: b == FROM_REVERSE -> others--
		fi;
		b = 0
	   }
	od
}

/* The other flow redirects to the source's socket. */
active proctype Reverse()
{
	byte i;

end:	do
	:: atomic { i < REVERSE -> own!FROM_REVERSE; others++; i++ }
	od
}

/* ACKs of the target's peer. */
active proctype Target_peer()
{
end:	do
	:: acked < accepted -> acked++
	od
}

#include "handover_steps.pml"
#include "handover_daemon.pml"
