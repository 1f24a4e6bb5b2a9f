/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_START_H
#define CULVERT_PROBE_START_H

#include <stdbool.h>

#include "config/config.h"

#define PROBE_WHY_LEN 800

enum probe_verdict {
	PROBE_OK,      /* all that the carrier relies on holds */
	PROBE_BROKEN,  /* something does not */
	PROBE_UNKNOWN, /* it could not be tried; which is no proof, so the carrier is not used
			* either */
	PROBE_UNASKED, /* the engine does not need the carrier, or --probe no */
};

struct probe_finding {
	enum probe_verdict verdict;
	bool may_pass; /* a shortage of TCP memory or of CPU time can be the cause: not for ever */
	char why[PROBE_WHY_LEN]; /* for people; "" if OK */
};

/* What the daemon may use on this kernel. */
struct probe_start {
	struct probe_finding sockmap, splice;
	char summary[128]; /* of the probe: "22 behaviours hold (120 ms)" */
};

/*
 * Find out, by trying, which carriers of the engine can be trusted on this kernel, and log what
 * cannot. Returns 0, or the exit code for an engine that was asked for by name and cannot work:
 * EXIT_CODE_UNSUPPORTED, or EXIT_CODE_FAILURE if another start may find it working.  It takes two
 * times PROBE_TOTAL_MS and some seconds at most, PROBE_TOTAL_MS being as long as
 * PROBE_SLOW_VARIABLE makes it.  Needs the privileges of kernel_open(); to be called before they
 * are given up, and before there are threads.
 */
int probe_start(const struct config *c, struct probe_start *ret);

/* Why a carrier is not in use that no forward's engine asks for. */
void probe_say_unused(const struct config *c, char *buf, size_t size);
/* Log that FC, whose engine was asked for by name, cannot have it: WHY. */
void probe_say_refused(const struct config *c, const struct forward_conf *fc, const char *why);

/* May a carrier be used? */
static inline bool probe_allows(const struct probe_finding *f)
{
	return f->verdict == PROBE_OK || f->verdict == PROBE_UNASKED;
}

/*
 * And by an engine that is asked for later?  What none had asked for at the start was not tried.
 * PROBE: that of struct config.
 */
static inline bool probe_allows_later(const struct probe_finding *f, bool probe)
{
	return f->verdict == PROBE_OK || (f->verdict == PROBE_UNASKED && !probe);
}

#endif
