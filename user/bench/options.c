// SPDX-License-Identifier: BSD-2-Clause
#include "options.h"

#include <argp.h>
#include <string.h>

#include "base/exit_codes.h"
#include "base/parse_size.h"
#include "config/endpoint.h"
#include "version.h"

/* --- source addresses --- */

/* The last 32 bits: only in them the addresses of a range differ. */
static uint32_t *last_bits(struct addr *a)
{
	return a->ss.ss_family == AF_INET ? &a->in.sin_addr.s_addr : &a->in6.sin6_addr.s6_addr32[3];
}

const char *source_range_parse(const char *text, struct source_range *ret)
{
	const char *dash = strchrnul(text, '-');
	char first[ADDR_STRLEN];
	struct addr last;
	uint32_t count;

	memset(ret, 0, sizeof(*ret));
	snprintf(first, sizeof(first), "%.*s", (int)(dash - text), text);
	if (addr_parse_host(first, &ret->first) || addr_parse_host(*dash ? dash + 1 : first, &last))
		return "expected an IPv4 or IPv6 address, or FIRST-LAST";
	count = ntohl(*last_bits(&last)) - ntohl(*last_bits(&ret->first)) + 1;
	*last_bits(&last) = *last_bits(&ret->first);
	if (!addr_equal(&last, &ret->first) || !count || count > SOURCE_RANGE_MAX)
		return "LAST must come after FIRST, by less than 65536 addresses";
	ret->count = count;
	return NULL;
}

void source_range_at(const struct source_range *r, uint64_t n, struct addr *ret)
{
	*ret = r->first;
	*last_bits(ret) = htonl(ntohl(*last_bits(ret)) + (uint32_t)(n % r->count));
}

/* --- the command line --- */

const char *argp_program_version = "culvert-bench " CULVERT_VERSION;

static const char *const names[N_WORKLOADS] = {
	[WORKLOAD_SINK] = "sink",
	[WORKLOAD_RR] = "rr",
	[WORKLOAD_CRR] = "crr",
	[WORKLOAD_IDLE] = "idle",
	[WORKLOAD_BULK_UP] = "bulk-up",
	[WORKLOAD_BULK_DOWN] = "bulk-down",
	[WORKLOAD_BULK_BOTH] = "bulk-both",
	[WORKLOAD_SLOW] = "slow",
};

/* Options with a number come first. */
enum {
	CONNECTIONS,
	IN_FLIGHT,
	PROCESSES,
	SIZE,
	RATE,
	WARMUP,
	SECONDS,
	TIMEOUT,
	N_NUMBERS,
	LISTEN = N_NUMBERS,
	CONNECT,
	SOURCE,
	PROTOCOL,
	ENDS,
	VERIFY
};

#define KEY 256 /* key of the first option; keys above 255 give no short options */

static const struct argp_option options[] = {
	{ 0, 0, 0, 0, "Options of all workloads but sink:", 1 },
	{ "connect", KEY + CONNECT, "ADDR:PORT", 0,
	  "the sink, or the relay to it; repeated: in turn", 1 },
	{ "source", KEY + SOURCE, "FIRST[-LAST]", 0,
	  "local addresses to connect from, in turn (default the kernel's choice)", 1 },
	{ "connections", KEY + CONNECTIONS, "N", 0, "connections at a time (default 1)", 1 },
	{ "in-flight", KEY + IN_FLIGHT, "N", 0, "connections being opened at a time (default 256)",
	  1 },
	{ "size", KEY + SIZE, "SIZE", 0,
	  "bytes of a message; of a stream: per send (default 64; bulk, slow: 256K)", 1 },
	{ "rate", KEY + RATE, "SIZE", 0,
	  "slow: bytes that each connection reads per second (default 64K)", 1 },
	{ "warmup", KEY + WARMUP, "SECONDS", 0, "work before the measured time (default 0.2)", 1 },
	{ "seconds", KEY + SECONDS, "SECONDS", 0,
	  "the measured time (default 5; idle: until a signal)", 1 },
	{ "timeout", KEY + TIMEOUT, "SECONDS", 0,
	  "longest wait for a connection or a response (default 5)", 1 },
	{ "ends", KEY + ENDS, "HOW", 0,
	  "crr: client, server, client-half, server-half, client-reset, server-reset, or each in turn "
	  "(default client)",
	  1 },
	{ "verify", KEY + VERIFY, "HOW", 0,
	  "compare every byte (full), or 8 of 256 (sample) (default full; bulk, slow: sample)", 1 },
	{ 0, 0, 0, 0, "Options of sink:", 2 },
	{ "listen", KEY + LISTEN, "ADDR:PORT", 0,
	  "where to accept; may be repeated; port 0: the kernel picks", 2 },
	{ 0, 0, 0, 0, "Options of both:", 3 },
	{ "protocol", KEY + PROTOCOL, "NAME", 0,
	  "tcp, or udp for rr, crr and bulk-up (default tcp)", 3 },
	{ "processes", KEY + PROCESSES, "N", 0, "processes that share the work (default 1)", 3 },
	{ 0 },
};

static const char help[] =
	"Generate load, through a relay or directly, and verify what comes.\n"
	"\n"
	"Workloads:\n"
	"  rr         SIZE bytes there, SIZE bytes back, at once the next\n"
	"  crr        connect, one exchange, close; N loops at a time\n"
	"  idle       open N connections, hold them, then see that each still works\n"
	"  bulk-up    send as fast as possible; the sink verifies\n"
	"  bulk-down  the sink sends as fast as possible\n"
	"  bulk-both  both at once, on each connection\n"
	"  slow       as bulk-down, but each client reads RATE bytes/s\n"
	"sink is the other end: it serves each of them."
	"\v"
	"A SIZE is in bytes, or has the suffix K, M or G.  SECONDS may have decimals: .125.\n"
	"Connections are opened, and have worked once, before the warm-up begins.\n"
	"\n"
	"The result is one line of JSON on stdout.  Throughput is what the receiver counted "
	"in the measured time.  Latencies are those of requests (crr: from connect to the "
	"end of the response) that ended then.  The generator is a closed loop: a connection "
	"sends its next request when it has the response.  A relay that stalls therefore "
	"delays few requests, and high percentiles look better than at a fixed rate of "
	"arrivals (\"coordinated omission\"): compare them only between runs of the same "
	"workload.  Errors and wrong content are counted from the first connect on.\n"
	"\n"
	"With UDP a question without answer is an error after the timeout, and the next one is "
	"sent.  crr sends each from another port.  bulk-up sends bursts of 40 datagrams (GSO), "
	"looks for the highest rate that loses less than 0.1 %, trying each for 50 ms, and "
	"stays there: \"lossless\", datagrams/s.\n"
	"\n"
	"A first SIGINT or SIGTERM ends the measured time, a second one ends at once.\n"
	"Exit: 0 measured, 1 wrong content or nothing measured, 2 bad usage, 128 + signal.";

const char *workload_name(enum workload w)
{
	return names[w];
}

#define AT(field) offsetof(struct options, field)
#define WHEN "seconds, such as 5 or 0.5, of at most a day"

static const struct number {
	const char *name;
	size_t offset;
	int (*parse)(const char *text, uint64_t *ret);
	uint64_t min, max;
	const char *expected;
} numbers[N_NUMBERS] = {
	[CONNECTIONS] = { "connections", AT(connections), count_parse, 1, 1000000,
			  "a whole number from 1 to 1000000" },
	[IN_FLIGHT] = { "in-flight", AT(in_flight), count_parse, 1, 65536,
			"a whole number from 1 to 65536" },
	[PROCESSES] = { "processes", AT(processes), count_parse, 1, PROCESSES_MAX,
			"a whole number from 1 to 256" },
	[SIZE] = { "size", AT(size), size_parse, 1, EXCHANGE_SIZE_MAX, "a size from 1 B to 16 MiB" },
	[RATE] = { "rate", AT(rate), size_parse, 1, UINT64_C(1) << 40,
		   "a size from 1 B to 1024 GiB" },
	[WARMUP] = { "warmup", AT(warmup_ms), seconds_parse, 0, PHASE_MS_MAX, WHEN },
	[SECONDS] = { "seconds", AT(seconds_ms), seconds_parse, 1, PHASE_MS_MAX, WHEN },
	[TIMEOUT] = { "timeout", AT(timeout_ms), seconds_parse, 1, PHASE_MS_MAX, WHEN },
};

static void store_number(struct argp_state *state, const struct number *n, const char *text)
{
	uint64_t *field = (uint64_t *)((char *)state->input + n->offset);

	if (n->parse(text, field) || *field < n->min || *field > n->max)
		argp_error(state, "--%s \"%s\": expected %s", n->name, text, n->expected);
}

static const char *const ends[] = {
	[ENDS_CLIENT] = "client",
	[ENDS_SERVER] = "server",
	[ENDS_CLIENT_HALF] = "client-half",
	[ENDS_SERVER_HALF] = "server-half",
	[ENDS_CLIENT_RESET] = "client-reset",
	[ENDS_SERVER_RESET] = "server-reset",
	[ENDS_EACH] = "each",
};

static void choose_ends(struct argp_state *state, const char *text, struct options *o)
{
	while (o->ends <= ENDS_EACH && strcmp(text, ends[o->ends]))
		o->ends++;
	if (o->ends > ENDS_EACH)
		argp_error(state, "--ends: no such end: \"%s\"", text);
}

static bool choose(struct argp_state *state, const char *text, const char *no, const char *yes)
{
	if (strcmp(text, no) && strcmp(text, yes))
		argp_error(state, "\"%s\": expected %s or %s", text, no, yes);
	return !strcmp(text, yes);
}

/* All addresses to listen at; the first one to connect to. */
static void add_addresses(struct argp_state *state, const char *text, bool sink)
{
	struct options *o = state->input;
	struct endpoint e;
	const char *wrong = endpoint_parse(text, sink, false, &e);
	char err[256];

	if (!wrong && e.named && endpoint_look_up(&e, sink, err, sizeof(err)))
		wrong = err;
	if (wrong)
		argp_error(state, "\"%s\": %s", text, wrong);
	if (!addr_is_inet(&e.addrs[0]))
		argp_error(state, "\"%s\": expected an IPv4 or IPv6 address", text);
	for (size_t i = 0; i < (sink ? e.n_addrs : 1); i++) {
		if (o->n_addresses == ADDRESSES_MAX)
			argp_error(state, "\"%s\": more than %d addresses", text, ADDRESSES_MAX);
		o->addresses[o->n_addresses++] = e.addrs[i];
	}
	endpoint_close(&e);
}

static void choose_workload(struct argp_state *state, const char *word, struct options *o)
{
	while (o->workload < N_WORKLOADS && strcmp(word, workload_name(o->workload)))
		o->workload++;
	if (o->workload == N_WORKLOADS)
		argp_error(state, "no such workload: \"%s\"", word);
	o->connections = o->processes = 1;
	o->in_flight = 256;
	o->sample = is_transfer(o->workload);
	o->size = is_transfer(o->workload) ? 256 << 10 : 64;
	o->timeout_ms = 5000;
	if (o->workload == WORKLOAD_IDLE)
		return; /* until a signal */
	o->seconds_ms = 5000;
	o->warmup_ms = 200;
}

static void check(struct argp_state *state, struct options *o)
{
	const char *name = workload_name(o->workload);
	bool sink = o->workload == WORKLOAD_SINK;

	if (!o->n_addresses)
		argp_error(state, "%s needs --%s", name, sink ? "listen" : "connect");
	if (o->udp && (o->workload == WORKLOAD_IDLE || o->workload > WORKLOAD_BULK_UP))
		argp_error(state, "%s has no option --protocol", name);
	if (o->rate && o->workload != WORKLOAD_SLOW)
		argp_error(state, "%s has no option --rate", name);
	if (o->ends && (o->workload != WORKLOAD_CRR || o->udp))
		argp_error(state, "%s has no option --ends", name);
	if (o->ends && o->size > ENDS_SIZE_MAX)
		argp_error(state, "--ends: a message has at most %uK", ENDS_SIZE_MAX >> 10);
	if (o->workload == WORKLOAD_SLOW && !o->rate)
		o->rate = 64 << 10;
	for (size_t i = 0; o->source.count && i < o->n_addresses; i++)
		if (o->addresses[i].ss.ss_family != o->source.first.ss.ss_family)
			argp_error(state, "--source and --connect are of different families");
	if (is_transfer(o->workload) && o->size > TRANSFER_SIZE_MAX)
		argp_error(state, "--size: %s sends at most %uK at a time", name,
			   TRANSFER_SIZE_MAX >> 10);
	if (o->udp && !sink && (o->size < DATAGRAM_MIN || o->size > DATAGRAM_MAX))
		argp_error(state, "--size: a datagram has %d to %d bytes", DATAGRAM_MIN,
			   DATAGRAM_MAX);
}

/* An option, or an event of argp(3). */
static error_t parse_option(int key, char *text, struct argp_state *state)
{
	struct options *o = state->input;
	bool sink = o->workload == WORKLOAD_SINK;
	const char *wrong;

	switch (key) {
	case KEY + LISTEN:
	case KEY + CONNECT:
		if (sink != (key == KEY + LISTEN))
			argp_error(state, "sink has --listen, the others have --connect");
		add_addresses(state, text, sink);
		return 0;
	case KEY + SOURCE:
		wrong = source_range_parse(text, &o->source);
		if (wrong)
			argp_error(state, "--source \"%s\": %s", text, wrong);
		return 0;
	case KEY + PROTOCOL:
		o->udp = choose(state, text, "tcp", "udp");
		return 0;
	case KEY + ENDS:
		choose_ends(state, text, o);
		return 0;
	case KEY + VERIFY:
		o->sample = choose(state, text, "full", "sample");
		return 0;
	case ARGP_KEY_ARG:
		if (state->next != 2)
			argp_error(state, "the workload comes first, and alone: \"%s\"", text);
		choose_workload(state, text, o);
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "no workload given");
		return 0;
	case ARGP_KEY_SUCCESS:
		check(state, o);
		return 0;
	default:
		if (key < KEY || key >= KEY + N_NUMBERS)
			return ARGP_ERR_UNKNOWN;
		store_number(state, &numbers[key - KEY], text);
		return 0;
	}
}

void options_parse(int argc, char **argv, struct options *ret)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse_option,
		.args_doc = "WORKLOAD --connect ADDR:PORT\nsink --listen ADDR:PORT",
		.doc = help,
	};

	memset(ret, 0, sizeof(*ret));
	argp_err_exit_status = EXIT_CODE_USAGE;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, ret);
}
