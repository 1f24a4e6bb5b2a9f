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
TWO_SESSIONS = "assertion violated one_session"
TWO_SERVERS = "assertion violated one_server"
TWO_OWNERS = "assertion violated one_owner"
FORGOTTEN = "assertion violated none_forgotten"
NEGATIVE = "assertion violated (half>=0)"
UNFOUND = "assertion violated reachable"
ENDLESS = "assertion violated ended"


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

SILENT = "ANSWERS=0 SYNS=2 PREPARES=2"
CLIENT_TUPLE = "ANSWERS=0 SYNS=1 IMPORT=1"
SERVER_TUPLE = "ANSWERS=0 SYNS=1 IMPORT=2"
RELOAD = "ANSWERS=0 SYNS=1 PREPARES=2 RELOADS=1"
KILLED = "ANSWERS=0 SYNS=2 KILLS=1"
TWO_WORKERS = SILENT + " ALONE=1 WORKERS=2"

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
    ("syn-copies", "syn", "SYNS=2", NOTHING),
    ("syn-slots", "syn", SILENT, NOTHING),
    ("syn-client-tuple", "syn", "SYNS=1 PREPARES=2 IMPORT=1 ALONE=1", NOTHING),
    ("syn-server-tuple", "syn", SERVER_TUPLE + " PREPARES=2", NOTHING),
    ("syn-reload", "syn", RELOAD, NOTHING),
    ("syn-killed", "syn", KILLED, NOTHING),
    ("syn-events", "syn", "SYNS=1 LOSSES=1", NOTHING),
    ("syn-workers", "syn", TWO_WORKERS, NOTHING),
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
    ("syn-no-second-look", "syn", CLIENT_TUPLE + " M_NO_SECOND_LOOK", TWO_SESSIONS),
    ("syn-no-look-of-imports", "syn", CLIENT_TUPLE + " M_NO_IMPORT_LOOK", TWO_SESSIONS),
    ("syn-no-look-for-sockets", "syn", "SYNS=2 M_NO_SOCKET_LOOK", TWO_SERVERS),
    ("syn-replace-free", "syn", CLIENT_TUPLE + " M_REPLACE_FREE", TWO_SESSIONS),
    ("syn-replace-prepared", "syn", SERVER_TUPLE + " M_REPLACE_PREPARED", TWO_SESSIONS),
    ("syn-replace-unseen", "syn", CLIENT_TUPLE + " M_REPLACE_UNSEEN", TWO_SESSIONS),
    ("syn-remove-by-tuple", "syn", CLIENT_TUPLE + " PREPARES=2 M_REMOVE_BY_TUPLE", UNFOUND),
    ("syn-ring-without-cas", "syn", SILENT + " M_RING_NO_CAS", TWO_OWNERS),
    ("syn-take-without-cas", "syn", KILLED + " M_TAKE_NO_CAS", TWO_OWNERS),
    ("syn-take-back-from-the-tail", "syn", RELOAD + " M_TAIL", TWO_OWNERS),
    ("syn-half-without-cas", "syn", "SYNS=1 M_HALF_NO_CAS", NEGATIVE),
    ("syn-half-behind-syn-sent", "syn", "SYNS=2 M_HALF_BEHIND_SYN_SENT", NEGATIVE),
    ("syn-end-once", "syn", "SYNS=1 M_END_ONCE", ENDLESS),
    ("syn-awake-late", "syn", SILENT + " M_AWAKE_LATE", FORGOTTEN),
    ("syn-no-news", "syn", "ANSWERS=0 SYNS=1 LOSSES=1 M_NO_NEWS", FORGOTTEN),
    ("syn-no-id", "syn", TWO_WORKERS + " M_NO_ID", TWO_OWNERS),
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
OWN_LOOK = "syn: a look before OWN is entered does not find OWN; a second look enters nothing"
EXPLAINED = {
    ("Cpu", "i = (i+1)"): OWN_LOOK,
    ("Cpu", "p = 0"): OWN_LOOK,
    ("Cpu", "was = 0"): OWN_LOOK,
    ("Cpu", "was = p"): OWN_LOOK,
    ("Import", "i = (i+1)"): OWN_LOOK,
    ("Import", "p = 0"): OWN_LOOK,
    ("Worker", "i = (i+1)"): OWN_LOOK,
    ("Worker", "p = 0"): OWN_LOOK,
    ("Worker", "was = p"): "syn: a refused import leaves no place in the bucket of a server",
    ("Worker", "i = 2"): "syn: a slot whose tuple is another's has entered no place",
    ("Worker", "queued[s] = 1"): "syn: each search reaches other copies of put(); all are reached",
    ("Daemon", "leaked = (lowat&&!(unfiltered))"): KICK_AT_FIN,
    ("Daemon", "excused = (excused||((leaked&&removing)&&(!(prog)||owing)))"): KICK_AT_FIN,
    ("Daemon", "(((recvd==(bytes+user_in))||(passed!=credit)))"):
        "with the kick, the books at FIN are never late",
}
