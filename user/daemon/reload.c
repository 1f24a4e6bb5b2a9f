// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: reload_ask() counts `asked` up, and wakes the thread that reloads.
 * The privileged process reads the file again, the daemon parses the same text, and change_forwards.c puts
 * the configuration in force, or nothing of it.  Several reloads that are asked for meanwhile
 * become one.
 *
 * All of this runs on the thread that reloads, except the functions of service.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "config/option.h"
#include "config/read.h"
#include "daemon/change_forwards.h"
#include "relay/session_log.h"

#define PATIENCE_MS 2000      /* of a control thread, for a reload to come to its end */
#define PARSE_ROOM (64 << 20) /* bytes; a parsed file of 1 MiB takes less */

/* --- read --- */

/* A host name to listen at keeps the addresses that it has had. */
static int reload_find_addresses(struct change *ch)
{
	struct config *c = ch->config;

	for (size_t i = 0; i < c->n_forwards; i++) {
		struct endpoint *e = &c->forwards[i].listen;
		struct forward *f;

		TAILQ_FOREACH(f, &ch->service->forwards.list, in_forwards)
			if (e->n_addrs)
				break;
			else if (!strcmp(f->conf->listen.text, e->text))
				endpoint_copy_addrs(e, &f->conf->listen);
	}
	return names_find_listeners(c, true);
}

/* Look for memory first: without it parsing a file would end the program (array.h). */
static bool reload_has_memory(void)
{
	volatile void *room = malloc(PARSE_ROOM); /* else compilers leave the call out */

	free((void *)room);
	return room; /* cppcheck-suppress deallocret ; only whether there was some */
}

static int reload_begin(struct change *ch)
{
	ch->next = reload_has_memory() ? calloc(1, sizeof(*ch->next)) : NULL;
	if (!ch->next)
		return change_no_memory();
	ch->next->refs = 1;
	ch->config = &ch->next->config;
	return 0;
}

static int reload_read(struct change *ch)
{
	struct service *sv = ch->service;
	int fds[PRIVILEGED_FILES], e = reload_begin(ch);

	if (e)
		return e;
	e = privileged_open_config(sv->privileged, sv->in_force, fds, ch->result.error,
				   sizeof(ch->result.error));
	sv->in_force = false;
	if (e)
		return e;
	/* with a privileged process the start has opened the resolver: a reload may bring names */
	names_read_again(sv->shared->names, &fds[PRIVILEGED_NAMES]);
	e = config_read(sv->argc, sv->argv, fds[PRIVILEGED_CONFIG], ch->config);
	close(fds[PRIVILEGED_CONFIG]);
	orders_copy(&ch->orders, &sv->orders);
	if (!e && orders_apply(&ch->orders, ch->config)) {
		log_warning("reload: orders are dropped: %s", ch->result.error);
		ch->result.error[0] = '\0';
	}
	return e ?: reload_find_addresses(ch);
}

/* A change that only a new start could make is refused, rather than left undone. */
static int reload_check_globals(struct change *ch)
{
	const struct shared *shared = ch->service->shared;
	const struct config *c = ch->config;
	const struct option_def *o = options_fixed(ch->service->start, c);
	bool sockmap = shared->kernel && !probe_has_failed(shared->probe, ENGINE_SOCKMAP);
	bool graft = shared->grafts && !probe_has_failed(shared->probe, ENGINE_GRAFT);

	if (o)
		return config_complain(option_place(c, &c->defaults, o->name),
				       "%s: cannot change while culvert runs: restart it", o->name);
	for (const struct forward_conf *f = c->forwards; f < c->forwards + c->n_forwards; f++)
		if ((f->engine == ENGINE_SOCKMAP && !sockmap) ||
		    (f->engine == ENGINE_GRAFT && !graft))
			return log_complain(-EOPNOTSUPP,
					    "forward %s: engine %s: the kernel path "
					    "was not set up at the start: restart culvert",
					    forward_name(f), engine_name(f->engine));
	return 0;
}

/* --- reload --- */

static void reload_tell_systemd(const char *state, const char *status)
{
	sd_notifyf(0, "%s\nMONOTONIC_USEC=%llu\nSTATUS=%s", state,
		   (unsigned long long)clock_ns() / 1000, status);
}

static void reload_now(struct service *sv, uint64_t number)
{
	struct change ch = { .service = sv };
	char said[sizeof(ch.result.error) + 80];
	int e;

	reload_tell_systemd("RELOADING=1", "Reads the configuration again");
	log_keep_complaint(ch.result.error, sizeof(ch.result.error));
	e = change_forwards(&ch, reload_read(&ch) ?: reload_check_globals(&ch));
	log_keep_complaint(NULL, 0);
	sv->in_force = sv->in_force || !e;
	if (e) {
		snprintf(said, sizeof(said), "reload: nothing has changed: %s", ch.result.error);
	} else {
		snprintf(said, sizeof(said),
			 "reload: %u forward%s added, %u changed, %u removed, %u as before",
			 ch.result.added, ch.result.added == 1 ? "" : "s", ch.result.changed,
			 ch.result.removed, ch.result.kept);
	}
	log_write(e ? LOG_ERR : LOG_INFO, "%s", said);
	/* systemd is told before the clients that wait for this reload */
	reload_tell_systemd("READY=1", said);
	pthread_mutex_lock(&sv->lock);
	sv->finished = number;
	sv->last = ch.result;
	pthread_mutex_unlock(&sv->lock);
}

/* --- orders --- */

struct ordering {
	struct service *service;
	const char *name, *server, *words;
	enum reload_order order;
	char *why; /* result, beside ERROR: the fault */
	int error;
};

static int order_read(struct change *ch)
{
	const struct service *sv = ch->service;
	int e = reload_begin(ch);

	e = e ?: config_read_text(sv->argc, sv->argv, sv->text, ch->config);
	e = e ?: orders_apply(&ch->orders, ch->config);
	if (!e && names_needed(ch->config) && !sv->shared->names)
		e = log_complain(-EINVAL, "culvert has started without a resolver, so a server "
					  "needs an address, not a name");
	return e ?: reload_find_addresses(ch);
}

/* Has the forward of O in the configuration C the server of O? */
static bool order_finds(const struct ordering *o, const struct config *c)
{
	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++)
		for (size_t i = 0; !strcmp(forward_name(fc), o->name) && i < fc->upstream.n; i++)
			if (!strcmp(fc->upstream.servers[i].at.text, o->server))
				return true;
	return false;
}

static int order_fault(const struct ordering *o, const char *why)
{
	return log_complain(-EINVAL, "forward %.64s: server %.64s: %s", o->name, o->server, why);
}

static int order_plan_to_add(const struct ordering *o, struct change *ch)
{
	const char *wrong = orders_fault(o->server, o->words);
	int e;

	if (wrong)
		return order_fault(o, wrong);
	orders_give(&ch->orders, o->name, o->server, o->words);
	e = order_read(ch);
	return e || order_finds(o, ch->config) ?
		       e :
		       order_fault(o, "the port of the forward is 0, which has no orders");
}

/* An order is needed only if the file has the server. */
static int order_plan_to_remove(const struct ordering *o, struct change *ch)
{
	bool had = orders_have(&ch->orders, o->name, o->server);
	struct upstream_orders all;
	int e;

	orders_copy(&all, &ch->orders);
	orders_give(&all, o->name, o->server, NULL);
	orders_take_back(&ch->orders, o->name, o->server);
	e = order_read(ch);
	if (!e && order_finds(o, ch->config)) {
		config_version_drop(ch->next);
		orders_close(&ch->orders);
		ch->orders = all;
		return order_read(ch);
	}
	orders_close(&all);
	return e || had ? e : order_fault(o, "there is no such server, as it is written");
}

/* The same file with other orders. */
static int order_now(const struct ordering *o)
{
	struct service *sv = o->service;
	struct change ch = { .service = sv, .keeps_drains = true };
	int e;

	if (!forwards_find(&sv->forwards, o->name))
		return log_complain(-ENOENT, "no forward is named \"%.64s\"", o->name);
	if (o->order == RELOAD_TAKE_BACK && !orders_have(&sv->orders, o->name, o->server))
		return 0;
	orders_copy(&ch.orders, &sv->orders);
	if (o->order == RELOAD_ADD) {
		e = order_plan_to_add(o, &ch);
	} else if (o->order == RELOAD_REMOVE) {
		e = order_plan_to_remove(o, &ch);
	} else {
		orders_take_back(&ch.orders, o->name, o->server);
		e = order_read(&ch);
	}
	return change_forwards(&ch, e) ?: 1;
}

static void order_on_thread(void *arg)
{
	struct ordering *o = arg;

	log_keep_complaint(o->why, RELOAD_WHY_LEN);
	o->error = order_now(o);
	log_keep_complaint(NULL, 0);
}

int reload_order(struct service *sv, const char *name, enum reload_order order, const char *server,
		 const char *words, char why[RELOAD_WHY_LEN])
{
	struct ordering o = { sv, name, server, words, order, why, 0 };
	int e = loop_call(&sv->loop, order_on_thread, &o, PATIENCE_MS);

	if (e)
		strcpy(why, e == -ESRCH ? SERVICE_STOPPING : "a reload is under way; ask again");
	return e ?: o.error;
}

/* Reload if a reload was asked for, and look at drains. */
static void reload_after_batch(void *service)
{
	struct service *sv = service;
	uint64_t number; /* a request that comes from now on is for another reload */
	bool stop;

	pthread_mutex_lock(&sv->lock);
	number = sv->asked;
	stop = sv->stop;
	if (stop && number != sv->finished) {
		log_info("reload: nothing has changed: " SERVICE_STOPPING);
		sv->finished = number;
		sv->last = (struct reload_result){ .error = SERVICE_STOPPING };
	}
	pthread_mutex_unlock(&sv->lock);
	sv->loop.stop = stop;
	if (number != sv->finished)
		reload_now(sv, number);
	timer_set(&sv->loop, &sv->due, drain_end_due(sv));
	if (sv->sockets && atomic_exchange(&sv->shared->socketless, false))
		timer_set(&sv->loop, sv->sockets, sv->loop.now_ms);
}

uint64_t reload_ask(struct service *sv)
{
	uint64_t number = 0;

	if (sv->shared->session_log)
		session_log_reopen(sv->shared->session_log);
	pthread_mutex_lock(&sv->lock);
	if (!sv->stop)
		number = ++sv->asked;
	pthread_mutex_unlock(&sv->lock);
	loop_wake(&sv->loop);
	return number;
}

struct json_object *reload_json(struct service *sv)
{
	struct json_object *o = json_object_new_object();
	char error[256] = "";

	if (sv->shared->session_log)
		session_log_not_reopened(sv->shared->session_log, error, sizeof(error));
	json_add_text(o, "session_log_error", error);
	pthread_mutex_lock(&sv->lock);
	json_add_int(o, "asked", sv->asked);
	json_add_int(o, "finished", sv->finished);
	json_add_bool(o, "ok", !sv->last.error[0]);
	json_add_text(o, "error", sv->last.error);
	json_add_int(o, "added", sv->last.added);
	json_add_int(o, "changed", sv->last.changed);
	json_add_int(o, "removed", sv->last.removed);
	json_add_int(o, "kept", sv->last.kept);
	pthread_mutex_unlock(&sv->lock);
	return o;
}

/* --- the thread --- */

int service_open(struct service *sv)
{
	TAILQ_INIT(&sv->forwards.list);
	pthread_mutex_init(&sv->forwards.lock, NULL);
	pthread_mutex_init(&sv->lock, NULL);
	return loop_open(&sv->loop, reload_after_batch, sv);
}

int service_start(struct service *sv)
{
	int e = -pthread_create(&sv->thread, NULL, loop_thread, &sv->loop);

	sv->started = !e;
	atomic_store(&sv->shared->revives, !e && sv->sockets && sv->privileged);
	return e;
}

void service_stop(struct service *sv)
{
	if (!sv->started)
		return;
	atomic_store(&sv->shared->revives, false);
	pthread_mutex_lock(&sv->lock);
	sv->stop = true;
	pthread_mutex_unlock(&sv->lock);
	loop_wake(&sv->loop);
	pthread_join(sv->thread, NULL);
	sv->started = false;
}
