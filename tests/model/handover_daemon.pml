/* SPDX-License-Identifier: BSD-2-Clause */
/* --- the daemon: user/relay/session_flow.c, carrier_sockmap.c --- */

mtype = { KERNEL, STAYING, LEAVING, FINISHING };

active proctype Daemon()
{
	byte b, n, limit, unread, received;
	bool drained, moved, removed, state, eof, again, review;
	byte user_in, user_out, credit, drained_at, entries;
	chan pending = [N + 1] of { byte };
	mtype phase = KERNEL;

user:	/* FLOW_USER */
	do
	:: len(pending) > 0 && ROOM -> write_pending()
	:: len(pending) == 0 ->
		read_queue();
		if
		:: eof -> goto finished
		:: again ->
			again = false;
			if
			:: entries < ENTRIES -> goto enter
			:: UNREAD > 0 || fin
			fi
		:: !eof && !again
#ifdef M_ENTER_UNREAD
		:: part > 0 && entries < ENTRIES && len(pending) == 0 -> goto enter
#endif
		fi
#ifdef M_ENTER_UNREAD
	:: len(pending) == 0 && part > 0 && entries < ENTRIES -> goto enter
#endif
	od;

enter:	sockmap_enter();
	if
	:: !ready -> goto user
	:: ready
	fi;
#ifndef M_NO_KICK
	kick();
#endif
	if
	:: SETTLED -> phase = KERNEL
	:: !SETTLED -> phase = LEAVING; goto next
	fi;

kernel:	/* FLOW_KERNEL: asleep */
	phase = KERNEL;
	if
	:: skip
	:: review = true		/* the policy will want the flow back */
	fi;
	do
	:: atomic { ring?n ->
		if
		:: n == ctl_epoch -> phase = LEAVING
#if STAY
		:: n == ctl_epoch -> phase = STAYING
#endif
		:: n != ctl_epoch
		fi;
		n = 0;
		if
		:: phase != KERNEL -> break
		:: phase == KERNEL
		fi
	   }
#ifndef M_NO_SWEEP
	:: atomic { events_lost -> events_lost = false;
		if
		:: passed != credit || gate -> phase = LEAVING; break
		:: passed == credit && !gate
		fi
	   }
#endif
	:: fin -> phase = FINISHING; break
	:: review -> phase = LEAVING; break
	od;
	review = false;

next:	/* one round in rx */
	if
	:: FIN_SEEN -> phase = FINISHING; goto next
	:: phase == STAYING ->
#ifdef M_NO_TEST
		goto settle
#else
		if
		:: SETTLED -> goto kernel
		:: !SETTLED -> goto settle
		fi
#endif
	:: phase == LEAVING ->
		if
		:: ALL_READ -> goto leave
		:: !ALL_READ && len(pending) >= READ_AHEAD -> goto settle
		:: !ALL_READ && len(pending) < READ_AHEAD
		fi;
		limit = passed - credit - len(pending);
		read_ahead();
		limit = 0;
		if
		:: moved
		:: !moved && len(readable) > 0
		:: !moved && FIN_SEEN -> phase = FINISHING
		fi;
		goto next
	:: phase == FINISHING ->
#ifndef M_NO_FIN_KICK
		kick();
#endif
		if
		:: SETTLED -> goto books
		:: !SETTLED -> goto settle
		fi
	fi;

settle:	/* settle_round() */
#ifndef M_PASSED_LATE
	limit = passed;
#endif
#ifndef M_NO_DRAIN
	if
	:: bytes != drained_at ->
		look_drained();
		if
		:: drained -> drained_at = bytes
		:: !drained && DRAINED -> goto next
		:: !drained && FIN_SEEN -> phase = FINISHING; goto next
		fi
	:: bytes == drained_at
	fi;
#endif
#ifdef M_PASSED_LATE
	limit = passed;
#endif
	if
	:: limit == credit -> limit = 0;
#ifdef M_NO_TEST
		if
		:: phase == STAYING -> goto kernel
		:: phase != STAYING
		fi;
#endif
		goto next
	:: limit != credit -> limit = limit - credit - len(pending)
	fi;
	settle_some();
	if
#ifdef M_EOF_BEFORE_CREDIT
	:: len(pending) == 0 && limit > 0 && len(readable) == 0 && fin -> goto finished
#endif
	:: len(pending) == 0 && moved -> skip
	:: len(pending) > 0 && ROOM
	:: len(pending) == 0 && !moved && len(readable) > 0	/* trap T8 */
	:: (len(pending) > 0 || !moved) && FIN_SEEN -> phase = FINISHING
	fi;
	limit = 0;
#ifdef M_NO_RECHECK
	if
	:: phase == STAYING && len(pending) == 0 -> goto kernel
	:: else
	fi;
#endif
	goto next;

leave:	/* leave_round() with all read, then FLOW_DRAINING */
	remove_fenced();
	if
	:: !removed -> goto next
	:: removed -> removed = false
	fi;
#ifndef M_NO_AUDIT
	if
	:: ALL_READ
	:: !ALL_READ -> goto reset
	fi;
	audit_left();
#endif
	phase = KERNEL;
#ifndef M_NO_DRAIN_LEFT
	do
	:: look_drained();
		if
		:: drained -> break
		:: !drained && DRAINED
		fi
	od;
#endif
	drained = false;
	goto user;

books:	/* sockmap_finish() with all settled */
#ifndef M_NO_FIN_BOOKS
	atomic { !lock -> received = recvd }
	if
	:: received == bytes + user_in
	:: received > bytes + user_in -> recvd == bytes + user_in || passed != credit; goto next
	fi;
	received = 0;
#endif
#ifndef M_NO_FIN_DRAIN
	look_drained();
	if
	:: drained
	:: !drained -> DRAINED; goto next
	fi;
#endif

finished:	/* shutdown(SHUT_WR) */
	assert(fin && accepted == recvd);
	goto done;

reset:	/* CAUSE_HANDOVER_UNPROVED: only if a segment got through the fence */
	assert(excused);
done:
	skip
}
