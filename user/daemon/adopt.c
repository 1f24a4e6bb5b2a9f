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
#include "base/bits.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "datapath/graft_tuple.h"
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

struct held held_at(const struct shared *shared, uint32_t at)
{
	uint32_t n = grafts_total(shared->grafts);
	struct graft_entry *g = (struct graft_entry *)graft_of(shared->grafts, at % n);
	struct udp_flow *f = (struct udp_flow *)udp_flow_of(grafts_udp(shared->grafts), at % n);
	struct held h = { .leg = { &g->side[0].leg, &g->side[1].leg },
			  .forward = (void *)&g->forward,
			  .source = (void *)&g->source,
			  .mirrored = (void *)&g->mirrored,
			  .alone_ms = (void *)&g->alone_ms,
			  .id = (void *)&g->id };
	uint32_t used = __atomic_load_n(&f->used, __ATOMIC_ACQUIRE);

	if (at >= n)
		h = (struct held){ .leg = { &f->leg[0], &f->leg[1] },
				   .forward = (void *)&f->forward,
				   .source = (void *)&f->source,
				   .mirrored = (void *)&f->mirrored,
				   .alone_ms = (void *)&f->left_ms,
				   .id = (void *)&f->id };
	if (at < n ? graft_carries(shared->grafts, at) : used == 1)
		h.state = HELD_ACTIVE;
	else if (at < n ? graft_state(shared->grafts, at) == GRAFT_STANDBY : used == UDP_STANDBY)
		h.state = HELD_STANDBY;
	return h;
}

bool held_next(const struct shared *shared, uint32_t *at)
{
	const uint64_t *used = grafts_used(shared->grafts);

	return bit_next(used, used, 2 * grafts_total(shared->grafts), at);
}

void held_end(struct shared *shared, uint32_t at)
{
	uint32_t n = grafts_total(shared->grafts);

	if (at >= n) {
		udp_graft_leave(grafts_udp(shared->grafts), at - n);
	} else if (!graft_drop(shared->grafts, at)) {
		graft_kill(shared->grafts, at);
		graft_close_sockets(shared->grafts, at);
		graft_put(shared->grafts, at);
	}
}

static void client_of(const struct shared *shared, uint32_t at, union client_addr *ret)
{
	struct addr a = graft_tuple_address(&held_at(shared, at).leg[CLIENT]->tuple, false);

	client_addr_set(ret, (struct sockaddr *)&a.ss);
}

bool held_is_of(const struct shared *shared, const struct worker *w, uint32_t at)
{
	union client_addr client;

	if (at < grafts_total(shared->grafts))
		return at % shared->config->workers == w->index;
	client_of(shared, at, &client);
	return udp_worker(&client, shared->config->workers) == w->index;
}

int held_adopt(struct shared *shared, struct worker *w, const struct forwards *all, uint32_t at)
{
	struct forward *f = forward_with_tag(all, *held_at(shared, at).forward);
	uint32_t n = grafts_total(shared->grafts);
	union client_addr client;
	bool udp = at >= n;
	int r;

	client_of(shared, at, &client);
	if (!f || f->conf->listen.udp != udp)
		return -ENOENT;
	if (admission_enter_with(shared, f, &client.sa, !udp) != CAUSES)
		return -EUSERS;
	r = udp ? udp_session_adopt(w, f, at - n) : session_adopt(w, f, &client.sa, at);
	if (r)
		admission_leave(shared, f, &client.sa);
	return r;
}

/* By its worker, or the only one that listens. */
static bool adopt_left(struct shared *shared, struct threads *ts, const struct forwards *all,
		       uint32_t at)
{
	unsigned int w = 0;
	int r;

	while (w < ts->n - 1 && !held_is_of(shared, &ts->workers[w], at))
		w++;
	r = held_adopt(shared, &ts->workers[w], all, at);
	return !(r == -ENOENT ? held_adopt(shared, ts->workers, all, at) : r);
}

void adopt_sessions(struct shared *shared, struct threads *ts, const struct forwards *all)
{
	uint32_t n = shared->grafts ? grafts_total(shared->grafts) : 0;
	unsigned int adopted = 0, ended = 0;

	/* answers to flows that are no more may still come */
	for (uint32_t at = n; at < 2 * n; at++)
		udp_port_put(held_at(shared, at).leg[UPSTREAM]->tuple.local_port,
			     clock_ms() + UDP_PORT_OWED_MS);
	for (uint32_t at = 0; n && held_next(shared, &at); at++) {
		if (held_at(shared, at).state != HELD_ACTIVE)
			continue;
		if (adopt_left(shared, ts, all, at)) {
			adopted++;
			continue;
		}
		held_end(shared, at);
		ended++;
	}
	if (n)
		grafts_close_sockets(shared->grafts);
	if (adopted)
		log_info("%u grafted sessions of the daemon before are adopted", adopted);
	if (ended)
		log_warning("%u grafted sessions of the daemon before are reset: no forward has "
			    "their name, or a limit is reached",
			    ended);
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
