// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/reconfigure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/new_thread.h"
#include "daemon/drain.h"
#include "relay/names.h"

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

/* Those that sessions are led to now, if any, not those of the start: the name may have moved. */
static int copy_current(struct upstream *from, struct endpoint *to)
{
	struct addr_list *list = upstream_get(from);
	int r = endpoint_copy_addrs(to, list->addrs, list->n);

	addr_list_put(list);
	return r;
}

/* Give a name that is known already the addresses that it had, if any. */
static int know_again(const struct reload *r, struct endpoint *e, bool listen)
{
	for (struct forward *f = r->forwards->first; f; f = f->next) {
		const struct endpoint *known = listen ? &f->conf->listen : &f->conf->upstream;

		if (f->state == FORWARD_ACTIVE && !strcmp(known->text, e->text))
			return listen ? endpoint_copy_addrs(e, known->addrs, known->n_addrs) :
					copy_current(&f->upstream, e);
	}
	return 0;
}

/* Only names to listen at are waited for. */
static int find_addresses(struct reconfigure *r, struct config *c, char *err, size_t errlen)
{
	for (size_t i = 0; i < c->n_forwards; i++) {
		struct endpoint *listen = &c->forwards[i].listen, *up = &c->forwards[i].upstream;
		int error = listen->n_addrs ? 0 : know_again(&r->reload, listen, true);

		error = error ?: up->n_addrs ? error : know_again(&r->reload, up, false);
		if (error) {
			snprintf(err, errlen, "%s", strerror(-error));
			return error;
		}
	}
	return names_find_listeners(r->names, c, err, errlen);
}

/* What the file says now, as a configuration that nothing uses yet. */
static int read_again(struct reconfigure *r, struct config_version **ret, char *err, size_t errlen)
{
	struct config_source from = { 0 };
	struct config_version *v;
	uint32_t generation;
	char *text = NULL;
	int error;

	if (!r->start->file) {
		snprintf(err, errlen, "there is no configuration file to read: culvert was started "
			 "without one (--config)");
		return -ENOENT;
	}
	error = privileged_read_config(r->privileged, r->generation, &text, &from.len, &generation,
				       err, errlen);
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
	error = error ?: find_addresses(r, &v->config, err, errlen);
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
	serving_take_turn(r->reload.serving);
	error = reload_apply(&r->reload, v, clock_ms(), res);
	if (!error)
		r->generation = said.generation;
	r->next = NULL;
	serving_end_turn(r->reload.serving);
	if (error) {
		snprintf(err, errlen, "%s", res->why);
		return error;
	}
	follow(r, &said);
	return 0;
}

/* The lock is held. */
static void record(struct reconfigure *r, uint64_t number, const struct reload_result *res,
		   const char *err)
{
	r->finished = number;
	r->ok = !err[0];
	snprintf(r->error, sizeof(r->error), "%s", err);
	r->result = *res;
}

static void tell_systemd(const char *state, const char *status)
{
	sd_notifyf(0, "%s\nMONOTONIC_USEC=%llu\nSTATUS=%s", state,
		   (unsigned long long)clock_ns() / 1000, status);
}

/* What `systemctl status` shows. */
static void say_status(const struct reload_result *res, const char *err, char *buf, size_t size)
{
	unsigned int n = res->added + res->changed + res->kept;

	if (err[0])
		snprintf(buf, size, "Works as before: the last reload failed: %s", err);
	else
		snprintf(buf, size, "%u forward%s; the last reload: %u added, %u changed, %u "
			 "removed", n, n == 1 ? "" : "s", res->added, res->changed, res->removed);
}

static void reload_now(struct reconfigure *r, uint64_t number)
{
	struct reload_result res;
	char err[sizeof(r->error)] = "", status[sizeof(err) + 80];

	tell_systemd("RELOADING=1", "Reads the configuration again");
	if (put_in_force(r, &res, err, sizeof(err)))
		log_error("reload: nothing has changed: %s", err);
	else
		log_info("reload: %u forward%s added, %u changed, %u removed, %u as before",
			 res.added, res.added == 1 ? "" : "s", res.changed, res.removed, res.kept);
	say_status(&res, err, status, sizeof(status));
	tell_systemd("READY=1", status); /* before who has asked for it may say the same */
	pthread_mutex_lock(&r->lock);
	record(r, number, &res, err);
	pthread_mutex_unlock(&r->lock);
}

/* Until somebody asks, it is to stop, or DUE_MS.  The lock is held. */
static void wait_for_change(struct reconfigure *r, uint64_t due_ms)
{
	struct timespec until = clock_timespec(due_ms);

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
		uint64_t now = clock_ms();

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
		serving_take_turn(r->reload.serving);
		due = reload_drain(&r->reload, clock_ms());
		serving_end_turn(r->reload.serving);
		pthread_mutex_lock(&r->lock);
	}
	if (r->asked != r->finished) {
		log_info("reload: nothing has changed: " RECONFIGURE_STOPPING);
		record(r, r->asked, &(struct reload_result){ 0 }, RECONFIGURE_STOPPING);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

int reconfigure_open(struct reconfigure *r)
{
	int error;

	clock_cond_init(&r->change);
	pthread_mutex_init(&r->lock, NULL);
	r->maker = (struct listening_maker){ make_by_privileged, r };
	r->reload.maker = &r->maker;
	r->ok = r->opened = true;
	error = new_thread(&r->thread, run, r);
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
	serving_stop(r->reload.serving);
}

void reconfigure_close(struct reconfigure *r)
{
	if (!r->opened)
		return;
	pthread_cond_destroy(&r->change);
	pthread_mutex_destroy(&r->lock);
}

uint64_t reconfigure_ask(struct reconfigure *r)
{
	uint64_t number = 0;

	pthread_mutex_lock(&r->lock);
	if (!r->stop)
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

bool reconfigure_may_listen(const struct reconfigure *r)
{
	return privileged_runs(r->privileged);
}

int reconfigure_drain(struct reconfigure *r, const char *name, bool undo, uint64_t due_ms,
		      char *err, size_t errlen)
{
	int error = serving_ask_turn(r->reload.serving, TURN_PATIENCE_S);

	if (error) {
		snprintf(err, errlen, "%s", error == -ESHUTDOWN ?
						    RECONFIGURE_STOPPING :
						    "a reload is under way; ask again");
		return error;
	}
	error = drain_named(r, name, undo, due_ms, err, errlen);
	serving_end_turn(r->reload.serving);
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
