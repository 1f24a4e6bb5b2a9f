/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sandbox.h"
#include "base/log.h"
#include "config/acl.h"
#include "config/endpoint.h"

struct option_def;

#define SNI_NOT_TLS "not-tls"

/*
 * The settings of culvert, as plain values.  read.h fills them in.
 *
 *	command line ──┐                    ┌── struct config (the process)
 *	               ├─ lines, as written ┤      defaults ─┐ copied, then
 *	file ──────────┘                    └──    forwards ─┘ overridden
 *
 * option.h is the table of all settings; each text is read and stored by it.
 */

/* Where the daemon listens for control requests, and where the clients look for it. */
#define CONFIG_CONTROL_DEFAULT "/run/culvert/control.sock"
/* Where grafted sessions outlive the daemon. */
#define CONFIG_GRAFT_PINS_DEFAULT "/sys/fs/bpf/culvert"
#define BANDWIDTH_MAX (UINT64_C(1) << 37) /* bytes a second */
#define WORKERS_MAX 250 /* their sockets at one address fit into one message (SCM_RIGHTS: 253) */

enum engine {
	ENGINE_AUTO,
	ENGINE_SOCKMAP,
	ENGINE_SPLICE,
	ENGINE_COPY,
	ENGINE_GRAFT,
	ENGINES,
};

extern const char *const engine_names[ENGINES + 1]; /* the last is NULL, as in balance_names[] */
static inline const char *engine_name(enum engine e)
{
	return engine_names[e];
}

/* How a forward chooses the server of a new session. */
enum balance {
	BALANCE_ROUND_ROBIN,    /* the next one */
	BALANCE_LEAST_SESSIONS, /* the one with the fewest sessions for its weight */
	BALANCE_SOURCE,         /* always the same for a client's address */
};

extern const char *const balance_names[];

/* Uses of PROXY headers by a forward: a set. */
enum proxy_use {
	PROXY_RECEIVE = 1 << 0, /* each client begins with a header, of either version */
	PROXY_SEND_V1 = 1 << 1, /* the upstream is sent a header */
	PROXY_SEND_V2 = 1 << 2,
};

#define PROXY_SEND (PROXY_SEND_V1 | PROXY_SEND_V2)

extern const char *const proxy_use_names[]; /* the index is a set of enum proxy_use */

/*
 * AT ends a message that refers to an earlier line.  AT_PLACE() gives the arguments that AT needs,
 * for the PLACE of that line.
 */
#define AT "see %.*s"
#define AT_PLACE(place) (int)strlen(place) - 2, place

#define NOT_UTF8 "not UTF-8: in which encoding is it saved?"

/* A setting as it was written.  Its texts live as long as the configuration. */
struct config_line {
	const struct option_def *option;
	const char *key; /* as the file, or the command line, calls OPTION */
	const char *value;
	const char *place; /* "FILE:LINE: "; "": the command line */
};

struct config_lines {
	struct config_line *lines; /* owned */
	size_t n;
};

enum set_up {
	SET_UP_AUTO, /* as KERNEL, unless netfilter has hooks that would see the sessions */
	SET_UP_SOCKETS,
	SET_UP_KERNEL, /* netfilter does not see the sessions of known clients */
};

/* The settings of a forward.  The fields before `listen` are not inherited. */
struct forward_conf {
	const char *name;         /* NULL: from the command line; see forward_name() */
	struct config_lines said; /* of this forward alone */
	const char *place;        /* where it begins; as in struct config_line */
	/* a line is wrong, so a missing key, or a conflict but of listeners, is not reported */
	bool mistaken;
	/*
	 * The names of [sni FORWARD NAME...], separated by blanks.  Clients of FORWARD that ask for
	 * such a name get the servers of this section, which has no listener.  NULL: no such
	 * section.
	 */
	const char *sni;  /* SNI_NOT_TLS among them: clients that do not speak TLS */
	size_t of;        /* FORWARD's index in struct config */
	const char *alpn; /* of [sni]: a client must offer one of these protocols; NULL: any */
	bool hellos;      /* has [sni] sections, so its clients begin with a TLS hello */
	struct endpoint listen;
	struct upstream upstream;
	enum engine engine;
	bool graft;                       /* engine auto may graft */
	enum set_up set_up;               /* where its sessions begin */
	unsigned int graft_rtt_us;        /* auto: bulk is not grafted if both round
					   * trips together take longer; 0: no limit */
	unsigned int connect_timeout_ms;  /* for the look-up and all addresses together */
	unsigned int idle_timeout_ms;     /* 0: never */
	unsigned int fin_timeout_ms;      /* idle-timeout once half closed; 0: the same */
	unsigned int resolve_interval_ms; /* between two look-ups of the upstream's name */
	enum balance balance;
	/* of sessions that wait until a server has a place (its max-sessions) */
	unsigned int queue, queue_timeout_ms;
	bool each_address;     /* each address of a name is a server of its own */
	unsigned int check_ms; /* between two checks of a server; 0: none */
	/* what a check says and expects, see check_talk.h; NULL: it connects */
	const char *check_http, *check_status, *check_send, *check_expect;
	unsigned int check_agent;      /* port of the servers' agents; 0: none */
	unsigned int check_port;       /* where servers are checked; 0: where they serve */
	unsigned int check_timeout_ms; /* 0: as connect_timeout_ms */
	unsigned int on_down,
		on_backup;             /* 1: reset sessions of a server that fails its checks; of a
					* backup that gives way to another server */
	unsigned int rise, fall;       /* checks in a row after which a server is up, or down */
	unsigned int drain_timeout_ms; /* from its removal to a forced close; 0: no limit */
	uint64_t soft_limit, hard_limit; /* bytes of kernel backlog of a flow; soft <= hard */
	struct acl acl;                  /* acl.shared: the rules are inherited */
	struct acl acl_behind;           /* of the client that a PROXY header names; the same */
	bool nodelay;
	unsigned int keepalive_ms;     /* silence before an end is probed; 0: never */
	uint64_t copy_buffer;          /* bytes */
	unsigned int proxy_protocol;   /* enum proxy_use */
	unsigned int proxy_in;         /* 1: clients may leave the header out */
	unsigned int proxy_timeout_ms; /* for a client's PROXY header */
	unsigned int hello_timeout_ms; /* for a client's TLS hello */
	struct addr source;       /* of connections to the upstream, without a port; len 0: any */
	const char *interface;    /* of connections to the upstream; NULL: any */
	unsigned int mark;        /* of packets to the upstream (SO_MARK); 0: none */
	bool transparent;         /* connect to the upstream from the client's address */
	unsigned int accept_rate; /* connections a second; 0: any number */
	uint64_t bandwidth, bandwidth_per_client; /* bytes a second each way; 0: any number */
	/* beside the limits of the same names in struct config; 0: none */
	unsigned int max_sessions, max_sessions_per_client;
	/* of UDP alone; 0: no limit */
	unsigned int responses;        /* answers to a datagram, after which a session is over */
	bool replies;                  /* servers are to answer; false: silence is no fault */
	unsigned int max_reply_factor; /* answer bytes for a byte of a client that may be forged */
};

/* True if sockets of FC need CAP_NET_ADMIN, so that the privileged process makes them. */
static inline bool forward_needs_privileges(const struct forward_conf *fc)
{
	return fc->mark || fc->transparent;
}

/*
 * A forward without a name has its listener's text as its name.  If the listener has a single
 * address, with port 0, the text gets the port that the kernel has picked.
 */
static inline const char *forward_name(const struct forward_conf *fc)
{
	return fc->name ? fc->name : fc->listen.text;
}

static inline const char *protocol_name(bool udp)
{
	return udp ? "udp" : "tcp";
}

/* All settings of `culvert run`.  Immutable once the workers run. */
struct config {
	struct forward_conf defaults;         /* of forwards; without name and addresses */
	unsigned int workers;                 /* threads; never 0 after config_read() */
	const char *control;                  /* path of the control socket */
	const char *take_over;                /* that of the daemon to take over; NULL: none */
	const char *pid_file;                 /* NULL: none */
	const char *graft_pins;               /* folder of a BPF file system; "none" */
	unsigned int grace_ms;                /* SIGTERM to forced close */
	unsigned int max_sessions;            /* of all forwards together */
	unsigned int max_sessions_per_client; /* the same; 0: no limit */
	uint64_t kernel_memory;               /* bytes of kernel backlog of all flows */
	unsigned int settle_ms;               /* in user space before auto may promote */
	const char *set_up_ports;             /* of sessions from the SYN on; or "auto" */
	const char *relay;             /* its name, for the ids of its sessions; NULL: none */
	const char *standby_ports;     /* for `culvert check`; NULL: not known */
	enum filter_mode seccomp;      /* for calls that no module needs */
	bool probe;                    /* at the start; see probe.h */
	bool privileged_process;       /* may be started, if anything needs it */
	const char *user;              /* account to become; NULL: culvert's default */
	int log_level;                 /* LOG_ERR .. LOG_DEBUG of <syslog.h> */
	struct endpoint metrics;       /* where to serve metrics; no text: nowhere */
	const char *session_log;       /* path of the session log, "-": stdout; NULL: none */
	bool session_log_empty;        /* log sessions without a byte, too */
	struct forward_conf *forwards; /* owned */
	size_t n_forwards;             /* at least 1 after config_read() */
	const char *file;              /* the configuration file; NULL: none */
	char *text;                    /* of the file, with those that it includes; owned */
	struct config_lines said;      /* by the file, for all forwards */
	struct config_lines words;     /* of the command line; these override the file */
	struct config_lines addresses; /* of the command line: two for each forward */
	bool is_rinetd;                /* the file is a rinetd.conf */
	char **kept;                   /* owned: texts that pointers above point to */
	size_t n_kept;
};

void config_close(struct config *c);

/* The first forward that has ENGINE, or NULL. */
const struct forward_conf *config_forward_with(const struct config *c, enum engine engine);

/* Format a text that lives as long as C. */
const char *config_keep(struct config *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* The least and the most of TEXT, as 200-399, or 200 alone.  False: TEXT has none. */
bool config_range(const char *text, unsigned int ret[2]);
/* The two ports of TEXT, as 20000-29999.  False: TEXT has none. */
bool config_port_range(const char *text, unsigned int ret[2]);

/* Print PLACE and a message on stderr.  The value is -EINVAL. */
#define config_complain(place, fmt, ...) log_complain(-EINVAL, "%s" fmt, place, ##__VA_ARGS__)

/* Add a forward whose `place` is "", and whose other fields are zero. */
struct forward_conf *config_add_forward(struct config *c);

void config_lines_add(struct config_lines *l, struct config_line line);
