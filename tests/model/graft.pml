/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which packet may be the first one that is translated?  bpf/graft.bpf.c: offer(), try_offer(),
 * look(), let_pass(), arrived(), leaves().
 *
 * Side 0 is the client's connection, side 1 the upstream's.  Each CPU takes a packet of either side
 * and may stop between any two steps: two packets that stop on two CPUs change their order, and one
 * that stops behind tc is late at its socket.  What the relay sends arrives at once, or is lost.
 *
 * A packet carries at most one byte, and which byte of its stream that is.  The sequence numbers of
 * the four streams begin at different values, so a wrong offset is found, too.  The ends' TCP takes
 * byte n + 1 after byte n or an assertion fails.  It drops what comes too soon, as TCP may.  All
 * timers fire when nothing else can happen: then all bytes have arrived, or someone must have
 * something to send again.
 *
 * `passed` and the count of LOCKED keep packets from frozen sockets, so that no sender has to wait
 * for its timer.  That no byte is lost rests on the counting of packets that leave while one looks:
 * each of them acknowledges.  MAY_FREEZE leaves out the assertions of the former.
 *
 * The program did what M_COUNT_FIRST, M_PASSED_UNSET and M_LEAVES_UNCOUNTED do until this model was
 * made (commit 9f267c1).
 *
 * Not modelled: the out-of-order queue, timestamps, FIN, RST; what else must have been seen
 * (`left`, the ways), which only keeps more packets from being the first.
 */
#ifndef N_0
#define N_0 1        /* bytes that the client sends */
#endif
#ifndef N_1
#define N_1 1        /* bytes that the upstream sends */
#endif
#ifndef ANSWERS
#define ANSWERS 0    /* 1: the upstream sends byte n after it has got byte n */
#endif
#ifndef LOSSES
#define LOSSES 0     /* packets that are lost, on either side of the relay */
#endif
#ifndef TWICE
#define TWICE 0      /* packets that a remote end sends twice */
#endif
#ifndef OFFERS
#define OFFERS 1
#endif
#ifndef WITHDRAWALS
#define WITHDRAWALS 0
#endif
#ifndef CPUS
#define CPUS 2
#endif
#ifndef ROOM
#define ROOM 2       /* packets on the way from a remote end */
#endif

#define FREE 0
#define OFFERED 1
#define LOCKED 2
#define ACTIVE 3

#define N(side) ((side) == 0 -> N_0 : N_1)
/* first sequence number: of the remote end, and of our socket */
#define REMOTE(side) (10 + 30 * (side))
#define OURS(side) (20 + 30 * (side))

/* --- the remote ends --- */
byte end_snd[2], end_una[2], end_rcv[2];
bool end_due[2];                              /* an ACK is due */
chan net[2] = [ROOM] of { byte, byte, byte }; /* seq, ack, which byte: 0: none */
byte losses = LOSSES, twice = TWICE;

/* --- our sockets --- */
byte rcv_nxt[2], copied[2], rcv_wup[2], snd_una[2], write_seq[2];
bool due[2];

/* --- struct graft_entry --- */
byte state;
bool counted;         /* the count of LOCKED is not 0 */
byte base_read[2], base_write[2];
byte passed[2];
#ifdef M_PASSED_UNSET
bool has_passed[2];
#endif

/* --- what only the assertions know --- */
bool carries;         /* the daemon has withdrawn */
bool excused;         /* a packet was lost, or came early or late: a sender may have to time out */
bool early[CPUS];     /* no packet, or one that tc saw before the offer */
byte timeouts;

inline ack_at_remote(r, a)
{
	assert(a <= end_snd[r]);
	if
	:: a > end_una[r] -> end_una[r] = a
	:: a <= end_una[r]
	fi
}

/* The byte of number q of a side's stream arrives: byte b of the other end's. */
inline byte_at_remote(r, q, b)
{
	if
	:: q == end_rcv[r] ->
		assert(b == end_rcv[r] - OURS(r) + 1);
		end_rcv[r] = end_rcv[r] + 1
	:: q != end_rcv[r] -> excused = excused || q > end_rcv[r]
	fi;
	end_due[r] = true
}

inline lose()
{
	losses--;
	excused = true
}

inline to_net(r, q, b)
{
	end_due[r] = false;
	net[r]!q, end_rcv[r], b
}

inline send_next(r)
{
	to_net(r, end_snd[r], end_snd[r] - REMOTE(r) + 1);
	end_snd[r] = end_snd[r] + 1;
	if
	:: true
	:: twice > 0 && nfull(net[r]) ->
		twice--;
		to_net(r, end_snd[r] - 1, end_snd[r] - REMOTE(r))
	fi
}

#define MAY_SEND(r) (end_snd[r] < REMOTE(r) + N(r) && nfull(net[r]) && \
		     (r == 0 || !ANSWERS || end_snd[1] - REMOTE(1) < end_rcv[1] - OURS(1)))
#define ARRIVED(r) (end_rcv[r] == OURS(r) + N(1 - r) && end_una[r] == REMOTE(r) + N(r))

proctype Ends()
{
end:	do
	:: atomic { MAY_SEND(0) -> send_next(0) }
	:: atomic { MAY_SEND(1) -> send_next(1) }
	:: atomic { end_due[0] && nfull(net[0]) -> to_net(0, end_snd[0], 0) }
	:: atomic { end_due[1] && nfull(net[1]) -> to_net(1, end_snd[1], 0) }
	od
}

/* --- graft_out: leaves() --- */

/* A packet that leaves acknowledges, and who looks just now may not know what. */
inline ack_leaves(s)
{
	due[s] = false;
	rcv_wup[s] = rcv_nxt[s];
#ifndef M_LEAVES_UNCOUNTED
	if
	:: state == LOCKED -> counted = true
	:: state != LOCKED
	fi
#endif
}

inline byte_leaves(s, q, b)
{
	ack_leaves(s);
	if
	:: state == ACTIVE ->			/* of_frozen(): it is given back */
		if
		:: q >= snd_una[s] -> snd_una[s] = q + 1
		:: q < snd_una[s]
		fi
	:: state != ACTIVE && losses > 0 -> lose()
	:: state != ACTIVE -> byte_at_remote(s, q, b); ack_at_remote(s, rcv_nxt[s])
	fi
}

inline send_ack(s)
{
	ack_leaves(s);
	if
	:: state == ACTIVE
	:: state != ACTIVE && losses > 0 -> lose()
	:: state != ACTIVE -> ack_at_remote(s, rcv_nxt[s])
	fi
}

/* ACKs that our sockets owe, sooner or later */
proctype Acks()
{
end:	do
	:: atomic { due[0] -> send_ack(0) }
	:: atomic { due[1] -> send_ack(1) }
	od
}

/* --- timers --- */

inline fire(r)
{
	if
	:: end_una[r] < end_snd[r] ->
#ifndef MAY_FREEZE
		assert(excused);		/* else it would have got its ACK */
#endif
		again = true;
		to_net(r, end_una[r], end_una[r] - REMOTE(r) + 1)
	:: end_una[r] == end_snd[r]
	fi;
	if
	:: snd_una[r] < write_seq[r] ->
		again = true;
		byte_leaves(r, snd_una[r], snd_una[r] - OURS(r) + 1)
	:: snd_una[r] == write_seq[r]
	fi
}

proctype Timers()
{
	bool again;

	do
	:: atomic { timeout ->
		if
		:: ARRIVED(0) && ARRIVED(1) -> break
		:: !ARRIVED(0) || !ARRIVED(1)
		fi;
		again = false;
		fire(0);
		fire(1);
		assert(again);			/* a byte is missing, and nobody will send it */
		again = false;
		timeouts++
	   }
	   assert(timeouts < 8)			/* it does not help */
	od
}

/* --- the daemon: user/relay/session_flow.c, session_graft.c; the offer program --- */

/* bytes of side s that it has read and not yet written */
#define HAND(s) ((copied[s] - REMOTE(s)) - (write_seq[1 - (s)] - OURS(1 - (s))))

inline offer()
{
	base_read[0] = copied[0]; base_write[0] = write_seq[0];
	base_read[1] = copied[1]; base_write[1] = write_seq[1];
#ifdef M_PASSED_UNSET
	passed[0] = 0; passed[1] = 0;
	has_passed[0] = false; has_passed[1] = false;
#else
	passed[0] = rcv_nxt[0] - 1; passed[1] = rcv_nxt[1] - 1; /* none was seen entering */
#endif
	early[0] = true; early[1] = true; early[CPUS - 1] = true;
	carries = false;
	state = OFFERED
}

inline write_byte(s)
{
	atomic { HAND(1 - s) > 0 -> write_seq[s] = write_seq[s] + 1 }
	atomic { byte_leaves(s, write_seq[s] - 1, write_seq[s] - OURS(s)) }
}

proctype Daemon()
{
	byte offers = OFFERS, withdrawals = WITHDRAWALS;

end:	do
	:: atomic { copied[0] < rcv_nxt[0] && HAND(0) == 0 -> copied[0] = copied[0] + 1 }
	:: atomic { copied[1] < rcv_nxt[1] && HAND(1) == 0 -> copied[1] = copied[1] + 1 }
	:: write_byte(1)
	:: write_byte(0)
#ifdef M_OFFER_IN_HAND
	:: atomic { offers > 0 && state == FREE -> offers--; offer() }
#else
	:: atomic { offers > 0 && state == FREE && HAND(0) == 0 && HAND(1) == 0 -> offers--; offer() }
#endif
	:: offers > 0 -> offers = 0
#ifdef M_WITHDRAW_BLINDLY
	:: withdrawals > 0 && state == OFFERED ->
		withdrawals--;
		atomic { assert(state != ACTIVE); state = FREE; carries = true }
#else
	:: atomic { withdrawals > 0 && state == OFFERED ->
		withdrawals--; state = FREE; carries = true }
#endif
	:: withdrawals > 0 -> withdrawals = 0
	od
}

/* --- graft_in --- */

#define END (byte_no -> seq + 1 : seq)

inline let_pass()
{
#ifdef M_PASSED_UNSET
	if
	:: !has_passed[s] -> passed[s] = END; has_passed[s] = true
	:: has_passed[s] ->
#endif
	atomic {
		if
		:: END > passed[s] -> passed[s] = END
		:: END <= passed[s]
		fi
	}
#ifdef M_PASSED_UNSET
	fi
#endif
}

#ifdef M_PASSED_UNSET
#define PASSED_IS(s, q) (!has_passed[s] || passed[s] == q)
#define PASSED_NO_MORE(s, q) PASSED_IS(s, q)
#else
#define PASSED_IS(s, q) (passed[s] == q)
#define PASSED_NO_MORE(s, q) (passed[s] <= q) /* the packet itself is one that enters */
#endif

#define UNLESS(condition) \
	if \
	:: condition \
	:: !(condition) -> goto unlock \
	fi

/* see() of one socket, then of the other: each number is read once, while all others go on */
inline look()
{
	atomic {
		own_rcv = rcv_nxt[s];
#ifndef M_ORDER
		UNLESS(own_rcv == seq)
#endif
	}
	atomic {
		own_copied = copied[s];
#ifndef M_UNREAD
		UNLESS(own_copied == seq)
#endif
	}
#ifndef M_ACK_DUE
	UNLESS(byte_no || rcv_wup[s] == own_rcv);
#endif
	atomic {
		own_write = write_seq[s];
#ifndef M_OWED
		UNLESS(own_write == ack)
#endif
	}
#ifndef M_PASSED
	UNLESS(PASSED_NO_MORE(s, seq));
#endif
	other_rcv = rcv_nxt[1 - s];
	atomic {
		other_copied = copied[1 - s];
#ifndef M_OTHER_UNREAD
		UNLESS(other_copied == other_rcv)
#endif
	}
	other_una = snd_una[1 - s];
	atomic {
		other_write = write_seq[1 - s];
#ifndef M_OTHER_OWED
		UNLESS(other_una == other_write)
#endif
	}
#ifndef M_OTHER_PASSED
	UNLESS(PASSED_IS((1 - s), other_rcv));
#endif
#ifndef M_IN_HAND
	atomic {
		UNLESS(other_write - base_write[1 - s] == own_copied - base_read[s] &&
		       own_write - base_write[s] == other_copied - base_read[1 - s])
	}
#endif
}

inline to_socket()
{
	atomic {
		if
		:: byte_no && seq == rcv_nxt[s] ->
#ifndef MAY_FREEZE
			/* tc has seen it, so it need not be late */
			assert(state != ACTIVE || early[me]);
#endif
			excused = excused || (early[me] && state != FREE);
			rcv_nxt[s] = rcv_nxt[s] + 1;
			due[s] = true
		:: byte_no && seq != rcv_nxt[s] ->
			excused = excused || seq > rcv_nxt[s];
			due[s] = true
		:: !byte_no
		fi;
		assert(ack <= write_seq[s]);
		if
		:: ack > snd_una[s] -> snd_una[s] = ack
		:: ack <= snd_una[s]
		fi
	}
}

inline pass_on()
{
	seq = seq + base_write[1 - s] - base_read[s];
	ack = ack + base_read[1 - s] - base_write[s];
	if
	:: losses > 0 -> lose()
	:: true ->
		if
		:: byte_no -> byte_at_remote(1 - s, seq, byte_no)
		:: !byte_no
		fi;
		ack_at_remote(1 - s, ack)
	fi
}

proctype Cpu(byte me)
{
	byte s, seq, ack, byte_no;
	byte own_rcv, own_copied, own_write, other_rcv, other_copied, other_una, other_write;

end:	do
	:: atomic {
		if
		:: net[0]?seq, ack, byte_no -> s = 0
		:: net[1]?seq, ack, byte_no -> s = 1
		fi;
		if
		:: losses > 0 -> lose(); goto done
		:: true
		fi
	   }
again:	   atomic {
		if
		:: state == FREE -> goto socket
		:: state == OFFERED -> early[me] = false; state = LOCKED; counted = false
		:: state == LOCKED -> early[me] = false; goto meanwhile
		:: state == ACTIVE -> pass_on(); goto done
		fi
	   }
	   look();
	   atomic {
#ifdef M_NO_CAS
		state = ACTIVE;
		assert(!carries);
		pass_on();
		goto done
#else
		if
		:: !counted -> state = ACTIVE; assert(!carries); pass_on(); goto done
		:: counted
		fi
#endif
	   }
unlock:	   let_pass();
	   atomic { state = OFFERED; counted = false; goto socket }
meanwhile:
#ifdef M_NO_COUNT
	   let_pass();
#else
#ifdef M_COUNT_FIRST
	   atomic {
		if
		:: state == LOCKED -> counted = true
		:: state != LOCKED -> goto again
		fi
	   }
	   let_pass();
#else
	   let_pass();
	   atomic {
		if
		:: state == LOCKED -> counted = true
		:: state != LOCKED -> goto again
		fi
	   }
#endif
#endif
socket:	   to_socket();
done:	   atomic {
		s = 0; seq = 0; ack = 0; byte_no = 0; early[me] = true;
		own_rcv = 0; own_copied = 0; own_write = 0;
		other_rcv = 0; other_copied = 0; other_una = 0; other_write = 0
	   }
	od
}

inline begin(r)
{
	end_snd[r] = REMOTE(r); end_una[r] = REMOTE(r); end_rcv[r] = OURS(r);
	rcv_nxt[r] = REMOTE(r); copied[r] = REMOTE(r); rcv_wup[r] = REMOTE(r);
	snd_una[r] = OURS(r); write_seq[r] = OURS(r)
}

init
{
	atomic {
		begin(0);
		begin(1);
		early[0] = true; early[1] = true; early[CPUS - 1] = true;
		run Ends();
		run Acks();
		run Timers();
		run Daemon();
		run Cpu(0);
#if CPUS > 2
		run Cpu(2);
#endif
		run Cpu(1)
	}
}
