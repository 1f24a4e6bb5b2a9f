// SPDX-License-Identifier: BSD-2-Clause
/*
 * The table of options, and their values: read from text, compared, and shown in the help.
 */
#include "config/option.h"

#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/minmax.h"
#include "base/parse_size.h"
#include "base/text.h"
#include "config/config.h"

#define DAY 86400
#define WEEK 604800
#define KEEPALIVE_MAX 32767 /* MAX_TCP_KEEPIDLE */
#define WHY_LEN 256
#define SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

#define LEVEL_NAMES "error, warning, notice, info or debug"

static const char *const filters[] = {
	[FILTER_ERRNO] = "errno",
	[FILTER_KILL] = "kill",
	[FILTER_OFF] = "off",
	NULL,
};

static const char *const headers[] = { "required", "optional", NULL };
static const char *const keep_reset[] = { "keep", "reset", NULL };

static const char *const set_ups[] = {
	[SET_UP_AUTO] = "auto",
	[SET_UP_SOCKETS] = "sockets",
	[SET_UP_KERNEL] = "kernel",
	NULL,
};

_Static_assert(sizeof(enum engine) == sizeof(unsigned int), "parse_choice() stores enums");

#define GLOBAL(field) .scope = SCOPE_GLOBAL, .offset = offsetof(struct config, field)
#define WORDS(field) .scope = SCOPE_WORDS, .offset = offsetof(struct config, field)
#define EACH(field) .scope = SCOPE_EACH, .offset = offsetof(struct forward_conf, field)
#define OWN(field) .scope = SCOPE_FORWARD, .offset = offsetof(struct forward_conf, field)
#define SNI(field) .scope = SCOPE_SNI, .offset = offsetof(struct forward_conf, field)
/* options about servers */
#define SERVER(field)                                                                              \
	.scope = SCOPE_EACH | SCOPE_SNI, .offset = offsetof(struct forward_conf, field)

#define TEXT_(number) #number
#define TEXT(number) TEXT_(number)
#define RANGE(least, most) .min = (least), .max = (most)
#define COUNT(least, most)                                                                         \
	.kind = KIND_COUNT, .metavar = "N", RANGE(least, most),                                    \
	.expected = "a whole number from " TEXT(least) " to " TEXT(most)
#define SECONDS(least, most)                                                                       \
	.kind = KIND_SECONDS, .metavar = "SECONDS",                                                \
	RANGE((uint64_t)(1000 * (least)), (uint64_t)(1000 * (most))),                              \
	.expected = "seconds from " TEXT(least) " to " TEXT(most) ", such as 5, 0.5 or 30m"
#define SIZE(least, most, range)                                                                   \
	.kind = KIND_SIZE, .metavar = "SIZE", RANGE(least, most),                                  \
	.expected = "a size from " range ", such as 64K or 1M"
#define YES_NO .kind = KIND_BOOL, .metavar = "yes|no", .expected = "yes or no"
#define KEEP_RESET                                                                                 \
	.kind = KIND_CHOICE, .metavar = "HOW", .choices = keep_reset, .initial = "keep",           \
	.expected = "keep or reset"
#define WORD(var, most, what) .kind = KIND_TEXT, .metavar = (var), .max = (most), .expected = (what)
#define FILE_NAME WORD("FILE", UINT64_MAX, "the name of a file")

#define CHOICE(names, text, about)                                                                 \
	.kind = KIND_CHOICE, .choices = (names), .expected = (text), .help = about ": " text
#define CLIENTS                                                                                    \
	.metavar = "CLIENTS", .list = true,                                                        \
	.expected =                                                                                \
		"addresses, prefixes without "                                                     \
		"host bits, patterns, unix: or all, such as 10.0.0.0/8, 2001:db8::1, 192.168.*"
#define ADDRESS                                                                                    \
	.metavar = "ADDRESS",                                                                      \
	.expected = "a host and a port, such as 192.0.2.1:80 or db:5432, or unix:/path"

const struct option_def option_table[OPTIONS_MAX + 1] = {
	{ "config", FILE_NAME, WORDS(file), .computed = "none",
	  .help = "configuration file to read; also -c FILE" },
	{ "take-over", WORDS(take_over), WORD("SOCKET", SOCKET_PATH_MAX, "a path of 1 to 107 bytes"),
	  .computed = "none", .help = "control socket of a daemon to take over" },
	{ "engine", EACH(engine), .metavar = "ENGINE", .initial = "auto",
	  CHOICE(engine_names, "auto, graft, sockmap, splice or copy", "the carrier") },
	{ "graft", YES_NO, EACH(graft), .initial = "yes",
	  .help = "auto: join the connections of a session at packet level" },
	{ "graft-rtt", EACH(graft_rtt_us), .kind = KIND_COUNT, .metavar = "N", .max = 10000000,
	  .expected = "microseconds from 0 to 10000000, such as 800", .initial = "800",
	  .help = "auto: longest round trips of grafted bulk, us; 0: any" },
	{ "set-up", EACH(set_up), .metavar = "WHERE", .initial = "auto",
	  CHOICE(set_ups, "auto, sockets or kernel", "where sessions begin") },
	{ "set-up-ports", GLOBAL(set_up_ports), WORD("LOW-HIGH", 11, "two ports, or auto"),
	  .initial = "auto", .help = "local ports of sessions in the kernel" },
	{ "graft-pins", GLOBAL(graft_pins),
	  WORD("DIR", 200, "a folder of at most 200 bytes, or none"),
	  .initial = CONFIG_GRAFT_PINS_DEFAULT, .help = "folder of grafted sessions, or none" },
	{ "workers", COUNT(1, WORKERS_MAX), GLOBAL(workers), .computed = "one per CPU",
	  .help = "worker threads" },
	{ "control", GLOBAL(control), WORD("PATH", SOCKET_PATH_MAX, "a path of 1 to 107 bytes"),
	  .initial = CONFIG_CONTROL_DEFAULT, .help = "unix socket that the commands ask" },
	{ "pid-file", FILE_NAME, GLOBAL(pid_file), .computed = "none",
	  .help = "file for the daemon's process id" },
	{ "connect-timeout", SECONDS(0.001, DAY), SERVER(connect_timeout_ms), .initial = "5",
	  .help = "how long a client waits for its upstream to answer" },
	{ "idle-timeout", SECONDS(0, WEEK), EACH(idle_timeout_ms), .initial = "0",
	  .computed = "0, of UDP 60", .help = "end a session idle for so long; 0: never" },
	{ "responses", COUNT(0, 1000000), EACH(responses), .initial = "0",
	  .help = "UDP: answers to a datagram that end a session; 0: any" },
	{ "replies", YES_NO, EACH(replies), .initial = "yes",
	  .help = "UDP: servers are expected to answer" },
	{ "max-reply-factor", COUNT(0, 1000000), EACH(max_reply_factor), .initial = "50",
	  .help = "UDP: answer bytes per byte of an unproven client; 0: any" },
	{ "fin-timeout", SECONDS(0, WEEK), EACH(fin_timeout_ms), .initial = "0",
	  .help = "idle-timeout after one end has sent FIN; 0: the same" },
	{ "resolve-interval", SECONDS(0.1, DAY), SERVER(resolve_interval_ms), .initial = "30",
	  .help = "how often an upstream's host name is looked up" },
	{ "balance", SERVER(balance), .metavar = "HOW", .initial = "round-robin",
	  CHOICE(balance_names, "round-robin, least-sessions or source", "servers") },
	{ "queue", COUNT(0, 1000000), SERVER(queue), .initial = "100",
	  .help = "sessions that may wait for a place at a server" },
	{ "queue-timeout", SECONDS(0.001, DAY), SERVER(queue_timeout_ms), .initial = "5",
	  .help = "how long they may wait" },
	{ "each-address", YES_NO, SERVER(each_address), .initial = "no",
	  .help = "each address of a host name is a server of its own" },
	{ "check", SECONDS(0, DAY), SERVER(check_ms), .initial = "0",
	  .help = "how often to try to connect to each server; 0: never" },
	{ "check-http", SERVER(check_http), WORD("PATH", 1000, "a path such as /primary"),
	  .computed = "none", .help = "check: GET this path by HTTP/1.1" },
	{ "check-status", SERVER(check_status),
	  WORD("LOW-HIGH", 7, "a status of HTTP, or two, such as 200-399"), .initial = "200-399",
	  .help = "check-http: status of a good server" },
	{ "check-send", SERVER(check_send), WORD("TEXT", 1000, "a text with escapes as in C"),
	  .computed = "none", .help = "check: send this text" },
	{ "check-expect", SERVER(check_expect), WORD("TEXT", 1000, "a text with escapes as in C"),
	  .computed = "none", .help = "check: text in 4 KiB of a good answer" },
	{ "check-port", COUNT(0, 65535), SERVER(check_port), .initial = "0",
	  .help = "TCP port where servers are checked; 0: their own" },
	{ "check-agent", COUNT(0, 65535), SERVER(check_agent), .initial = "0",
	  .help = "port of agents that say up, down, drain, 50%" },
	{ "check-timeout", SECONDS(0, DAY), SERVER(check_timeout_ms), .initial = "0",
	  .computed = "connect-timeout", .help = "how long a check may take" },
	{ "on-down", SERVER(on_down), KEEP_RESET,
	  .help = "sessions of a server with failed checks: keep or reset" },
	{ "on-backup", SERVER(on_backup), KEEP_RESET,
	  .help = "a backup's sessions when another server is back" },
	{ "rise", COUNT(1, 100), SERVER(rise), .initial = "2",
	  .help = "good checks in a row that bring a server back" },
	{ "fall", COUNT(1, 100), SERVER(fall), .initial = "3",
	  .help = "failed checks in a row that take a server out" },
	{ "stop-timeout", SECONDS(0, DAY), GLOBAL(grace_ms), .alias = "grace", .initial = "5",
	  .reloads = true, .help = "how long sessions may go on after SIGTERM" },
	{ "drain-timeout", SECONDS(0, DAY), SERVER(drain_timeout_ms), .initial = "0",
	  .help = "time for sessions of a removed forward; 0: no limit" },
	{ "max-sessions", COUNT(1, 1000000), GLOBAL(max_sessions), .initial = "16384",
	  .help = "sessions at a time, of all forwards" },
	{ "max-sessions-per-client", COUNT(0, 1000000), GLOBAL(max_sessions_per_client),
	  .computed = "half of max-sessions; 0: no limit", .help = "sessions of one client" },
	{ "kernel-memory", SIZE(1 << 20, UINT64_C(1) << 50, "1 MiB to 1 PiB"), GLOBAL(kernel_memory),
	  .computed = "1/16 of RAM", .help = "bytes queued in the kernel, of all flows" },
	{ "nodelay", YES_NO, EACH(nodelay), .initial = "yes",
	  .help = "send small messages at once (TCP_NODELAY)" },
	{ "keepalive", SECONDS(0, KEEPALIVE_MAX), EACH(keepalive_ms), .initial = "2h",
	  .help = "silence after which an end is probed; 0: never" },
	{ "copy-buffer", SIZE(1 << 10, 16 << 20, "1 KiB to 16 MiB"), EACH(copy_buffer),
	  .initial = "64K", .help = "bytes per read when copying" },
	{ "accept-rate", COUNT(0, 1000000), EACH(accept_rate), .initial = "0",
	  .help = "connections a second that a forward accepts; 0: any" },
	{ "bandwidth", SIZE(0, BANDWIDTH_MAX, "0 B to 128 GiB"), EACH(bandwidth), .initial = "0",
	  .help = "bytes a second of a forward, each way; 0: no limit" },
	{ "bandwidth-per-client", SIZE(0, BANDWIDTH_MAX, "0 B to 128 GiB"),
	  EACH(bandwidth_per_client), .initial = "0",
	  .help = "the same of one client at a forward" },
	{ "soft-limit", SIZE(4 << 10, 1 << 30, "4 KiB to 1 GiB"), EACH(soft_limit), .initial = "1M",
	  .help = "bytes queued in the kernel at which a flow leaves it" },
	{ "hard-limit", SIZE(4 << 10, 1 << 30, "4 KiB to 1 GiB"), EACH(hard_limit), .initial = "4M",
	  .help = "bytes queued at which the kernel stops queueing" },
	{ "allow", EACH(acl), .kind = KIND_ALLOW, CLIENTS, .computed = "all",
	  .help = "who may connect, such as 10.0.0.0/8,::1" },
	{ "deny", EACH(acl), .kind = KIND_DENY, CLIENTS, .computed = "none",
	  .help = "who may not; the first rule that matches decides" },
	{ "allow-client", EACH(acl_behind), .kind = KIND_ALLOW, CLIENTS, .computed = "all",
	  .help = "the same by the address in a PROXY header" },
	{ "deny-client", EACH(acl_behind), .kind = KIND_DENY, CLIENTS, .computed = "none",
	  .help = "the same by the address in a PROXY header" },
	{ "proxy-protocol-in", EACH(proxy_in), .metavar = "HOW", .initial = "required",
	  CHOICE(headers, "required or optional", "PROXY header of clients") },
	{ "proxy-protocol", SERVER(proxy_protocol), .metavar = "WORDS", .kind = KIND_CHOICE,
	  .choices = proxy_use_names, .initial = "off",
	  .expected = "off, receive, send-v1, "
		      "send-v2, \"receive, send-v1\" or \"receive, send-v2\"",
	  .help = "PROXY header: off, receive, send-v1 or send-v2" },
	{ "proxy-timeout", SECONDS(0.001, DAY), EACH(proxy_timeout_ms), .initial = "5",
	  .help = "how long a client's PROXY header may take" },
	{ "hello-timeout", SECONDS(0.001, DAY), EACH(hello_timeout_ms), .initial = "5",
	  .help = "how long a client's TLS hello may take" },
	{ "source", SERVER(source), .metavar = "ADDRESS", .kind = KIND_SOURCE, .initial = "any",
	  .expected = "an IPv4 or IPv6 address without a port, or any",
	  .help = "local address of connections to the upstream" },
	{ "interface", SERVER(interface),
	  WORD("NAME", IFNAMSIZ - 1, "the name of a network interface, or any"), .initial = "any",
	  .help = "network interface of connections to the upstream" },
	{ "mark", SERVER(mark), .kind = KIND_COUNT, .metavar = "N", .max = UINT32_MAX,
	  .initial = "0", .expected = "a number below 2^32, such as 7 or 0x1f, or 0 for none",
	  .help = "firewall mark of connections to the upstream; 0: none" },
	{ "transparent", YES_NO, SERVER(transparent), .initial = "no",
	  .help = "connect to the upstream from the client's address" },
	{ "settle", SECONDS(0, DAY), GLOBAL(settle_ms), .initial = "0.3",
	  .help = "auto: how long a flow is in user space at first" },
	{ "probe", YES_NO, GLOBAL(probe), .initial = "yes",
	  .help = "try the kernel at the start; use only what works" },
	{ "user", GLOBAL(user), WORD("NAME", UINT64_MAX, "the name of an account"),
	  .computed = "culvert, else nobody", .help = "account to become, if started by root" },
	{ "seccomp", GLOBAL(seccomp), .metavar = "MODE", .initial = "errno",
	  CHOICE(filters, "errno, kill or off", "for unneeded system calls") },
	{ "relay", GLOBAL(relay), WORD("NAME", 63, "a word"), .computed = "none",
	  .help = "name of this relay, other than those of other relays" },
	{ "standby-ports", GLOBAL(standby_ports), WORD("LOW-HIGH", 11, "two ports"),
	  .computed = "not known", .help = "local ports of another relay" },
	{ "privileged-process", YES_NO, GLOBAL(privileged_process), .initial = "yes",
	  .help = "leave a small process that keeps some privileges" },
	{ "log-level", GLOBAL(log_level), .metavar = "LEVEL", .min = LOG_ERR, .initial = "info",
	  .reloads = true, CHOICE(log_level_names, LEVEL_NAMES, "what is logged") },
	{ "session-log", FILE_NAME, GLOBAL(session_log), .computed = "none",
	  .help = "file for a JSON line for each ended session; -: stdout" },
	{ "session-log-empty", YES_NO, GLOBAL(session_log_empty), .initial = "yes",
	  .help = "log sessions without a byte, as of probes, too" },
	{ "metrics", GLOBAL(metrics), .kind = KIND_LISTEN, ADDRESS, .computed = "none",
	  .help = "serves metrics by HTTP there" },
	{ "listen", OWN(listen), .kind = KIND_LISTEN, .list = true, ADDRESS,
	  .help = "where clients connect" },
	{ "upstream", .scope = SCOPE_OWN, .offset = offsetof(struct forward_conf, upstream),
	  .kind = KIND_UPSTREAM, ADDRESS,
	  .help = "where the daemon connects for them; one server or several" },
	{ "max-sessions", COUNT(1, 1000000), OWN(max_sessions), .computed = "no limit of its own",
	  .help = "sessions of the forward at a time" },
	{ "max-sessions-per-client", COUNT(0, 1000000), OWN(max_sessions_per_client),
	  .computed = "no limit of its own", .help = "sessions of one client at the forward" },
	{ "alpn", SNI(alpn), WORD("WORDS", 255, "protocols, such as h2 http/1.1"),
	  .computed = "any", .help = "[sni]: only for clients that offer one of these" },
};

/* --- the table --- */

const struct option_def *option_find(const char *name, enum option_scope scope)
{
	for (const struct option_def *o = option_table; o->name; o++)
		if (scope & o->scope &&
		    (!strcmp(o->name, name) || (o->alias && !strcmp(o->alias, name))))
			return o;
	return NULL;
}

/* The length of the longer word without the prefix and suffix that both have. */
static size_t distance(const char *a, const char *b)
{
	size_t m = strlen(a), n = strlen(b);

	for (; *a && *a == *b; a++, b++) {
		m--;
		n--;
	}
	for (; m && n && a[m - 1] == b[n - 1]; m--)
		n--;
	return larger(m, n);
}

const char *option_hint(struct config *c, const char *name, enum option_scope scope)
{
	const struct option_def *o = scope ? option_find(name, ~0U) : NULL, *near = NULL;
	size_t least = (strlen(name) + 1) / 3 + 1, apart;

	if (o)
		return config_keep(c, ": it belongs to %s",
				   o->scope & SCOPE_FORWARD ? "[forward NAME]" :
				   o->scope & SCOPE_CULVERT ? "[culvert]" :
				   o->scope & SCOPE_SNI     ? "[sni FORWARD NAME...]" :
							      "the command line");
	for (const struct option_def *in = option_table; in->name; in++) {
		apart = in->scope & scope ? distance(name, in->name) : least;
		if (apart < least) {
			near = in;
			least = apart;
		}
	}
	return near ? config_keep(c, " (did you mean %s?)", near->name) : "";
}

const struct config_line *option_line(const struct config_lines *l, const char *name)
{
	for (size_t i = l->n; i-- > 0;)
		if (!strcmp(l->lines[i].option->name, name))
			return &l->lines[i];
	return NULL;
}

const struct config_line *option_line_for(const struct config *c, const struct forward_conf *fc,
					  const char *name)
{
	return option_line(&fc->said, name)         ?:
		       option_line(&c->words, name) ?:
						      option_line(&c->said, name);
}

const char *option_place(const struct config *c, const struct forward_conf *fc, const char *name)
{
	const struct config_line *l = option_line_for(c, fc, name);

	return l ? l->place : "";
}

/* --- values --- */

static int parse_choice(const struct option_def *o, const char *text, unsigned int *ret)
{
	for (*ret = (unsigned int)o->min; o->choices[*ret]; ++*ret)
		if (!strcmp(text, o->choices[*ret]))
			return 0;
	return -EINVAL;
}

static int store_number(const struct option_def *o, const char *text, void *field)
{
	uint64_t n;
	int r = o->kind == KIND_COUNT   ? count_parse(text, &n) :
		o->kind == KIND_SECONDS ? seconds_parse(text, &n) :
					  size_parse(text, &n);

	if (r || n < o->min || n > o->max)
		return -EINVAL;
	if (o->kind == KIND_SIZE)
		*(uint64_t *)field = n;
	else
		*(unsigned int *)field = (unsigned int)n;
	return 0;
}

static int parse_source(const char *text, struct addr *ret)
{
	size_t len = strlen(text);
	bool brackets = len > 1 && *text == '[' && text[len - 1] == ']';
	char host[ADDR_STRLEN];
	int r;

	snprintf(host, sizeof(host), "%.*s", (int)len - 2 * brackets, text + brackets);
	r = addr_parse_host(strcmp(text, "any") != 0 ? host : "::", ret);

	*ret = addr_unmapped(ret); /* as upstream addresses are: the two families must match */
	if (addr_is_any(ret))
		ret->len = 0;
	return r;
}

/*
 * WHY names the expected form; for a bad address the fault replaces it.  UDP: the protocol of the
 * forward's listener.  Listeners are stored first.
 */
static int store(void *field, const struct option_def *o, const char *value, bool udp,
		 char why[WHY_LEN])
{
	const char *wrong;
	bool any;

	switch (o->kind) {
	case KIND_CHOICE:
		return parse_choice(o, value, field);
	case KIND_BOOL:
		*(bool *)field = !strcmp(value, "yes");
		return *(bool *)field || !strcmp(value, "no") ? 0 : -EINVAL;
	case KIND_TEXT:
		if (!value[0] || strlen(value) > o->max)
			return -EINVAL;
		any = !strcmp(o->initial ?: "", "any") && !strcmp(value, "any");
		*(const char **)field = any ? NULL : value;
		return 0;
	case KIND_COUNT:
	case KIND_SECONDS:
	case KIND_SIZE:
		return store_number(o, value, field);
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_add(field, o->kind == KIND_ALLOW, value);
	case KIND_SOURCE:
		return parse_source(value, field);
	case KIND_LISTEN:
		if (!o->list)
			endpoint_close(field); /* the file's, if the command line has another */
		wrong = endpoint_add_listen(value, field);
		snprintf(why, WHY_LEN, "%s", wrong ?: "");
		return wrong ? -EINVAL : 0;
	case KIND_UPSTREAM:
		return upstreams_parse(value, udp, field, why, WHY_LEN);
	}
	return -EINVAL;
}

int option_store(struct config *c, struct forward_conf *fc, const struct config_line *l)
{
	const struct option_def *o = l->option;
	char *in = o->scope & SCOPE_OWN ? (char *)fc : (char *)c, why[WHY_LEN];

	if (!text_is_utf8(l->value)) /* it would go into JSON */
		return config_complain(l->place, "%s: \"%.320s\": " NOT_UTF8, l->key, l->value);
	snprintf(why, sizeof(why), "expected %s", o->expected);
	return !store(in + o->offset, o, l->value, fc->listen.udp, why) ?
		       0 :
		       config_complain(l->place, "%s: \"%.320s\": %s", l->key, l->value, why);
}

void options_default(struct config *c)
{
	/* Computed once: else CPUs that come or go would make a reload find `workers` changed. */
	static unsigned int cpus;
	static uint64_t memory;
	cpu_set_t set; /* those that we may use: in a container fewer than the machine has */

	if (!cpus) /* sched_getaffinity() fails if CPUs are more than the set has room for */
		cpus = sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) > WORKERS_MAX ?
			       WORKERS_MAX :
			       (unsigned int)CPU_COUNT(&set);
	memory = memory ?: (uint64_t)(sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)) / 16;
	c->workers = cpus;
	c->kernel_memory = memory;
	c->max_sessions_per_client = UINT_MAX; /* until max-sessions is known */
	for (const struct option_def *o = option_table; o->name; o++)
		if (o->initial)
			option_store(c, &c->defaults,
				     &(struct config_line){ o, o->name, o->initial, "" });
}

static bool same_value(const struct option_def *o, const void *a, const void *b)
{
	switch (o->kind) {
	case KIND_LISTEN:
		return !strcmp(((const struct endpoint *)a)->text,
			       ((const struct endpoint *)b)->text);
	case KIND_UPSTREAM:
		return !strcmp(((const struct upstream *)a)->text ?: "",
			       ((const struct upstream *)b)->text ?: "");
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_same(a, b);
	case KIND_SOURCE:
		return addr_equal(a, b);
	case KIND_TEXT:
		return !strcmp(*(const char *const *)a ?: "", *(const char *const *)b ?: "");
	default:
		return !memcmp(a, b,
			       o->kind == KIND_BOOL ? sizeof(bool) :
			       o->kind == KIND_SIZE ? sizeof(uint64_t) :
						      sizeof(unsigned int));
	}
}

/* The first option that differs in A and B, and that needs a new start; or NULL. */
static const struct option_def *find_other(const void *a, const void *b, bool forward)
{
	for (const struct option_def *o = option_table; o->name; o++)
		if ((forward ? o->scope & SCOPE_OWN : o->scope == SCOPE_GLOBAL) && !o->reloads &&
		    !same_value(o, (const char *)a + o->offset, (const char *)b + o->offset))
			return o;
	return NULL;
}

bool options_same_own(const struct forward_conf *a, const struct forward_conf *b)
{
	return !find_other(a, b, true) && a->hellos == b->hellos &&
	       !strcmp(a->sni ?: "", b->sni ?: "");
}

const struct option_def *options_fixed(const struct config *a, const struct config *b)
{
	return find_other(a, b, false);
}

/* --- the help --- */

void options_help(bool forward)
{
	for (const struct option_def *o = option_table; o->name; o++) {
		const char *initial = o->computed ?: o->initial;
		char left[40];

		if (forward == !!(o->scope & SCOPE_WORDS))
			continue;
		snprintf(left, sizeof(left), "%s%s %s", forward ? "" : "--", o->name, o->metavar);
		printf("%c %-29s%s", (o->scope & SCOPE_EACH) == SCOPE_EACH ? '*' : ' ', left,
		       o->help);
		if (initial)
			printf(" (default %s)", initial);
		putchar('\n');
	}
}
