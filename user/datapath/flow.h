/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * One direction of a session: bytes read from a source socket, written to a target socket.
 *
 * This file has the state of a flow, what the flow waits for, and its books, and makes no system
 * call.  The carriers (carrier*.c) move bytes, and policy.c chooses the carrier.  Only
 * session_flow.c and session_sockmap.c, and the probe's sessions (behaviours.c), call
 * flow_set_phase().
 *
 * Phases, what is allowed in each, and where they lead:
 *
 *   USER       user space reads the source and writes the target (carrier copy or splice)
 *                -> KERNEL     the source was put into rx, right after a read had found it empty
 *                -> DONE       EOF was read, all is written, the target was shut down
 *   KERNEL     the program redirects; user space touches neither socket for this flow
 *                -> LEAVING    the program, or the policy, wants the flow out
 *                -> FINISHING  the source sent FIN
 *   LEAVING    still in rx; passed bytes are read, ahead of writing, then the fence is tried
 *                -> DRAINING   out of rx, and the audit found every byte
 *                -> FINISHING  the source sent FIN
 *   DRAINING   out of rx; nothing may be written until the target's backlog is in its TCP
 *                -> USER       drained; bytes that were read ahead are written first
 *   FINISHING  still in rx; passed bytes are written, the backlog drains, no more can arrive
 *                -> DONE       every byte the source received is in the target's TCP; shut down
 *   DONE       nothing is left to do
 *
 * From any phase a session may be reset as a whole; the flow is then not used again.
 */
enum flow_phase {
	FLOW_USER,
	FLOW_KERNEL,
	FLOW_LEAVING,
	FLOW_DRAINING,
	FLOW_FINISHING,
	FLOW_DONE,
	FLOW_PHASES,
};

enum carrier {
	CARRIER_COPY,
	CARRIER_SPLICE,
	CARRIER_SOCKMAP,
	CARRIER_GRAFT,
	CARRIERS,
};

/* Why a flow has its carrier.  Shown to operators. */
enum reason {
	REASON_START,         /* every auto flow begins with copy */
	REASON_ENGINE,        /* --engine asks for it */
	REASON_CONVERSATION,  /* the two ends take turns with small messages */
	REASON_SMALL_READS,   /* a steady stream of small messages one way */
	REASON_REVIEW,        /* left the kernel with the session's other flow: judge both anew */
	REASON_BULK,          /* much data in one direction */
	REASON_FAR_BULK,      /* bulk over a way that is too long for graft */
	REASON_LOSSY_BULK,    /* bulk over a way that loses packets */
	REASON_SLOW_TARGET,   /* the target's backlog passed the soft limit */
	REASON_HARD_LIMIT,    /* the target's backlog passed the hard limit */
	REASON_KERNEL_MEMORY, /* all flows together are near the limit of kernel memory */
	REASON_NO_KERNEL,     /* the kernel side could not be loaded */
	REASON_NOT_TCP,       /* a unix socket; or UDP, and the engine carries TCP alone */
	REASON_NO_SLOT,       /* every slot pair is in use */
	REASON_CLOSING,       /* a FIN came before the flow could enter the kernel */
	REASON_REFUSED,       /* the kernel refused the socket for another cause */
	REASON_BANDWIDTH,     /* a limit, which the kernel cannot keep */
	REASON_ELIGIBLE,      /* grafted by auto, as every session that can be */
	REASON_FROM_SYN,      /* it began in the kernel */
	REASON_ADOPTED,       /* grafted by a daemon before this one */
	REASON_NO_PIPE,       /* no pipe for splice: out of descriptors, or of pages */
	REASON_FIRST,         /* UDP: every flow of auto begins with copy */
	REASON_UNPROVEN,      /* UDP: the client has not shown that it gets the answers */
	REASON_RESPONSES,     /* UDP: answers are counted, which the kernel does not do */
	REASON_PROXY_HEADERS, /* UDP: a PROXY header before each datagram */
	REASONS,
};

struct buffer;
struct pipe;

struct flow {
	uint8_t phase : 4;        /* enum flow_phase, set by flow_set_phase() only */
	uint8_t engine : 4;       /* enum engine that carrier and reason follow */
	uint8_t user_carrier;     /* CARRIER_COPY or CARRIER_SPLICE, while user space carries */
	uint8_t reason;           /* enum reason */
	bool paced : 1;           /* it may read when its turn comes, at due_ms: see bandwidth.h */
	bool starved : 1;         /* there was no buffer or pipe: try again later */
	bool blocked : 1;         /* LEAVING, DRAINING, FINISHING: the target is full */
	bool no_enter : 1;        /* the kernel cannot carry this flow any more; see reason */
	bool ended_in_kernel : 1; /* DONE: sockmap has seen the end */
	bool quiet : 1;           /* epoll will tell of new bytes: the source was read empty since
				 * its last event or registration */
	uint16_t wait_ms;         /* last wait, doubles from look to look */
	uint16_t stuck;           /* looks without any progress */

	uint32_t handovers;
	uint32_t pending; /* bytes in buffers or pipe, below */

	/* bytes that user space has read from the source and not yet written to the target */
	struct buffer *head, *tail; /* copy: lent by the worker, in order */
	struct pipe *pipe;          /* splice: lent by the worker; never together with buffers */

	uint64_t user_in;  /* bytes read from the source by user space, passed ones included */
	uint64_t user_out; /* bytes written to the target by user space, passed ones included */
	uint64_t spliced;  /* of user_in: bytes read by splice */

	uint64_t drained_at; /* redirected bytes when the backlog was last seen empty */

	uint64_t due_ms; /* next look, by the loop's clock; 0: none */
};

extern const char *const carrier_names[CARRIERS];
extern const char *const flow_phase_names[FLOW_PHASES];
extern const char *const reason_names[REASONS];

/* The carrier that carries F now, or has carried it to its end. */
enum carrier flow_carrier(const struct flow *f);

/* The only writer of f->phase.  Asserts the table. */
void flow_set_phase(struct flow *f, enum flow_phase to);

/* What a flow waits for: a pure function of its state. */
enum flow_want {
	FLOW_WANT_READ = 1 << 0,  /* bytes, or EOF, on the source */
	FLOW_WANT_FIN = 1 << 1,   /* FIN on the source, but not bytes */
	FLOW_WANT_WRITE = 1 << 2, /* room on the target */
	FLOW_WANT_TIMER = 1 << 3, /* another look at due_ms */
};
unsigned int flow_wants(const struct flow *f);

/* Set due_ms for the next look: the wait doubles from 1 ms to 128 ms while nothing changes. */
void flow_look_later(struct flow *f, uint64_t now_ms);
/* Look later; after the longest wait, wait until the target has room. */
void flow_await_target(struct flow *f, uint64_t now_ms);
void flow_look_reset(struct flow *f);

/*
 * The books of a flow, in bytes since the connection began.  RECEIVED: by TCP from the source's
 * peer, without FIN.  ACCEPTED: by the target's TCP, for sending.  REDIRECTED: by the program, in
 * this session.  UNREAD: in the source's receive queue.
 */
struct flow_books {
	uint64_t received;
	uint64_t accepted;
	uint64_t redirected;
	uint64_t unread;
};

/* True if nothing redirected or written is still outside the target's TCP. */
bool flow_drained(const struct flow *f, const struct flow_books *b);

/* True if every byte that was received was redirected, or read by user space, or is unread. */
bool flow_accounted(const struct flow *f, const struct flow_books *b);
