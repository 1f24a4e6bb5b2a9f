// SPDX-License-Identifier: BSD-2-Clause
#include "relay/admission.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "relay/client_limit.h"

struct admission {
	const struct config *config;
	_Atomic unsigned int live;    /* of all forwards */
	struct client_limit *clients; /* NULL: no limit for one client */
};

int admission_open(const struct config *c, struct admission **ret)
{
	struct admission *a = calloc(1, sizeof(*a));
	int r = -ENOMEM;

	*ret = NULL;
	if (!a)
		return r;
	a->config = c;
	r = client_limit_open(c->max_sessions_per_client, c->max_sessions, &a->clients);
	if (r)
		admission_close(a);
	else
		*ret = a;
	return r;
}

void admission_close(struct admission *a)
{
	if (!a)
		return;
	client_limit_close(a->clients);
	free(a);
}

/* MOST 0: any number. */
static bool count_in(_Atomic unsigned int *live, unsigned int most)
{
	unsigned int n = atomic_load(live);

	do
		if (most && n >= most)
			return false;
	while (!atomic_compare_exchange_weak(live, &n, n + 1));
	return true;
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

void admission_cancel(struct admission *a, struct forward *f)
{
	atomic_fetch_sub(&a->live, 1);
	atomic_fetch_sub(&f->totals->live, 1);
	atomic_fetch_sub(&f->sessions, 1); /* last: F may be freed then */
}

bool admission_enter_client(struct admission *a, struct forward *f, const struct sockaddr *client,
			    unsigned int *ret_most, bool *ret_all)
{
	*ret_all = false;
	*ret_most = f->conf->max_sessions_per_client;
	if (!client_limit_enter(f->clients, client))
		return false;
	if (client_limit_enter(a->clients, client))
		return true;
	client_limit_leave(f->clients, client);
	*ret_all = true;
	*ret_most = a->config->max_sessions_per_client;
	return false;
}

void admission_leave(struct admission *a, struct forward *f, const struct sockaddr *client)
{
	client_limit_leave(a->clients, client);
	client_limit_leave(f->clients, client);
	admission_cancel(a, f);
}

unsigned int admission_sessions(struct admission *a)
{
	return atomic_load(&a->live);
}

unsigned int admission_clients(struct admission *a)
{
	return client_limit_clients(a->clients);
}
