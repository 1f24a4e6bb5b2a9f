/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_SESSION_RIG_H
#define CULVERT_TESTS_SESSION_RIG_H

/* A worker, two forwards, and open sessions that have no sockets.  Include after cmocka.h. */

#include <netinet/in.h>
#include <stdlib.h>

#include "relay/forward.h"
#include "relay/limits.h"
#include "relay/session.h"

struct session_rig {
	struct config config;
	struct forward_conf confs[2];
	struct forward *forwards[2];
	struct shared shared;
	struct worker worker;
};

static inline int session_rig_open(void **state, void (*after_batch)(void *worker))
{
	static struct session_rig rig;

	rig = (struct session_rig){
		.config = { .workers = 1, .max_sessions = 40000, .defaults.copy_buffer = 4096 },
		.confs = { { .name = "db", .engine = ENGINE_COPY, .max_sessions = 40000 },
			   { .name = "web", .engine = ENGINE_COPY, .max_sessions = 40000 } },
	};
	rig.shared.config = &rig.config;
	for (int i = 0; i < 2; i++)
		if (forward_new(&rig.confs[i], &rig.config, NULL, NULL, &rig.forwards[i]))
			return -1;
	if (admission_open(&rig.config, &rig.shared.admission) ||
	    worker_open(&rig.worker, &rig.shared, 0))
		return -1;
	rig.worker.loop.after_batch = after_batch;
	*state = &rig;
	return 0;
}

/* One of forward number FORWARD.  On the worker's thread, or before it runs. */
static inline void session_rig_add(struct session_rig *rig, int forward)
{
	struct session *s = calloc(1, sizeof(*s));
	enum cause why;

	if (!s) /* for the analysis, which does not know that cmocka does not return */
		abort();
	*s = (struct session){ .forward = rig->forwards[forward], .pair = NO_PAIR,
			       .state = SESSION_OPEN, .sides = { { .fd = -1 }, { .fd = -1 } } };
	s->client.sa.sa_family = AF_INET;
	assert_true(admission_enter(rig->shared.admission, s->forward, &why));
	assert_true(admission_enter_client(rig->shared.admission, s->forward, &s->client.sa, &why));
	s->worker = &rig->worker;
	s->prev = &rig->worker.sessions;
	s->next = rig->worker.sessions;
	if (s->next)
		s->next->prev = &s->next;
	rig->worker.sessions = s;
	rig->worker.n_sessions++;
}

static inline int session_rig_close(void **state)
{
	struct session_rig *rig = *state;

	while (rig->worker.sessions)
		session_reset(rig->worker.sessions, CAUSE_INTERNAL);
	session_reap(&rig->worker);
	worker_close(&rig->worker);
	for (int i = 0; i < 2; i++)
		forward_free(rig->forwards[i]);
	admission_close(rig->shared.admission);
	return 0;
}

#endif
