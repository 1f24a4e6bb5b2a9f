/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/service.h"

/* A change of forwards, of the addresses that they listen at, or of both: see change.c. */
struct change {
	struct service *service;
	struct listening **buckets;  /* addresses at work, by the hash of `asked`; owned */
	struct config *config;       /* NULL: a drain */
	struct config_version *next; /* has it; NULL: it is that of the start */
	struct forward **forwards;   /* active afterwards, in the order of CONFIG; owned */
	struct listening *opened;    /* list of addresses that are new */
	struct reload_result result;
};

/*
 * Plan the change to c->config, and make it, unless E is an error that was found before.  Drops
 * c->next.  E, or another -errno after a complaint: nothing has changed.
 */
int change_forwards(struct change *c, int e);

/* -ENOMEM, after a complaint. */
int change_no_memory(void);
/* Plan to listen at A, an address of F, too.  -errno, after a complaint. */
int change_open_address(struct change *c, struct forward *f, const struct addr *a,
			struct listening **ret);
/*
 * Let workers accept at each address for the forward that it has from now on (`becomes`), and close
 * those that have none.  The lock of forwards is held.
 */
void change_addresses(struct change *c);
