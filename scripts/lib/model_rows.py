# SPDX-License-Identifier: BSD-2-Clause
"""The searches of scripts/model: configurations of the models, mutations with their damage."""

from typing import NamedTuple

# The verdicts that rows expect of spin.
NOTHING = "no error"
ACYCLIC = "no cycle"
ORDER = "assertion violated (b==(accepted+1))"
TRUNCATED = "assertion violated (fin&&(accepted==recvd))"
RESET = "assertion violated excused"
STUCK = "invalid end state"
LOST = "assertion violated (delivered==5)"
MISSING = "assertion violated again"
NEEDLESS = "assertion violated excused"
FROZEN = "assertion violated ((state!=3)||early[me])"
SWAPPED = "assertion violated (next==(delivered+1))"


class Row(NamedTuple):
    """One search. KIND is "protocol", "mutation" or "redundant": one of two precautions is out."""

    name: str
    kind: str
    model: str
    symbols: str
    expected: str


RUNS = "N=3 HARD=0 STAY=1 REVERSE=0"
LIMITS = "N=4 STAY=1 REVERSE=0 ENTRIES=1"
REVERSE = "N=3 HARD=0 ENTRIES=1"
LEAK = "N=3 LEAK=1 REVERSE=0"
SKBS = "N=4 SKB=2 LEAK=1 REVERSE=0"
MEMORY = "N=3 HARD=2 PRESSURE=1 STAY=1 REVERSE=0 ENTRIES=1"
INTERVAL = "N=4 CHECK=2 STAY=1 REVERSE=0 ENTRIES=1"
BUILT = "N=3 HARD=0 REVERSE=0 ENTRIES=1"

ANSWERED = "N_0=2 ANSWERS=1"

PROTOCOL = [
    ("runs", "handover", RUNS, NOTHING),
    ("limits", "handover", LIMITS, NOTHING),
    ("reverse", "handover", REVERSE, NOTHING),
    ("leak", "handover", LEAK, NOTHING),
    ("skbs", "handover", SKBS, NOTHING),
    ("interval", "handover", INTERVAL, NOTHING),
    ("memory", "handover", MEMORY, NOTHING),
    ("cycles", "handover", "N=2 HARD=0 STAY=1 REVERSE=0", ACYCLIC),
    ("stores", "wakeup", "", NOTHING),
    ("graft-answers", "graft", ANSWERED, NOTHING),
    ("graft-twice", "graft", "TWICE=1", NOTHING),
    ("graft-withdrawal", "graft", "OFFERS=2 WITHDRAWALS=1", NOTHING),
    ("graft-loss", "graft", "LOSSES=1", NOTHING),
    ("graft-cpus", "graft", "CPUS=3", NOTHING),
    ("graft-cycles", "graft", "", ACYCLIC),
]

MUTATIONS = [
    ("no-drain-before-passed", "handover", RUNS + " M_NO_DRAIN", ORDER),
    ("no-drain-after-leaving", "handover", RUNS + " M_NO_DRAIN_LEFT", ORDER),
    ("no-drain-before-fin", "handover", RUNS + " M_NO_FIN_DRAIN", TRUNCATED),
    ("outstanding-before-acked", "handover", RUNS + " M_OUTQ_FIRST",
     "assertion violated (n<=(bytes+user_out))"),
    ("eof-before-credit", "handover", REVERSE + " M_EOF_BEFORE_CREDIT", TRUNCATED),
    ("no-kick", "handover", RUNS + " M_NO_KICK", STUCK),
    ("enter-after-partial-read", "handover", SKBS + " M_ENTER_UNREAD M_NO_TRIM", ORDER),
    ("pass-empty-fin", "handover", REVERSE + " M_PASS_EMPTY",
     "assertion violated (b!=101)"),
    ("redirect-empty-fin", "handover", REVERSE + " M_REDIRECT_EMPTY", ORDER),
    ("gate-stays-closed", "handover", REVERSE + " M_GATE_SHUT", STUCK),
    ("no-fence", "handover", LEAK + " M_NO_FENCE", RESET),
    ("fence-without-low-water", "handover", LEAK + " M_NO_LOWAT", RESET),
    ("fence-without-filter", "handover", LEAK + " M_NO_FILTER", RESET),
    ("no-undo", "handover", LEAK + " M_NO_UNDO", RESET),
    ("no-look-after-no-pass", "handover", LEAK + " M_NO_LOOK_AGAIN", RESET),
    ("no-no-pass", "handover", LEAK + " M_NO_NO_PASS", RESET),
    ("no-pass-before-credit", "handover", RUNS + " M_NO_PASS_FIRST", ORDER),
    ("no-audit", "handover", LEAK + " M_NO_AUDIT", TRUNCATED),
    ("one-look-at-the-books", "handover", LEAK + " LOOKS=1", RESET),
    ("credit-before-write", "handover", LIMITS + " M_CREDIT_FIRST", ORDER),
    ("redirect-while-outstanding", "handover", RUNS + " M_REDIRECT_OUTSTANDING", ORDER),
    ("redirected-before-passed", "handover", LIMITS + " M_PASSED_LATE M_NO_TEST", ORDER),
    ("no-look-after-credit", "handover", RUNS + " M_NO_RECHECK", STUCK),
    ("notify-once", "handover", RUNS + " M_NOTIFY_ONCE", STUCK),
    ("no-sweep-after-lost-event", "handover", BUILT + " M_NO_SWEEP", STUCK),
    ("fin-without-kick-and-books", "handover", REVERSE + " M_NO_FIN_KICK M_NO_FIN_BOOKS",
     TRUNCATED),
    ("stores-no-program-barrier", "wakeup", "M_NO_PROGRAM_BARRIER", LOST),
    ("stores-no-daemon-barrier", "wakeup", "M_NO_DAEMON_BARRIER", LOST),
    ("stores-no-release", "wakeup", "M_NO_RELEASE", SWAPPED),
    ("stores-credit-before-write", "wakeup", "M_CREDIT_FIRST", SWAPPED),
    ("stores-no-look-after-credit", "wakeup", "M_NO_RECHECK", LOST),
    ("stores-notify-once", "wakeup", "M_NOTIFY_ONCE", LOST),
    ("graft-no-order", "graft", "TWICE=1 M_ORDER", MISSING),
    ("graft-no-passed", "graft", "M_PASSED", FROZEN),
    ("graft-no-unread", "graft", "M_UNREAD", MISSING),
    ("graft-no-owed", "graft", "LOSSES=1 MAY_FREEZE M_OWED", MISSING),
    ("graft-no-ack-due", "graft", "M_ACK_DUE", NEEDLESS),
    ("graft-no-other-unread", "graft", "M_OTHER_UNREAD", MISSING),
    ("graft-no-other-passed", "graft", ANSWERED + " M_OTHER_PASSED", FROZEN),
    ("graft-no-other-owed", "graft", "LOSSES=1 M_OTHER_OWED", MISSING),
    ("graft-no-in-hand", "graft", "M_IN_HAND", MISSING),
    ("graft-offer-in-hand", "graft", "M_OFFER_IN_HAND", MISSING),
    ("graft-no-compare-and-swap", "graft", "M_NO_CAS", FROZEN),
    ("graft-no-count", "graft", "M_NO_COUNT", FROZEN),
    ("graft-count-before-passed", "graft", ANSWERED + " M_COUNT_FIRST", NEEDLESS),
    ("graft-passed-unset", "graft", "M_PASSED_UNSET", FROZEN),
    ("graft-leaves-uncounted", "graft", ANSWERED + " M_LEAVES_UNCOUNTED", MISSING),
    ("graft-withdraw-blindly", "graft", "WITHDRAWALS=1 M_WITHDRAW_BLINDLY",
     "assertion violated  !(carries)"),
]

REDUNDANT = [
    ("fin-without-kick", "handover", BUILT + " M_NO_FIN_KICK", NOTHING),
    ("fin-without-books", "handover", BUILT + " M_NO_FIN_BOOKS", NOTHING),
    ("redirected-before-passed-alone", "handover", BUILT + " STAY=1" + " M_PASSED_LATE", NOTHING),
    ("enter-after-partial-read-trimmed", "handover", SKBS + " M_ENTER_UNREAD", NOTHING),
    ("no-trim-at-entry", "handover", SKBS + " M_NO_TRIM", NOTHING),
    ("notify-once-as-built", "handover", BUILT + " M_NOTIFY_ONCE", NOTHING),
    ("graft-bytes-without-passed", "graft",
     "MAY_FREEZE M_PASSED M_OTHER_PASSED M_NO_COUNT", NOTHING),
]

ROWS = [
    Row(name, kind, model, symbols, expected)
    for kind, rows in (("protocol", PROTOCOL), ("mutation", MUTATIONS), ("redundant", REDUNDANT))
    for name, model, symbols, expected in rows
]

# Statements that no configuration of the protocol reaches, and why that is right: (process, text).
KICK_AT_FIN = "the kick at FIN never finds an skb; it only waits for a verdict run in progress"
EXPLAINED = {
    ("Daemon", "leaked = (lowat&&!(unfiltered))"): KICK_AT_FIN,
    ("Daemon", "excused = (excused||((leaked&&removing)&&(!(prog)||owing)))"): KICK_AT_FIN,
    ("Daemon", "(((recvd==(bytes+user_in))||(passed!=credit)))"):
        "with the kick, the books at FIN are never late",
}
