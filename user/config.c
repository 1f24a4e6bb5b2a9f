/* SPDX-License-Identifier: BSD-2-Clause */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"

#define WORKERS_MAX 1024
#define DAY_MS (24 * 3600 * 1000)

enum kind {
	KIND_HELP,
	KIND_ENGINE,  /* enum engine */
	KIND_FILTER,  /* enum filter_mode */
	KIND_BOOL,    /* bool */
	KIND_LEVEL,   /* int */
	KIND_COUNT,   /* unsigned int */
	KIND_SECONDS, /* unsigned int, milliseconds */
	KIND_SIZE,    /* size_t, bytes */
	KIND_SIZE64,  /* uint64_t, bytes */
	KIND_PATH,    /* const char *, fits into sun_path */
	KIND_NAME,    /* const char * */
};

/* One option.  The parser, the defaults and the help all come from the table of these. */
struct option_def {
	const char *name;
	const char *metavar;
	const char *help;
	const char *initial;  /* default, as the user would write it; NULL: computed */
	const char *computed; /* what the help says about a computed default */
	enum kind kind;
	size_t offset;     /* in struct config */
	uint64_t min, max; /* in the unit of the field */
};

#define NOT_GIVEN UINT_MAX
#define AT(field) offsetof(struct config, field)
#define ENGINE_NAMES "auto, sockmap, splice or copy"
#define FILTER_NAMES "errno, kill or off"
#define LEVEL_NAMES "error, warning, notice, info or debug"

static const struct option_def options[] = {
	{ .name = "--engine", .metavar = "ENGINE", .kind = KIND_ENGINE, .offset = AT(engine),
	  .initial = "auto",
	  .help = "what carries the payload: " ENGINE_NAMES },
	{ .name = "--workers", .metavar = "N", .kind = KIND_COUNT, .offset = AT(workers),
	  .min = 1, .max = WORKERS_MAX, .computed = "one per CPU",
	  .help = "worker threads" },
	{ .name = "--control", .metavar = "PATH", .kind = KIND_PATH, .offset = AT(control),
	  .initial = CONFIG_CONTROL_DEFAULT,
	  .help = "unix socket for client commands" },
	{ .name = "--connect-timeout", .metavar = "SECONDS", .kind = KIND_SECONDS,
	  .offset = AT(connect_timeout_ms), .min = 1, .max = DAY_MS, .initial = "5",
	  .help = "how long an upstream address may take to answer" },
	{ .name = "--grace", .metavar = "SECONDS", .kind = KIND_SECONDS, .offset = AT(grace_ms),
	  .min = 0, .max = DAY_MS, .initial = "5",
	  .help = "how long sessions may go on after SIGTERM" },
	{ .name = "--max-sessions", .metavar = "N", .kind = KIND_COUNT, .offset = AT(max_sessions),
	  .min = 1, .max = 1000000, .initial = "16384",
	  .help = "sessions at a time" },
	{ .name = "--max-sessions-per-client", .metavar = "N", .kind = KIND_COUNT,
	  .offset = AT(max_sessions_per_client), .min = 0, .max = 1000000,
	  .computed = "half of them; 0: no limit",
	  .help = "of one IPv4 address or IPv6 /64" },
	{ .name = "--copy-buffer", .metavar = "SIZE", .kind = KIND_SIZE, .offset = AT(copy_buffer),
	  .min = 1 << 10, .max = 16 << 20, .initial = "64K",
	  .help = "bytes per read when copying" },
	{ .name = "--soft-limit", .metavar = "SIZE", .kind = KIND_SIZE64, .offset = AT(soft_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "1M",
	  .help = "kernel backlog at which a flow leaves sockmap" },
	{ .name = "--hard-limit", .metavar = "SIZE", .kind = KIND_SIZE64, .offset = AT(hard_limit),
	  .min = 4 << 10, .max = 1 << 30, .initial = "4M",
	  .help = "kernel backlog at which the kernel stops redirecting" },
	{ .name = "--settle", .metavar = "SECONDS", .kind = KIND_SECONDS, .offset = AT(settle_ms),
	  .min = 0, .max = DAY_MS, .initial = "0.3",
	  .help = "auto: user space watches a flow so long first" },
	{ .name = "--review", .metavar = "N", .kind = KIND_COUNT, .offset = AT(review_packets),
	  .min = 0, .max = 1000000000, .initial = "1000000",
	  .help = "auto: judge flows again after N packets; 0: never" },
	{ .name = "--probe", .metavar = "yes|no", .kind = KIND_BOOL, .offset = AT(probe),
	  .initial = "yes",
	  .help = "try the kernel first, and use only what works" },
	{ .name = "--user", .metavar = "NAME", .kind = KIND_NAME, .offset = AT(user),
	  .computed = "culvert's choice",
	  .help = "account to become" },
	{ .name = "--seccomp", .metavar = "MODE", .kind = KIND_FILTER, .offset = AT(seccomp),
	  .initial = "errno",
	  .help = "calls that culvert does not need: " FILTER_NAMES },
	{ .name = "--log-level", .metavar = "LEVEL", .kind = KIND_LEVEL, .offset = AT(log_level),
	  .initial = "info",
	  .help = LEVEL_NAMES },
	{ .name = "--help", .kind = KIND_HELP, .help = "show this help" },
};

#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static const char *const engines[] = {
	[ENGINE_AUTO] = "auto",
	[ENGINE_SOCKMAP] = "sockmap",
	[ENGINE_SPLICE] = "splice",
	[ENGINE_COPY] = "copy",
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

/* What a value of option O should look like, for messages. */
static const char *expectation(const struct option_def *o, char *buf, size_t size)
{
	char min[SIZE_STRLEN], max[SIZE_STRLEN];

	switch (o->kind) {
	case KIND_ENGINE:
		return ENGINE_NAMES;
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
	case KIND_NAME:
		return "the name of an account";
	case KIND_HELP:
		break;
	}
	return "no value";
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

/* Store VALUE as option O says; nothing is printed. */
static int option_store(struct config *c, const struct option_def *o, const char *value)
{
	void *field = (char *)c + o->offset;
	uint64_t number;
	int r;

	switch (o->kind) {
	case KIND_ENGINE:
		return name_parse(value, engines, N_NAMES(engines), field);
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
	case KIND_HELP:
		break;
	}
	return -EINVAL;
}

static void set_defaults(struct config *c)
{
	memset(c, 0, sizeof(*c));
	c->workers = usable_cpus();
	c->max_sessions_per_client = NOT_GIVEN;
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (options[i].initial)
			option_store(c, &options[i], options[i].initial);
	}
}

static const struct option_def *option_find(const char *word, size_t len)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (strlen(options[i].name) == len && strncmp(options[i].name, word, len) == 0)
			return &options[i];
	}
	return NULL;
}

/*
 * Take the option at ARGV[*POS], and its value; leaves *POS on the last word used.
 * Returns 0, 1 (help asked for) or -EINVAL.
 */
static int take_option(int argc, char **argv, int *pos, struct config *c)
{
	const char *word = argv[*pos];
	size_t len = strcspn(word, "=");
	const char *value = word[len] ? word + len + 1 : NULL;
	const struct option_def *o = option_find(word, len);
	char buf[128];

	if (!o)
		return log_complain(-EINVAL, "%.*s: unknown option (`culvert help run` lists them)",
				    (int)(len > 256 ? 256 : len), word);
	if (o->kind == KIND_HELP)
		return value ? log_complain(-EINVAL, "%s: takes no value", o->name) : 1;
	if (!value) {
		/* Another option here is a forgotten value; "=--x" says that it is meant. */
		if (*pos + 1 >= argc || strncmp(argv[*pos + 1], "--", 2) == 0)
			return log_complain(-EINVAL, "%s: needs a value: %s", o->name,
					    expectation(o, buf, sizeof(buf)));
		value = argv[++*pos];
	}
	if (option_store(c, o, value) < 0)
		return log_complain(-EINVAL, "%s: \"%.256s\" is not valid, expected %s", o->name,
				    value, expectation(o, buf, sizeof(buf)));
	return 0;
}

/* Options may stand before, between and after the addresses, which go to WORDS. */
static int parse_words(int argc, char **argv, struct config *c, char **words, size_t *ret_n)
{
	bool options_end = false;
	int r;

	*ret_n = 0;
	for (int i = 1; i < argc; i++) {
		if (options_end || argv[i][0] != '-') {
			words[(*ret_n)++] = argv[i];
			continue;
		}
		if (strcmp(argv[i], "--") == 0) {
			options_end = true;
			continue;
		}
		r = take_option(argc, argv, &i, c);
		if (r != 0)
			return r;
	}
	return 0;
}

static int check_words(const struct config *c, char **words, size_t n)
{
	char soft[SIZE_STRLEN], hard[SIZE_STRLEN];

	if (c->soft_limit > c->hard_limit)
		return log_complain(-EINVAL, "--soft-limit: %s is above --hard-limit (%s)",
				    size_format(c->soft_limit, soft, sizeof(soft)),
				    size_format(c->hard_limit, hard, sizeof(hard)));
	if (n == 0)
		return log_complain(-EINVAL, "nothing to forward, expected LISTEN UPSTREAM "
					     "(see `culvert help run`)");
	if (n % 2 != 0)
		return log_complain(-EINVAL, "\"%.256s\": no UPSTREAM for this LISTEN address",
				    words[n - 1]);
	return 0;
}

static bool takes_any_port(const struct addr *a)
{
	/* The port is at the same place in sockaddr_in6. */
	return addr_is_inet(a) && ((const struct sockaddr_in *)&a->ss)->sin_port == 0;
}

/* The first listener before number N with an address in common, or NULL. */
static const struct endpoint *same_listener(const struct config *c, size_t n)
{
	const struct endpoint *b = &c->forwards[n].listen;

	for (size_t i = 0; i < n; i++) {
		const struct endpoint *a = &c->forwards[i].listen;

		for (size_t k = 0; k < a->n_addrs * b->n_addrs; k++) {
			const struct addr *x = &a->addrs[k / b->n_addrs];

			if (takes_any_port(x))
				continue; /* the kernel picks two different ports */
			if (addr_equal(x, &b->addrs[k % b->n_addrs]))
				return a;
		}
	}
	return NULL;
}

static int parse_endpoint(const char *role, const char *word, bool passive, struct endpoint *ret)
{
	char err[256];
	int r;

	r = endpoint_parse(word, passive, ret, err, sizeof(err));
	if (r < 0)
		return log_complain(r, "%s \"%.320s\": %s", role, word, err);
	return 0;
}

static int parse_forwards(struct config *c, char **words, size_t n)
{
	const struct endpoint *same;
	int r;

	c->forwards = calloc(n / 2 ?: 1, sizeof(*c->forwards));
	if (!c->forwards)
		return log_complain(-ENOMEM, "out of memory");
	while (c->n_forwards < n / 2) {
		size_t i = c->n_forwards++;

		r = parse_endpoint("LISTEN", words[2 * i], true, &c->forwards[i].listen);
		if (r < 0)
			return r;
		r = parse_endpoint("UPSTREAM", words[2 * i + 1], false, &c->forwards[i].upstream);
		if (r < 0)
			return r;
		same = same_listener(c, i);
		if (same)
			return log_complain(-EINVAL,
					    "LISTEN \"%s\": same address as the earlier \"%s\"",
					    words[2 * i], same->text);
	}
	return 0;
}

int config_parse(int argc, char **argv, struct config *ret)
{
	char **words;
	size_t n;
	int r;

	set_defaults(ret);
	words = calloc((size_t)argc + 1, sizeof(*words));
	if (!words)
		return log_complain(-ENOMEM, "out of memory");
	r = parse_words(argc, argv, ret, words, &n);
	/* one client cannot take all; one that stands for many, as a proxy does, still has many */
	if (ret->max_sessions_per_client == NOT_GIVEN)
		ret->max_sessions_per_client = (ret->max_sessions + 1) / 2;
	if (r == 0)
		r = check_words(ret, words, n);
	if (r == 0)
		r = parse_forwards(ret, words, n);
	if (r == 1)
		config_help();
	free(words);
	return r;
}

void config_close(struct config *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->n_forwards; i++) {
		endpoint_close(&c->forwards[i].listen);
		endpoint_close(&c->forwards[i].upstream);
	}
	free(c->forwards);
	c->forwards = NULL;
	c->n_forwards = 0;
}

void config_help(void)
{
	puts("Usage: culvert run [options] LISTEN UPSTREAM [LISTEN UPSTREAM]...\n"
	     "\n"
	     "Accept connections at each LISTEN address and forward them to its UPSTREAM address.\n"
	     "\n"
	     "Addresses: 1.2.3.4:80, [::1]:80, host:80, unix:/path, unix:@abstract-name;\n"
	     "to listen also :80 (every local address) and port 0 (the kernel picks one).\n"
	     "\n"
	     "Options:");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option_def *o = &options[i];
		const char *initial = o->initial ? o->initial : o->computed;
		char left[40];

		snprintf(left, sizeof(left), "%s %s", o->name, o->metavar ? o->metavar : "");
		printf("  %-28s%s", left, o->help);
		if (initial)
			printf(" (default %s)", initial);
		putchar('\n');
	}
	puts("  --                          end of the options\n"
	     "\n"
	     "A SIZE is in bytes, or has the suffix K, M or G.  SECONDS may have decimals: 0.5.\n"
	     "\n"
	     "Example: culvert run 0.0.0.0:9000 10.0.2.2:9001");
}
