/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_H
#define CULVERT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/endpoint.h"
#include "relay/acl.h"

/* Where the daemon listens for, and the clients look for, control requests. */
#define CONFIG_CONTROL_DEFAULT "/run/culvert/control.sock"

enum engine {
	ENGINE_AUTO,
	ENGINE_SOCKMAP,
	ENGINE_SPLICE,
	ENGINE_COPY,
	ENGINES,
};

const char *engine_name(enum engine e);

/* What becomes of a system call that is not on the list of syscall_filter.h. */
enum filter_mode {
	FILTER_ERRNO,
	FILTER_KILL,
	FILTER_OFF,
};

/* Which workers carry sessions. */
enum spread {
	SPREAD_AUTO,   /* as few as the load needs */
	SPREAD_ALL,    /* all, by chance; a session stays where it was accepted */
	SPREAD_ROTATE, /* all, and sessions move all the time: for tests */
};

#define OPTIONS_MAX 64 /* there are fewer: option.h */

struct forward_conf {
	const char *name; /* of the file; NULL: given on the command line.  See forward_name() */
	struct endpoint listen;
	struct endpoint upstream;
	/* its own, or what struct config says under the same name */
	enum engine engine;
	unsigned int connect_timeout_ms;
	unsigned int idle_timeout_ms, fin_timeout_ms;
	unsigned int resolve_interval_ms;
	unsigned int drain_timeout_ms; /* 0: none */
	uint64_t soft_limit, hard_limit;
	struct acl acl; /* owned */
	bool nodelay;
	unsigned int keepalive_s;
	size_t copy_buffer;
	unsigned int proxy_protocol; /* enum proxy_use */
	unsigned int proxy_timeout_ms;
	struct addr source;    /* of connections to the upstream, without a port; len 0: any */
	const char *interface; /* that they go out by; NULL: any */
	unsigned int mark;     /* of their packets (SO_MARK); 0: none */
	bool transparent;      /* they come from the client's address */
	unsigned int accept_rate;                  /* connections a second; 0: any number */
	uint64_t bandwidth, bandwidth_per_client;  /* bytes a second each way; 0: any number */
	/* its own, beside those of struct config; 0: none */
	unsigned int max_sessions, max_sessions_per_client;
};

/* Its sockets are made by the privileged process: what they have needs CAP_NET_ADMIN. */
static inline bool forward_needs_privileges(const struct forward_conf *fc)
{
	return fc->mark || fc->transparent;
}

/* What listens on port 0 is named with the port that the kernel has picked, once it has. */
static inline const char *forward_name(const struct forward_conf *fc)
{
	return fc->name ? fc->name : fc->listen.text;
}

/* The most that `bandwidth` may be, in bytes a second: a token bucket counts with 63 bits. */
#define BANDWIDTH_MAX (UINT64_C(1) << 37)

/* Everything `culvert run` can be told.  Immutable once the workers run. */
struct config {
	enum engine engine;
	unsigned int workers;            /* threads; never 0 after config_parse() */
	enum spread spread;
	const char *control;             /* path of the control socket */
	const char *pid_file;            /* NULL: none */
	unsigned int connect_timeout_ms; /* for one upstream address */
	unsigned int idle_timeout_ms;    /* 0: never */
	unsigned int fin_timeout_ms;     /* instead, once half closed; 0: the same */
	unsigned int resolve_interval_ms; /* between two look-ups of an upstream's name */
	unsigned int grace_ms;           /* SIGTERM to forced close */
	unsigned int drain_timeout_ms;   /* a forward is removed, to forced close; 0: none */
	unsigned int max_sessions;
	unsigned int max_sessions_per_client; /* 0: no limit */
	uint64_t kernel_memory;          /* bytes of kernel backlog of all flows */
	size_t copy_buffer;              /* bytes */
	unsigned int accept_rate;        /* of each forward, as the next two */
	uint64_t bandwidth, bandwidth_per_client;
	uint64_t soft_limit;             /* bytes of kernel backlog per flow; <= hard_limit */
	uint64_t hard_limit;             /* bytes of kernel backlog per flow */
	struct acl acl;                  /* owned; of forwards without rules */
	bool nodelay;
	unsigned int keepalive_s;        /* silent before it is probed; 0: never */
	unsigned int proxy_protocol;     /* enum proxy_use */
	unsigned int proxy_timeout_ms;   /* for a client's PROXY header */
	struct addr source;              /* these four: of each forward */
	const char *interface;
	unsigned int mark;
	bool transparent;
	unsigned int settle_ms;          /* in user space before auto may promote */
	unsigned int review_packets;     /* in the kernel, after which auto judges again; 0:
					  * never */
	enum filter_mode seccomp;        /* for calls that no module needs */
	bool probe;                      /* at the start; see probe.h */
	const char *user;                /* account to become; NULL: culvert's default */
	int log_level;                   /* LOG_ERR .. LOG_DEBUG of <syslog.h> */
	const char *session_log;         /* path of the session log, "-": stdout; NULL: none */
	struct forward_conf *forwards;   /* owned */
	size_t n_forwards;               /* at least 1 after config_parse() */
	const char *file;                /* that all this came from; NULL: the command line alone */
	unsigned int lines[OPTIONS_MAX]; /* of it, by option_number(); 0: not from there */
	uint32_t generation;             /* 0 at the start; see privileged.h */
	bool privileged_process;         /* if anything can need it */
	char **kept;                     /* owned: texts that pointers above point to */
	size_t n_kept;
};

/*
 * Fill RET from the arguments of `culvert run` (ARGV[0] is "run"), and from the file that --config
 * names; where both say something the arguments count.  Strings point into ARGV, or are kept.
 * On a mistake prints one line to stderr ("culvert: --soft-limit: ...", "culvert: FILE:LINE: ...")
 * and returns -EINVAL; also -ENOMEM, and what open(2) says of the file.  Host names are not looked
 * up: they have no address yet, see config_names.h.  --help prints the help and returns 1.  RET may
 * always be given to config_close().
 */
int config_parse(int argc, char **argv, struct config *ret);

/* The content of the configuration file, from wherever it came. */
struct config_source {
	const char *text;
	size_t len;
};

/*
 * The same, but the file that --config names is not opened: this is what it says.  There are no
 * notes on it.
 */
int config_parse_from(int argc, char **argv, const struct config_source *from, struct config *ret);

/*
 * Once names to listen at have addresses: no two listeners may overlap, and no way may lead back to
 * where it began (config_listen.h).  -EINVAL; ERR says which.  -ENOMEM.
 */
int config_check_listeners(const struct config *c, char *err, size_t errlen);

/* The exit code for what config_parse() returns: only what may pass is worth another try. */
int config_exit_code(int r);

void config_close(struct config *c);

/* The first forward that has ENGINE, or NULL. */
const struct forward_conf *config_forward_with(const struct config *c, enum engine engine);

/* A copy of TEXT that lives as long as C; NULL: no memory. */
const char *config_keep(struct config *c, const char *text);

/* The help of `culvert run`, made from the table that drives the parser (option.h). */
void config_help(void);

#endif
