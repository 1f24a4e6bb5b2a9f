/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/service.h"

/* A change of forwards, of the addresses that they listen at, or of both: see change_forwards.c. */
struct change {
	struct service *service;
	struct listening_list *buckets; /* listening now, by the hash of `asked`; owned */
	struct config *config;          /* NULL: a drain */
	struct config_version *next;    /* owns CONFIG; NULL: CONFIG is that of the start */
	struct forward **forwards;      /* active afterwards, in the order of CONFIG; owned */
	struct listening_list opened;   /* addresses that are new */
	struct upstream_orders orders;  /* by which CONFIG was changed; owned */
	bool keeps_drains;              /* forwards that drain go on to do so */
	struct reload_result result;
};

/*
 * Plan the change to c->config, and make it.  E is an error of an earlier step: then there is no
 * change.  Drops c->next.  Returns E, or -errno after a complaint: nothing has changed.
 */
int change_forwards(struct change *c, int e);

/* -ENOMEM, after a complaint. */
int change_no_memory(void);

/* --- drain --- */

/*
 * `culvert drain` closes one forward's sockets, or opens them again.  Sessions of forwards that
 * drain, or that a reload has removed, are reset when their time is over.
 */

/* Why nothing changes after service_stop(). */
#define SERVICE_STOPPING "culvert is stopping, and its forwards change no more"

/*
 * Let the active forward NAME take no more sessions, and reset those that are left at DUE_MS, which
 * may be NEVER.  UNDO: let the forward take sessions again.  By a control thread, which waits for
 * the thread that reloads.  -ENOENT: no active forward is NAME; -ETIMEDOUT: a reload is under
 * way; or another -errno; WHY says why.
 */
#define DRAIN_WHY_LEN 640
int drain_forward(struct service *sv, const char *name, bool undo, uint64_t due_ms,
		  char why[DRAIN_WHY_LEN]);

/*
 * On the thread that reloads: reset sessions at their deadline, and free forwards that are gone.
 * Returns the time of the next deadline; NEVER: there is none.
 */
uint64_t drain_end_due(struct service *sv);
