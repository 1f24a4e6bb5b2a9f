/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "datapath/carrier_copy.h"
#include "datapath/flow.h"
#include "datapath/sockmap/sockmap.h"

/*
 * The hand-overs of one flow between user space and the verdict program.  Mechanism only: these
 * functions report.  Only session_flow.c and session_sockmap.c, and the probe's sessions
 * (behaviours.c), call flow_set_phase().
 */
struct sockmap_io {
	struct pump_io pump; /* its error is that of STEP_SRC_ERROR and STEP_DST_ERROR */
	struct sockmap *kernel;
	uint32_t slot;       /* the source's; the target's is slot ^ 1 */
	bool dst_connected;  /* the target's socket was made by connect(2), not accept(2) */
	uint16_t header_in;  /* bytes read from the source before the stream, */
	uint16_t header_out; /* and written to the target: no part of the books */
	bool returns;        /* the flow returns to rx soon: its receive buffer keeps its size */
	uint64_t bulk_bytes; /* in rx: bytes after which CULVERT_EVENT_BULK may come; 0: never */
	uint32_t read_ahead; /* passed bytes that may be read before they can be written */
	uint64_t now_ms;
	struct flow_books books; /* out: the books behind STEP_UNPROVED, as far as they were
				  * read */
};

enum step {
	STEP_DONE,     /* the step is done */
	STEP_WAIT,     /* not yet: see flow_wants() */
	STEP_UNPROVED, /* bytes cannot be accounted for: the session must be reset */
	STEP_SRC_ERROR,
	STEP_DST_ERROR,
};

/*
 * USER -> KERNEL.  The flow has nothing pending.  Returns 0; -EAGAIN if bytes or EOF are waiting in
 * the source, which user space must read first; -EPROTO and io->pump.error if the source has
 * failed, so that the session must be reset; or the -errno of the map update.  Of LIMITS only the
 * soft and hard one are used.
 */
int sockmap_enter(struct sockmap_io *io, const struct forward_conf *limits, unsigned int worker);

/*
 * Make the kernel run the verdict over bytes that came before the source was in rx (trap T2).
 * STEP_WAIT: bytes were passed, and wait for sockmap_settle().
 */
enum step sockmap_kick(struct sockmap_io *io);

/* Write every passed byte to the target, after the target's backlog has drained. */
enum step sockmap_settle(struct sockmap_io *io);

/*
 * LEAVING -> DRAINING: read the passed bytes, then take the flow out of rx.  Bytes that could not
 * be written yet are pending.  STEP_UNPROVED: the audit failed.
 */
enum step sockmap_leave(struct sockmap_io *io);

/* DRAINING -> USER: STEP_DONE once all that was redirected is in the target's TCP. */
enum step sockmap_drain(struct sockmap_io *io);

/*
 * FINISHING -> DONE: the source has sent FIN.  STEP_DONE once every byte that it sent is in the
 * target's TCP; the caller may then shut the target down.
 */
enum step sockmap_finish(struct sockmap_io *io);

/*
 * The source is dead: nothing more comes.  Go on with the passed bytes, and with the target's
 * backlog.  STEP_DONE: the target's TCP has all of it; STEP_WAIT: look again.
 */
enum step sockmap_take_rest(struct sockmap_io *io);

/*
 * A read of the source has returned EOF.  True if it was a FIN.  A reset looks the same once its
 * error has been taken.  The taker may be sk_psock_backlog(), which sends to this socket for the
 * other flow: it takes the error (sock_error()), and puts it back only later.
 */
bool sockmap_ended(const struct sockmap_io *io);
