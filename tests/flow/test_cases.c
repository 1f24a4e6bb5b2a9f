/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How connections begin and end, as a table.  Every row runs unchanged on every engine: the same
 * TCP behaviour is the specification.  After each row the daemon must hold nothing of it and
 * still serve a plain session.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/unit.h"
#include "cases.h"
#include "env.h"
#include "options.h"
#include "side_by_side.h"

#define ECHO_CLIENT "S64 F R64 E"
#define ECHO_SERVER "A R64 E S64 F"
#define ALL_CLIENT "S100 R100 B1M:1M F R1M E"
#define ALL_SERVER "A R100 S100 B1M:1M E S1M F"

/*
 * How long nothing may move.  sockmap redirects by a work that the kernel queues: on a busy machine
 * it began 5 s late.
 */
#define PATIENCE_MS 10000

static struct row rows[] = {
	/* Ends */
	{ "half-close-client", "the client's FIN, then 8 MB from the server",
	  .client = "S100 F R8M E", .server = "A R100 E S8M F" },
	{ "half-close-server", "the server's FIN, then 8 MB from the client",
	  .client = "R100 E S8M F", .server = "A S100 F R8M E" },
	{ "half-close-talked-client", "the same after a long conversation",
	  .client = "nd G500:64:64 T F R8M E", .server = "A nd H500:64:64 E S8M F" },
	{ "half-close-talked-server", "the same with the server's FIN first",
	  .client = "nd G400:64:64 T G100:64:64 R10 E S8M F",
	  .server = "A nd H500:64:64 L10 R8M E" },
	{ "close-both", "both FINs at once after 1 MB each way", .client = "B1M:1M F E",
	  .server = "A B1M:1M F E" },
	{ "close-both-last", "both FINs with the last byte", .client = "B1M:1M L100 R100 E",
	  .server = "A B1M:1M L100 R100 E" },
	{ "zero-byte-client", "no byte at all, the client closes first", .client = "F E",
	  .server = "A E F" },
	{ "zero-byte-server", "no byte at all, the server closes first", .client = "E F",
	  .server = "A F E" },
	{ "zero-byte-gone", "the client connects and closes both ways at once", .client = "F",
	  .server = "A E F" },
	{ "one-message-gone", "one message and close(), nothing is read", .client = "L100",
	  .server = "A R100 E F" },
	{ "close-unread", "the client closes with data unread: a reset for the server",
	  .client = "S100 P200 F", .server = "A R100 S10K P400 end R1 S64M" },
	/* Order of data and connections */
	{ "fin-before-accept", "data and FIN of the client before the server accepts",
	  .client = "L1000 R1000 E", .server = "P300 A R1000 E L1000" },
	{ "fin-before-connect", "data and FIN of the client before the server can be reached",
	  .run = case_connect_late },
	{ "server-reads-late", "2 MB wait for a server that reads half a second later",
	  .client = "S2M L1000 R1000 E", .server = "A P500 R2M R1000 E L1000" },
	{ "client-reads-late", "4 MB wait for a client that reads half a second later",
	  .client = "S100 P500 R4M E F", .server = "A R100 S4M F E" },
	{ "banner", "the server speaks first", .client = "R200 S100 R1000 F E",
	  .server = "A S200 R100 S1000 E F" },
	{ "banner-only", "the server speaks and closes, the client says nothing",
	  .client = "R200 E F", .server = "A L200 E" },
	/* Resets */
	{ "reset-client", "the client resets in the middle of a transfer", .client = "S3M Z",
	  .server = "A rst R64M" },
	{ "reset-server", "the server resets in the middle of a transfer", .client = "rst R64M",
	  .server = "A S3M Z" },
	{ "reset-client-talked", "the client resets after a conversation",
	  .client = "nd G500:64:64 T Z", .server = "A nd rst H501:64:64" },
	{ "reset-server-talked", "the server resets after a conversation",
	  .client = "nd G500:64:64 T S10 rst R1", .server = "A nd H500:64:64 R10 Z" },
	{ "reset-client-queued", "the client resets while megabytes for it are queued",
	  .client = "P300 Z", .server = "A rst S256M" },
	{ "reset-server-queued", "the server resets while megabytes for it are queued",
	  .client = "rst S256M", .server = "A P300 Z" },
	{ "reset-late-reader", "a reset behind megabytes that the server reads later",
	  .client = "S4M P200 Z", .server = "A P600 rst R64M" },
	{ "reset-last-words", "what the client has said arrives, and then its reset",
	  .client = "S10 R10 S3000 Z", .server = "A R10 S10 R3000 rst R1" },
	{ "reset-last-words-server", "the same from the server", .client = "S10 R10 R3000 rst R1",
	  .server = "A nd R10 S10 S3000 Z" },
	{ "reset-last-words-talked", "the same after a conversation",
	  .client = "nd G500:64:64 T S3000 Z", .server = "A nd H500:64:64 R3000 rst R1" },
	{ "reset-last-words-talked-server", "the same from the server",
	  .client = "nd G400:64:64 T G100:64:64 R3000 rst R1", .server = "A nd H500:64:64 S3000 Z" },
	{ "reset-while-both", "the client resets while both send", .client = "B4M:1M Z",
	  .server = "A rst B64M:64M" },
	/* Connecting upstream */
	{ "refused", "nobody listens: the client's connection ends within a second",
	  .via = VIA_REFUSED, .client = "end R1", .timeout_ms = 1000, .error = "connect-refused" },
	{ "refused-data", "the same with data and FIN of the client already sent",
	  .via = VIA_REFUSED, .client = "end S100 F R1", .timeout_ms = 1000,
	  .error = "connect-refused" },
	{ "black-hole", "no answer: the client's connection ends after the connect timeout",
	  .via = VIA_BLACKHOLE, .client = "end R1", .timeout_ms = 1500, .error = "connect-timeout" },
	{ "unreachable", "no route: the client's connection ends within a second",
	  .via = VIA_UNREACHABLE, .client = "end R1", .timeout_ms = 1000,
	  .error = "connect-unreachable" },
	{ "gone-while-connecting", "the client resets during connect", .via = VIA_BLACKHOLE,
	  .client = "S100 P100 Z" },
	{ "closed-while-connecting", "the client's FIN during a connect that fails",
	  .via = VIA_BLACKHOLE, .client = "S100 F end R1", .timeout_ms = 1500 },
	/* Sizes and speeds */
	{ "one-byte", "3000 writes of one byte each way", .client = "nd w1 B3000:3000 F E",
	  .server = "A nd w1 B3000:3000 F E" },
	{ "bulk-up", "64 MB to the server", .client = "w256K S64M F E",
	  .server = "A d256K R64M E F" },
	{ "bulk-down", "64 MB to the client", .client = "d256K R64M E F",
	  .server = "A w256K S64M F E" },
	{ "bulk-both", "64 MB each way at once", .client = "B64M:64M F E",
	  .server = "A B64M:64M F E" },
	{ "slow-server", "a server that reads 4 KB every 2 ms, with a small buffer",
	  .client = "S4M F E", .server = "A rb32K d4K dp2 R4M E F", .timeout_ms = 20000 },
	{ "slow-client", "a client that reads 8 KB every 1 ms, with a small buffer",
	  .client = "rb8K d8K dp1 R4M E F", .server = "A S4M F E", .timeout_ms = 20000 },
	/* Conversations */
	{ "conversation", "500 rounds of 64 bytes, then of 16 KB",
	  .client = "nd G500:64:64 T G300:1000:16000 F E",
	  .server = "A nd H500:64:64 H300:1000:16000 E F" },
	{ "fin-in-kernel", "the last message and FIN in one segment of a long conversation",
	  .client = "nd G500:64:64 T L64 R1M E", .server = "A nd H500:64:64 R64 E S1M F" },
	{ "fin-in-kernel-server", "the same from the server",
	  .client = "nd G400:64:64 T G100:64:64 R64 E S1M F",
	  .server = "A nd H500:64:64 L64 R1M E" },
	{ "idle", "a conversation, 1.2 s of silence, another one, bulk",
	  .client = "nd G200:64:64 P1200 G200:64:64 B1M:1M F E",
	  .server = "A nd H200:64:64 H200:64:64 B1M:1M E F" },
	{ "talk-bulk-talk", "conversations and bulk take turns",
	  .client = "nd G300:64:64 B8M:8M G300:64:64 S16M G300:64:64 R16M G300:64:64 F E",
	  .server = "A nd H300:64:64 B8M:8M H300:64:64 R16M H300:64:64 S16M H300:64:64 E F" },
	{ "urgent", "bytes sent with MSG_OOB keep their place in the stream",
	  .client = "S1000 O S1000 O F E", .server = "A R2002 E F" },
	{ "urgent-server", "the same from the server", .client = "R2001 E F",
	  .server = "A S1000 O S1000 F E" },
	{ "urgent-answered", "an answer is due after the urgent byte, no FIN helps it on",
	  .client = "S1000 O S1000 R100 O R100 F E", .server = "A R2001 S100 R1 S100 E F" },
	{ "urgent-conversation", "the same in the middle of a long conversation",
	  .client = "nd G300:64:64 S100 O S100 P30 S100 O F E",
	  .server = "A nd H300:64:64 R302 E F" },
	{ "all-at-once", "more than one turn, or an urgent byte, is there at once; then silence",
	  .run = case_all_at_once },
	/* Addresses */
	{ "ipv6", "listener and upstream are IPv6", .via = VIA_IPV6, .client = ALL_CLIENT,
	  .server = ALL_SERVER },
	{ "ipv6-conversation", "a conversation over IPv6", .via = VIA_IPV6,
	  .client = "nd G500:64:64 T F E", .server = "A nd H500:64:64 E F" },
	{ "ipv4-in-ipv6", "listener and upstream are IPv4 addresses in IPv6 form",
	  .via = VIA_MAPPED, .ipv6 = true, .client = ALL_CLIENT, .server = ALL_SERVER },
	{ "unix-upstream", "the upstream is a unix socket", .via = VIA_UNIX_UPSTREAM,
	  .client = ALL_CLIENT, .server = ALL_SERVER },
	{ "unix-upstream-talk", "a conversation with a unix socket", .via = VIA_UNIX_UPSTREAM,
	  .client = "nd G500:64:64 F E", .server = "A H500:64:64 E F" },
	{ "unix-listener", "the listener is a unix socket", .via = VIA_UNIX_LISTENER,
	  .client = ALL_CLIENT, .server = ALL_SERVER },
	{ "unix-listener-talk", "a conversation through a unix listener", .via = VIA_UNIX_LISTENER,
	  .client = "G500:64:64 F E", .server = "A nd H500:64:64 E F" },
	{ "reset-unaccepted", "RST from a client that was not accepted yet",
	  .run = case_reset_unaccepted, .error = "client-reset" },
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static const char *const engines[] = { "auto", "graft", "sockmap", "splice", "copy" };

#define N_ENGINES (sizeof(engines) / sizeof(engines[0]))

static struct options {
	const char *culvert, *engine, *only;
} opt;

static struct cases cases; /* of the engine that this process is for */

static int64_t error_count(struct cases *c, const char *cause)
{
	struct json_object *o = NULL;
	char path[80];
	int64_t n;

	if (!cause)
		return 0;
	snprintf(path, sizeof(path), "errors.%s", cause);
	n = daemon_query(c->d, "status", 3000, &o) ? -1 : json_int(o, path);
	json_object_put(o);
	return n;
}

static int run_scripts(struct cases *c, const struct row *row)
{
	int64_t before = error_count(c, row->error), after;

	if (cases_session(c, row->via, row->client, row->server,
			  row->timeout_ms ? row->timeout_ms : PATIENCE_MS))
		return -1;
	after = error_count(c, row->error);
	if (row->error && after != before + 1)
		return cases_fail(c, "errors.%s went from %lld to %lld", row->error,
				  (long long)before, (long long)after);
	return 0;
}

/* Nothing left over, and a plain session works. */
static int check_after(struct cases *c)
{
	char text[sizeof(c->why)];

	if (daemon_check(c->d, c->why, sizeof(c->why)) || cases_idle(c, c->d))
		return -1;
	if (cases_session(c, VIA_PLAIN, ECHO_CLIENT, ECHO_SERVER, PATIENCE_MS)) {
		snprintf(text, sizeof(text), "%.1500s", c->why);
		return cases_fail(c, "afterwards a plain session: %s", text);
	}
	return cases_idle(c, c->d);
}

static void run_row(void **state)
{
	const struct row *row = *state;
	struct cases *c = &cases;
	int r;

	if ((row->via == VIA_IPV6 || row->ipv6) && !env_has_ipv6()) {
		printf("skip %s: this kernel has no IPv6\n", row->name);
		skip();
	}
	c->why[0] = '\0';
	/* a fresh daemon after a failure, so that one fault does not fail all rows that follow */
	if (!c->d && cases_start(c))
		fail_msg("the daemon does not start: %s", c->why);
	cases_drain();
	r = row->run ? row->run(c) : run_scripts(c, row);
	if (!r)
		r = check_after(c);
	if (r) {
		daemon_kill(c->d);
		c->d = NULL;
		fail_msg("%s: %s (%s)", row->name, c->why, row->what);
	}
}

/* Half the rows of one engine, in a network of their own: they wait more than they compute. */
static int run_half(size_t part)
{
	static struct CMUnitTest tests[N_ROWS];
	size_t engine = part / 2, n = 0;
	struct cases *c = &cases;
	int r;

	for (size_t i = part % 2; i < N_ROWS; i += 2)
		if (!opt.only || !strcmp(opt.only, rows[i].name))
			tests[n++] = (struct CMUnitTest){
				.name = rows[i].name,
				.test_func = run_row,
				.initial_state = &rows[i],
			};
	if (!n || (opt.engine && strcmp(opt.engine, engines[engine]) != 0))
		return 0;
	env_enter("test_cases", 900);
	cases_listen();
	c->engine = engines[engine];
	c->culvert = opt.culvert;
	r = cases_start(c);
	if (r == -ENOTSUP) {
		printf("skip %s: the daemon cannot work here: %s\n", c->engine, c->why);
		return EXIT_SKIP;
	}
	r = _cmocka_run_group_tests(c->engine, tests, n, NULL, NULL);
	if (daemon_stop(c->d, 10000, c->why, sizeof(c->why))) {
		printf("FAIL %s: SIGTERM: %s\n", c->engine, c->why);
		return 1;
	}
	return r;
}

static const struct test_option options[] = {
	{ "culvert", "PATH", "the daemon (default: the one built together)", TEXT, &opt.culvert },
	{ "engine", "E", "only this one", TEXT, &opt.engine },
	{ "only", "NAME", "only the row of this name", TEXT, &opt.only },
};

int main(int argc, char **argv)
{
	options_parse(argc, argv, options, sizeof(options) / sizeof(options[0]));
	for (size_t i = 0; i < N_ROWS; i++)
		if (!opt.only || !strcmp(opt.only, rows[i].name))
			return side_by_side(2 * N_ENGINES, run_half);
	fprintf(stderr, "test_cases: no row %s\n", opt.only);
	return 2;
}
