// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/flow.h"

#include <assert.h>

#define LOOK_MAX_MS 128

const char *const carrier_names[CARRIERS] = {
	[CARRIER_COPY] = "copy",
	[CARRIER_SPLICE] = "splice",
	[CARRIER_SOCKMAP] = "sockmap",
	[CARRIER_GRAFT] = "graft",
};

const char *const flow_phase_names[FLOW_PHASES] = {
	[FLOW_USER] = "user",         [FLOW_KERNEL] = "kernel",       [FLOW_LEAVING] = "leaving",
	[FLOW_DRAINING] = "draining", [FLOW_FINISHING] = "finishing", [FLOW_DONE] = "done",
};

const char *const reason_names[REASONS] = {
	[REASON_START] = "start",
	[REASON_ENGINE] = "engine",
	[REASON_CONVERSATION] = "conversation",
	[REASON_SMALL_READS] = "small messages",
	[REASON_REVIEW] = "review",
	[REASON_BULK] = "bulk",
	[REASON_FAR_BULK] = "far bulk",
	[REASON_LOSSY_BULK] = "lossy bulk",
	[REASON_SLOW_TARGET] = "slow target",
	[REASON_HARD_LIMIT] = "hard limit",
	[REASON_KERNEL_MEMORY] = "kernel memory",
	[REASON_NO_KERNEL] = "no kernel support",
	[REASON_NOT_TCP] = "not TCP",
	[REASON_NO_SLOT] = "no slot free",
	[REASON_CLOSING] = "peer is closing",
	[REASON_REFUSED] = "refused by the kernel",
	[REASON_BANDWIDTH] = "bandwidth limit",
	[REASON_ELIGIBLE] = "eligible",
	[REASON_FROM_SYN] = "from the SYN on",
	[REASON_ADOPTED] = "adopted",
	[REASON_NO_PIPE] = "no pipe",
	[REASON_FIRST] = "first datagrams",
	[REASON_UNPROVEN] = "client unproven",
	[REASON_RESPONSES] = "responses",
	[REASON_PROXY_HEADERS] = "proxy protocol",
};

enum carrier flow_carrier(const struct flow *f)
{
	if (f->phase == FLOW_KERNEL || f->phase == FLOW_FINISHING || f->ended_in_kernel)
		return CARRIER_SOCKMAP;
	/* while it leaves, passed bytes are read and written by user space */
	return f->phase == FLOW_LEAVING ? CARRIER_COPY : f->user_carrier;
}

#define TO(phase) (1U << (phase))

static const uint8_t allowed[FLOW_PHASES] = {
	[FLOW_USER] = TO(FLOW_KERNEL) | TO(FLOW_DONE),
	[FLOW_KERNEL] = TO(FLOW_LEAVING) | TO(FLOW_FINISHING),
	[FLOW_LEAVING] = TO(FLOW_DRAINING) | TO(FLOW_FINISHING),
	[FLOW_DRAINING] = TO(FLOW_USER),
	[FLOW_FINISHING] = TO(FLOW_DONE),
};

void flow_set_phase(struct flow *f, enum flow_phase to)
{
	assert(to < FLOW_PHASES && allowed[f->phase] & TO(to));
	f->ended_in_kernel = f->phase == FLOW_FINISHING; /* which leads to DONE alone */
	f->phase = to;
	flow_look_reset(f);
}

unsigned int flow_wants(const struct flow *f)
{
	unsigned int settling = f->blocked && !f->starved ? FLOW_WANT_WRITE : FLOW_WANT_TIMER;

	switch ((enum flow_phase)f->phase) {
	case FLOW_USER:
		if (f->starved)
			return FLOW_WANT_TIMER;
		if (f->pending)
			return FLOW_WANT_WRITE;
		return f->paced ? FLOW_WANT_TIMER : FLOW_WANT_READ;
	case FLOW_KERNEL:
		return FLOW_WANT_FIN;
	case FLOW_LEAVING:
		return FLOW_WANT_FIN | settling;
	case FLOW_DRAINING:
	case FLOW_FINISHING:
		return settling;
	default:
		return 0;
	}
}

void flow_look_later(struct flow *f, uint64_t now_ms)
{
	f->blocked = false; /* the flow waits for the clock now */
	f->wait_ms = f->wait_ms ? f->wait_ms * 2 : 1;
	if (f->wait_ms > LOOK_MAX_MS)
		f->wait_ms = LOOK_MAX_MS;
	f->due_ms = now_ms + f->wait_ms;
}

void flow_await_target(struct flow *f, uint64_t now_ms)
{
	if (f->wait_ms < LOOK_MAX_MS) {
		flow_look_later(f, now_ms);
		return;
	}
	/* when the target has room the kernel's worker goes on, and the looks begin anew at 1 ms */
	f->blocked = true;
	f->wait_ms = 0;
	f->due_ms = 0;
}

void flow_look_reset(struct flow *f)
{
	f->wait_ms = 0;
	f->due_ms = 0;
	f->stuck = 0;
}

bool flow_drained(const struct flow *f, const struct flow_books *b)
{
	return b->accepted == b->redirected + f->user_out;
}

bool flow_accounted(const struct flow *f, const struct flow_books *b)
{
	return b->received == b->redirected + f->user_in + b->unread;
}
