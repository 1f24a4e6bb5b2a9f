/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "base/loop.h"
#include "base/sandbox.h"
#include "config/config.h"
#include "daemon/control_socket.h"
#include "daemon/control_round.h"
#include "daemon/netlink_watch.h"
#include "daemon/service.h"
#include "daemon/standby.h"
#include "probe/probe.h"

struct daemon {
	struct config config;
	struct account account;
	struct probe_start probe;
	struct take_over *take_over; /* of the daemon before this one; NULL: there is none */
	struct shared shared;        /* the kernel path, grafts, names, checks, session log */
	struct service service;      /* forwards, workers, the privileged process */
	struct control *control;
	struct control *metrics; /* NULL: none */
	struct actions actions;
	char err[1024]; /* the complaint of a step of the start */

	/* the main thread */
	struct loop loop;
	struct netlink_watch routes;
	struct standby standby; /* if packet programs are loaded */
	struct source signals;
	struct timer look; /* for the watchdog; at the end: have the workers ended? */
	uint64_t look_ms;  /* between two looks; 0: there is no watchdog */
	int sig;           /* the signal that ends culvert; 0: none has come */
	uint64_t ended_ms; /* when the end began; 0: it has not */
	struct source tried;
	struct timer ready; /* the latest time to send READY=1; not set: READY=1 is sent */
	int code;           /* exit code of a failed trial, which ends culvert; 0: none */
};

/* The signals that the main thread takes; one of the steps blocks them. */
sigset_t daemon_signals(void);
/*
 * Open all that needs root: sockets, packet programs, files.  D has its configuration and its
 * loops.  0, or an exit code, after a complaint.
 */
int daemon_start(struct daemon *d);
