/* SPDX-License-Identifier: BSD-2-Clause */
#include "option.h"

#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "bucket.h"
#include "log.h"
#include "proxy_use.h"
#include "size.h"

#define WORKERS_MAX 1024
#define DAY_MS (24 * 3600 * 1000)
#define WEEK_MS (7 * DAY_MS)
#define KEEPALIVE_MAX 32767 /* MAX_TCP_KEEPIDLE */

#define AT(field) offsetof(struct config, field)
/* Of each forward, under the same name. */
#define EACH(field) \
	.scope = SCOPE_EACH, .offset = AT(field), .own = offsetof(struct forward_conf, field)
#define OWN(field) .scope = SCOPE_FORWARD, .own = offsetof(struct forward_conf, field)
#define ENGINE_NAMES "auto, sockmap, splice or copy"
#define SPREAD_NAMES "auto, all or rotate"
#define FILTER_NAMES "errno, kill or off"
#define LEVEL_NAMES "error, warning, notice, info or debug"

static const struct option_def options[] = {
	{ .name = "config", .metavar = "FILE", .kind = KIND_FILE, .offset = AT(file),
	  .scope = SCOPE_WORDS, .computed = "none",
	  .help = "read this first, also -c (see `culvert check`)" },
	{ .name = "engine", .metavar = "ENGINE", .kind = KIND_ENGINE, EACH(engine),
	  .initial = "auto",
	  .help = "what carries the payload: " ENGINE_NAMES },
	{ .name = "workers", .metavar = "N", .kind = KIND_COUNT, .offset = AT(workers),
	  .min = 1, .max = WORKERS_MAX, .computed = "one per CPU",
	  .help = "worker threads, at most" },
	{ .name = "spread", .metavar = "HOW", .kind = KIND_SPREAD, .offset = AT(spread),
	  .initial = "auto",
	  .help = "workers in use: " SPREAD_NAMES " (for tests)" },
	{ .name = "control", .metavar = "PATH", .kind = KIND_PATH, .offset = AT(control),
	  .initial = CONFIG_CONTROL_DEFAULT,
	  .help = "unix socket for client commands" },
	{ .name = "pid-file", .metavar = "FILE", .kind = KIND_FILE, .offset = AT(pid_file),
	  .computed = "none",
	  .help = "the daemon's process id goes there" },
	{ .name = "connect-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(connect_timeout_ms), .min = 1, .max = DAY_MS, .initial = "5",
	  .help = "how long an upstream address may take to answer" },
	{ .name = "idle-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(idle_timeout_ms), .min = 0, .max = WEEK_MS, .initial = "0",
	  .help = "reset sessions without a byte for so long; 0: never" },
	{ .name = "fin-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(fin_timeout_ms), .min = 0, .max = WEEK_MS, .initial = "0",
	  .help = "instead, when one end has sent FIN; 0: the same" },
	{ .name = "resolve-interval", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(resolve_interval_ms), .min = 100, .max = DAY_MS, .initial = "30",
	  .help = "how often an upstream's host name is looked up" },
	{ .name = "grace", .metavar = "SECONDS", .kind = KIND_SECONDS, .offset = AT(grace_ms),
	  .min = 0, .max = DAY_MS, .initial = "5",
	  .change = CHANGE_BY_RELOAD,
	  .help = "how long sessions may go on after SIGTERM" },
	{ .name = "drain-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  EACH(drain_timeout_ms), .min = 0, .max = DAY_MS, .initial = "0",
	  .help = "sessions of a removed forward may go on so long; 0: ever" },
	{ .name = "max-sessions", .metavar = "N", .kind = KIND_COUNT, .offset = AT(max_sessions),
	  .min = 1, .max = 1000000, .initial = "16384",
	  .help = "sessions at a time" },
	{ .name = "max-sessions-per-client", .metavar = "N", .kind = KIND_COUNT,
	  .offset = AT(max_sessions_per_client), .min = 0, .max = 1000000,
	  .computed = "half of them; 0: no limit",
	  .help = "of one IPv4 address or IPv6 /64" },
	{ .name = "nodelay", .metavar = "yes|no", .kind = KIND_BOOL, EACH(nodelay),
	  .initial = "yes",
	  .help = "send small messages at once (TCP_NODELAY)" },
	{ .name = "keepalive", .metavar = "N", .kind = KIND_COUNT, EACH(keepalive_s),
	  .min = 0, .max = KEEPALIVE_MAX, .initial = "0",
	  .help = "probe ends that are silent for N seconds; 0: never" },
	{ .name = "copy-buffer", .metavar = "SIZE", .kind = KIND_SIZE, EACH(copy_buffer),
	  .min = 1 << 10, .max = 16 << 20, .initial = "64K",
	  .help = "bytes per read when copying" },
	{ .name = "accept-rate", .metavar = "N", .kind = KIND_COUNT, EACH(accept_rate),
	  .min = 0, .max = 1000000, .initial = "0",
	  .help = "connections a second, of a forward; 0: any number" },
	{ .name = "bandwidth", .metavar = "SIZE", .kind = KIND_SIZE64, EACH(bandwidth),
	  .min = 0, .max = BUCKET_RATE_MAX, .initial = "0",
	  .help = "a second, each way, of a forward; 0: any" },
	{ .name = "bandwidth-per-client", .metavar = "SIZE", .kind = KIND_SIZE64,
	  EACH(bandwidth_per_client), .min = 0, .max = BUCKET_RATE_MAX, .initial = "0",
	  .help = "the same of one client at a forward" },
	{ .name = "soft-limit", .metavar = "SIZE", .kind = KIND_SIZE64, EACH(soft_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "1M",
	  .help = "kernel backlog at which a flow leaves sockmap" },
	{ .name = "hard-limit", .metavar = "SIZE", .kind = KIND_SIZE64, EACH(hard_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "4M",
	  .help = "kernel backlog at which the kernel stops redirecting" },
	{ .name = "allow", .metavar = "CLIENTS", .kind = KIND_ALLOW, EACH(acl),
	  .computed = "all",
	  .help = "who may connect, such as 10.0.0.0/8,::1" },
	{ .name = "deny", .metavar = "CLIENTS", .kind = KIND_DENY, EACH(acl), .computed = "none",
	  .help = "who may not; the first rule that matches decides" },
	{ .name = "proxy-protocol", .metavar = "WORDS", .kind = KIND_PROXY, EACH(proxy_protocol),
	  .initial = "off",
	  .help = "PROXY headers: receive, send-v1, send-v2" },
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
	  .help = "of their packets, for ip rule and firewall; 0: none" },
	{ .name = "transparent", .metavar = "yes|no", .kind = KIND_BOOL, EACH(transparent),
	  .initial = "no",
	  .help = "connect to the upstream from the client's address" },
	{ .name = "settle", .metavar = "SECONDS", .kind = KIND_SECONDS, .offset = AT(settle_ms),
	  .min = 0, .max = DAY_MS, .initial = "0.3",
	  .help = "auto: user space watches a flow so long first" },
	{ .name = "review", .metavar = "N", .kind = KIND_COUNT, .offset = AT(review_packets),
	  .min = 0, .max = 1000000000, .initial = "1000000",
	  .help = "auto: judge flows again after N packets; 0: never" },
	{ .name = "probe", .metavar = "yes|no", .kind = KIND_BOOL, .offset = AT(probe),
	  .initial = "yes",
	  .help = "try the kernel first, and use only what works" },
	{ .name = "user", .metavar = "NAME", .kind = KIND_NAME, .offset = AT(user),
	  .computed = "culvert's choice",
	  .help = "account to become" },
	{ .name = "seccomp", .metavar = "MODE", .kind = KIND_FILTER, .offset = AT(seccomp),
	  .initial = "errno",
	  .help = "calls that culvert does not need: " FILTER_NAMES },
	{ .name = "privileged-process", .metavar = "yes|no", .kind = KIND_BOOL,
	  .offset = AT(privileged_process), .initial = "yes",
	  .help = "one for what needs privileges later, if anything can" },
	{ .name = "log-level", .metavar = "LEVEL", .kind = KIND_LEVEL, .offset = AT(log_level),
	  .initial = "info",
	  .change = CHANGE_BY_RELOAD,
	  .help = LEVEL_NAMES },
	{ .name = "session-log", .metavar = "FILE", .kind = KIND_FILE, .offset = AT(session_log),
	  .computed = "none",
	  .help = "a line of JSON for each session that ends; -: stdout" },
	{ .name = "max-sessions", .metavar = "N", .kind = KIND_COUNT, OWN(max_sessions),
	  .min = 1, .max = 1000000, .computed = "no limit of its own",
	  .help = "sessions of the forward at a time" },
	{ .name = "max-sessions-per-client", .metavar = "N", .kind = KIND_COUNT,
	  OWN(max_sessions_per_client), .min = 1, .max = 1000000, .computed = "no limit of its own",
	  .help = "of one client at the forward" },
	{ .name = "help", .kind = KIND_HELP, .scope = SCOPE_WORDS, .help = "show this help" },
};

#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static const char *const engines[] = {
	[ENGINE_AUTO] = "auto",
	[ENGINE_SOCKMAP] = "sockmap",
	[ENGINE_SPLICE] = "splice",
	[ENGINE_COPY] = "copy",
};

static const char *const spreads[] = {
	[SPREAD_AUTO] = "auto",
	[SPREAD_ALL] = "all",
	[SPREAD_ROTATE] = "rotate",
};

static const char *const filters[] = {
	[FILTER_ERRNO] = "errno",
	[FILTER_KILL] = "kill",
	[FILTER_OFF] = "off",
};

const char *engine_name(enum engine e)
{
	return (size_t)e < sizeof(engines) / sizeof(engines[0]) ? engines[e] : "?";
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

_Static_assert(sizeof(enum engine) == sizeof(unsigned int) &&
		       sizeof(enum spread) == sizeof(unsigned int) &&
		       sizeof(enum filter_mode) == sizeof(unsigned int),
	       "name_parse() stores enums");

/* The place of TEXT among N names. */
static int name_parse(const char *text, const char *const *names, size_t n, unsigned int *ret)
{
	for (size_t i = 0; i < n; i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret = (unsigned int)i;
			return 0;
		}
	}
	return -EINVAL;
}

#define N_NAMES(names) (sizeof(names) / sizeof((names)[0]))

const char *option_expectation(const struct option_def *o, char *buf, size_t size)
{
	char min[SIZE_STRLEN], max[SIZE_STRLEN];

	switch (o->kind) {
	case KIND_ENGINE:
		return ENGINE_NAMES;
	case KIND_SPREAD:
		return SPREAD_NAMES;
	case KIND_FILTER:
		return FILTER_NAMES;
	case KIND_BOOL:
		return "yes or no";
	case KIND_LEVEL:
		return LEVEL_NAMES;
	case KIND_COUNT:
		snprintf(buf, size, "a whole number from %llu to %llu", (unsigned long long)o->min,
			 (unsigned long long)o->max);
		return buf;
	case KIND_SECONDS:
		snprintf(buf, size, "seconds from %g to %g, such as 5 or 0.5",
			 (double)o->min / 1000, (double)o->max / 1000);
		return buf;
	case KIND_SIZE:
	case KIND_SIZE64:
		snprintf(buf, size, "a size from %s to %s, such as 64K or 1M",
			 size_format(o->min, min, sizeof(min)),
			 size_format(o->max, max, sizeof(max)));
		return buf;
	case KIND_PATH:
		snprintf(buf, size, "a path of 1 to %zu bytes",
			 sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
		return buf;
	case KIND_FILE:
		return "the name of a file";
	case KIND_NAME:
		return "the name of an account";
	case KIND_PROXY:
		return PROXY_USE_NAMES;
	case KIND_ALLOW:
	case KIND_DENY:
		return "addresses, prefixes without host bits, unix: or all, such as 10.0.0.0/8, "
		       "2001:db8::1";
	case KIND_SOURCE:
		return "an IPv4 or IPv6 address without a port, or any";
	case KIND_INTERFACE:
		return "the name of a network interface, or any";
	case KIND_MARK:
		return "a number below 2^32, such as 7 or 0x1f, or 0 for none";
	case KIND_HELP:
		break;
	}
	return "no value";
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

static int number_parse(const struct option_def *o, const char *text, uint64_t *ret)
{
	int r;

	if (o->kind == KIND_COUNT)
		r = count_parse(text, ret);
	else if (o->kind == KIND_SECONDS)
		r = seconds_parse(text, ret);
	else
		r = size_parse(text, ret);
	if (r == 0 && (*ret < o->min || *ret > o->max))
		r = -ERANGE;
	return r;
}

static int mark_parse(const char *text, unsigned int *ret)
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

/* As dev_valid_name() of the kernel has it. */
static int interface_parse(const char *text, const char **ret)
{
	if (!*text || strlen(text) >= IFNAMSIZ || !strcmp(text, ".") || !strcmp(text, "..") ||
	    strpbrk(text, "/: \t"))
		return -EINVAL;
	*ret = strcmp(text, "any") != 0 ? text : NULL;
	return 0;
}

static int source_parse(const char *text, struct addr *ret)
{
	*ret = (struct addr){ 0 };
	return strcmp(text, "any") != 0 ? addr_parse_host(text, ret) : 0;
}

/* FIELD is where O is kept. */
static int store(void *field, const struct option_def *o, const char *value)
{
	uint64_t number;
	int r;

	switch (o->kind) {
	case KIND_ENGINE:
		return name_parse(value, engines, N_NAMES(engines), field);
	case KIND_SPREAD:
		return name_parse(value, spreads, N_NAMES(spreads), field);
	case KIND_FILTER:
		return name_parse(value, filters, N_NAMES(filters), field);
	case KIND_BOOL:
		*(bool *)field = !strcmp(value, "yes");
		return *(bool *)field || !strcmp(value, "no") ? 0 : -EINVAL;
	case KIND_LEVEL:
		r = log_level_parse(value);
		if (r >= 0)
			*(int *)field = r;
		return r < 0 ? r : 0;
	case KIND_PATH:
		if (strlen(value) >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return -EINVAL;
		/* fall through */
	case KIND_FILE:
	case KIND_NAME:
		if (!value[0])
			return -EINVAL;
		*(const char **)field = value;
		return 0;
	case KIND_COUNT:
	case KIND_SECONDS:
	case KIND_SIZE:
	case KIND_SIZE64:
		r = number_parse(o, value, &number);
		if (r < 0)
			return r;
		if (o->kind == KIND_SIZE64)
			*(uint64_t *)field = number;
		else if (o->kind == KIND_SIZE)
			*(size_t *)field = (size_t)number;
		else
			*(unsigned int *)field = (unsigned int)number;
		return 0;
	case KIND_PROXY:
		return proxy_use_parse(value, field);
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_add(field, o->kind == KIND_ALLOW, value);
	case KIND_SOURCE:
		return source_parse(value, field);
	case KIND_INTERFACE:
		return interface_parse(value, field);
	case KIND_MARK:
		return mark_parse(value, field);
	case KIND_HELP:
		break;
	}
	return -EINVAL;
}

int option_store(struct config *c, const struct option_def *o, const char *value)
{
	return store((char *)c + o->offset, o, value);
}

int option_store_own(struct forward_conf *fc, const struct option_def *o, const char *value)
{
	return store((char *)fc + o->own, o, value);
}

/* Of what store() writes. */
static size_t field_size(enum option_kind kind)
{
	switch (kind) {
	case KIND_BOOL:
		return sizeof(bool);
	case KIND_SIZE:
		return sizeof(size_t);
	case KIND_SIZE64:
		return sizeof(uint64_t);
	case KIND_PATH:
	case KIND_FILE:
	case KIND_NAME:
	case KIND_INTERFACE:
		return sizeof(const char *);
	case KIND_SOURCE:
		return sizeof(struct addr);
	default: /* and the enums: see name_parse() */
		return sizeof(unsigned int);
	}
}

void options_inherit(struct forward_conf *fc, const struct config *c, const unsigned int *own)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option_def *o = &options[i];

		if (o->scope == SCOPE_EACH && !own[i] && !option_is_list(o))
			memcpy((char *)fc + o->own, (const char *)c + o->offset,
			       field_size(o->kind));
	}
}

static bool same_value(const struct option_def *o, const void *a, const void *b)
{
	const char *x, *y;

	switch (o->kind) {
	case KIND_ALLOW:
	case KIND_DENY:
		return acl_same(a, b);
	case KIND_PATH:
	case KIND_FILE:
	case KIND_NAME:
		x = *(const char *const *)a;
		y = *(const char *const *)b;
		return x == y || (x && y && !strcmp(x, y));
	default:
		return !memcmp(a, b, field_size(o->kind));
	}
}

bool options_same_own(const struct forward_conf *a, const struct forward_conf *b)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option_def *o = &options[i];

		if ((o->scope == SCOPE_EACH || o->scope == SCOPE_FORWARD) &&
		    !same_value(o, (const char *)a + o->own, (const char *)b + o->own))
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

void options_default(struct config *c)
{
	c->workers = usable_cpus();
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (options[i].initial)
			option_store(c, &options[i], options[i].initial);
	}
}

static void option_help(const struct option_def *o)
{
	const char *initial = o->initial ? o->initial : o->computed;
	char left[40];

	snprintf(left, sizeof(left), "%s%s %s", o->scope == SCOPE_FORWARD ? "" : "--", o->name,
		 o->metavar ? o->metavar : "");
	printf("  %-28s%s", left, o->help);
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

/* The names as wide as the other lines. */
void options_help_forward(void)
{
	int at = 0;

	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].scope == SCOPE_FORWARD)
			option_help(&options[i]);
	puts("\n"
	     "and its own of these options, which then count for it instead of those above:");
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
