/* SPDX-License-Identifier: BSD-2-Clause */
/* The packet programs of syn.pml. */

/* tell(), of a slot that another session may have by now */
inline tell(s)
{
	atomic { w = worker[s]; e = id[s] }
	atomic {
		if
		:: w == NOBODY
		:: w != NOBODY && nfull(events[w]) -> events[w]!s, e
		:: w != NOBODY && (LOSSES || full(events[w])) -> news = true
		fi;
		w = 0; e = 0
	}
}

/* find_place(): X is the slot that bucket B leads to. */
inline find(b)
{
	x = NONE;
	do
	:: atomic { i < PLACES && !p && x == NONE ->
		p = place[(b) * PLACES + i]; in_hand[me] = p; i++
	   }
	:: atomic { p ->
		if
		:: IS_FOUND(p - 1) -> x = p - 1
		:: else -> in_hand[me] = 0
		fi;
		p = 0
	   }
	:: atomic { !p && (i == PLACES || x != NONE) -> i = 0; break }
	od
}

/* find_session(): a packet with SYN passes by a session that is over, and no later one finds it. */
inline find_for_syn()
{
	find(0);
	if
	:: atomic { x != NONE -> st = state[x] }
		atomic {
			if
			:: (st == DONE && over[x] == KEPT) || (st == CLOSED && over[x] == GIVEN_BACK) ->
				over[x] = ANEW
			:: else
			fi;
			if
			:: st == DONE || st == CLOSED -> x = NONE; in_hand[me] = 0
			:: else
			fi;
			st = 0
		}
	:: x == NONE
	fi
}

/* For a packet of the server to slot S. */
inline find_for_server()
{
	if
	:: s == 0 -> find(1)
	:: atomic { s == 1 -> x = (IS_FOUND(1) -> 1 : NONE); in_hand[me] = (x == 1 -> 2 : 0) }
	fi
}

/* syn_give_up(), by the packet that has TAKEN slot S.  COUNTED: it is in `half`. */
inline give_up(s, is_half)
{
	atomic { forget_look(); state[s] = GAVE_UP; lives[s] = false; in_hand[me] = 0 }
	atomic {
		if
		:: is_half -> half_less()
		:: !is_half
		fi
	}
	tell(s)
}

/* Who takes a slot out of the stock owns it. */
inline leave_stock(s)
{
	one_owner = in_stock[s];
	assert(one_owner);
	in_stock[s] = false
}

/* syn_take(), graft_syn_take(): X is the first slot of the stock. */
inline take()
{
	do
	:: f = first;
	   atomic {
		if
		:: last == f -> f = 0; x = NONE; break
		:: last != f -> x = stock[f % 4]
		fi
	   }
	   atomic {
		if
#ifdef M_RING_NO_CAS
		:: true ->
#else
		:: first != f -> f = 0
		:: first == f ->
#endif
			first = f + 1; f = 0; leave_stock(x); break
		fi
	   }
	od
}

/* The CPUs of one worker are alike: what CPU 1 does alone needs no search. */
#define MAY_BEGIN (me == 0 || at_work || WORKERS > 1)

inline begin(slot, new_server)
{
	at_work = at_work || me == 0;
	s = slot; server[slot] = new_server
}

proctype Cpu(byte me)
{
	byte x, i, p, st, at = PLACES, was, f, e, w, s;
	bool may_begin, mine, rival;

end:	do
	:: atomic { MAY_BEGIN && syns > 0 ->
		syns--; may_begin = true; begin(0, server[0]); goto syn }
	:: atomic { MAY_BEGIN && !acked && heard && heard != LISTENER ->
		acked = true; begin(heard - 1, server[heard - 1]); goto ack }
	:: atomic { MAY_BEGIN && ANSWERS && server[0] == 1 -> begin(0, 2); goto synack }
	:: atomic { MAY_BEGIN && ANSWERS && server[1] == 1 -> begin(1, 2); goto synack }
	:: atomic { MAY_BEGIN && ANSWERS && (server[0] == 1 || server[0] == 2) ->
		begin(0, 3); goto reset }
	:: atomic { MAY_BEGIN && ANSWERS && (server[1] == 1 || server[1] == 2) ->
		begin(1, 3); goto reset }
	:: atomic { me == 0 && syns > 0 -> syns-- }		/* lost */
	:: atomic { me == 0 && !acked && heard && heard != LISTENER -> acked = true }
	od;

syn:	find_for_syn();
	atomic {						/* has_shape(): a listener? */
		if
		:: x != NONE -> goto found
		:: x == NONE && (sock || !may_begin) -> goto listener
		:: else
		fi
	}
	take();							/* syn_begin() */
	atomic {
		if
		:: x == NONE -> goto listener
#ifdef M_TAKE_NO_CAS
		:: x != NONE ->
#else
		:: x != NONE && state[x] != PREPARED -> goto listener
		:: x != NONE && state[x] == PREPARED ->
#endif
			state[x] = TAKEN
		fi
	}
	worker[x] = me % WORKERS;
	look(0, x + 1, false);
	atomic {
		enter(0, x + 1);
		if
		:: rival -> goto rivalled
		:: !rival
		fi
	}
#ifndef M_NO_SECOND_LOOK
	/* an import or the listener may have had the same in mind: one of the two sees the other */
	look(0, x + 1, false);
	rival = rival || !mine;
	mine = false;
	if
	:: !rival && x == 0 -> look(1, x + 1, false); rival = rival || !mine
	:: rival || x != 0
	fi;
#ifndef M_NO_SOCKET_LOOK
	rival = rival || sock;
#endif
#endif
	atomic {
		if
		:: rival -> goto rivalled
		:: !rival -> forget_look()
		fi
	}
#ifndef M_HALF_BEHIND_SYN_SENT
	half++;
#endif
	atomic { state[x] = SYN_SENT; begin_life(x); in_hand[me] = x + 1 }
#ifdef M_HALF_BEHIND_SYN_SENT
	half++;
#endif
	if
	:: awake[worker[x]]
	:: !awake[worker[x]] -> tell(x)
	fi;
found:	if							/* arrived(), syn_packet() */
	:: atomic { IS_HALF(x) || state[x] == ACTIVE ->		/* to its server, soon */
		server[x] = (server[x] -> server[x] : 1); goto done
	   }
	:: state[x] == SYN_SENT ->				/* late: the server is silent */
		atomic {
			if
			:: state[x] == SYN_SENT -> state[x] = TAKEN
			:: state[x] != SYN_SENT -> goto done
			fi
		}
		give_up(x, true);
		goto listener
	:: atomic { !IS_HALF(x) && state[x] != ACTIVE -> goto done }
	fi;
rivalled:
	give_up(x, false);

listener:
	sock = true;						/* its SYN|ACK leaves: leaves() */
	find_for_syn();
	atomic {
		if
		:: x == NONE -> hear(LISTENER)
		:: x != NONE
		fi;
		goto done
	}

synack:	find_for_server();
	atomic {
		if
		:: x != s || (!IS_HALF(s) && state[s] != ACTIVE) -> goto done
		:: x == s && state[s] == SYN_SENT -> state[s] = TAKEN
		:: x == s && (state[s] == ANSWERED || state[s] == ACTIVE) -> goto answer
		fi
	}
	state[s] = ANSWERED;
answer:	atomic {
		if
		:: lives[s] -> hear(s + 1)
		:: true						/* lost */
		fi;
		goto done
	}

reset:	find_for_server();
	atomic {
		if
		:: x == s -> st = state[s]
		:: x != s -> goto done
		fi
	}
	if
	:: st == SYN_SENT ->
		atomic {
			if
			:: state[s] == SYN_SENT -> state[s] = TAKEN
			:: state[s] != SYN_SENT -> goto done
			fi
		}
		give_up(s, true);
		atomic { may_begin = false; goto syn }		/* syn_remake() */
	:: st == ANSWERED || st == ACTIVE ->			/* end() */
		atomic {
			was_reset[s] = true;
			if
			:: state[s] == st ->
end_it:				heard = (heard == s + 1 -> 0 : heard);
				state[s] = DONE; lives[s] = false; in_hand[me] = 0
#ifndef M_END_ONCE
			:: st == ANSWERED && state[s] == ACTIVE -> st = ACTIVE; goto end_it
#endif
			:: else -> goto done
			fi
		}
		atomic {
			if
			:: st == ANSWERED -> half_less()
			:: st == ACTIVE
			fi
		}
		tell(s);
		goto done
	:: else -> goto done
	fi;

ack:	find(0);						/* opened() */
	atomic {
		if
		:: x != s || state[s] != ANSWERED -> goto done
#ifdef M_HALF_NO_CAS
		:: x == s && state[s] == ANSWERED
		fi
	}
	atomic {
		if
		:: state[s] != ANSWERED
		:: state[s] == ANSWERED -> state[s] = ACTIVE
#else
		:: x == s && state[s] == ANSWERED -> state[s] = ACTIVE
#endif
		fi
	}
	atomic { half_less() }

done:	atomic {
		in_hand[me] = 0; at_work = at_work && me != 0;
		x = 0; i = 0; p = 0; st = 0; f = 0; s = 0; may_begin = false; forget_look();
		goto end
	}
}
