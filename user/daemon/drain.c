// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/drain.h"

/* What listens for F, and P, are to be as F is from now on.  Who looks at F finds both. */
static void change(const struct reload *r, struct forward *f, struct serving_plan *p, bool draining)
{
	pthread_mutex_lock(&r->forwards->lock);
	serving_change(r->serving, p);
	f->draining = draining;
	pthread_mutex_unlock(&r->forwards->lock);
}

void drain_begin(const struct reload *r, struct forward *f, uint64_t due_ms)
{
	struct serving_plan none = { 0 };

	serving_keep_all(r->serving);
	for (struct listening *l = *r->serving->list; l; l = l->next)
		if (l->forward == f)
			l->becomes = NULL;
	change(r, f, &none, true);
	forward_set_due(f, due_ms, "deadline");
}

int drain_end(const struct reload *r, struct forward *f, const struct listening_maker *by,
	      char *err, size_t errlen)
{
	const struct endpoint *e = &f->conf->listen;
	struct serving_plan p = { 0 };
	struct listening *l;
	int error = 0;

	serving_keep_all(r->serving);
	for (size_t i = 0; !error && i < e->n_addrs; i++)
		error = serving_open(r->serving, &p, by, f, f->conf, &e->addrs[i], &l, err, errlen);
	error = error ?: serving_prepare(r->serving, &p, err, errlen);
	if (error) {
		serving_give_up(r->serving, &p);
		return error;
	}
	change(r, f, &p, false);
	forward_clear_due(f);
	return 0;
}
