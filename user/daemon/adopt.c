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
#include "datapath/graft/graft_tuple.h"
#include "datapath/graft/udp_graft.h"
#include "relay/admission.h"
#include "relay/session_life.h"
#include "relay/udp/udp_life.h"
#include "relay/udp/udp_upstream.h"

/* --- the table --- */

uint32_t held_places(const struct graft_table *gs)
{
	return 2 * graft_table_total(gs);
}

static uint32_t held_place(const struct graft_table *gs, bool udp, uint32_t slot)
{
	return slot == NO_SLOT ? NO_SLOT : slot + udp * graft_table_total(gs);
}

static enum held_state held_state(const struct graft_head *head)
{
	enum graft_state state = graft_state_of(head);

	if (state == GRAFT_STANDBY)
		return HELD_STANDBY;
	return graft_state_carries(state) ? HELD_ACTIVE : HELD_NOTHING;
}

struct held held_at(struct graft_table *gs, uint32_t at)
{
	uint32_t n = graft_table_total(gs), slot = at % n;
	struct graft_entry *g = (struct graft_entry *)graft_of(gs, slot);
	struct udp_flow *f = (struct udp_flow *)udp_flow_of(graft_table_udp(gs), slot);
	struct held h = { .at = at, .udp = at >= n, .slot = slot, .grafts = gs };

	h.head = h.udp ? &f->head : &g->head;
	h.leg[0] = h.udp ? &f->leg[0] : &g->side[0].leg;
	h.leg[1] = h.udp ? &f->leg[1] : &g->side[1].leg;
	h.state = held_state(h.head);
	return h;
}

bool held_next(struct graft_table *gs, struct held *h)
{
	const uint64_t *used = graft_table_used(gs);

	if (!bit_next(used, used, held_places(gs), &h->at))
		return false;
	*h = held_at(gs, h->at);
	return true;
}

uint32_t held_find(struct graft_table *gs, bool udp, const struct graft_tuple *client)
{
	return held_place(gs, udp,
			  udp ? udp_graft_find(graft_table_udp(gs), client) :
				graft_find(gs, client));
}

bool held_is_here(const struct held *h)
{
	return graft_table_has_address(h->grafts, &h->leg[0]->tuple.local);
}

bool held_is_same(struct graft_table *gs, uint32_t at, const struct graft_record *r)
{
	struct held h = held_at(gs, at);
	const volatile struct graft_side *have = graft_of(gs, h.slot)->side;
	const struct graft_side *new = r->tcp.side;

	if (h.state != HELD_STANDBY)
		return false;
	if (h.udp)
		return h.head->id == r->flow.head.id;
	for (int i = 0; i < 2; i++)
		if (have[i].seq_add != new[i].seq_add || have[i].tsval_add != new[i].tsval_add ||
		    have[i].fin != new[i].fin)
			return false;
	return h.head->id == r->tcp.head.id;
}

typedef uint64_t __attribute__((may_alias)) word;

__attribute__((no_sanitize("thread"))) static void held_copy(void *to, const volatile void *from,
							     size_t size)
{
	for (size_t i = 0; i < size / sizeof(word); i++)
		((word *)to)[i] = ((const volatile word *)from)[i];
}

void held_record(const struct held *h, struct graft_record *ret)
{
	ret->kind = h->udp ? RECORD_UDP : RECORD_TCP;
	if (h->udp)
		held_copy(&ret->flow, udp_flow_of(graft_table_udp(h->grafts), h->slot),
			  sizeof(ret->flow));
	else
		held_copy(&ret->tcp, graft_of(h->grafts, h->slot), sizeof(ret->tcp));
}

int held_import(struct graft_table *gs, struct graft_record *r, uint32_t *at)
{
	bool udp = r->kind == RECORD_UDP, is_new = *at == NO_SLOT;
	uint32_t slot;
	struct held h;
	int e = udp ? udp_graft_import(graft_table_udp(gs), &r->flow, &slot) :
		      graft_import(gs, &r->tcp, &slot);

	if (e)
		return e;
	*at = held_place(gs, udp, slot);
	/*
	 * look after the import: from then on no new session takes the port; a known flow keeps its
	 * port
	 */
	if (!udp || !is_new || !udp_port_is_used(record_leg(r, 1)->tuple.local_port))
		return 0;
	h = held_at(gs, *at);
	held_end(&h);
	return -EADDRINUSE;
}

void held_end(const struct held *h)
{
	if (h->udp) {
		udp_graft_put(graft_table_udp(h->grafts), h->slot);
	} else if (!graft_drop(h->grafts, h->slot)) {
		graft_kill(h->grafts, h->slot);
		graft_close_sockets(h->grafts, h->slot);
		graft_put(h->grafts, h->slot);
	}
}

void held_stand_by(const struct held *h)
{
	if (h->udp)
		udp_graft_part(graft_table_udp(h->grafts), h->slot);
	else
		graft_part(h->grafts, h->slot);
}

static void held_client(const struct held *h, union client_addr *ret)
{
	struct addr a = graft_tuple_address(&h->leg[CLIENT]->tuple, false);

	client_addr_set(ret, (struct sockaddr *)&a.ss);
}

bool held_is_of(const struct held *h, const struct worker *w)
{
	unsigned int workers = w->shared->config->workers;
	union client_addr client;

	if (!h->udp)
		return h->slot % workers == w->index;
	held_client(h, &client);
	return udp_worker(&client, workers) == w->index;
}

int held_adopt(const struct held *h, struct worker *w, const struct forwards *all)
{
	struct forward *f = forward_with_tag(all, h->head->forward);
	union client_addr client;
	int r;

	held_client(h, &client);
	if (!f || f->conf->listen.udp != h->udp)
		return -ENOENT;
	if (admission_enter_with(w->shared, f, &client.sa, !h->udp) != CAUSES)
		return -EUSERS;
	r = h->udp ? udp_session_adopt(w, f, h->slot) : session_adopt(w, f, &client.sa, h->slot);
	if (r)
		admission_leave(w->shared, f, &client.sa);
	return r;
}

/* --- sessions of the daemon before --- */

/*
 * The folder of pins of the one daemon that has this control socket in this network namespace.  A
 * name of a BPF file has no dot.
 */
static char *adopt_folder(const char *pins, const char *control)
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
	/* a slot is used again as late as possible, so slots are more than sessions */
	struct graft_limits limits = { .slots = c->max_sessions + c->max_sessions / 8 + 64,
				       .workers = c->workers,
				       .uid = a->uid,
				       .pins = adopt_folder(c->graft_pins, c->control) };
	int r;

	for (size_t i = 0; i < c->n_forwards; i++)
		wanted = wanted || (c->forwards[i].engine == ENGINE_AUTO && c->forwards[i].graft);
	r = probe_start(c, a, wanted ? &limits : NULL, &shared->kernel, &shared->grafts, probe);
	free((char *)limits.pins);
	return r;
}

/* The worker of a session adopts it; the first worker does if that one has no socket for it. */
static bool adopt_session(const struct held *h, struct threads *ts, const struct forwards *all)
{
	unsigned int w = 0;
	int r;

	while (w < ts->n - 1 && !held_is_of(h, &ts->workers[w]))
		w++;
	r = held_adopt(h, &ts->workers[w], all);
	return !(r == -ENOENT ? held_adopt(h, ts->workers, all) : r);
}

void adopt_sessions(struct shared *shared, struct threads *ts, const struct forwards *all)
{
	unsigned int adopted = 0, ended = 0;
	uint32_t slots = shared->grafts ? graft_table_total(shared->grafts) : 0;

	if (!slots)
		return;
	/* late answers to flows that are over may still come to their ports */
	for (uint32_t at = slots; at < 2 * slots; at++)
		udp_port_put(held_at(shared->grafts, at).leg[UPSTREAM]->tuple.local_port,
			     clock_ms() + UDP_PORT_OWED_MS);
	for (struct held h = { 0 }; held_next(shared->grafts, &h); h.at++) {
		if (h.state != HELD_ACTIVE)
			continue;
		if (adopt_session(&h, ts, all)) {
			adopted++;
			continue;
		}
		held_end(&h);
		ended++;
	}
	graft_table_close_sockets(shared->grafts);
	if (adopted)
		log_info("%u grafted sessions of the daemon before are adopted", adopted);
	if (ended)
		log_warning("%u grafted sessions of the daemon before are reset: no forward has "
			    "their name, or a limit is reached",
			    ended);
}

/* --- culvert graft --- */

static int adopt_remove(const char *pins, const char *control)
{
	struct graft_limits limits = { .slots = 1, .workers = 1, .uid = geteuid() };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	unsigned int n = 0;
	struct graft_table *gs;
	char err[512];
	int r;

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", control);
	r = unix_remove_stale(&un, sizeof(un));
	if (r)
		return log_failure(EXIT_CODE_FAILURE, "%s: %s", control,
				   r == -EADDRINUSE ? "a daemon runs" : strerror(-r));
	limits.pins = adopt_folder(pins, control);
	r = graft_table_open(&limits, &gs, err, sizeof(err));
	free((char *)limits.pins);
	if (r)
		return log_failure(EXIT_CODE_FAILURE, "%s", err);
	sandbox_raise_nofile(2 * graft_table_live(gs) + 64);
	graft_table_revive(gs, geteuid()); /* their resets tell the ends */
	for (uint32_t slot = 0; graft_next(gs, &slot); slot++, n++)
		graft_kill(gs, slot);
	for (uint32_t slot = 0; udp_graft_next(graft_table_udp(gs), &slot); slot++, n++)
		udp_graft_put(graft_table_udp(gs), slot);
	graft_table_close_sockets(gs);
	graft_table_close(gs, false);
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
	return adopt_remove(pins, control);
}
