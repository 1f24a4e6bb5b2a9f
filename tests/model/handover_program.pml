/* SPDX-License-Identifier: BSD-2-Clause */
/* --- the verdict program: bpf/sockmap.bpf.c --- */

/* The ring is shared with other flows, so it may be full at any time. */
inline tell(told)
{
	atomic {
		if
		:: nfull(ring) -> ring!st_epoch; told = true
		:: events_lost = true
		fi
	}
}

/* SK_PASS: sk_psock_verdict_apply().  Nobody is charged for what is queued behind others (T18). */
inline queue_own(b)
{
	if
	:: len(own) == 0 -> readable!b
	:: len(own) > 0 -> own!b
	fi
}

/* reverse_has_backlog(): TCP gets nothing more until the flow has left */
inline close_gate()
{
	if
	:: !gate && others > 0 -> gate = true; held = recvd - taken
	:: gate || others == 0
	fi
}

inline sk_pass()
{
	atomic { before = passed; passed = passed + size; expected = expected + size }
	if
#ifdef M_NOTIFY_ONCE
	:: ctl_credit == before && !told_passed -> tell(told_passed)
	:: ctl_credit != before || told_passed
#else
	:: ctl_credit == before -> tell(told_passed)
	:: ctl_credit != before
#endif
	fi;
	atomic {
		do
		:: size > 0 -> queue_own(first); first++; size--
		:: size == 0 -> break
		od;
		before = 0;
		first = 0
	}
}

inline sk_redirect()
{
	atomic { bytes = bytes + size; expected = expected + size }
	atomic {
		do
		:: size > 0 -> backlog!first; first++; size--
		:: size == 0 -> break
		od;
		first = 0;
		/*
		 * the limit, an interval between two looks, and what a leak may bring under
		 * no_pass; or this skb, for which the gate was closed, what TCP had then, and a
		 * segment that had passed it
		 */
		assert(len(backlog) <= HARD + CHECK * SKB + (no_pass -> SKB : 0) +
				       (shut -> 2 * SKB + held : 0))
	}
}

/* The first skb of a stay in rx: enter() and trim() */
inline begin_stay()
{
	if
	:: st_epoch != ctl_epoch ->
		st_epoch = ctl_epoch;
		expected = accepted;
		unchecked = 0;
		told_soft = false;
		told_passed = false;
		told_memory = false;
		shut = false;
#ifndef M_NO_TRIM
		first = first + part;
		size = size - part;
#endif
		part = 0
	:: st_epoch == ctl_epoch
	fi
}

/* check_backlog(), every CHECK skbs; with is_pressed(), for any */
inline check_backlog()
{
	if
	:: unchecked < CHECK
#if PRESSURE
	:: expected > accepted ->
		over = true;
		unchecked = 0;
		if
		:: !told_memory -> tell(told_memory)
		:: told_memory
		fi
#endif
	:: unchecked >= CHECK ->
		over = (expected > accepted + HARD);
		unchecked = 0;
		if
		:: expected > accepted + SOFT && !told_soft -> tell(told_soft)
		:: expected <= accepted + SOFT || told_soft
		fi
	fi
}

active proctype Verdict()
{
	byte first, size, before;
	byte expected, st_epoch, unchecked;
	bool over, told_soft, told_passed, told_memory, shut;

end:	do
	:: atomic { running && taken < recvd ->
		/*
		 * tcp_read_skb() takes the skb off the queue, sk_psock_verdict_recv() asks for a
		 * program
		 */
		first = taken + 1;
		size = SKB;
		taken = taken + SKB;
		if
		:: !prog -> goto drop
		:: prog
		fi;
		begin_stay()
	   }
#ifdef M_NO_PASS_FIRST
		if
		:: no_pass -> goto redirect
		:: !no_pass
		fi;
#endif
#ifndef M_REDIRECT_OUTSTANDING
		if
		:: atomic { passed != ctl_credit -> close_gate(); goto pass }
		:: passed == ctl_credit
		fi;
#endif
		if
		:: no_pass -> goto redirect
		:: atomic { !no_pass -> unchecked++ }
		fi;
		atomic {
			check_backlog();
			if
			:: over -> over = false;
				close_gate();
				if
				:: gate -> shut = true; goto redirect
				:: !gate -> goto pass
				fi
			:: !over
			fi
		}
redirect:	sk_redirect();
		goto done;
pass:		sk_pass();
		goto done;
drop:		atomic { first = 0; size = 0 }	/* trap T16 */
done:		skip
	:: atomic { running && taken == recvd && fin_skb ->
		fin_skb = false;
#if defined M_PASS_EMPTY
		if
		:: len(own) == 0
		:: len(own) > 0 -> own!FIN_SKB
		fi
#elif defined M_REDIRECT_EMPTY
		backlog!FIN_SKB
#endif
	   }
	:: running && taken == recvd && !fin_skb -> running = false
	od
}
