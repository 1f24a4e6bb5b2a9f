// SPDX-License-Identifier: BSD-2-Clause
/*
 * The table of options, and their values: read from text, compared, and shown in the help.
 */
#include "config/option.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "config/config.h"

#define DAY_MS (24 * 3600 * 1000)
#define WEEK_MS (7 * DAY_MS)
#define KEEPALIVE_MAX 32767 /* MAX_TCP_KEEPIDLE */
#define KERNEL_MEMORY_MIN (UINT64_C(1) << 20)
#define KERNEL_MEMORY_MAX (UINT64_C(1) << 50)
#define SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

#define ENGINE_NAMES "auto, sockmap, splice or copy"
#define FILTER_NAMES "errno, kill or off"
#define LEVEL_NAMES "error, warning, notice, info or debug"
#define PROXY_USE_NAMES "off, or receive, send-v1 or send-v2, or receive and one of these two"
#define CLIENTS "addresses, prefixes without host bits, patterns, unix: or all, such as " \
	"10.0.0.0/8, 2001:db8::1, 192.168.*"

static const char *const engines[] = {
	[ENGINE_AUTO] = "auto", [ENGINE_SOCKMAP] = "sockmap", [ENGINE_SPLICE] = "splice",
	[ENGINE_COPY] = "copy", [ENGINES] = NULL,
};
static const char *const filters[] = {
	[FILTER_ERRNO] = "errno", [FILTER_KILL] = "kill", [FILTER_OFF] = "off", NULL,
};

_Static_assert(sizeof(enum engine) == sizeof(unsigned int) &&
		       sizeof(enum filter_mode) == sizeof(unsigned int),
	       "parse_choice() stores enums");

#define AT(field) offsetof(struct config, field)
#define EACH(field) .scope = SCOPE_EACH, .offset = offsetof(struct forward_conf, field)
#define OWN(field) .scope = SCOPE_FORWARD, .offset = offsetof(struct forward_conf, field)
#define FILE_NAME .max = UINT64_MAX, .expected = "the name of a file"

static const struct option_def options[] = {
	{ .name = "config", .metavar = "FILE", .kind = KIND_TEXT, .offset = AT(file),
	  FILE_NAME,
	  .scope = SCOPE_WORDS, .computed = "none",
	  .help = "configuration file to read; also -c FILE" },
	{ .name = "engine", .metavar = "ENGINE", .kind = KIND_CHOICE, EACH(engine),
	  .choices = engines, .expected = ENGINE_NAMES, .initial = "auto",
	  .help = "what carries the bytes: " ENGINE_NAMES },
	{ .name = "workers", .metavar = "N", .kind = KIND_COUNT, .offset = AT(workers),
	  .min = 1, .max = WORKERS_MAX, .computed = "one per CPU",
	  .help = "worker threads" },
	{ .name = "control", .metavar = "PATH", .kind = KIND_TEXT, .offset = AT(control),
	  .max = SOCKET_PATH_MAX, .expected = "a path of 1 to 107 bytes",
	  .initial = CONFIG_CONTROL_DEFAULT,
	  .help = "unix socket that the commands ask" },
	{ .name = "pid-file", .metavar = "FILE", .kind = KIND_TEXT, .offset = AT(pid_file),
	  FILE_NAME,
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
	{ .name = "stop-timeout", .alias = "grace", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  .offset = AT(grace_ms),
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
	{ .name = "kernel-memory", .metavar = "SIZE", .kind = KIND_SIZE,
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
	{ .name = "bandwidth", .metavar = "SIZE", .kind = KIND_SIZE, EACH(bandwidth),
	  .min = 0, .max = BANDWIDTH_MAX, .initial = "0",
	  .help = "bytes a second of a forward, each way; 0: no limit" },
	{ .name = "bandwidth-per-client", .metavar = "SIZE", .kind = KIND_SIZE,
	  EACH(bandwidth_per_client), .min = 0, .max = BANDWIDTH_MAX, .initial = "0",
	  .help = "the same of one client at a forward" },
	{ .name = "soft-limit", .metavar = "SIZE", .kind = KIND_SIZE, EACH(soft_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "1M",
	  .help = "bytes queued in the kernel at which a flow leaves it" },
	{ .name = "hard-limit", .metavar = "SIZE", .kind = KIND_SIZE, EACH(hard_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "4M",
	  .help = "bytes queued at which the kernel stops queueing" },
	{ .name = "allow", .metavar = "CLIENTS", .kind = KIND_ALLOW, EACH(acl),
	  .expected = CLIENTS,
	  .computed = "all",
	  .help = "who may connect, such as 10.0.0.0/8,::1" },
	{ .name = "deny", .metavar = "CLIENTS", .kind = KIND_DENY, EACH(acl),
	  .expected = CLIENTS, .computed = "none",
	  .help = "who may not; the first rule that matches decides" },
	{ .name = "proxy-protocol", .metavar = "WORDS", .kind = KIND_PROXY, EACH(proxy_protocol),
	  .expected = PROXY_USE_NAMES, .initial = "off",
	  .help = "PROXY header: off, receive, send-v1 or send-v2" },
	{ .name = "proxy-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(proxy_timeout_ms), .min = 1, .max = DAY_MS, .initial = "5",
	  .help = "how long a client's PROXY header may take" },
	{ .name = "source", .metavar = "ADDRESS", .kind = KIND_SOURCE, EACH(source),
	  .expected = "an IPv4 or IPv6 address without a port, or any",
	  .initial = "any",
	  .help = "local address of connections to the upstream" },
	{ .name = "interface", .metavar = "NAME", .kind = KIND_INTERFACE, EACH(interface),
	  .expected = "the name of a network interface, or any",
	  .initial = "any",
	  .help = "network interface of connections to the upstream" },
	{ .name = "mark", .metavar = "N", .kind = KIND_MARK, EACH(mark),
	  .expected = "a number below 2^32, such as 7 or 0x1f, or 0 for none", .initial = "0",
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
	{ .name = "user", .metavar = "NAME", .kind = KIND_TEXT, .offset = AT(user),
	  .max = UINT64_MAX, .expected = "the name of an account",
	  .computed = "culvert, else nobody",
	  .help = "account to become, if started by root" },
	{ .name = "seccomp", .metavar = "MODE", .kind = KIND_CHOICE, .offset = AT(seccomp),
	  .choices = filters, .expected = FILTER_NAMES, .initial = "errno",
	  .help = "for unneeded system calls: " FILTER_NAMES },
	{ .name = "privileged-process", .metavar = "yes|no", .kind = KIND_BOOL,
	  .offset = AT(privileged_process), .initial = "yes",
	  .help = "leave a small process that keeps some privileges" },
	{ .name = "log-level", .metavar = "LEVEL", .kind = KIND_LEVEL, .offset = AT(log_level),
	  .expected = LEVEL_NAMES,
	  .initial = "info",
	  .change = CHANGE_BY_RELOAD,
	  .help = "what is logged: " LEVEL_NAMES },
	{ .name = "session-log", .metavar = "FILE", .kind = KIND_TEXT, .offset = AT(session_log),
	  FILE_NAME,
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

_Static_assert(N_OPTIONS < OPTIONS_MAX, "option_number()");

const char *engine_name(enum engine e)
{
	return (size_t)e < ENGINES ? engines[e] : "?";
}

/* --- the table --- */

/* True if O is called by the first LEN bytes of NAME. */
static bool is_called(const struct option_def *o, const char *name, size_t len)
{
	return (strlen(o->name) == len && !strncmp(o->name, name, len)) ||
	       (o->alias && strlen(o->alias) == len && !strncmp(o->alias, name, len));
}

const struct option_def *option_find(const char *name, size_t len)
{
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].scope != SCOPE_FORWARD && is_called(&options[i], name, len))
			return &options[i];
	return NULL;
}

const struct option_def *option_find_key(const char *name, bool forward)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		enum option_scope scope = options[i].scope;

		if ((scope == SCOPE_EACH || scope == (forward ? SCOPE_FORWARD : SCOPE_GLOBAL)) &&
		    is_called(&options[i], name, strlen(name)))
			return &options[i];
	}
	return NULL;
}

bool option_is_gone(const char *name, size_t len)
{
	return len == strlen("spread") && !strncmp(name, "spread", len);
}

size_t option_number(const struct option_def *o)
{
	return (size_t)(o - options);
}

const struct option_def *option_at(size_t number)
{
	return number < N_OPTIONS ? &options[number] : NULL;
}

/* --- values --- */

static int parse_choice(const char *const *choices, const char *text, unsigned int *ret)
{
	for (unsigned int i = 0; choices[i]; i++) {
		if (!strcmp(text, choices[i])) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_number(const struct option_def *o, const char *text, uint64_t *ret)
{
	int r = o->kind == KIND_COUNT	? count_parse(text, ret) :
		o->kind == KIND_SECONDS ? seconds_parse(text, ret) :
					  size_parse(text, ret);

	return !r && (*ret < o->min || *ret > o->max) ? -ERANGE : r;
}

static int parse_mark(const char *text, unsigned int *ret)
{
	bool hex = !strncmp(text, "0x", 2);
	const char *digits = hex ? text + 2 : text;
	unsigned long n;

	if (!*digits || strlen(digits) > 10 ||
	    digits[strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789")])
		return -EINVAL;
	n = strtoul(digits, NULL, hex ? 16 : 10);
	if (n > UINT32_MAX)
		return -ERANGE;
	*ret = (unsigned int)n;
	return 0;
}

/* Accept what dev_valid_name() of the kernel accepts. */
static int parse_interface(const char *text, const char **ret)
{
	if (!*text || strlen(text) >= IFNAMSIZ || !strcmp(text, ".") || !strcmp(text, "..") ||
	    strpbrk(text, "/: \t"))
		return -EINVAL;
	*ret = strcmp(text, "any") != 0 ? text : NULL;
	return 0;
}

static int parse_source(const char *text, struct addr *ret)
{
	int r;

	*ret = (struct addr){ 0 };
	r = strcmp(text, "any") != 0 ? addr_parse_host(text, ret) : 0;
	*ret = addr_unmapped(ret); /* endpoints are unmapped, and both must be of one family */
	return r;
}

static const char *const proxy_words[] = { "off", "receive", "send-v1", "send-v2", NULL };
static const unsigned int proxy_uses[] = { 0, PROXY_RECEIVE, PROXY_SEND_V1, PROXY_SEND_V2 };

/* A word that stands twice is a slip, and of two versions nobody could tell which one counts. */
static int parse_proxy_use(const char *text, unsigned int *ret)
{
	unsigned int use = 0, n = 0, word;
	char buf[64], *rest, *at;
	bool off = false;

	if (strlen(text) >= sizeof(buf))
		return -EINVAL;
	strcpy(buf, text);
	for (at = strtok_r(buf, ", \t", &rest); at; at = strtok_r(NULL, ", \t", &rest), n++) {
		if (parse_choice(proxy_words, at, &word) || use & proxy_uses[word] ||
		    (use & PROXY_SEND && proxy_uses[word] & PROXY_SEND))
			return -EINVAL;
		use |= proxy_uses[word];
		off |= !proxy_uses[word];
	}
	if (!n || (off && n > 1))
		return -EINVAL;
	*ret = use;
	return 0;
}

const char *proxy_use_text(unsigned int use)
{
	static const char *const texts[] = {
		[0] = "off",
		[PROXY_RECEIVE] = "receive",
		[PROXY_SEND_V1] = "send-v1",
		[PROXY_SEND_V2] = "send-v2",
		[PROXY_RECEIVE | PROXY_SEND_V1] = "receive, send-v1",
		[PROXY_RECEIVE | PROXY_SEND_V2] = "receive, send-v2",
	};

	return use < sizeof(texts) / sizeof(texts[0]) && texts[use] ? texts[use] : "?";
}

static int store(void *field, const struct option_def *o, const char *value)
{
	uint64_t number;
	int r;

	switch (o->kind) {
	case KIND_CHOICE:
		return parse_choice(o->choices, value, field);
	case KIND_BOOL:
		*(bool *)field = !strcmp(value, "yes");
		return *(bool *)field || !strcmp(value, "no") ? 0 : -EINVAL;
	case KIND_LEVEL:
		r = log_level_parse(value);
		if (r >= 0)
			*(int *)field = r;
		return r < 0 ? r : 0;
	case KIND_TEXT:
		if (!value[0] || strlen(value) > o->max)
			return -EINVAL;
		*(const char **)field = value;
		return 0;
	case KIND_COUNT:
	case KIND_SECONDS:
	case KIND_SIZE:
		r = parse_number(o, value, &number);
		if (!r && o->kind == KIND_SIZE)
			*(uint64_t *)field = number;
		else if (!r)
			*(unsigned int *)field = (unsigned int)number;
		return r;
	case KIND_PROXY:
		return parse_proxy_use(value, field);
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_add(field, o->kind == KIND_ALLOW, value);
	case KIND_SOURCE:
		return parse_source(value, field);
	case KIND_INTERFACE:
		return parse_interface(value, field);
	case KIND_MARK:
		return parse_mark(value, field);
	case KIND_HELP:
		break;
	}
	return -EINVAL;
}

int option_store(struct config *c, struct forward_conf *fc, const struct option_def *o,
		 const char *value)
{
	return store((option_is_forwards(o) ? (char *)fc : (char *)c) + o->offset, o, value);
}

/* CPUs that this process may use: in a container fewer than the machine has. */
static unsigned int usable_cpus(void)
{
	cpu_set_t set;
	long n;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		n = CPU_COUNT(&set);
	else
		n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than cpu_set_t has room for */
	if (n < 1)
		return 1;
	return n > WORKERS_MAX ? WORKERS_MAX : (unsigned int)n;
}

/* A 16th of the machine's memory. */
static uint64_t share_of_memory(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t share = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 16 : 0;

	return share < KERNEL_MEMORY_MIN ? KERNEL_MEMORY_MIN : share;
}

void options_default(struct config *c)
{
	/* Computed once: a reload must find the same file unchanged when CPUs come or go. */
	static unsigned int cpus;
	static uint64_t memory;

	if (!cpus) {
		cpus = usable_cpus();
		memory = share_of_memory();
	}
	c->workers = cpus;
	c->kernel_memory = memory;
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].initial)
			option_store(c, &c->defaults, &options[i], options[i].initial);
}

static bool same_value(const struct option_def *o, const void *a, const void *b)
{
	const char *x, *y;

	switch (o->kind) {
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_same(a, b);
	case KIND_SOURCE:
		return addr_equal(a, b);
	case KIND_TEXT:
	case KIND_INTERFACE:
		x = *(const char *const *)a;
		y = *(const char *const *)b;
		return x == y || (x && y && !strcmp(x, y));
	case KIND_BOOL:
		return *(const bool *)a == *(const bool *)b;
	case KIND_SIZE:
		return *(const uint64_t *)a == *(const uint64_t *)b;
	case KIND_CHOICE:
	case KIND_LEVEL:
	case KIND_COUNT:
	case KIND_SECONDS:
	case KIND_PROXY:
	case KIND_MARK:
		return *(const unsigned int *)a == *(const unsigned int *)b;
	case KIND_HELP:
		break;
	}
	return true;
}

bool options_same_own(const struct forward_conf *a, const struct forward_conf *b)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option_def *o = &options[i];

		if (option_is_forwards(o) &&
		    !same_value(o, (const char *)a + o->offset, (const char *)b + o->offset))
			return false;
	}
	return true;
}

const struct option_def *options_fixed(const struct config *a, const struct config *b)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option_def *o = &options[i];

		if (o->scope == SCOPE_GLOBAL && o->change == CHANGE_BY_START &&
		    !same_value(o, (const char *)a + o->offset, (const char *)b + o->offset))
			return o;
	}
	return NULL;
}

/* --- what people read --- */

const char *option_expectation(const struct option_def *o, char *buf, size_t size)
{
	char min[SIZE_STRLEN], max[SIZE_STRLEN];

	if (o->expected)
		return o->expected;
	switch (o->kind) {
	case KIND_BOOL:
		return "yes or no";
	case KIND_COUNT:
		snprintf(buf, size, "a whole number from %llu to %llu", (unsigned long long)o->min,
			 (unsigned long long)o->max);
		return buf;
	case KIND_SECONDS:
		snprintf(buf, size, "seconds from %g to %g, such as 5 or 0.5",
			 (double)o->min / 1000, (double)o->max / 1000);
		return buf;
	case KIND_SIZE:
		snprintf(buf, size, "a size from %s to %s, such as 64K or 1M",
			 size_format(o->min, min, sizeof(min)),
			 size_format(o->max, max, sizeof(max)));
		return buf;
	default:
		return "no value";
	}
}

const char *option_wrong(const struct option_def *o, int error, const char *value, char *buf)
{
	char expected[128];

	if (error == -EEXIST)
		snprintf(buf, OPTION_WRONG_LEN, "\"%.256s\": an earlier rule says the opposite of "
			 "all that this one is for: the first that matches a client decides",
			 value);
	else if (error == -E2BIG)
		snprintf(buf, OPTION_WRONG_LEN, "more than %d rules", ACL_RULES_MAX);
	else
		snprintf(buf, OPTION_WRONG_LEN, "\"%.256s\" is not valid, expected %s", value,
			 option_expectation(o, expected, sizeof(expected)));
	return buf;
}

static void option_help(const struct option_def *o)
{
	const char *initial = o->initial ? o->initial : o->computed;
	char left[40];

	snprintf(left, sizeof(left), "%s%s %s", o->scope == SCOPE_FORWARD ? "" : "--", o->name,
		 o->metavar ? o->metavar : "");
	printf("  %-29s%s", left, o->help);
	if (initial)
		printf(" (default %s)", initial);
	putchar('\n');
}

void options_help(void)
{
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].scope != SCOPE_FORWARD)
			option_help(&options[i]);
}

void options_help_forward(void)
{
	int at = 0;

	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].scope == SCOPE_FORWARD)
			option_help(&options[i]);
	puts("\n"
	     "and these options, which then count for it instead of those above:");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		int len = (int)strlen(options[i].name) + 2;

		if (options[i].scope != SCOPE_EACH)
			continue;
		if (at && at + len > 78) {
			puts(",");
			at = 0;
		}
		at += printf("%s%s", at ? ", " : "  ", options[i].name);
	}
	putchar('\n');
}
