/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * stat.passed and ctl.credit where stores are delayed: the Dekker pair of
 * include/sockmap_contract.h.
 *
 * A store goes into a store buffer and reaches memory later, at any time.  A full barrier waits
 * until the own buffer is empty.  What send(2) did to the target is a store too: the release
 * barrier before the store of the credit keeps the two in order.  (x86 does so by itself, arm64
 * does not.)
 *
 * The program passes or redirects one byte after the other.  The daemon, when told, writes what was
 * passed, gives credit, looks again, and sleeps.  A redirected byte is on the target at once, which
 * is the worst that can happen to a passed one before it; the backlog is the matter of
 * handover.pml.  Bytes must reach the target in order, and nobody may sleep while one is missing.
 */
#ifndef N
#define N 5		/* bytes of the stream */
#endif

byte passed, credit;				/* memory */
chan passed_stores = [N + 1] of { byte };	/* the store buffers */
chan credit_stores = [N + 1] of { byte, byte };	/* value, last byte written before it */
chan written = [N + 1] of { byte };
chan waiting = [N + 1] of { byte };		/* passed bytes: the socket lock orders them */
byte delayed;					/* stores to credit that are not in memory */
byte told;					/* events in the ring */
byte delivered;

inline deliver(b)
{
	assert(b == delivered + 1);
	delivered++
}

active proctype Passed_stores()
{
	byte v;

end:	do
	:: atomic { passed_stores?v -> passed = v; v = 0 }
	od
}

active proctype Written_stores()
{
	byte v;

end:	do
	:: atomic { written?v -> deliver(v); v = 0 }
	od
}

active proctype Credit_stores()
{
	byte v, after;

end:	do
	:: credit_stores?v, after ->
#ifndef M_NO_RELEASE
		delivered >= after;
#endif
		atomic { credit = v; delayed--; v = 0; after = 0 }
	od
}

/* bpf/sockmap.bpf.c: carry(), pass() */
active proctype Program()
{
	byte next = 1, own_passed;
#ifdef M_NOTIFY_ONCE
	bool once;
#endif

	do
	:: next <= N ->
		if
		:: credit == own_passed ->
			if
			:: atomic { deliver(next); next++; goto again }	/* redirect */
			:: skip						/* over the hard limit */
			fi
		:: credit != own_passed
		fi;
		atomic { own_passed++; passed_stores!own_passed; waiting!next; next++ }
#ifndef M_NO_PROGRAM_BARRIER
		len(passed_stores) == 0;
#endif
		if
#ifdef M_NOTIFY_ONCE
		:: atomic { credit == own_passed - 1 && !once -> told++; once = true }
		:: credit != own_passed - 1 || once
#else
		:: atomic { credit == own_passed - 1 -> told++ }
		:: credit != own_passed - 1
#endif
		fi;
again:		skip
	:: next > N -> break
	od
}

/* user/datapath/sockmap/carrier_sockmap.c: all_read(), settle_some() */
active proctype Daemon()
{
	byte own_credit, seen, b;

end:	do
	:: atomic { told > 0 -> told-- }
		do
		::
#ifndef M_NO_DAEMON_BARRIER
			delayed == 0 && len(written) == 0;
#endif
			seen = passed;
			if
			:: seen == own_credit -> break
			:: seen != own_credit
			fi;
#ifdef M_CREDIT_FIRST
			atomic { delayed++; credit_stores!seen, 0 }
#endif
			do
			:: atomic { own_credit < seen -> waiting?b; written!b; own_credit++ }
			:: own_credit == seen -> break
			od;
#ifndef M_CREDIT_FIRST
			atomic { delayed++; credit_stores!own_credit, b }
#endif
			b = 0;
#ifdef M_NO_RECHECK
			break
#endif
		od;
		seen = 0
	od
}

/* Nothing can move any more. */
active proctype Monitor()
{
end:	timeout -> assert(delivered == N)
}
