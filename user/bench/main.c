// SPDX-License-Identifier: BSD-2-Clause
/*
 * culvert-bench: load for relays, and the sink behind them.
 *
 *	options.c   the command line
 *	wire.c      what both sides say to each other, and the verification of the payload
 *	team.c      processes that share the work
 *	client.c    the client side: its parent, and a process; conn.c: its connections
 *	sink.c      the other side; peer.c: its connections
 *	udp.c       datagrams instead of connections; datagram.c: what they say, and their sink
 *	report.c    what is counted, and how it is printed
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "client.h"
#include "options.h"
#include "sink.h"
#include "wire.h"

/* A report that could not be written is a failure. */
static int conclude(int code)
{
	if (!fflush(stdout) && !ferror(stdout))
		return code;
	bench_say("cannot write to the standard output: %s", strerror(errno));
	return code == EXIT_CODE_OK ? EXIT_CODE_FAILURE : code;
}

int main(int argc, char **argv)
{
	static struct options o;
	int r;

	/* Else a socket takes its number, and the report goes to the peer. */
	if (fcntl(STDOUT_FILENO, F_GETFD) < 0) {
		bench_say("the standard output is closed");
		return EXIT_CODE_FAILURE;
	}
	r = options_parse(argc, argv, &o);
	if (r) {
		r = r > 0 ? EXIT_CODE_OK : EXIT_CODE_USAGE;
	} else {
		pattern_init();
		r = o.workload == WORKLOAD_SINK ? sink_run(&o) : load_run(&o);
	}
	options_close(&o);
	return conclude(r);
}
