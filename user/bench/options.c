// SPDX-License-Identifier: BSD-2-Clause
#include "options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/parse_size.h"
#include "version.h"
#include "wire.h"

#define BIT(w) (1u << (w))
#define SINK BIT(WORKLOAD_SINK)
#define CLIENTS (BIT(N_WORKLOADS) - 1 - SINK)
#define TRANSFERS                                                                                  \
	(BIT(WORKLOAD_BULK_UP) | BIT(WORKLOAD_BULK_DOWN) | BIT(WORKLOAD_BULK_BOTH) |               \
	 BIT(WORKLOAD_SLOW))
#define UDP (SINK | BIT(WORKLOAD_RR) | BIT(WORKLOAD_CRR) | BIT(WORKLOAD_BULK_UP))
#define UNTIL_SIGNAL BIT(WORKLOAD_IDLE) /* unless --seconds is given */

struct workload_def {
	const char *name;
	const char *help;
};

static const struct workload_def workloads[N_WORKLOADS] = {
	[WORKLOAD_SINK] = { "sink", "the other end: serves every workload below" },
	[WORKLOAD_RR] = { "rr",
			  "request/response: SIZE bytes there, SIZE bytes back, at once the next" },
	[WORKLOAD_CRR] = { "crr",
			   "connect, one request/response of SIZE bytes, close; N loops at a time" },
	[WORKLOAD_BULK_UP] = { "bulk-up", "send as fast as possible; the sink verifies" },
	[WORKLOAD_BULK_DOWN] = { "bulk-down", "the sink sends as fast as possible" },
	[WORKLOAD_BULK_BOTH] = { "bulk-both", "both at once, on each connection" },
	[WORKLOAD_IDLE] = { "idle",
			    "open N connections, hold them, then see that each one still works" },
	[WORKLOAD_SLOW] = { "slow",
			    "the sink sends as fast as possible, each client reads RATE bytes/s" },
};

enum kind {
	KIND_LISTEN,  /* struct endpoints */
	KIND_CONNECT, /* struct endpoints */
	KIND_SOURCE,  /* struct source_range */
	KIND_COUNT,   /* uint32_t */
	KIND_SIZE,    /* uint32_t, bytes */
	KIND_RATE,    /* uint64_t, bytes */
	KIND_SECONDS, /* uint32_t, milliseconds */
	KIND_CHOICE,  /* uint32_t: 0 or 1 */
};

/* One option.  The parser, the defaults and the help all come from the table of these. */
struct option_def {
	const char *name, *metavar, *help;
	const char *initial;  /* default, as the user would write it */
	const char *transfer; /* another default, for bulk and slow */
	const char *note;     /* what the help says about a default that is none of these */
	unsigned int workloads;
	enum kind kind;
	const char *words[2]; /* to choose from */
	size_t offset;        /* in struct options */
	uint64_t min, max;    /* in the unit of the field */
};

#define AT(field) offsetof(struct options, field)

static const struct option_def options[] = {
	{ .name = "--protocol",
	  .metavar = "NAME",
	  .kind = KIND_CHOICE,
	  .words = { "tcp", "udp" },
	  .offset = AT(udp),
	  .workloads = UDP,
	  .initial = "tcp",
	  .help = "tcp or udp" },
	{ .name = "--listen",
	  .metavar = "ADDR:PORT",
	  .kind = KIND_LISTEN,
	  .offset = AT(listen),
	  .workloads = SINK,
	  .help = "where to accept; may be repeated; port 0: the kernel picks" },
	{ .name = "--connect",
	  .metavar = "ADDR:PORT",
	  .kind = KIND_CONNECT,
	  .offset = AT(connect),
	  .workloads = CLIENTS,
	  .help = "the sink, or the relay to it; repeated: in turn" },
	{ .name = "--source",
	  .metavar = "FIRST[-LAST]",
	  .kind = KIND_SOURCE,
	  .offset = AT(source),
	  .workloads = CLIENTS,
	  .help = "local addresses to connect from, in turn",
	  .note = "the kernel's choice" },
	{ .name = "--connections",
	  .metavar = "N",
	  .kind = KIND_COUNT,
	  .offset = AT(connections),
	  .workloads = CLIENTS,
	  .min = 1,
	  .max = 1000000,
	  .initial = "1",
	  .help = "connections at a time" },
	{ .name = "--in-flight",
	  .metavar = "N",
	  .kind = KIND_COUNT,
	  .offset = AT(in_flight),
	  .workloads = CLIENTS,
	  .min = 1,
	  .max = 65536,
	  .initial = "256",
	  .help = "connections being opened at a time" },
	{ .name = "--processes",
	  .metavar = "N",
	  .kind = KIND_COUNT,
	  .offset = AT(processes),
	  .workloads = SINK | CLIENTS,
	  .min = 1,
	  .max = PROCESSES_MAX,
	  .initial = "1",
	  .help = "processes that share the work" },
	{ .name = "--size",
	  .metavar = "SIZE",
	  .kind = KIND_SIZE,
	  .offset = AT(size),
	  .workloads = CLIENTS,
	  .min = 1,
	  .max = EXCHANGE_SIZE_MAX,
	  .initial = "64",
	  .transfer = "256K",
	  .help = "bytes of a message; of a stream: per send" },
	{ .name = "--rate",
	  .metavar = "SIZE",
	  .kind = KIND_RATE,
	  .offset = AT(rate),
	  .workloads = BIT(WORKLOAD_SLOW),
	  .min = 1,
	  .max = UINT64_C(1) << 40,
	  .initial = "64K",
	  .help = "bytes that each connection reads per second" },
	{ .name = "--warmup",
	  .metavar = "SECONDS",
	  .kind = KIND_SECONDS,
	  .offset = AT(warmup_ms),
	  .workloads = CLIENTS - UNTIL_SIGNAL,
	  .max = PHASE_MS_MAX,
	  .initial = "0.2",
	  .help = "work before the measured time" },
	{ .name = "--seconds",
	  .metavar = "SECONDS",
	  .kind = KIND_SECONDS,
	  .offset = AT(seconds_ms),
	  .workloads = CLIENTS,
	  .min = 1,
	  .max = PHASE_MS_MAX,
	  .initial = "5",
	  .note = "idle: until a signal",
	  .help = "the measured time" },
	{ .name = "--timeout",
	  .metavar = "SECONDS",
	  .kind = KIND_SECONDS,
	  .offset = AT(timeout_ms),
	  .workloads = CLIENTS,
	  .min = 1,
	  .max = PHASE_MS_MAX,
	  .initial = "5",
	  .help = "longest wait for a connection or a response" },
	{ .name = "--verify",
	  .metavar = "HOW",
	  .kind = KIND_CHOICE,
	  .words = { "full", "sample" },
	  .offset = AT(verify),
	  .workloads = CLIENTS,
	  .initial = "full",
	  .transfer = "sample",
	  .help = "compare every byte (full), or 8 of 256" },
};

#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

void bench_say(const char *fmt, ...)
{
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	/* one write, so that processes never mix their lines */
	dprintf(STDERR_FILENO, "culvert-bench: %s\n", line);
}

const char *workload_name(enum workload w)
{
	return workloads[w].name;
}

bool workload_is_transfer(enum workload w)
{
	return BIT(w) & TRANSFERS;
}

/* --- source addresses --- */

static size_t address_len(int family)
{
	return family == AF_INET ? 4 : 16;
}

/* TEXT of N characters, perhaps in brackets; returns the family or AF_UNSPEC. */
static int parse_one(const char *text, size_t n, uint8_t ret[16])
{
	char copy[INET6_ADDRSTRLEN];

	if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
		text++;
		n -= 2;
	}
	if (n >= sizeof(copy))
		return AF_UNSPEC;
	memcpy(copy, text, n);
	copy[n] = '\0';
	if (inet_pton(AF_INET, copy, ret) == 1)
		return AF_INET;
	return inet_pton(AF_INET6, copy, ret) == 1 ? AF_INET6 : AF_UNSPEC;
}

/* LAST - FIRST + 1, or 0 if that is not within 1 .. SOURCE_RANGE_MAX. */
static uint32_t count_addresses(const uint8_t *first, const uint8_t *last, size_t len)
{
	int64_t distance = 0;

	for (size_t i = 0; i < len; i++) {
		distance = distance * 256 + last[i] - first[i];
		if (distance >= SOURCE_RANGE_MAX || distance <= -SOURCE_RANGE_MAX)
			return 0; /* what follows cannot bring it back by more than one */
	}
	return distance < 0 ? 0 : (uint32_t)distance + 1;
}

int source_range_parse(const char *text, struct source_range *ret, char *err, size_t errlen)
{
	const char *dash = strchr(text, '-');
	uint8_t last[16] = { 0 };
	int family;

	memset(ret, 0, sizeof(*ret));
	family = parse_one(text, dash ? (size_t)(dash - text) : strlen(text), ret->first);
	if (family == AF_UNSPEC) {
		snprintf(err, errlen, "expected an IPv4 or IPv6 address, or FIRST-LAST");
		return -EINVAL;
	}
	if (!dash) {
		memcpy(last, ret->first, sizeof(last));
	} else if (parse_one(dash + 1, strlen(dash + 1), last) != family) {
		snprintf(err, errlen, "LAST is no address of the same family as FIRST");
		return -EINVAL;
	}
	ret->count = count_addresses(ret->first, last, address_len(family));
	if (!ret->count) {
		snprintf(err, errlen, "LAST must come after FIRST, by less than %d addresses",
			 SOURCE_RANGE_MAX);
		return -EINVAL;
	}
	ret->family = family;
	return 0;
}

void source_range_at(const struct source_range *r, uint64_t n, struct addr *ret)
{
	uint64_t carry = n % r->count;
	uint8_t address[16];

	memcpy(address, r->first, sizeof(address));
	for (size_t i = address_len(r->family); i-- > 0; carry >>= 8) {
		carry += address[i];
		address[i] = (uint8_t)carry;
	}
	memset(ret, 0, sizeof(*ret));
	ret->ss.ss_family = (sa_family_t)r->family;
	if (r->family == AF_INET) {
		memcpy(&((struct sockaddr_in *)&ret->ss)->sin_addr, address, 4);
		ret->len = sizeof(struct sockaddr_in);
	} else {
		memcpy(&((struct sockaddr_in6 *)&ret->ss)->sin6_addr, address, 16);
		ret->len = sizeof(struct sockaddr_in6);
	}
}

/* --- values --- */

static int number_parse(const struct option_def *o, const char *text, uint64_t *ret)
{
	int r;

	if (o->kind == KIND_SECONDS)
		r = seconds_parse(text, ret);
	else if (o->kind == KIND_COUNT)
		r = count_parse(text, ret);
	else
		r = size_parse(text, ret);
	if (r == 0 && (*ret < o->min || *ret > o->max))
		r = -ERANGE;
	return r;
}

/* What a number of option O should look like. */
static void number_complain(const struct option_def *o, const char *text)
{
	char min[SIZE_STRLEN], max[SIZE_STRLEN];

	if (o->kind == KIND_SECONDS)
		bench_say("%s \"%s\": expected seconds from %g to %g, such as 5 or 0.5", o->name,
			  text, (double)o->min / 1000, (double)o->max / 1000);
	else if (o->kind == KIND_COUNT)
		bench_say("%s \"%s\": expected a whole number from %llu to %llu", o->name, text,
			  (unsigned long long)o->min, (unsigned long long)o->max);
	else
		bench_say("%s \"%s\": expected a size from %s to %s, such as 64K or 1M", o->name,
			  text, size_format(o->min, min, sizeof(min)),
			  size_format(o->max, max, sizeof(max)));
}

static int store_number(const struct option_def *o, const char *text, void *field)
{
	uint64_t number;
	int r = number_parse(o, text, &number);

	if (r < 0) {
		number_complain(o, text);
		return r;
	}
	if (o->kind == KIND_RATE)
		*(uint64_t *)field = number;
	else
		*(uint32_t *)field = (uint32_t)number;
	return 0;
}

static int store_endpoint(const struct option_def *o, const char *text, struct endpoints *e)
{
	char err[256];

	if (e->n == ENDPOINTS_MAX) {
		bench_say("%s: at most %d times", o->name, ENDPOINTS_MAX);
		return -EINVAL;
	}
	if (endpoint_parse(text, o->kind == KIND_LISTEN, &e->list[e->n], err, sizeof(err))) {
		bench_say("%s \"%s\": %s", o->name, text, err);
		return -EINVAL;
	}
	if (!addr_is_inet(&e->list[e->n++].addrs[0])) {
		bench_say("%s \"%s\": expected an IPv4 or IPv6 address", o->name, text);
		return -EINVAL;
	}
	return 0;
}

static int store_source(const struct option_def *o, const char *text, struct source_range *range)
{
	char err[256];
	int r = source_range_parse(text, range, err, sizeof(err));

	if (r < 0)
		bench_say("%s \"%s\": %s", o->name, text, err);
	return r;
}

/* 0 or 1: which of the option's two words it is. */
static int store_choice(const struct option_def *o, const char *text, uint32_t *field)
{
	for (*field = 0; *field < 2; ++*field)
		if (!strcmp(text, o->words[*field]))
			return 0;
	bench_say("%s \"%s\": expected %s or %s", o->name, text, o->words[0], o->words[1]);
	return -EINVAL;
}

static int store(struct options *c, const struct option_def *o, const char *text)
{
	void *field = (char *)c + o->offset;

	switch (o->kind) {
	case KIND_LISTEN:
	case KIND_CONNECT:
		return store_endpoint(o, text, field);
	case KIND_SOURCE:
		return store_source(o, text, field);
	case KIND_CHOICE:
		return store_choice(o, text, field);
	case KIND_COUNT:
	case KIND_SIZE:
	case KIND_RATE:
	case KIND_SECONDS:
		return store_number(o, text, field);
	}
	return -EINVAL;
}

static void set_defaults(struct options *c)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option_def *o = &options[i];
		const char *initial = o->initial;

		if (o->transfer && workload_is_transfer(c->workload))
			initial = o->transfer;
		if (initial)
			store(c, o, initial);
	}
	if (BIT(c->workload) & UNTIL_SIGNAL)
		c->seconds_ms = c->warmup_ms = 0;
}

static void print_option(const struct option_def *o)
{
	char left[40];

	snprintf(left, sizeof(left), "%s %s", o->name, o->metavar);
	printf("  %-24s %s", left, o->help);
	if (o->initial || o->note)
		printf(" (default %s%s%s%s%s)", o->initial ?: "",
		       o->transfer ? "; bulk, slow: " : "", o->transfer ?: "",
		       o->initial && o->note ? "; " : "", o->note ?: "");
	putchar('\n');
}

static void help(void)
{
	puts("Usage: culvert-bench sink --listen ADDR:PORT [options]\n"
	     "       culvert-bench WORKLOAD --connect ADDR:PORT [options]\n"
	     "\n"
	     "Generate load, through a relay or directly, and verify what comes.\n"
	     "\n"
	     "Workloads:");
	for (size_t i = 0; i < N_WORKLOADS; i++)
		printf("  %-10s %s\n", workloads[i].name, workloads[i].help);
	puts("\nOptions of all workloads but sink:");
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].workloads & CLIENTS)
			print_option(&options[i]);
	puts("\nOptions of sink:");
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].workloads & SINK)
			print_option(&options[i]);
	puts("\n"
	     "A SIZE is in bytes, or has the suffix K, M or G.  SECONDS may have decimals: .125.\n"
	     "Connections are opened, and have worked once, before the warm-up begins.\n"
	     "\n"
	     "The result is one line of JSON on stdout.  Throughput is what the receiver counted\n"
	     "in the measured time.  Latencies are those of requests (crr: from connect to the\n"
	     "end of the response) that ended in it.  The generator is a closed loop: a connection\n"
	     "sends its next request when it has the response.  A relay that stalls therefore\n"
	     "delays few requests, and high percentiles look better than at a fixed rate of\n"
	     "arrivals (\"coordinated omission\"): compare them only between runs of the same\n"
	     "workload.  Errors and wrong content are counted from the first connect on.\n"
	     "\n"
	     "With UDP a question without answer is an error after the timeout, and the next one is\n"
	     "sent.  crr sends each from another port.  bulk-up sends bursts of 40 datagrams (GSO),\n"
	     "looks for the highest rate that loses less than 0.1 %, trying each for 50 ms, and\n"
	     "stays there: \"lossless\", datagrams/s.\n"
	     "\n"
	     "A first SIGINT or SIGTERM ends the measured time, a second one ends at once.\n"
	     "Exit: 0 measured, 1 wrong content or nothing measured, 2 bad usage, 128 + signal.");
}

static const struct option_def *find(const char *word, size_t len)
{
	for (size_t i = 0; i < N_OPTIONS; i++)
		if (strlen(options[i].name) == len && !strncmp(options[i].name, word, len))
			return &options[i];
	return NULL;
}

/* The option at argv[*i], "--name value" or "--name=value"; leaves *i at its last word. */
static int parse_option(struct options *c, int argc, char **argv, int *i)
{
	const char *word = argv[*i], *value = strchr(word, '=');
	const struct option_def *o = find(word, value ? (size_t)(value - word) : strlen(word));

	if (!o) {
		bench_say("unknown option \"%s\" (try: culvert-bench --help)", word);
		return -EINVAL;
	}
	if (!(o->workloads & BIT(c->workload))) {
		bench_say("%s has no option %s", workload_name(c->workload), o->name);
		return -EINVAL;
	}
	if (value)
		value++;
	else if (++*i < argc)
		value = argv[*i];
	if (!value) {
		bench_say("%s needs a value: %s", o->name, o->metavar);
		return -EINVAL;
	}
	return store(c, o, value);
}

static int check(const struct options *c)
{
	bool sink = c->workload == WORKLOAD_SINK;

	if (!(sink ? c->listen.n : c->connect.n)) {
		bench_say("%s needs %s ADDR:PORT", workload_name(c->workload),
			  sink ? "--listen" : "--connect");
		return -EINVAL;
	}
	for (size_t i = 0; c->source.family && i < c->connect.n; i++) {
		if (c->connect.list[i].addrs[0].ss.ss_family != c->source.family) {
			bench_say("--source and --connect \"%s\" are of different families",
				  c->connect.list[i].text);
			return -EINVAL;
		}
	}
	if (workload_is_transfer(c->workload) && c->size > TRANSFER_SIZE_MAX) {
		bench_say("--size: %s sends at most %uK at a time", workload_name(c->workload),
			  TRANSFER_SIZE_MAX >> 10);
		return -EINVAL;
	}
	if (c->udp && !sink && (c->size < DATAGRAM_MIN || c->size > DATAGRAM_MAX)) {
		bench_say("--size: a datagram has %d to %d bytes", DATAGRAM_MIN, DATAGRAM_MAX);
		return -EINVAL;
	}
	return 0;
}

static int find_workload(const char *word, enum workload *ret)
{
	for (size_t i = 0; i < N_WORKLOADS; i++) {
		if (!strcmp(word, workloads[i].name)) {
			*ret = (enum workload)i;
			return 0;
		}
	}
	bench_say("no such workload: \"%s\" (try: culvert-bench --help)", word);
	return -EINVAL;
}

int options_parse(int argc, char **argv, struct options *ret)
{
	int r;

	memset(ret, 0, sizeof(*ret));
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			help();
			return 1;
		}
		if (!strcmp(argv[i], "--version") || !strcmp(argv[i], "-V")) {
			puts("culvert-bench " CULVERT_VERSION);
			return 1;
		}
	}
	if (argc < 2) {
		bench_say("no workload given (try: culvert-bench --help)");
		return -EINVAL;
	}
	r = find_workload(argv[1], &ret->workload);
	if (r < 0)
		return r;
	set_defaults(ret);
	for (int i = 2; i < argc; i++) {
		r = parse_option(ret, argc, argv, &i);
		if (r < 0)
			return r;
	}
	return check(ret);
}

void options_close(struct options *o)
{
	for (size_t i = 0; i < o->listen.n; i++)
		endpoint_close(&o->listen.list[i]);
	for (size_t i = 0; i < o->connect.n; i++)
		endpoint_close(&o->connect.list[i]);
	o->listen.n = o->connect.n = 0;
}
