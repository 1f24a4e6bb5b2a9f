// SPDX-License-Identifier: BSD-2-Clause
#include "reconfigure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "json_add.h"
#include "log.h"
#include "loop.h"

static int make_by_privileged(void *arg, const struct forward_conf *fc, struct addr *a, bool joins,
			      unsigned int n, int *fds, char *err, size_t errlen)
{
	struct reconfigure *r = arg;

	return privileged_listen(r->privileged, r->next, (size_t)(fc - r->next->forwards), a, joins,
				 n, fds, err, errlen);
}

void reconfigure_open(struct reconfigure *r)
{
	pthread_mutex_init(&r->lock, NULL);
	r->maker = (struct listening_maker){ make_by_privileged, r };
	r->reload.maker = &r->maker;
	r->drain_ms = UINT64_MAX;
	r->ok = true;
}

void reconfigure_close(struct reconfigure *r)
{
	pthread_mutex_destroy(&r->lock);
}

static int copy_endpoint(const struct endpoint *from, struct endpoint *to)
{
	to->addrs = malloc(from->n_addrs * sizeof(*to->addrs));
	if (!to->addrs)
		return -ENOMEM;
	memcpy(to->addrs, from->addrs, from->n_addrs * sizeof(*to->addrs));
	to->n_addrs = from->n_addrs;
	return 0;
}

/* What was parsed without looking up names: those that are known already have their addresses. */
static int know_again(const struct reload *r, struct endpoint *e, bool listen)
{
	for (const struct forward *f = r->forwards->first; f; f = f->next) {
		const struct endpoint *known = listen ? &f->conf->listen : &f->conf->upstream;

		if (f->state == FORWARD_ACTIVE && !strcmp(known->text, e->text))
			return copy_endpoint(known, e);
	}
	return -ENOENT;
}

static int know_all_again(struct reconfigure *r, struct config *c, char *err, size_t errlen)
{
	for (size_t i = 0; i < c->n_forwards; i++) {
		struct endpoint *ends[] = { &c->forwards[i].listen, &c->forwards[i].upstream };

		for (int up = 0; up < 2; up++) {
			int error = ends[up]->n_addrs ? 0 : know_again(&r->reload, ends[up], !up);

			if (!error)
				continue;
			snprintf(err, errlen, "forward %s: \"%s\": %s", forward_name(&c->forwards[i]),
				 ends[up]->text, error == -ENOENT ?
				 "the name was not in the configuration at the start: restart culvert" :
				 strerror(-error));
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
	error = error ?: know_all_again(r, &v->config, err, errlen);
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
	error = reload_apply(&r->reload, v, loop_clock_ms(), res);
	if (error) {
		snprintf(err, errlen, "%s", res->why);
		return error;
	}
	r->generation = said.generation;
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

void reconfigure_run(struct reconfigure *r)
{
	struct reload_result res;
	char err[sizeof(r->error)] = "";
	uint64_t number;

	pthread_mutex_lock(&r->lock);
	if (r->asked == r->finished) /* nobody has, by reconfigure_ask(): it is a plain SIGHUP */
		r->asked++;
	number = r->asked; /* who asks from now on asks for another */
	pthread_mutex_unlock(&r->lock);
	tell_systemd("RELOADING=1");
	if (put_in_force(r, &res, err, sizeof(err)))
		log_error("reload: nothing has changed: %s", err);
	else
		log_info("reload: %u forwards added, %u changed, %u removed, %u as before",
			 res.added, res.changed, res.removed, res.kept);
	record(r, number, &res, err);
	r->drain_ms = 0;
	tell_systemd("READY=1");
}

uint64_t reconfigure_drain(struct reconfigure *r)
{
	uint64_t now = loop_clock_ms();

	if (now >= r->drain_ms)
		r->drain_ms = reload_drain(&r->reload, now);
	return r->drain_ms;
}

uint64_t reconfigure_ask(struct reconfigure *r)
{
	uint64_t number;

	pthread_mutex_lock(&r->lock);
	number = ++r->asked;
	pthread_mutex_unlock(&r->lock);
	return number;
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
