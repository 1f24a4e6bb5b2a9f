/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_H
#define CULVERT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "addr.h"
#include "size.h"

/* Where the daemon listens for, and the clients look for, control requests. */
#define CONFIG_CONTROL_DEFAULT "/run/culvert/control.sock"

enum engine {
	ENGINE_AUTO,
	ENGINE_SOCKMAP,
	ENGINE_SPLICE,
	ENGINE_COPY,
};

const char *engine_name(enum engine e);

/* What becomes of a system call that is not on the list of syscall_filter.h. */
enum filter_mode {
	FILTER_ERRNO,
	FILTER_KILL,
	FILTER_OFF,
};

struct forward_conf {
	struct endpoint listen;
	struct endpoint upstream;
};

/* Everything `culvert run` can be told.  Immutable once the workers run. */
struct config {
	enum engine engine;
	unsigned int workers;            /* threads; never 0 after config_parse() */
	const char *control;             /* path of the control socket */
	unsigned int connect_timeout_ms; /* for one upstream address */
	unsigned int grace_ms;           /* SIGTERM to forced close */
	unsigned int max_sessions;
	unsigned int max_sessions_per_client; /* 0: no limit */
	size_t copy_buffer;              /* bytes */
	uint64_t soft_limit;             /* bytes of kernel backlog per flow; <= hard_limit */
	uint64_t hard_limit;             /* bytes of kernel backlog per flow */
	unsigned int settle_ms;          /* in user space before auto may promote */
	unsigned int review_packets;     /* in the kernel, after which auto judges again; 0: never */
	enum filter_mode seccomp;        /* for calls that no module needs */
	bool probe;                      /* at the start; see probe_start.h */
	const char *user;                /* account to become; NULL: culvert's default */
	int log_level;                   /* LOG_ERR .. LOG_DEBUG of <syslog.h> */
	struct forward_conf *forwards;   /* owned */
	size_t n_forwards;               /* at least 1 after config_parse() */
};

/*
 * Fill RET from the arguments of `culvert run` (ARGV[0] is "run").  Strings point into ARGV.
 * On a mistake prints one line to stderr ("culvert: --soft-limit: ...") and returns -EINVAL; names
 * that do not resolve give -ENOENT; also -ENOMEM.  Names are looked up last, so other mistakes are
 * reported without delay.  --help prints the help and returns 1.  RET may always be given to
 * config_close().
 */
int config_parse(int argc, char **argv, struct config *ret);

void config_close(struct config *c);

/* The help of `culvert run`, made from the same table that drives the parser. */
void config_help(void);

#endif
