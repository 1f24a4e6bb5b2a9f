/* SPDX-License-Identifier: BSD-2-Clause */
/* --- the daemon's steps: user/datapath/sockmap/carrier_sockmap.c, user/datapath/carrier_copy.c --- */

#define ALL_READ (passed == credit + len(pending))
#define SETTLED (len(pending) == 0 && ALL_READ)
#define DRAINED (accepted == bytes + user_out)
/* EPOLLRDHUP */
#define FIN_SEEN (fin && phase != FINISHING)

/* recv(2) on a socket in rx, nothing taken: tcp_bpf_recvmsg_parser() runs the verdict */
inline kick()
{
	atomic { !lock -> lock = true; data_ready() }
	unlock()
}

inline read_passed()
{
	atomic { readable?b -> pending!b; user_in++; b = 0 }
}

inline write_pending()
{
	atomic { pending?b -> accept(b); user_out++; b = 0 }
}

/* recv(2) of a byte out of rx; or EOF; or EAGAIN */
inline read_queue()
{
	atomic {
		!lock;
		if
		:: UNREAD > 0 ->
			pending!(taken + part + 1);
			part++;
			if
			:: part == SKB -> taken = taken + SKB; part = 0
			:: else
			fi;
			user_in++
		:: UNREAD == 0 && fin -> eof = true
		:: UNREAD == 0 && !fin -> again = true
		fi
	}
}

/* target_accepted(): acknowledged first, outstanding second; look_drained(): redirected last */
inline look_drained()
{
#ifdef M_OUTQ_FIRST
	n = accepted - acked;
	n = n + acked;
#else
	n = acked;
	n = n + accepted - acked;
#endif
	atomic {
		assert(n <= bytes + user_out);
		drained = (n == bytes + user_out);
		n = 0
	}
}

/* AGAIN: the queue was just seen empty */
inline sockmap_enter()
{
#ifdef M_ENTER_UNREAD
	again = true;
#else
	atomic { !lock -> again = (UNREAD == 0 && !fin) }
#endif
	if
	:: again ->
		atomic {
			again = false;
			entries++;
			drained_at = bytes;
			credit = passed;
			ctl_credit = credit;
			no_pass = false;
			gate = false;
			ctl_epoch++
		}
		if
		:: atomic { !lock && !fin -> prog = true; ready = true }
		:: atomic { !lock && fin -> entries = ENTRIES }	/* EOPNOTSUPP: no_enter */
		fi
	:: else
	fi
}

inline fence_up()
{
#ifdef M_NO_FILTER
	fencing = true;
#else
	atomic { filter = true; fencing = true }
#endif
#ifndef M_NO_LOWAT
	atomic { !lock -> lowat = true }
#endif
}

inline fence_down()
{
	atomic {
		filter = false;
#ifndef M_GATE_SHUT
		gate = gate && !removed;
#endif
		fencing = false;
		removing = false
	}
#ifndef M_NO_LOWAT
	atomic { !lock -> lock = true; lowat = false; data_ready() }	/* tcp_set_rcvlowat() */
	unlock()
#endif
}

/* bpf_map_delete_elem() on rx: sk_psock_stop_verdict(), without the socket lock */
inline rx_delete()
{
	atomic { prog = false; excused = excused || leaked }
	ready = false
}

inline remove_fenced()
{
#ifndef M_NO_FENCE
	fence_up();
#endif
	if
#ifdef M_NO_UNDO
	:: skip ->
#else
	:: ALL_READ ->
#endif
#ifndef M_NO_NO_PASS
		no_pass = true;
#endif
		if
#if defined M_NO_LOOK_AGAIN || defined M_NO_UNDO
		:: atomic { true -> removing = true; owing = len(pending) > 0; excused = leaked }
#else
		:: atomic { ALL_READ -> removing = true; owing = len(pending) > 0; excused = leaked }
#endif
			rx_delete();
			removed = true
#if !defined M_NO_LOOK_AGAIN && !defined M_NO_UNDO
		:: !ALL_READ -> no_pass = false
#endif
		fi
#ifndef M_NO_UNDO
	:: !ALL_READ
#endif
	fi;
#ifndef M_NO_FENCE
	fence_down()
#else
	removing = false
#endif
}

/*
 * received == redirected + read + unread.  tcp_get_info() reads the state before it takes the lock:
 * a FIN in between is counted as a byte.
 */
inline audit_left()
{
	do
	:: atomic { !lock -> unread = UNREAD }
		state = fin;
		atomic { !lock -> received = recvd + (fin -> 1 : 0) - (state -> 1 : 0) }
		if
		:: atomic { !lock && unread != UNREAD -> skip }
		:: atomic { !lock && unread == UNREAD ->
			if
			:: received == bytes + user_in + unread -> break
			:: received != bytes + user_in + unread -> n++
			fi
		   }
			if
			:: n == LOOKS -> goto reset
			:: n < LOOKS
			fi
		fi
	od;
	atomic { n = 0; unread = 0; received = 0; state = false }
}

/* carrier_pump() for LIMIT passed bytes, then credit for what was written */
inline settle_some()
{
	atomic { n = user_out; moved = false }
	do
	:: len(pending) > 0 && ROOM -> write_pending(); moved = true
	:: len(pending) > 0 && !ROOM -> break
	:: len(pending) == 0 && limit > 0 && len(readable) > 0 ->
		read_passed();
		limit--;
#ifdef M_CREDIT_FIRST
		ctl_credit++
#endif
	:: len(pending) == 0 && (limit == 0 || len(readable) == 0) -> break
	od;
	atomic {
		credit = credit + user_out - n;
#ifndef M_CREDIT_FIRST
		ctl_credit = credit;
#endif
		n = 0
	}
}

/* carrier_read_ahead() for LIMIT passed bytes */
inline read_ahead()
{
	moved = false;
	do
	:: limit > 0 && len(pending) < READ_AHEAD && len(readable) > 0 ->
		atomic { read_passed(); limit--; moved = true }
	:: !(limit > 0 && len(pending) < READ_AHEAD && len(readable) > 0) -> break
	od
}
