// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/adopt.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "relay/admission.h"
#include "relay/session_graft.h"
#include "relay/session_life.h"
#include "relay/udp_session.h"

/*
 * The folder of pins of the daemon with this control socket in this network namespace, of which
 * there is one.  A name of a BPF file has no dot.
 */
static char *folder_of(const char *pins, const char *control)
{
	char *folder = NULL, *cwd = *control == '/' ? strdup("") : getcwd(NULL, 0);
	struct stat netns = { 0 };

	if (strcmp(pins, "none") && cwd && !stat("/proc/self/ns/net", &netns) &&
	    asprintf(&folder, "%s/%s%s%s_%ju", pins, cwd, *cwd ? "/" : "", control,
		     (uintmax_t)netns.st_ino) < 0)
		folder = NULL;
	for (char *at = folder ? folder + strlen(pins) + 1 : NULL; at && *at; at++)
		if (!isalnum((unsigned char)*at))
			*at = '_';
	free(cwd);
	return folder;
}

int adopt_open(const struct config *c, const struct account *a, struct shared *shared,
	       struct probe_start *probe)
{
	bool wanted = config_forward_with(c, ENGINE_GRAFT);
	/* a slot is used again as late as possible, so there are more than sessions */
	struct graft_limits limits = { .slots = c->max_sessions + c->max_sessions / 8 + 64,
				       .workers = c->workers,
				       .uid = a->uid,
				       .pins = folder_of(c->graft_pins, c->control) };
	int r;

	for (size_t i = 0; i < c->n_forwards; i++)
		wanted = wanted || (c->forwards[i].engine == ENGINE_AUTO && c->forwards[i].graft);
	r = probe_start(c, a, wanted ? &limits : NULL, &shared->kernel, &shared->grafts, probe);
	free((char *)limits.pins);
	return r;
}

struct forward *forward_with_tag(struct forward *f, uint32_t tag)
{
	while (f && graft_tag(forward_name(f->conf)) != tag)
		f = f->next;
	return f;
}

int adopt_session(struct shared *shared, struct worker *w, struct forward *first, uint32_t slot)
{
	const volatile struct graft_entry *e = graft_of(shared->grafts, slot);
	struct forward *f = forward_with_tag(first, e->forward);
	struct addr client = graft_tuple_address(&e->side[CLIENT].tuple, false);
	int r;

	if (!f)
		return -ENOENT;
	if (admission_enter_with(shared, f, (struct sockaddr *)&client.ss, true) != CAUSES)
		return -EUSERS;
	r = session_adopt(w, f, (struct sockaddr *)&client.ss, slot);
	if (r)
		admission_leave(shared, f, (struct sockaddr *)&client.ss);
	return r;
}

/* --- flows of UDP --- */

int adopt_flow(struct shared *shared, struct worker *w, struct forward *first, uint32_t slot)
{
	const volatile struct udp_flow *flow = udp_flow_of(grafts_udp(shared->grafts), slot);
	struct forward *f = forward_with_tag(first, flow->forward);
	struct addr client = graft_tuple_address(&flow->leg[CLIENT].tuple, false);
	int r;

	if (!f || !f->conf->listen.udp)
		return -ENOENT;
	if (admission_enter_with(shared, f, (struct sockaddr *)&client.ss, false) != CAUSES)
		return -EUSERS;
	r = udp_session_adopt(w, f, slot);
	if (r)
		admission_leave(shared, f, (struct sockaddr *)&client.ss);
	return r;
}

bool flow_is_of(const struct shared *shared, const struct worker *w, uint32_t slot)
{
	const volatile struct udp_flow *flow = udp_flow_of(grafts_udp(shared->grafts), slot);
	struct addr a = graft_tuple_address(&flow->leg[CLIENT].tuple, false);
	union client_addr client;

	client_addr_set(&client, (struct sockaddr *)&a.ss);
	return udp_worker(&client, shared->config->workers) == w->index;
}

/* By its worker, or the only one that listens. */
static bool adopt_left_flow(struct shared *shared, struct threads *ts, struct forward *first,
			    uint32_t slot)
{
	unsigned int w = 0;
	int r;

	while (w < ts->n - 1 && !flow_is_of(shared, &ts->workers[w], slot))
		w++;
	r = adopt_flow(shared, &ts->workers[w], first, slot);
	return !(r == -ENOENT ? adopt_flow(shared, ts->workers, first, slot) : r);
}

static void adopt_flows(struct shared *shared, struct threads *ts, struct forward *first)
{
	struct udp_grafts *us = grafts_udp(shared->grafts);
	unsigned int adopted = 0, ended = 0;

	/* answers to flows that are no more may still come */
	for (uint32_t slot = 0; slot < grafts_total(shared->grafts); slot++)
		udp_port_put(udp_flow_of(us, slot)->leg[1].tuple.local_port,
			     clock_ms() + UDP_PORT_OWED_MS);
	for (uint32_t slot = 0; udp_graft_next(us, &slot); slot++) {
		if (adopt_left_flow(shared, ts, first, slot)) {
			adopted++;
			continue;
		}
		udp_graft_leave(us, slot);
		ended++;
	}
	if (adopted)
		log_info("%u flows of UDP of the daemon before are adopted", adopted);
	if (ended)
		log_warning(
			"%u flows of UDP of the daemon before end: no forward has their name, or "
			"a limit is reached",
			ended);
}

void adopt_sessions(struct shared *shared, struct threads *ts, struct forward *first)
{
	struct grafts *gs = shared->grafts;
	unsigned int adopted = 0, reset = 0;

	if (gs)
		adopt_flows(shared, ts, first);
	for (uint32_t slot = 0; gs && graft_next(gs, &slot); slot++) {
		if (!adopt_session(shared, &ts->workers[slot % ts->n], first, slot)) {
			adopted++;
			continue;
		}
		graft_kill(gs, slot);
		graft_put(gs, slot);
		reset++;
	}
	if (gs)
		grafts_close_sockets(gs);
	if (adopted)
		log_info("%u grafted sessions of the daemon before are adopted", adopted);
	if (reset)
		log_warning("%u grafted sessions of the daemon before are reset: no forward has "
			    "their name, or a limit is reached",
			    reset);
}

/* --- culvert graft --- */

static int remove_left(const char *pins, const char *control)
{
	struct graft_limits limits = { .slots = 1, .workers = 1, .uid = geteuid() };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	unsigned int n = 0;
	struct grafts *gs;
	char err[512];
	int r;

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", control);
	r = unix_remove_stale(&un, sizeof(un));
	if (r)
		return log_failure(EXIT_CODE_FAILURE, "%s: %s", control,
				   r == -EADDRINUSE ? "a daemon runs" : strerror(-r));
	limits.pins = folder_of(pins, control);
	r = grafts_open(&limits, &gs, err, sizeof(err));
	free((char *)limits.pins);
	if (r)
		return log_failure(EXIT_CODE_FAILURE, "%s", err);
	sandbox_raise_nofile(2 * grafts_live(gs) + 64);
	grafts_revive(gs, geteuid()); /* sockets whose resets tell the ends */
	for (uint32_t slot = 0; graft_next(gs, &slot); slot++, n++)
		graft_kill(gs, slot);
	for (uint32_t slot = 0; udp_graft_next(grafts_udp(gs), &slot); slot++, n++)
		udp_graft_leave(grafts_udp(gs), slot);
	grafts_close_sockets(gs);
	grafts_close(gs, false);
	printf("sessions reset  %u\n", n);
	return EXIT_CODE_OK;
}

int graft_run(int argc, char **argv)
{
	static const struct option options[] = { { "remove", no_argument, NULL, 'r' },
						 { "control", required_argument, NULL, 'c' },
						 { "graft-pins", required_argument, NULL, 'p' },
						 { NULL, 0, NULL, 0 } };
	const char *control = CONFIG_CONTROL_DEFAULT, *pins = CONFIG_GRAFT_PINS_DEFAULT;
	bool remove = false;
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == '?')
			return EXIT_CODE_USAGE;
		remove = remove || o == 'r';
		control = o == 'c' ? optarg : control;
		pins = o == 'p' ? optarg : pins;
	}
	if (!remove || optind < argc)
		return log_failure(EXIT_CODE_USAGE, "expected --remove (`culvert help graft`)");
	return remove_left(pins, control);
}
