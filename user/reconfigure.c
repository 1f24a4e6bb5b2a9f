// SPDX-License-Identifier: BSD-2-Clause
#include "reconfigure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "drain.h"
#include "json_add.h"
#include "log.h"
#include "loop.h"
#include "names.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what is stored: it is in c->forwards, and config_close() frees it */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

/* For a reload to come to its end, by somebody who asks for something else. */
#define TURN_PATIENCE_S 2

static int make_by_privileged(void *arg, const struct forward_conf *fc, struct addr *a, bool joins,
			      unsigned int n, int *fds, char *err, size_t errlen)
{
	struct reconfigure *r = arg;

	return privileged_listen(r->privileged, r->next, (size_t)(fc - r->next->forwards), a, joins,
				 n, fds, err, errlen);
}

static int copy_addresses(const struct addr *from, size_t n, struct endpoint *to)
{
	to->addrs = malloc(n * sizeof(*to->addrs));
	if (!to->addrs)
		return -ENOMEM;
	memcpy(to->addrs, from, n * sizeof(*to->addrs));
	to->n_addrs = n;
	return 0;
}

/* Those that sessions are led to now, not those of the start: the name may have moved. */
static int copy_current(struct upstream *from, struct endpoint *to)
{
	struct addr_list *list = upstream_get(from);
	int r = copy_addresses(list->addrs, list->n, to);

	addr_list_put(list);
	return r;
}

/* What was parsed without looking up names: those that are known already have their addresses. */
static int know_again(const struct reload *r, struct endpoint *e, bool listen)
{
	for (struct forward *f = r->forwards->first; f; f = f->next) {
		const struct endpoint *known = listen ? &f->conf->listen : &f->conf->upstream;

		if (f->state == FORWARD_ACTIVE && !strcmp(known->text, e->text))
			return listen ? copy_addresses(known->addrs, known->n_addrs, e) :
					copy_current(&f->upstream, e);
	}
	return -ENOENT;
}

/* E has no address yet.  A name that is new is looked up; the others are, by and by, anyway. */
static int find_addresses(struct reconfigure *r, struct endpoint *e, bool listen, char *err,
			  size_t errlen)
{
	struct endpoint found = { 0 };
	int error = know_again(&r->reload, e, listen);

	if (error != -ENOENT) {
		snprintf(err, errlen, "%s", strerror(-error));
		return error;
	}
	if (!r->names) {
		snprintf(err, errlen, "the resolver has not been started");
		return -EAGAIN;
	}
	error = names_look_up(r->names, e->text, listen, &found, err, errlen);
	if (error)
		return error;
	found.named = e->named;
	*e = found;
	return 0;
}

static bool is_stopping(struct reconfigure *r)
{
	bool stop;

	pthread_mutex_lock(&r->lock);
	stop = r->stop;
	pthread_mutex_unlock(&r->lock);
	return stop;
}

static int find_all_addresses(struct reconfigure *r, struct config *c, char *err, size_t errlen)
{
	for (size_t i = 0; i < c->n_forwards; i++) {
		struct endpoint *ends[] = { &c->forwards[i].listen, &c->forwards[i].upstream };
		char why[256];

		for (int up = 0; up < 2; up++) {
			int error = 0;

			if (is_stopping(r))
				return -ECANCELED;
			if (!ends[up]->n_addrs)
				error = find_addresses(r, ends[up], !up, why, sizeof(why));
			if (!error)
				continue;
			snprintf(err, errlen, "forward %s: %s \"%s\": %s",
				 forward_name(&c->forwards[i]), up ? "upstream" : "listen",
				 ends[up]->text, why);
			return error;
		}
	}
	return 0;
}

/* What the file says now, as a configuration that nothing uses yet. */
static int read_again(struct reconfigure *r, struct config_version **ret, char *err, size_t errlen)
{
	struct config_source from = { .offline = true };
	struct config_version *v;
	uint32_t generation;
	char *text = NULL;
	int error = privileged_read_config(r->privileged, r->generation, &text, &from.len,
					   &generation, err, errlen);

	if (error)
		return error;
	v = calloc(1, sizeof(*v));
	if (!v) {
		free(text);
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	v->refs = 1;
	from.text = text;
	log_keep_complaint(err, errlen);
	error = config_parse_from(r->argc, r->argv, &from, &v->config);
	log_keep_complaint(NULL, 0);
	free(text);
	v->config.generation = generation;
	error = error ?: find_all_addresses(r, &v->config, err, errlen);
	if (error)
		config_version_drop(v);
	else
		*ret = v;
	return error;
}

/* What is not a forward's takes effect with it. */
static void follow(struct reconfigure *r, const struct config *c)
{
	log_set_level(c->log_level);
	atomic_store(&r->reload.shared->grace_ms, c->grace_ms);
}

static int put_in_force(struct reconfigure *r, struct reload_result *res, char *err, size_t errlen)
{
	struct config_version *v = NULL;
	struct config said;
	int error = read_again(r, &v, err, errlen);

	memset(res, 0, sizeof(*res));
	if (error)
		return error;
	r->next = &v->config;
	said = v->config; /* numbers alone are looked at: it may be gone after this */
	pthread_mutex_lock(&r->turn);
	error = reload_apply(&r->reload, v, loop_clock_ms(), res);
	if (!error)
		r->generation = said.generation;
	pthread_mutex_unlock(&r->turn);
	if (error) {
		snprintf(err, errlen, "%s", res->why);
		return error;
	}
	follow(r, &said);
	return 0;
}

static void record(struct reconfigure *r, uint64_t number, const struct reload_result *res,
		   const char *err)
{
	pthread_mutex_lock(&r->lock);
	r->finished = number;
	r->ok = !err[0];
	snprintf(r->error, sizeof(r->error), "%s", err);
	r->result = *res;
	pthread_mutex_unlock(&r->lock);
}

static void tell_systemd(const char *state)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	sd_notifyf(0, "%s\nMONOTONIC_USEC=%llu", state,
		   (unsigned long long)ts.tv_sec * 1000000 +
			   (unsigned long long)ts.tv_nsec / 1000);
}

static void reload_now(struct reconfigure *r, uint64_t number)
{
	struct reload_result res;
	char err[sizeof(r->error)] = "";

	tell_systemd("RELOADING=1");
	if (put_in_force(r, &res, err, sizeof(err)))
		log_error("reload: nothing has changed: %s", err);
	else
		log_info("reload: %u forwards added, %u changed, %u removed, %u as before",
			 res.added, res.changed, res.removed, res.kept);
	record(r, number, &res, err);
	tell_systemd("READY=1");
}

/* Until somebody asks, it is to stop, or DUE_MS.  The lock is held. */
static void wait_for_change(struct reconfigure *r, uint64_t due_ms)
{
	struct timespec until = { .tv_sec = (time_t)(due_ms / 1000),
				  .tv_nsec = (long)(due_ms % 1000) * 1000000 };

	if (due_ms == UINT64_MAX)
		pthread_cond_wait(&r->change, &r->lock);
	else
		pthread_cond_timedwait(&r->change, &r->lock, &until);
}

static void *run(void *arg)
{
	struct reconfigure *r = arg;
	uint64_t due = UINT64_MAX;

	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		uint64_t number = r->asked; /* who asks from now on asks for another */
		uint64_t now = loop_clock_ms();

		if (r->look)
			due = 0;
		r->look = false;
		if (number == r->finished && now < due) {
			wait_for_change(r, due);
			continue;
		}
		pthread_mutex_unlock(&r->lock);
		if (number != r->finished)
			reload_now(r, number);
		pthread_mutex_lock(&r->turn);
		due = reload_drain(&r->reload, loop_clock_ms());
		pthread_mutex_unlock(&r->turn);
		pthread_mutex_lock(&r->lock);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

int reconfigure_open(struct reconfigure *r)
{
	pthread_condattr_t attr;
	int error;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->change, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&r->lock, NULL);
	pthread_mutex_init(&r->turn, NULL);
	r->maker = (struct listening_maker){ make_by_privileged, r };
	r->reload.maker = &r->maker;
	r->ok = r->opened = true;
	error = -pthread_create(&r->thread, NULL, run, r);
	r->started = !error;
	return error;
}

void reconfigure_stop(struct reconfigure *r)
{
	if (!r->started)
		return;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	if (r->names)
		names_give_up(r->names); /* it may wait for a name server that is silent */
	pthread_join(r->thread, NULL);
	r->started = false;
}

void reconfigure_close(struct reconfigure *r)
{
	if (!r->opened)
		return;
	pthread_cond_destroy(&r->change);
	pthread_mutex_destroy(&r->lock);
	pthread_mutex_destroy(&r->turn);
}

uint64_t reconfigure_ask(struct reconfigure *r)
{
	uint64_t number;

	pthread_mutex_lock(&r->lock);
	number = ++r->asked;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	return number;
}

/* --- drain --- */

/* A forward of the configuration in force: which one. */
struct again {
	struct privileged *privileged;
	uint32_t generation;
	size_t forward;
};

static int make_again(void *arg, const struct forward_conf *fc, struct addr *a, bool joins,
		      unsigned int n, int *fds, char *err, size_t errlen)
{
	const struct again *g = arg;
	const struct config c = { .generation = g->generation };

	(void)fc;
	return privileged_listen(g->privileged, &c, g->forward, a, joins, n, fds, err, errlen);
}

/* The active forward NAME, and its place in the configuration; or NULL. */
static struct forward *find_active(const struct reconfigure *r, const char *name, size_t *ret_place)
{
	struct forward *f = r->reload.forwards->first;

	*ret_place = 0;
	for (; f && f->state == FORWARD_ACTIVE; f = f->next, ++*ret_place)
		if (!strcmp(forward_name(f->conf), name))
			return f;
	return NULL;
}

static int drain_named(struct reconfigure *r, const char *name, bool undo, uint64_t due_ms,
		       char *err, size_t errlen)
{
	struct again again = { .privileged = r->privileged, .generation = r->generation };
	const struct listening_maker by = { make_again, &again };
	struct forward *f = find_active(r, name, &again.forward);

	if (!f) {
		snprintf(err, errlen, "no forward is named \"%.64s\"", name);
		return -ENOENT;
	}
	if (undo)
		return f->draining ? drain_end(&r->reload, f, &by, err, errlen) : 0;
	drain_begin(&r->reload, f, due_ms);
	return 0;
}

int reconfigure_drain(struct reconfigure *r, const char *name, bool undo, uint64_t due_ms,
		      char *err, size_t errlen)
{
	struct timespec until;
	int error;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += TURN_PATIENCE_S;
	if (pthread_mutex_timedlock(&r->turn, &until)) {
		snprintf(err, errlen, "a reload is under way; ask again");
		return -EBUSY;
	}
	error = drain_named(r, name, undo, due_ms, err, errlen);
	pthread_mutex_unlock(&r->turn);
	pthread_mutex_lock(&r->lock);
	r->look = true;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	return error;
}

static void add_count(struct json_object *o, const char *key, uint64_t n)
{
	json_add(o, key, json_object_new_int64((int64_t)n));
}

struct json_object *reconfigure_json(struct reconfigure *r)
{
	struct json_object *o = json_object_new_object();

	pthread_mutex_lock(&r->lock);
	add_count(o, "asked", r->asked);
	add_count(o, "finished", r->finished);
	json_add(o, "ok", json_object_new_boolean(r->ok));
	json_add(o, "error", json_object_new_string(r->error));
	add_count(o, "added", r->result.added);
	add_count(o, "changed", r->result.changed);
	add_count(o, "removed", r->result.removed);
	add_count(o, "kept", r->result.kept);
	pthread_mutex_unlock(&r->lock);
	return o;
}
