// SPDX-License-Identifier: BSD-2-Clause
#include "relay/admission.h"

#include <errno.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/array.h"
#include "base/log.h"
#include "relay/clients.h"

struct admission *admission_open(const struct config *c)
{
	struct admission *a = allocated(calloc(1, sizeof(*a)));

	a->config = c;
	clients_init(&a->clients);
	return a;
}

void admission_close(struct admission *a)
{
	if (!a)
		return;
	clients_close(&a->clients);
	free(a);
}

/* MOST 0: any number. */
static bool count_in(_Atomic unsigned int *live, unsigned int most)
{
	if (atomic_fetch_add(live, 1) < most || !most)
		return true;
	atomic_fetch_sub(live, 1);
	return false;
}

bool admission_enter(struct admission *a, struct forward *f, enum cause *ret_why)
{
	if (!count_in(&f->totals->live, f->conf->max_sessions)) {
		*ret_why = CAUSE_FORWARD_LIMIT;
		return false;
	}
	if (!count_in(&a->live, a->config->max_sessions)) {
		atomic_fetch_sub(&f->totals->live, 1);
		*ret_why = CAUSE_SESSION_LIMIT;
		return false;
	}
	atomic_fetch_add(&f->sessions, 1);
	return true;
}

bool admission_enter_client(struct admission *a, struct forward *f, const struct sockaddr *client,
			    enum cause *ret_why)
{
	const char *which = "here (max-sessions-per-client)";
	unsigned int most = f->conf->max_sessions_per_client;
	int r = clients_enter(f->clients, client, most);
	union client_addr addr;
	char text[ADDR_STRLEN];

	if (!r) {
		which = "in all (--max-sessions-per-client)";
		most = a->config->max_sessions_per_client;
		r = clients_enter(&a->clients, client, most);
		if (r)
			clients_leave(f->clients, client);
	}
	if (r == -EUSERS) {
		client_addr_set(&addr, client);
		log_cause(CAUSE_CLIENT_LIMIT, LOG_WARNING,
			  "forward %s: refused %s: it has %u session(s) %s", forward_name(f->conf),
			  client_addr_text(&addr, text, sizeof(text)), most, which);
	}
	*ret_why = r == -EUSERS ? CAUSE_CLIENT_LIMIT : CAUSE_NO_MEMORY;
	return !r;
}

void admission_leave(struct admission *a, struct forward *f, const struct sockaddr *client)
{
	if (client) {
		clients_leave(&a->clients, client);
		clients_leave(f->clients, client);
	}
	atomic_fetch_sub(&a->live, 1);
	atomic_fetch_sub(&f->totals->live, 1);
	atomic_fetch_sub(&f->sessions, 1); /* last: F may be freed then */
}
