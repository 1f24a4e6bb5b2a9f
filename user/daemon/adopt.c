// SPDX-License-Identifier: BSD-2-Clause
/* All of this runs on the main thread, before workers start. */
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
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "daemon/grafted.h"
#include "relay/upstream_socket.h"

/*
 * The folder for the pins of the daemon that has this control socket in this network namespace: no
 * other daemon has the same folder.  The name of a file of bpffs must not have a dot.
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

/* True if sessions may begin in the kernel. */
static bool adopt_wants_syn(const struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++)
		if (c->forwards[i].set_up != SET_UP_SOCKETS && !c->forwards[i].listen.udp)
			return true;
	return false;
}

#define SYN_PORT 20000
#define SYN_PORTS 8192

/*
 * The first and the last local port of sessions from the SYN on.  The kernel must not choose them for
 * other sockets: the server would find such a connection in TIME_WAIT, with other numbers.
 */
static bool adopt_ports(const struct config *c, unsigned int ret[2])
{
	unsigned int first = SYN_PORT;

	if (config_port_range(c->set_up_ports, ret))
		return true;
	upstream_learn_ports();
	if (first <= upstream_ports[1] && upstream_ports[0] < first + SYN_PORTS)
		first = upstream_ports[0] >= 1024 + SYN_PORTS ? upstream_ports[0] - SYN_PORTS :
								upstream_ports[1] + 1;
	ret[0] = first;
	ret[1] = first + SYN_PORTS - 1;
	return ret[1] <= UINT16_MAX;
}

const char *adopt_no_syn(const struct config *c)
{
	unsigned int ports[2];

	if (!adopt_wants_syn(c))
		return "set-up = sockets at the start";
	if (!c->privileged_process)
		return "privileged-process = no";
	return adopt_ports(c, ports) ? NULL : "ip_local_port_range: see set-up-ports";
}

int adopt_open(const struct config *c, const struct account *a, bool takes_over,
	       struct shared *shared, struct probe_start *probe)
{
	bool wanted = config_forward_with(c, ENGINE_GRAFT);
	/* a freed slot rests as long as possible, so there are more slots than sessions */
	struct graft_limits limits = { .slots = c->max_sessions + c->max_sessions / 8 + 64,
				       .workers = c->workers,
				       .uid = a->uid,
				       .pins = adopt_folder(c->graft_pins, c->control),
				       .takes_over = takes_over };
	unsigned int ports[2];
	int r;

	shared->no_syn = adopt_no_syn(c);
	if (!shared->no_syn && adopt_ports(c, ports)) {
		limits.syn_port = (uint16_t)ports[0];
		limits.syn_slots = ports[1] - ports[0] + 1;
	}
	for (size_t i = 0; i < c->n_forwards; i++)
		wanted = wanted || (c->forwards[i].engine == ENGINE_AUTO && c->forwards[i].graft);
	r = probe_start(c, a, wanted ? &limits : NULL, &shared->kernel, &shared->grafts, probe);
	free((char *)limits.pins);
	return r;
}

/* The worker of H adopts H.  If that worker has no socket for H, the first worker adopts H. */
static bool adopt_session(const struct grafted *h, struct threads *ts, const struct forwards *all)
{
	unsigned int w = 0;
	int r;

	while (w < ts->n - 1 && !grafted_is_of(h, &ts->workers[w]))
		w++;
	r = grafted_adopt(h, &ts->workers[w], all);
	return !(r == -ENOENT ? grafted_adopt(h, ts->workers, all) : r);
}

void adopt_sessions(struct shared *shared, struct threads *ts, const struct forwards *all)
{
	unsigned int adopted = 0, ended = 0;

	if (!shared->grafts)
		return;
	grafted_rest_ports(shared->grafts);
	for (struct grafted h = { 0 }; grafted_next(shared->grafts, &h); h.at++) {
		/* another relay has the session that this one helps with; see standby_is_told() */
		if (h.state != GRAFTED_ACTIVE || (grafted_is_unowned(&h) && h.head->source))
			continue;
		if (adopt_session(&h, ts, all)) {
			adopted++;
			continue;
		}
		grafted_end(&h);
		ended++;
	}
	graft_table_close_sockets(shared->grafts);
	if (adopted)
		log_info("%u grafted sessions of an earlier daemon are adopted", adopted);
	if (ended)
		log_warning("%u grafted sessions of an earlier daemon are reset: their forward is "
			    "gone from the configuration, or there is no memory",
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
	graft_table_revive(gs, geteuid()); /* makes sockets, so that both ends get a reset */
	for (struct grafted h = { 0 }; grafted_next(gs, &h); h.at++) {
		if (h.state != GRAFTED_ACTIVE)
			continue;
		grafted_end(&h);
		n++;
	}
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
