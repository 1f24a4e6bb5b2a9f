/* SPDX-License-Identifier: BSD-2-Clause */
#include "config/option.h"

#include <string.h>

#include "config/config.h"

#define DAY_MS (24 * 3600 * 1000)
#define WEEK_MS (7 * DAY_MS)
#define KEEPALIVE_MAX 32767 /* MAX_TCP_KEEPIDLE */

#define AT(field) offsetof(struct config, field)
/* Of each forward, under the same name. */
#define EACH(field) \
	.scope = SCOPE_EACH, .offset = AT(field), .own = offsetof(struct forward_conf, field)
#define OWN(field) .scope = SCOPE_FORWARD, .own = offsetof(struct forward_conf, field)

static const struct option_def options[] = {
	{ .name = "config", .metavar = "FILE", .kind = KIND_FILE, .offset = AT(file),
	  .scope = SCOPE_WORDS, .computed = "none",
	  .help = "configuration file to read; also -c FILE" },
	{ .name = "engine", .metavar = "ENGINE", .kind = KIND_ENGINE, EACH(engine),
	  .initial = "auto",
	  .help = "what carries the bytes: " ENGINE_NAMES },
	{ .name = "workers", .metavar = "N", .kind = KIND_COUNT, .offset = AT(workers),
	  .min = 1, .max = WORKERS_MAX, .computed = "one per CPU",
	  .help = "worker threads, at most" },
	{ .name = "spread", .metavar = "HOW", .kind = KIND_SPREAD, .offset = AT(spread),
	  .initial = "auto",
	  .help = "how many workers are used: " SPREAD_NAMES },
	{ .name = "control", .metavar = "PATH", .kind = KIND_PATH, .offset = AT(control),
	  .initial = CONFIG_CONTROL_DEFAULT,
	  .help = "unix socket that the commands ask" },
	{ .name = "pid-file", .metavar = "FILE", .kind = KIND_FILE, .offset = AT(pid_file),
	  .computed = "none",
	  .help = "file for the daemon's process id" },
	{ .name = "connect-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(connect_timeout_ms), .min = 1, .max = DAY_MS, .initial = "5",
	  .help = "how long an upstream address may take to answer" },
	{ .name = "idle-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(idle_timeout_ms), .min = 0, .max = WEEK_MS, .initial = "0",
	  .help = "reset a session after so long without a byte; 0: never" },
	{ .name = "fin-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(fin_timeout_ms), .min = 0, .max = WEEK_MS, .initial = "0",
	  .help = "idle-timeout after one end has sent FIN; 0: the same" },
	{ .name = "resolve-interval", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(resolve_interval_ms), .min = 100, .max = DAY_MS, .initial = "30",
	  .help = "how often an upstream's host name is looked up" },
	{ .name = "grace", .metavar = "SECONDS", .kind = KIND_SECONDS, .offset = AT(grace_ms),
	  .min = 0, .max = DAY_MS, .initial = "5",
	  .change = CHANGE_BY_RELOAD,
	  .help = "how long sessions may go on after SIGTERM" },
	{ .name = "drain-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(drain_timeout_ms), .min = 0, .max = DAY_MS, .initial = "0",
	  .help = "time for sessions of a removed forward; 0: no limit" },
	{ .name = "max-sessions", .metavar = "N", .kind = KIND_COUNT, .offset = AT(max_sessions),
	  .min = 1, .max = 1000000, .initial = "16384",
	  .help = "sessions at a time, of all forwards" },
	{ .name = "max-sessions-per-client", .metavar = "N", .kind = KIND_COUNT,
	  .offset = AT(max_sessions_per_client), .min = 0, .max = 1000000,
	  .computed = "half of max-sessions; 0: no limit",
	  .help = "sessions of one client" },
	{ .name = "kernel-memory", .metavar = "SIZE", .kind = KIND_SIZE64,
	  .offset = AT(kernel_memory), .min = KERNEL_MEMORY_MIN, .max = KERNEL_MEMORY_MAX,
	  .computed = "1/16 of RAM",
	  .help = "bytes queued in the kernel, of all flows" },
	{ .name = "nodelay", .metavar = "yes|no", .kind = KIND_BOOL, EACH(nodelay),
	  .initial = "yes",
	  .help = "send small messages at once (TCP_NODELAY)" },
	{ .name = "keepalive", .metavar = "N", .kind = KIND_COUNT, EACH(keepalive_s),
	  .min = 0, .max = KEEPALIVE_MAX, .initial = "0",
	  .help = "probe an end after N silent seconds; 0: never" },
	{ .name = "copy-buffer", .metavar = "SIZE", .kind = KIND_SIZE, EACH(copy_buffer),
	  .min = 1 << 10, .max = 16 << 20, .initial = "64K",
	  .help = "bytes per read when copying" },
	{ .name = "accept-rate", .metavar = "N", .kind = KIND_COUNT, EACH(accept_rate),
	  .min = 0, .max = 1000000, .initial = "0",
	  .help = "connections a second that a forward accepts; 0: any" },
	{ .name = "bandwidth", .metavar = "SIZE", .kind = KIND_SIZE64, EACH(bandwidth),
	  .min = 0, .max = BANDWIDTH_MAX, .initial = "0",
	  .help = "bytes a second of a forward, each way; 0: no limit" },
	{ .name = "bandwidth-per-client", .metavar = "SIZE", .kind = KIND_SIZE64,
	  EACH(bandwidth_per_client), .min = 0, .max = BANDWIDTH_MAX, .initial = "0",
	  .help = "the same of one client at a forward" },
	{ .name = "soft-limit", .metavar = "SIZE", .kind = KIND_SIZE64, EACH(soft_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "1M",
	  .help = "bytes queued in the kernel at which a flow leaves it" },
	{ .name = "hard-limit", .metavar = "SIZE", .kind = KIND_SIZE64, EACH(hard_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "4M",
	  .help = "bytes queued at which the kernel stops queueing" },
	{ .name = "allow", .metavar = "CLIENTS", .kind = KIND_ALLOW, EACH(acl),
	  .computed = "all",
	  .help = "who may connect, such as 10.0.0.0/8,::1" },
	{ .name = "deny", .metavar = "CLIENTS", .kind = KIND_DENY, EACH(acl), .computed = "none",
	  .help = "who may not; the first rule that matches decides" },
	{ .name = "proxy-protocol", .metavar = "WORDS", .kind = KIND_PROXY, EACH(proxy_protocol),
	  .initial = "off",
	  .help = "PROXY header: off, receive, send-v1 or send-v2" },
	{ .name = "proxy-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(proxy_timeout_ms), .min = 1, .max = DAY_MS, .initial = "5",
	  .help = "how long a client's PROXY header may take" },
	{ .name = "source", .metavar = "ADDRESS", .kind = KIND_SOURCE, EACH(source),
	  .initial = "any",
	  .help = "local address of connections to the upstream" },
	{ .name = "interface", .metavar = "NAME", .kind = KIND_INTERFACE, EACH(interface),
	  .initial = "any",
	  .help = "network interface of connections to the upstream" },
	{ .name = "mark", .metavar = "N", .kind = KIND_MARK, EACH(mark), .initial = "0",
	  .help = "firewall mark of connections to the upstream; 0: none" },
	{ .name = "transparent", .metavar = "yes|no", .kind = KIND_BOOL, EACH(transparent),
	  .initial = "no",
	  .help = "connect to the upstream from the client's address" },
	{ .name = "settle", .metavar = "SECONDS", .kind = KIND_SECONDS, .offset = AT(settle_ms),
	  .min = 0, .max = DAY_MS, .initial = "0.3",
	  .help = "auto: how long a flow is in user space at first" },
	{ .name = "review", .metavar = "N", .kind = KIND_COUNT, .offset = AT(review_packets),
	  .min = 0, .max = 1000000000, .initial = "10000",
	  .help = "auto: judge a session again after N packets; 0: never" },
	{ .name = "probe", .metavar = "yes|no", .kind = KIND_BOOL, .offset = AT(probe),
	  .initial = "yes",
	  .help = "try the kernel at the start; use only what works" },
	{ .name = "user", .metavar = "NAME", .kind = KIND_NAME, .offset = AT(user),
	  .computed = "culvert, else nobody",
	  .help = "account to become, if started by root" },
	{ .name = "seccomp", .metavar = "MODE", .kind = KIND_FILTER, .offset = AT(seccomp),
	  .initial = "errno",
	  .help = "for unneeded system calls: " FILTER_NAMES },
	{ .name = "privileged-process", .metavar = "yes|no", .kind = KIND_BOOL,
	  .offset = AT(privileged_process), .initial = "yes",
	  .help = "leave a small process that keeps some privileges" },
	{ .name = "log-level", .metavar = "LEVEL", .kind = KIND_LEVEL, .offset = AT(log_level),
	  .initial = "info",
	  .change = CHANGE_BY_RELOAD,
	  .help = "what is logged: " LEVEL_NAMES },
	{ .name = "session-log", .metavar = "FILE", .kind = KIND_FILE, .offset = AT(session_log),
	  .computed = "none",
	  .help = "gets a JSON line for each ended session; -: stdout" },
	{ .name = "max-sessions", .metavar = "N", .kind = KIND_COUNT, OWN(max_sessions),
	  .min = 1, .max = 1000000, .computed = "no limit of its own",
	  .help = "sessions of the forward at a time" },
	{ .name = "max-sessions-per-client", .metavar = "N", .kind = KIND_COUNT,
	  OWN(max_sessions_per_client), .min = 0, .max = 1000000, .computed = "no limit of its own",
	  .help = "sessions of one client at the forward" },
	{ .name = "help", .kind = KIND_HELP, .scope = SCOPE_WORDS,
	  .help = "show this help; also -h" },
};

#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

const struct option_def *option_find(const char *name, size_t len)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (options[i].scope != SCOPE_FORWARD && strlen(options[i].name) == len &&
		    strncmp(options[i].name, name, len) == 0)
			return &options[i];
	}
	return NULL;
}

const struct option_def *option_find_key(const char *name, bool forward)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		enum option_scope scope = options[i].scope;

		if ((scope == SCOPE_EACH || scope == (forward ? SCOPE_FORWARD : SCOPE_GLOBAL)) &&
		    !strcmp(options[i].name, name))
			return &options[i];
	}
	return NULL;
}

_Static_assert(N_OPTIONS < OPTIONS_MAX, "option_number()");

size_t option_number(const struct option_def *o)
{
	return (size_t)(o - options);
}

const struct option_def *option_at(size_t number)
{
	return number < N_OPTIONS ? &options[number] : NULL;
}
