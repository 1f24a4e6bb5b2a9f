// SPDX-License-Identifier: BSD-2-Clause
#include "admission.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "client_limit.h"

struct forward_count {
	_Atomic unsigned int live;
	struct client_limit *clients; /* NULL: only all forwards together limit a client */
};

struct admission {
	const struct config *config;
	_Atomic unsigned int live;    /* of all forwards */
	struct client_limit *clients; /* NULL: no limit for one client */
	struct forward_count *forwards;
};

static int open_clients(struct admission *a)
{
	const struct config *c = a->config;
	int r = client_limit_open(c->max_sessions_per_client, c->max_sessions, &a->clients);

	for (size_t i = 0; !r && i < c->n_forwards; i++) {
		const struct forward_conf *fc = &c->forwards[i];

		r = client_limit_open(fc->max_sessions_per_client,
				      fc->max_sessions ?: c->max_sessions, &a->forwards[i].clients);
	}
	return r;
}

int admission_open(const struct config *c, struct admission **ret)
{
	struct admission *a = calloc(1, sizeof(*a));
	int r = -ENOMEM;

	*ret = NULL;
	if (!a)
		return r;
	a->config = c;
	a->forwards = calloc(c->n_forwards ?: 1, sizeof(*a->forwards));
	if (a->forwards)
		r = open_clients(a);
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
	for (size_t i = 0; a->forwards && i < a->config->n_forwards; i++)
		client_limit_close(a->forwards[i].clients);
	free(a->forwards);
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

bool admission_enter(struct admission *a, unsigned int forward, enum cause *ret_why)
{
	struct forward_count *f = &a->forwards[forward];

	if (!count_in(&f->live, a->config->forwards[forward].max_sessions)) {
		*ret_why = CAUSE_FORWARD_LIMIT;
		return false;
	}
	if (count_in(&a->live, a->config->max_sessions))
		return true;
	atomic_fetch_sub(&f->live, 1);
	*ret_why = CAUSE_SESSION_LIMIT;
	return false;
}

void admission_cancel(struct admission *a, unsigned int forward)
{
	atomic_fetch_sub(&a->live, 1);
	atomic_fetch_sub(&a->forwards[forward].live, 1);
}

bool admission_enter_client(struct admission *a, unsigned int forward,
			    const struct sockaddr *client, unsigned int *ret_most, bool *ret_all)
{
	*ret_all = false;
	*ret_most = a->config->forwards[forward].max_sessions_per_client;
	if (!client_limit_enter(a->forwards[forward].clients, client))
		return false;
	if (client_limit_enter(a->clients, client))
		return true;
	client_limit_leave(a->forwards[forward].clients, client);
	*ret_all = true;
	*ret_most = a->config->max_sessions_per_client;
	return false;
}

void admission_leave(struct admission *a, unsigned int forward, const struct sockaddr *client)
{
	client_limit_leave(a->clients, client);
	client_limit_leave(a->forwards[forward].clients, client);
	admission_cancel(a, forward);
}

unsigned int admission_sessions(struct admission *a)
{
	return atomic_load(&a->live);
}

unsigned int admission_clients(struct admission *a)
{
	return client_limit_clients(a->clients);
}
