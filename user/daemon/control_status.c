// SPDX-License-Identifier: BSD-2-Clause
/* On a control thread; status_descriptors() also on threads of metrics, and on the main thread. */
#include "daemon/control_status.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/syscalls_allowed.h"
#include "daemon/control_forwards.h"
#include "daemon/reload.h"
#include "relay/session_log.h"
#include "version.h"

SYSCALLS_ALLOWED(
	SYSCALL(getpid),
	SYSCALL(fstat),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)),
	SYSCALL(lseek), /* /proc/self/fd is read again and again, for it cannot be opened again */
	SYSCALL(getdents64));

/* Flows and bytes by carrier, handovers, and errors by cause. */
static void status_add_sums(struct round *r)
{
	struct json_object *carriers = json_object_new_array();
	struct json_object *handovers = json_object_new_object();
	struct json_object *errors = json_object_new_object();
	const struct threads *ts = &r->actions->service->threads;

	for (unsigned int c = 0; c < CARRIERS; c++) {
		struct json_object *o = json_object_new_object();

		json_add_text(o, "carrier", carrier_names[c]);
		json_add_int(o, "flows", r->flows[c]);
		json_add_int(o, "bytes", threads_sum(ts, offsetof(struct stats, carrier_bytes[c])));
		json_append(carriers, o);
	}
	for (unsigned int i = 0; i < HANDOVERS; i++) {
		char name[16] = "failed";
		uint64_t n = 0;

		for (unsigned int why = 0; why < REASONS; why++)
			n += threads_sum(ts, offsetof(struct stats, handovers[i][why]));
		if (i < CARRIERS)
			snprintf(name, sizeof(name), "to_%s", carrier_names[i]);
		json_add_int(handovers, name, n);
	}
	for (unsigned int c = 0; c < CAUSES; c++)
		json_add_int(errors, cause_name(c),
			     threads_sum(ts, offsetof(struct stats, errors[c])));
	json_add(r->answer, "carriers", carriers);
	json_add(r->answer, "handovers", handovers);
	json_add(r->answer, "errors", errors);
}

/* A feature that may be missing, and why. */
static void status_add_feature(struct json_object *list, const char *name, bool available,
			       const char *reason)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "name", name);
	json_add_bool(o, "available", available);
	json_add_text(o, "reason", reason);
	json_append(list, o);
}

static struct json_object *status_kernel_json(struct round *r)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	const struct probe_start *p = r->actions->probe;
	const char *no_sockmap = probe_hindrance(p, ENGINE_SOCKMAP);
	const char *no_splice = probe_hindrance(p, ENGINE_SPLICE);
	const char *no_graft = probe_hindrance(p, ENGINE_GRAFT);
	struct sockmap *k = r->shared->kernel;

	json_add_bool(o, "available", !no_sockmap);
	json_add_text(o, "reason", no_sockmap ?: "");
	status_add_feature(list, "splice", !no_splice, no_splice ?: p->of[ENGINE_SPLICE].why);
	status_add_feature(list, "graft", !no_graft, no_graft ?: "");
	status_add_feature(list, "tried at the start", p->tried, p->runs ? "not yet" : p->summary);
	json_add(o, "features", list);
	json_add_int(o, "events_lost", k ? *sockmap_rings(k)->lost : 0);
	return o;
}

/*
 * Since Linux 6.2 the size of the directory is the number of descriptors.  Before, count the
 * entries but for "." and "..".  The directory's own descriptor is left out.  0: there is no /proc.
 */
unsigned int status_descriptors(const struct actions *a)
{
	DIR *d = a->descriptors;
	struct stat st;
	unsigned int n = 0;

	if (!d)
		return 0;
	if (!fstat(dirfd(d), &st) && st.st_size > 0)
		return (unsigned int)st.st_size - 1;
	rewinddir(d);
	while (readdir(d))
		n++;
	return n > 3 ? n - 3 : 0;
}

static struct json_object *status_resources_json(const struct round *r)
{
	struct json_object *o = json_object_new_object();
	struct sockmap *k = r->shared->kernel;

	json_add_int(o, "sessions", atomic_load(&r->shared->live));
	json_add_int(o, "clients", atomic_load(&r->shared->clients.n));
	json_add_int(o, "slots_used", k ? sockmap_pairs_used(k) * 2 : 0);
	json_add_int(o, "slots_total", k ? sockmap_pairs_total(k) * 2 : 0);
	json_add_int(o, "kernel_memory", k ? sockmap_memory(k) : 0);
	json_add_int(o, "kernel_memory_limit", k ? sockmap_memory_limit(k) : 0);
	json_add_int(o, "pipes", r->pipes);
	json_add_int(o, "pipes_idle", r->pipes_idle);
	json_add_int(o, "buffers", r->buffers);
	json_add_int(o, "fds", status_descriptors(r->actions));
	return o;
}

struct json_object *status_command(struct round *r)
{
	const struct config *c = r->shared->config;

	round_ask(r, round_count);
	json_add_text(r->answer, "version", CULVERT_VERSION);
	json_add_int(r->answer, "pid", (uint64_t)getpid());
	json_add_int(r->answer, "uptime_ms", clock_ms() - r->actions->started_ms);
	json_add_text(r->answer, "engine", engine_name(c->defaults.engine));
	json_add_int(r->answer, "workers", r->actions->service->threads.n);
	json_add_int(r->answer, "workers_silent", r->silent);
	json_add_int(r->answer, "max_sessions", c->max_sessions);
	json_add_int(r->answer, "max_sessions_per_client", c->max_sessions_per_client);
	json_add_text(r->answer, "resolver", r->shared->names ? "running" : "not needed");
	if (!request_has(r->req, KEY_BRIEF))
		json_add(r->answer, "forwards", forwards_json(r));
	json_add(r->answer, "reload", reload_json(r->actions->service));
	status_add_sums(r);
	json_add(r->answer, "kernel", status_kernel_json(r));
	if (r->shared->session_log)
		json_add(r->answer, "session_log", session_log_json(r->shared->session_log));
	else
		json_add_null(r->answer, "session_log");
	if (r->actions->standby)
		json_add(r->answer, "standby", standby_json(r->actions->standby));
	else
		json_add_null(r->answer, "standby");
	json_add(r->answer, "resources", status_resources_json(r));
	return NULL;
}
