// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Failed connects.  A crowd of sessions that fails at once counts as one failure.  When the time of
 * a server that was set aside is over, one session tries the server.  The server has its full share
 * until that session comes, so the trial begins soon.  The trial counts as a failure until it is
 * connected, so a silent server keeps few sessions waiting.
 *
 * Silence.  Seconds pass before a connect fails for want of an answer, and sessions go on coming.
 * So a server that has owed an answer for SILENT_MS is chosen after its equals.  One session in
 * ASK_AGAIN_MS tries it all the same.  A slow server is not a silent one: it gets twice the time of
 * its last connect in addition.  If all servers are silent, nothing changes.  No backup steps
 * in for a silent server.  Under BALANCE_SOURCE no client leaves a silent server: that balance
 * promises the same server.
 */
#include "relay/server_health.h"

#include "base/minmax.h"

const char *const server_state_names[SERVER_STATES] = {
	[SERVER_UP] = "up",       [SERVER_RETURNING] = "returning", [SERVER_TRIAL] = "trial",
	[SERVER_ASIDE] = "aside", [SERVER_FAILED] = "failed",       [SERVER_DRAIN] = "drain",
	[SERVER_DOWN] = "down",
};

enum server_state health_state(const struct health *h, uint64_t now_ms)
{
	if (h->order != ORDER_READY)
		return h->order == ORDER_DRAIN ? SERVER_DRAIN : SERVER_DOWN;
	if ((h->checked && h->down) || h->told_down)
		return SERVER_FAILED;
	if (h->told_drain)
		return SERVER_DRAIN;
	if (h->refused)
		return now_ms < h->aside_ms ? SERVER_ASIDE : SERVER_TRIAL;
	return h->back_ms && now_ms < h->back_ms + BACK_SLOWLY_MS ? SERVER_RETURNING : SERVER_UP;
}

void health_refused(struct health *h, uint64_t now_ms)
{
	if (h->refused && now_ms < h->aside_ms)
		return;
	h->aside_ms = now_ms + smaller((uint64_t)ASIDE_MS << smaller(h->refused, 6), ASIDE_MAX_MS);
	h->refused++;
}

static void come_back(struct health *h, uint64_t now_ms)
{
	h->refused = 0;
	h->back_ms = now_ms;
}

void health_connected(struct health *h, uint64_t now_ms)
{
	if (h->refused)
		come_back(h, now_ms);
}

void health_checked(struct health *h, bool good, unsigned int rise, unsigned int fall,
		    uint64_t now_ms)
{
	/* before the first check nothing is known */
	unsigned int needed = !h->checked ? 1 : h->down ? rise : fall;

	h->checked = true;
	if (good && h->refused)
		come_back(h, now_ms);
	if (good != h->down) {
		h->streak = 0;
		return;
	}
	if (++h->streak < needed)
		return;
	h->streak = 0;
	h->down = !good;
	come_back(h, now_ms);
}

unsigned int health_weight(const struct health *h, unsigned int weight, uint64_t now_ms)
{
	uint64_t since = now_ms > h->back_ms ? now_ms - h->back_ms : 0;
	unsigned int full = weight * FULL_SHARE;

	if (!h->back_ms || since >= BACK_SLOWLY_MS || h->refused) /* a trial must not wait long */
		return full;
	return 1 + (unsigned int)((full - 1) * since / BACK_SLOWLY_MS);
}

bool is_silent(uint64_t owes_ms, uint64_t usual_ms, uint64_t now_ms)
{
	return owes_ms && now_ms >= owes_ms + smaller(SILENT_MS + 2 * usual_ms, ASK_AGAIN_MS);
}
