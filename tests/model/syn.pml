/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who owns a slot, and who has a tuple, while sessions begin at their SYN?  bpf/graft_from_syn.h,
 * graft_work.h (opened(), end()), graft_syn.c, graft_index.c, session_syn.c.
 *
 * One client sends its SYN several times.  Two CPUs take these copies, the answers of the server,
 * and the client's ACK, and may stop between any two steps.  What the relay sends arrives at once,
 * or is lost.  The daemon prepares slots, takes them back, and looks for sessions; time-outs come at
 * any time.  An import has the client's tuple, or that of slot 0 to the server.
 *
 * Two buckets of the index can have rivals: bucket 0 is that of the client's tuple, bucket 1 that of
 * slot 0 to the server.  A place is a slot plus 1.
 *
 * A slot is used again only when no packet has it in hand.  The program rests on that: slots are
 * used first in, first out, so such a packet would be late by a life of all other slots.
 *
 * Each M_... takes one precaution out, or puts it into another order.  Until this model was made
 * (commit 51fb8a525) the program did what M_NO_SOCKET_LOOK, M_REPLACE_FREE, M_REPLACE_PREPARED,
 * M_REPLACE_UNSEEN, M_NO_NEWS, M_NO_ID and M_END_ONCE do.
 *
 * Not modelled: proofs, holes, several stocks, RETURNED and far sessions, SYN cookies, a client that
 * begins another connection, the next daemon; packets of a slot's last session, which do not fit.
 */
#ifndef SYNS
#define SYNS 2       /* copies of the client's SYN */
#endif
#ifndef PREPARES
#define PREPARES 1   /* slots that the daemon prepares */
#endif
#ifndef RELOADS
#define RELOADS 0    /* times that it takes the stock back */
#endif
#ifndef IMPORT
#define IMPORT 0     /* 1: the import has the client's tuple; 2: that of slot 0 to the server */
#endif
#ifndef ANSWERS
#define ANSWERS 1    /* 0: the server is silent */
#endif
#ifndef LOSSES
#define LOSSES 0     /* 1: a ring of events may be full of others' */
#endif
#ifndef KILLS
#define KILLS 0      /* 1: the daemon is killed, and the next one frees what was prepared */
#endif
#ifndef ALONE
#define ALONE 0      /* 1: only slot 1 is used */
#endif
#ifndef WORKERS
#define WORKERS 1    /* of the daemon: that of the CPU that takes a slot has its session */
#endif

#define SLOTS 2
#define IMPORTED 2   /* the slot of the import */
#define NONE 3
#define PLACES 2     /* of a bucket */
#define BUCKET (IMPORT == 2 -> 1 : 0)	/* of the import's tuple */
#define LISTENER 9   /* in place of a slot plus 1 */
#define NOBODY 9     /* in place of a worker */

#define FREE 0
#define PREPARED 1
#define TAKEN 2
#define SYN_SENT 3
#define ANSWERED 4
#define ACTIVE 5
#define DONE 6
#define CLOSED 7
#define GAVE_UP 8
#define SETTING 9
#define STANDBY 10

#define KEPT 0
#define GIVEN_BACK 1
#define ANEW 2

/* --- what daemon and packet programs share --- */
byte state[3], over[3], worker[SLOTS], id[SLOTS];
byte place[2 * PLACES];
byte first, last, stock[4];
short half;
bool awake[WORKERS];
chan events[WORKERS] = [1] of { byte, byte }; /* slot, id */
bool news;                                    /* an event was lost */

/* --- the daemon --- */
bool lock, filling;         /* locks of the index and of the stock */
bool queued[SLOTS], counted[SLOTS], object[SLOTS], timer[WORKERS];
byte prepares = PREPARES, reloads = RELOADS, kills = KILLS;

/* --- the ends, and our listener --- */
byte syns = SYNS;
bool acked;                 /* the client has sent its ACK */
bool sock;                  /* the listener has a socket for the client */
byte heard;                 /* from whom the client has a SYN|ACK */
byte server[SLOTS];         /* 1: it has got a SYN; 2: it has answered; 3: it has sent RST */

/* --- what only the assertions know --- */
bool lives[3];              /* the session has begun, after all looks for rivals, and is not over */
bool in_stock[SLOTS];
bool was_reset[SLOTS];      /* the client has got the server's RST */
byte in_hand[2];            /* by CPU: the slot that its packet has found, plus 1 */
bool at_work;               /* CPU 0 has a packet */
bool one_session = true, one_server = true, one_owner = true, none_forgotten = true;
bool reachable = true, ended = true;

#define IS_FOUND(s) (state[s] != FREE && state[s] != PREPARED && state[s] != GAVE_UP && \
		     over[s] != ANEW)
#define IS_RIVAL(s) (IS_FOUND(s) && over[s] == KEPT)
#define IS_HALF(s) (state[s] == SYN_SENT || state[s] == ANSWERED)
#define LEADS(b, s) (place[(b) * PLACES] == (s) + 1 || place[(b) * PLACES + 1] == (s) + 1)
#define SHARE(s, t) ((s) != (t) && (((s) < SLOTS && (t) < SLOTS) || IMPORT == 1 || \
				    (s) == 0 || (t) == 0))

/* A tuple leads to one living session. */
inline begin_life(s)
{
	one_session = !(lives[0] && SHARE(s, 0)) && !(lives[1] && SHARE(s, 1)) &&
		      !(lives[2] && SHARE(s, 2));
	assert(one_session);
	lives[s] = true
}

inline half_less()
{
	half--;
	assert(half >= 0)
}

/* The client gets a SYN|ACK of WHOM, and has no other server. */
inline hear(whom)
{
	one_server = !heard || heard == whom || (heard < LISTENER && !lives[heard - 1]);
	assert(one_server);
	heard = whom
}

/* --- the index --- */

/*
 * What is in bucket B?  MINE: a place leads to OWN.  RIVAL: one leads to a session that is not over.
 * AT: the place that OWN may take, in which there is WAS.  LOCKED: the daemon looks, under its lock,
 * so a FREE session cannot begin meanwhile.
 */
inline look(b, own, locked)
{
	do
	:: atomic { i < PLACES && !p -> p = place[(b) * PLACES + i];
		if
		:: !p && at == PLACES -> at = i; was = 0; i++
		:: !p && at != PLACES -> i++
		:: p == own -> mine = true; p = 0; i++
		:: p && p != own
		fi
	   }
	:: atomic { p ->
		if
		:: IS_RIVAL(p - 1) -> rival = true
		:: !IS_RIVAL(p - 1) && !(at < PLACES && was) &&
#ifndef M_REPLACE_PREPARED
			state[p - 1] != PREPARED &&
#endif
#ifndef M_REPLACE_FREE
			(locked || state[p - 1] != FREE) &&
#endif
			true -> at = i; was = p
		:: else
		fi;
		p = 0; i++
	   }
	:: atomic { i == PLACES && !p -> i = 0; break }
	od
}

inline forget_look()
{
	mine = false; rival = false; at = PLACES; was = 0
}

/* Let bucket B lead to OWN, after a look.  RIVAL: it does not. */
inline enter(b, own)
{
	if
	:: !rival && !mine && at < PLACES && place[(b) * PLACES + at] == was ->
		place[(b) * PLACES + at] = own
	:: !rival && !mine && (at == PLACES || place[(b) * PLACES + at] != was) -> rival = true
	:: rival || mine
	fi;
	mine = false; at = PLACES; was = 0
}

inline index_add(b, own)
{
	look(b, own, true);
#ifdef M_REPLACE_UNSEEN
	/* a second walk takes the first place of the tuple, whatever it leads to by now */
	atomic {
		if
		:: !rival && place[(b) * PLACES] -> at = 0; was = place[(b) * PLACES]
		:: !rival && !place[(b) * PLACES] && place[(b) * PLACES + 1] ->
			at = 1; was = place[(b) * PLACES + 1]
		:: else
		fi
	}
#endif
	atomic { enter(b, own) }
}

inline index_remove(b, own)
{
	do
	:: atomic { i < PLACES ->
		if
#ifdef M_REMOVE_BY_TUPLE
		:: place[(b) * PLACES + i] -> place[(b) * PLACES + i] = 0; i = PLACES
#else
		:: place[(b) * PLACES + i] == own -> place[(b) * PLACES + i] = 0; i = PLACES
#endif
		:: else -> i++
		fi
	   }
	:: atomic { i == PLACES -> i = 0; break }
	od
}

#include "syn_program.pml"
#include "syn_daemon.pml"

#define IS_KNOWN(s) \
	((queued[s] && !in_stock[s] && !counted[s] && !object[s]) || \
	 (state[s] == PREPARED && !queued[s] && in_stock[s] && counted[s] && !object[s]) || \
	 (state[s] == ACTIVE && !queued[s] && !in_stock[s] && !counted[s] && object[s]))

/* Nothing can move any more. */
proctype Monitor()
{
end:	atomic { timeout ->
		none_forgotten = IS_KNOWN(0) && IS_KNOWN(1);
		assert(none_forgotten);
		assert(last - first == in_stock[0] + in_stock[1]);
		assert(half == IS_HALF(0) + IS_HALF(1));
		ended = !(was_reset[0] && lives[0]) && !(was_reset[1] && lives[1]);
		assert(ended);
		reachable = (!lives[0] || LEADS(0, 0)) && (!lives[1] || LEADS(0, 1)) &&
			    (!lives[IMPORTED] || LEADS(BUCKET, IMPORTED));
		assert(reachable)
	}
}

init
{
	atomic {
		queued[0] = true; queued[1] = true;
		worker[0] = NOBODY; worker[1] = NOBODY;
#if IMPORT
		run Import();
#endif
		run Monitor();
		run Worker(0);
#if WORKERS > 1
		run Worker(1);
#endif
		run Cpu(0);
		run Cpu(1)
	}
}
