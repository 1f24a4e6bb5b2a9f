/* SPDX-License-Identifier: BSD-2-Clause */
/* The daemon of syn.pml: workers, and an import. */

/* Its owner gives slot S back to the queue of free slots. */
inline put(s)
{
	atomic {
		one_owner = !queued[s] && !in_stock[s] && !object[s] && !lives[s];
		assert(one_owner);
		queued[s] = true
	}
}

/* syn_adopt(): an object has the session from now on. */
inline adopt(s)
{
	atomic {
		one_owner = !object[s] && !queued[s];
		assert(one_owner);
		counted[s] = false; object[s] = true
	}
	look_at(s)
}

/* syn_gave_up() */
inline gave_up(s)
{
	counted[s] = false;
	put(s)
}

/* look_at_graft(), graft_put() */
inline look_at(s)
{
	if
	:: state[s] == DONE ->
		atomic { over[s] = (over[s] == KEPT -> GIVEN_BACK : over[s]) }
		atomic { state[s] = CLOSED; object[s] = false }
		put(s)
	:: state[s] != DONE
	fi
}

/* syn_wake() */
inline wake()
{
	atomic { timer[me] = timer[me] || !awake[me]; awake[me] = true }
}

/* graft_syn_expire() waits while a packet has TAKEN the session. */
inline expire(s)
{
	atomic { state[s] != TAKEN -> st = state[s];
		if
		:: st == SYN_SENT || st == ANSWERED ->
			state[s] = (st == SYN_SENT -> GAVE_UP : DONE); lives[s] = false
		:: else
		fi
	}
	atomic {
		if
		:: st == SYN_SENT || st == ANSWERED -> half_less()
		:: else
		fi
	}
}

#define IS_HALF_NUMBER(st) (st == SYN_SENT || st == ANSWERED)

/* session_syn_sweep() */
inline sweep()
{
	s = 0;
	do
	:: atomic { s < SLOTS && counted[s] && worker[s] == me -> st = state[s] }
		if
		:: st == TAKEN || IS_HALF_NUMBER(st) || st == ACTIVE -> some = true /* young */
		:: IS_HALF_NUMBER(st) -> some = true; expire(s)
		:: st == ACTIVE || st == DONE -> adopt(s)	/* or its event was lost */
		:: st == GAVE_UP -> gave_up(s)
		:: st != TAKEN && !IS_HALF_NUMBER(st) && st != ACTIVE && st != DONE && st != GAVE_UP
		fi;
		s++
	:: atomic { s < SLOTS && (!counted[s] || worker[s] != me) -> s++ }
	:: s == SLOTS -> break
	od;
	timer[me] = timer[me] || some
}

inline lock_index()
{
	atomic { !lock -> lock = true }
}

/* graft_slots_fill() of the next daemon, whose stock is another one */
inline free_prepared()
{
	atomic { first = last; in_stock[0] = false; in_stock[1] = false }
	s = 0;
	do
	:: atomic { s < SLOTS && state[s] == PREPARED -> state[s] = FREE; counted[s] = false }
		put(s);
		s++
	:: atomic { s < SLOTS && state[s] != PREPARED -> s++ }
	:: s == SLOTS -> break
	od
}

/* graft_syn_prepare(), graft_syn_push() */
inline prepare(s)
{
	state[s] = FREE;
	lock_index();
	index_remove(0, s + 1);
	if
	:: s == 0 -> index_remove(1, s + 1)
	:: s != 0
	fi;
	atomic {
		lock = false;
		worker[s] = NOBODY; id[s]++; over[s] = KEPT; server[s] = 0; was_reset[s] = false;
		heard = (heard == s + 1 -> 0 : heard)
	}
	lock_index();
	if
	:: s == 0 -> index_add(1, s + 1)
	:: s != 0
	fi;
	if
	:: !rival -> state[s] = PREPARED; lock = false;
		atomic { counted[s] = true; stock[last % 4] = s }
		atomic { last++; in_stock[s] = true }
	:: rival -> index_remove(1, s + 1); lock = false; put(s)
	fi
}

/* syn_take_back(), graft_syn_take(): at the end where SYNs take, too */
inline take_back()
{
	do
	::
#ifdef M_TAIL
		atomic {
			if
			:: first == last -> x = NONE
			:: first != last -> x = stock[(last + 3) % 4]
			fi
		}
		if
		:: atomic { x != NONE -> last--; leave_stock(x) }
		:: x == NONE
		fi;
#else
		take();
#endif
		if
		:: x == NONE -> break
		:: atomic { x != NONE && state[x] == PREPARED -> state[x] = FREE }
			counted[x] = false;
			put(x)
		:: x != NONE && state[x] != PREPARED
		fi
	od
}

#define MAY_PREPARE(s) (queued[s] && in_hand[0] != (s) + 1 && in_hand[1] != (s) + 1)

proctype Worker(byte me)
{
	byte s, x, i, p, st, at = PLACES, was, f, e;
	bool some, mine, rival;

end:	if
	:: events[me]?s, e ->
		if
		:: object[s] -> look_at(s)
		:: atomic { !object[s] && counted[s] -> st = state[s] }
#ifndef M_NO_ID
			st = (e == id[s] -> st : CLOSED);
#endif
			if
			:: st == DONE -> adopt(s)
			:: st == GAVE_UP -> gave_up(s)
			:: st != CLOSED && st != DONE && st != GAVE_UP -> wake()
			:: st == CLOSED				/* of an earlier session */
			fi
		:: !object[s] && !counted[s]
		fi
	:: atomic { timer[me] -> timer[me] = false }		/* session_syn_on_sweep() */
#ifdef M_AWAKE_LATE
		sweep();
		awake[me] = false;
#else
		awake[me] = false;
		sweep();
#endif
		if
		:: timer[me] -> awake[me] = true
		:: !timer[me]
		fi
	:: atomic { news -> news = false; s = 0 }		/* worker_follow_news() */
		do
		:: s < SLOTS && object[s] -> look_at(s); s++
		:: s < SLOTS && !object[s] -> s++
		:: s == SLOTS -> break
		od;
#ifndef M_NO_NEWS
		wake()
#endif
	:: atomic { prepares > 0 && !filling && ((!ALONE && MAY_PREPARE(0)) || MAY_PREPARE(1)) ->
		prepares--; filling = true;
		if
		:: !ALONE && MAY_PREPARE(0) -> s = 0
		:: MAY_PREPARE(1) -> s = 1
		fi;
		queued[s] = false
	   }
		prepare(s);
		filling = false
	:: atomic { reloads > 0 && !filling -> reloads--; filling = true }
		take_back();
		filling = false
	:: atomic { kills > 0 && !filling -> kills-- }
		free_prepared()
	fi;
	atomic {
		s = 0; x = 0; i = 0; p = 0; st = 0; f = 0; e = 0; some = false; forget_look();
		goto end
	}
}

/* graft_import(), graft_index_add() */
proctype Import()
{
	byte i, p, at = PLACES, was;
	bool mine, rival;

	lock_index();
	index_add(BUCKET, IMPORTED + 1);
	if
	:: !rival -> state[IMPORTED] = SETTING;
#ifndef M_NO_IMPORT_LOOK
		look(BUCKET, IMPORTED + 1, true);
		rival = rival || !mine;
#endif
		if
		:: rival -> state[IMPORTED] = FREE
		:: atomic { !rival -> state[IMPORTED] = STANDBY; begin_life(IMPORTED) }
		fi
	:: rival
	fi;
	if
	:: rival -> index_remove(BUCKET, IMPORTED + 1)
	:: !rival
	fi;
	lock = false
}
