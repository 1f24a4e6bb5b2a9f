// SPDX-License-Identifier: BSD-2-Clause
#include "probe/probe_list.h"

#include <string.h>

#include "probe/probe_checks.h"

#define FOR_SOCKMAP PROBE_SOCKMAP
#define FOR_SPLICE PROBE_SPLICE
#define FOR_BOTH (PROBE_SOCKMAP | PROBE_SPLICE)

/* Those of splice come early: a crash or hang of a later one does not touch them. */
const struct probe_check probe_checks[PROBE_CHECKS] = {
	{ "loopback", FOR_BOTH, "TCP connections can be made on 127.0.0.1",
	  "nothing else can be tried",
	  NULL, { NULL }, probe_check_loopback },
	{ "splice", FOR_SPLICE,
	  "splice(2) carries bytes from socket to socket, and tells empty from ended",
	  "payload would be corrupted, truncated, or hang",
	  NULL, { "loopback" }, probe_check_splice },
	{ "splice-stall", FOR_SPLICE,
	  "what a full target does not take stays in the pipe, in order",
	  "bytes for a slow receiver would be lost or reordered",
	  NULL, { "splice" }, probe_check_splice_stall },
	{ "splice-urgent", FOR_SPLICE,
	  "splice(2) stops at an urgent byte, which recv(2) can then read",
	  "urgent data would end a stream, or stop it for ever",
	  NULL, { "splice" }, probe_check_splice_urgent },
	{ "load", FOR_SOCKMAP, "the verdict program passes the verifier and attaches to a sockmap",
	  "without it nothing can be redirected",
	  "Linux 5.10, ef5659280eb1: verdict without parser",
	  { NULL }, probe_check_load },
	{ "insert", FOR_SOCKMAP, "a connection in ESTABLISHED may be put into the maps",
	  "no flow could ever enter the kernel",
	  NULL, { "load", "loopback" }, probe_check_insert },
	{ "insert-after-fin", FOR_SOCKMAP, "after the peer's FIN it is refused, without harm",
	  "a short request would be torn instead of staying in user space",
	  NULL, { "insert" }, probe_check_insert_after_fin },
	{ "counters", FOR_SOCKMAP,
	  "counters and limits are shared with the program through mapped memory",
	  "user space could not know what was redirected",
	  "Linux 5.5, fc9702273e2e", { "insert" }, probe_check_counters },
	{ "events", FOR_SOCKMAP,
	  "the program's events arrive through a ring buffer and wake the reader",
	  "limits would be noticed too late",
	  "Linux 5.8, 457f44363a88", { "counters" }, probe_check_events },
	{ "redirect", FOR_SOCKMAP, "redirected bytes arrive unchanged and in order, both ways",
	  "payload would be corrupted",
	  NULL, { "counters" }, probe_check_redirect },
	{ "early-bytes", FOR_SOCKMAP,
	  "a peek makes the program see bytes that came before the insertion",
	  "early bytes would wait until more come, perhaps for ever",
	  NULL, { "redirect" }, probe_check_early_bytes },
	{ "fin", FOR_SOCKMAP, "a FIN in one direction does not break the other",
	  "answers would be truncated",
	  NULL, { "redirect" }, probe_check_fin },
	{ "accounting", FOR_SOCKMAP,
	  "tcpi_bytes_acked and SIOCOUTQ tell what TCP has accepted, to the byte",
	  "a flow would be taken for drained too early or never: truncated, or hung",
	  NULL, { "insert" }, probe_check_accounting },
	{ "backlog", FOR_SOCKMAP, "a socket keeps its backlog when it leaves one of its two maps",
	  "what is queued for the opposite direction would be lost",
	  NULL, { "redirect", "accounting" }, probe_check_backlog },
	{ "unread", FOR_SOCKMAP, "MSG_PEEK|MSG_TRUNC counts the unread bytes of a socket in a map",
	  "a removal could not be audited",
	  NULL, { "insert" }, probe_check_unread },
	{ "receive-buffer", FOR_SOCKMAP,
	  "SO_BUF_LOCK keeps SO_RCVLOWAT from growing the receive buffer",
	  "each removal would cost kernel memory, or lose bytes without its fence",
	  "Linux 5.15, 04190bf8944d", { "loopback" }, probe_check_receive_buffer },
	{ "hard-limit", FOR_SOCKMAP,
	  "over the hard limit bytes are passed to user space, and order is kept",
	  "a receiver that stalls would fill the kernel's memory",
	  NULL, { "redirect", "accounting", "events" }, probe_check_hard_limit },
	{ "gate", FOR_SOCKMAP, "a socket filter keeps data out for a moment, and nothing is lost",
	  "the program might run during a removal, which then loses bytes",
	  "Linux 3.19, 89aa075832b0", { "redirect" }, probe_check_gate },
	{ "read-ahead", FOR_SOCKMAP,
	  "a flow with a stalled target can leave: passed bytes can be read at once",
	  "a source that is faster than its target would hold the flow for ever",
	  NULL, { "hard-limit", "unread", "receive-buffer", "gate" }, probe_check_read_ahead },
	{ "leave", FOR_SOCKMAP, "a busy flow can be taken out of the kernel without losing a byte",
	  "bulk and slow flows could not be handed back to user space",
	  NULL, { "accounting", "unread", "receive-buffer", "gate" }, probe_check_leave },
	{ "wake-ups", FOR_SOCKMAP,
	  "redirected data does not wake a thread that waits for EPOLLRDHUP; FIN does",
	  "each segment would cost a switch to user space, which is slower than copying",
	  NULL, { "redirect" }, probe_check_wake_ups },
	{ "unprivileged", FOR_SOCKMAP, "all this goes on after every privilege has been given up",
	  "the daemon would have to stay root",
	  "Linux 5.19, c8644cd0efe7: where unprivileged BPF is disabled",
	  { "leave", "events" }, probe_check_unprivileged },
};

size_t probe_find(const char *name, size_t len)
{
	size_t i = 0;

	while (i < PROBE_CHECKS &&
	       (strlen(probe_checks[i].name) != len ||
		memcmp(probe_checks[i].name, name, len) != 0))
		i++;
	return i;
}
