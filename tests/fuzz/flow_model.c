// SPDX-License-Identifier: BSD-2-Clause
#include "flow_model.h"

#include <string.h>

bool model_may(unsigned int from, unsigned int to)
{
	static const struct {
		enum flow_phase from, to;
	} edges[] = {
		{ FLOW_USER, FLOW_KERNEL },      { FLOW_USER, FLOW_DONE },
		{ FLOW_KERNEL, FLOW_LEAVING },   { FLOW_KERNEL, FLOW_FINISHING },
		{ FLOW_LEAVING, FLOW_DRAINING }, { FLOW_LEAVING, FLOW_FINISHING },
		{ FLOW_DRAINING, FLOW_USER },    { FLOW_FINISHING, FLOW_DONE },
	};

	for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
		if (edges[i].from == from && edges[i].to == to)
			return true;
	return false;
}

/* In rx, so a FIN would come as an event. */
static bool may_see_fin(const struct model_flow *m)
{
	return m->phase == FLOW_KERNEL || m->phase == FLOW_LEAVING;
}

/* In rx, and user space looks after passed bytes. */
static bool is_settling(const struct model_flow *m)
{
	return m->phase == FLOW_LEAVING || m->phase == FLOW_FINISHING;
}

unsigned int model_wants(const struct model_flow *m)
{
	unsigned int wants = 0;

	if (m->phase == FLOW_DONE)
		return 0;
	if (may_see_fin(m))
		wants |= FLOW_WANT_FIN;
	if (m->phase == FLOW_USER && !m->starved)
		wants |= m->pending ? FLOW_WANT_WRITE : FLOW_WANT_READ;
	if (is_settling(m) && m->blocked && !m->starved)
		wants |= FLOW_WANT_WRITE;
	/* whoever waits for no socket, or for memory, waits for the clock */
	if (!(wants & (FLOW_WANT_WRITE | FLOW_WANT_READ)) && m->phase != FLOW_KERNEL)
		wants |= FLOW_WANT_TIMER;
	return wants;
}

enum carrier model_carrier(const struct model_flow *m)
{
	if (m->phase == FLOW_KERNEL || m->phase == FLOW_FINISHING || m->ended_in_kernel)
		return CARRIER_SOCKMAP;
	return m->phase == FLOW_LEAVING ? CARRIER_COPY : m->user_carrier;
}

void model_phase(struct model_flow *m, enum flow_phase to)
{
	if (to != m->phase) /* else only the looks begin anew */
		m->ended_in_kernel = m->phase == FLOW_FINISHING;
	m->phase = to;
	m->looks = 0;
	m->due_ms = 0;
	m->stuck = 0;
}

void model_look_later(struct model_flow *m, uint64_t now_ms)
{
	m->blocked = false;
	m->due_ms = now_ms + (m->looks < 7 ? 1U << m->looks : 128);
	m->looks++;
}

void model_look_soon(struct model_flow *m, uint64_t now_ms)
{
	m->blocked = false;
	m->due_ms = now_ms;
	m->looks = 0;
}

/* --- bytes --- */

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void model_receive(struct model_flow *m, uint64_t n, bool redirect)
{
	m->received += n;
	if (redirect) {
		m->redirected += n;
		m->backlog += n;
	} else {
		m->unread += n;
	}
}

uint64_t model_read(struct model_flow *m, uint64_t n)
{
	n = least(n, m->unread);
	m->unread -= n;
	m->pending += n;
	m->read += n;
	return n;
}

uint64_t model_write(struct model_flow *m, uint64_t n)
{
	n = least(n, m->pending);
	m->pending -= n;
	m->written += n;
	m->accepted += n;
	return n;
}

void model_drain(struct model_flow *m, uint64_t n)
{
	n = least(n, m->backlog);
	m->backlog -= n;
	m->accepted += n;
}

void model_vanish(struct model_flow *m, uint64_t n)
{
	n = least(n, m->unread);
	m->unread -= n;
	m->vanished += n;
}

void model_double(struct model_flow *m, uint64_t n)
{
	m->redirected += n;
	m->backlog += n;
	m->twice += n;
}

void model_spill(struct model_flow *m, uint64_t n)
{
	n = least(n, m->backlog);
	m->backlog -= n;
	m->spilled += n;
}

struct flow_books model_books(const struct model_flow *m)
{
	return (struct flow_books){ .received = m->received, .accepted = m->accepted,
				    .redirected = m->redirected, .unread = m->unread };
}

bool model_drained(const struct model_flow *m)
{
	return !m->backlog && !m->spilled;
}

enum audit model_audit_left(const struct model_flow *m)
{
	return m->vanished == m->twice ? AUDIT_OK : AUDIT_LOST;
}

/* What is unread may still come; what vanished looks the same; only too much is certain. */
enum audit model_audit_fin(const struct model_flow *m)
{
	uint64_t missing = m->unread + m->vanished;

	if (missing == m->twice)
		return AUDIT_OK;
	return missing > m->twice ? AUDIT_LATE : AUDIT_LOST;
}
