// SPDX-License-Identifier: BSD-2-Clause
#include "relay/admission.h"

#include <errno.h>

#include "relay/clients.h"

/* MOST 0: any number. */
static bool count_in(_Atomic unsigned int *live, unsigned int most)
{
	if (atomic_fetch_add(live, 1) < most || !most)
		return true;
	atomic_fetch_sub(live, 1);
	return false;
}

/* MOST: see count_in(). */
static enum cause enter(struct shared *shared, struct forward *f, unsigned int most_of_forward,
			unsigned int most)
{
	if (!count_in(&f->limits->limited, most_of_forward))
		return CAUSE_FORWARD_LIMIT;
	if (!count_in(&shared->live, most)) {
		atomic_fetch_sub(&f->limits->limited, 1);
		return CAUSE_SESSION_LIMIT;
	}
	atomic_fetch_add(&f->totals->live, 1);
	atomic_fetch_add(&f->sessions, 1);
	return CAUSE_NONE;
}

enum cause admission_enter(struct shared *shared, struct forward *f)
{
	return enter(shared, f, f->conf->max_sessions, shared->config->max_sessions);
}

enum cause admission_enter_at_rate(struct shared *shared, struct forward *f, uint64_t now_ms,
				   uint64_t *ret_due_ms)
{
	enum cause why = admission_enter(shared, f);

	if (why != CAUSE_NONE || bucket_take(&f->accepts, 1, now_ms, ret_due_ms))
		return why;
	admission_leave(shared, f, NULL);
	return CAUSE_ACCEPT_RATE;
}

void admission_undo(struct shared *shared, struct forward *f)
{
	bucket_give_back(&f->accepts, 1);
	admission_leave(shared, f, NULL);
}

bool admission_allows(struct worker *w, struct forward *f, const union client_addr *client)
{
	char text[ADDR_STRLEN];

	if (acl_allows(&f->conf->acl, &client->sa))
		return true;
	count_add(&forward_stats(f, w->index)->denied, 1);
	log_cause(CAUSE_DENIED, LOG_NOTICE, "refused %s: forward %s does not allow it",
		  client_addr_text(client, text, sizeof(text)), forward_name(f->conf));
	return false;
}

enum cause admission_enter_client(struct shared *shared, struct forward *f,
				  const union client_addr *client, bool proven)
{
	unsigned int most = f->conf->max_sessions_per_client;
	int r = clients_enter(&f->limits->clients, &client->sa, most, proven);
	const char *where = "of this forward";
	char text[ADDR_STRLEN];

	if (!r) {
		where = "of all forwards";
		most = shared->config->max_sessions_per_client;
		r = clients_enter(&shared->clients, &client->sa, most, proven);
		if (!r)
			return CAUSE_NONE;
		clients_leave(&f->limits->clients, &client->sa);
	}
	if (r == -ENOMEM)
		return CAUSE_NO_MEMORY;
	log_cause(CAUSE_CLIENT_LIMIT, LOG_WARNING,
		  "forward %s: refused %s: the client's sessions %s have reached "
		  "max-sessions-per-client: %u",
		  forward_name(f->conf), client_addr_text(client, text, sizeof(text)), where, most);
	return CAUSE_CLIENT_LIMIT;
}

enum cause admission_enter_with(struct shared *shared, struct forward *f,
				const union client_addr *client, bool proven)
{
	enum cause why = admission_enter(shared, f);

	if (why != CAUSE_NONE)
		return why;
	why = admission_enter_client(shared, f, client, proven);
	if (why != CAUSE_NONE)
		admission_leave(shared, f, NULL);
	return why;
}

bool admission_adopt(struct shared *shared, struct forward *f, const union client_addr *client,
		     bool proven)
{
	enter(shared, f, 0, 0);
	if (!client)
		return true;
	if (!clients_enter(&f->limits->clients, &client->sa, 0, proven)) {
		if (!clients_enter(&shared->clients, &client->sa, 0, proven))
			return true;
		clients_leave(&f->limits->clients, &client->sa);
	}
	admission_leave(shared, f, NULL);
	return false;
}

void admission_leave(struct shared *shared, struct forward *f, const union client_addr *client)
{
	if (client) {
		clients_leave(&shared->clients, &client->sa);
		clients_leave(&f->limits->clients, &client->sa);
	}
	atomic_fetch_sub(&shared->live, 1);
	atomic_fetch_sub(&f->limits->limited, 1);
	atomic_fetch_sub(&f->totals->live, 1);
	atomic_fetch_sub(&f->sessions, 1); /* last: F may be freed then */
}
