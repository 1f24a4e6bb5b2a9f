// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sockets of sessions that were left, or came.  The main thread makes those of sessions that were left,
 * before there are workers, and closes the rest.  The thread that reloads gives those of sessions that
 * came.  The worker of a session takes its sockets, while the other thread waits for that.
 */
#include "datapath/graft/graft_slots.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"

SYSCALLS_ALLOWED(SYSCALL_IF(PART_GRAFT, close));

void graft_table_revive(struct graft_table *gs, uid_t uid)
{
	unsigned int without = 0;
	int why = 0;

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++) {
		const struct graft_side *side = gs->all[slot].side;
		int *fds = gs->slots[slot].sockets;

		if (!gs->all[slot].id) /* of a trial, whose process is gone */
			continue;
		fds[0] = tcp_revive(&side[0], uid);
		fds[1] = fds[0] < 0 ? fds[0] : tcp_revive(&side[1], uid);
		if (fds[1] >= 0)
			continue;
		why = fds[1];
		without++;
		if (fds[0] >= 0)
			close(fds[0]);
		fds[0] = fds[1] = -1;
	}
	if (without)
		log_warning("graft: %u sessions that were left have no sockets: nothing probes "
			    "their ends, or tells them of a reset: %s",
			    without, strerror(-why));
}

void graft_give_sockets(struct graft_table *gs, uint32_t slot, const int fds[2])
{
	memcpy(gs->slots[slot].sockets, fds, sizeof(gs->slots[slot].sockets));
	gs->slots[slot].given = true;
}

bool graft_has_sockets(const struct graft_table *gs, uint32_t slot)
{
	return gs->slots[slot].given;
}

void graft_take_sockets(struct graft_table *gs, uint32_t slot, int ret[2])
{
	int *fds = gs->slots[slot].sockets;

	memcpy(ret, fds, 2 * sizeof(*fds));
	fds[0] = fds[1] = -1;
	gs->slots[slot].given = false;
	gs->slots[slot].asked = 0; /* those were others */
	gs->slots[slot].probing = false;
	__atomic_store_n(&gs->slots[slot].bare, ret[0] < 0, __ATOMIC_RELEASE);
}

bool graft_close_sockets(struct graft_table *gs, uint32_t slot)
{
	int *fds = gs->slots[slot].sockets;
	bool some = fds[0] >= 0;

	for (int side = 0; side < 2 && some; side++) {
		tcp_arm_reset(fds[side]);
		close(fds[side]);
		fds[side] = -1;
	}
	gs->slots[slot].given = false;
	return some;
}

void graft_table_close_sockets(struct graft_table *gs)
{
	for (uint32_t slot = 0; slot < gs->n_slots; slot++) {
		if (graft_close_sockets(gs, slot) && graft_state(gs, slot) == GRAFT_RETURNED)
			graft_put(gs, slot);
	}
}
