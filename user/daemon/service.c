// SPDX-License-Identifier: BSD-2-Clause
/* On the main thread, but for run(), which is the thread that reloads. */
#include "daemon/service.h"

#include <string.h>

#include "base/log.h"

/* AFTER_BATCH looks at deadlines. */
static void service_on_due(struct timer *t)
{
	(void)t;
}

static void *service_run(void *arg)
{
	struct service *sv = arg;
	int e = loop_run(&sv->loop);

	if (e)
		log_error("the thread that reloads has ended: %s", strerror(-e));
	return NULL;
}

int service_open(struct service *sv, void (*after_batch)(void *sv))
{
	forwards_init(&sv->forwards);
	pthread_mutex_init(&sv->lock, NULL);
	sv->due.fire = service_on_due;
	return loop_open(&sv->loop, after_batch, sv);
}

int service_start(struct service *sv)
{
	int e = -pthread_create(&sv->thread, NULL, service_run, sv);

	sv->started = !e;
	return e;
}

void service_stop(struct service *sv)
{
	if (!sv->started)
		return;
	pthread_mutex_lock(&sv->lock);
	sv->stop = true;
	pthread_mutex_unlock(&sv->lock);
	loop_wake(&sv->loop);
	pthread_join(sv->thread, NULL);
	sv->started = false;
}

void service_close(struct service *sv)
{
	loop_close(&sv->loop);
	forwards_close(&sv->forwards);
	socket_keeper_after_batch(&sv->keeper);
	listening_close_all(sv->listening);
	pthread_mutex_destroy(&sv->lock);
}
