/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/sandbox.h"
#include "config/config.h"
#include "datapath/graft/graft.h"
#include "datapath/sockmap/sockmap.h"

/*
 * Find out which carriers can be trusted on this kernel, by trying the behaviours that they rely on
 * (behaviours.h).  `culvert probe` tries all, the daemon at its start those of the carriers that
 * its engines may use.  The parent loads the programs, a child without privileges tries the rest.
 */

/*
 * `culvert probe`: try all behaviours on loopback sockets of its own.  ARGV[0] is "probe".  Returns
 * the exit code: 0 when all hold, 3 when one does not or cannot be tried, 2 for a mistake in ARGV.
 * With --json one line goes to stdout:
 *
 *	{"kernel":"6.18.44","usable":true,"splice_usable":true,"graft_usable":true,
 *	 "checks":[{"name":"load","ok":true,"detail":"...","why":"..."}, ...]}
 *
 * where "ok" is null for a behaviour that was skipped because one before it does not hold; "usable"
 * is about sockmap.
 */
int probe_run(int argc, char **argv);
/* Print the list of behaviours. */
void probe_help(void);

#define PROBE_WHY_LEN 800

#define PROBE_UNUSED "no forward uses it"

struct probe_finding {
	bool usable;             /* for splice also true, untried, with `--probe no` */
	char why[PROBE_WHY_LEN]; /* why the carrier is not usable, or was not tried; for people */
};

struct results;

/* The carriers that the daemon may use on this kernel. */
struct probe_start {
	/* of sockmap, splice and graft; not to be read while the trial runs */
	struct probe_finding of[ENGINES];
	bool tried;        /* a behaviour was tried */
	char summary[32];  /* "tried in 40 ms" */
	_Atomic bool runs; /* a child tries them */
	int fd;            /* pidfd of the child */
	/* probe.c's own */
	pid_t pid;
	uint64_t began_ms;
	struct results *results;
};

/*
 * Load the programs that an engine wants.  Begin to try the behaviours, to find the carriers that
 * can be trusted on this kernel; log the others.  GRAFT: for the packet programs; NULL: no forward
 * grafts sessions.  RET_KERNEL and RET_GRAFTS, which were NULL, become the loaded programs, which
 * the caller closes; NULL: they cannot be used.  While the trial runs, the caller puts no socket
 * into RET_KERNEL.  Returns 0, or EXIT_CODE_UNSUPPORTED for an engine that was asked for by name
 * and cannot work.  The child becomes ACCOUNT, and ends with the thread that calls.  Needs the
 * privileges of sockmap_open(); to be called before they are given up, and before there are
 * threads.
 */
int probe_start(const struct config *c, const struct account *account,
		const struct graft_limits *graft, struct sockmap **ret_kernel,
		struct graft_table **ret_grafts, struct probe_start *ret);
/* The child has ended: judge its findings.  As probe_start(); the programs stay loaded. */
int probe_end(const struct config *c, struct probe_start *p);
/* Why ENGINE cannot be used now; NULL: it can.  By any thread, as the next. */
const char *probe_hindrance(const struct probe_start *p, enum engine engine);
/* The trial is over, and ENGINE cannot be used. */
bool probe_has_failed(const struct probe_start *p, enum engine engine);
