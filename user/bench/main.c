// SPDX-License-Identifier: BSD-2-Clause
/*
 * culvert-bench: load for TCP relays, and the sink behind them.
 *
 *	options.c       the command line
 *	protocol.c      what both sides say to each other
 *	pattern.c       the payload and its verification; stream.c: one direction of a connection
 *	team.c          processes that share the work
 *	client_side.c   the parent of the generators: start, signals, result
 *	generator.c     one generator process; conn.c: its connections
 *	exchange.c      what they do for rr, crr, idle; transfer.c: for bulk-*, slow
 *	sink.c          the other side; peer.c: its connections
 *	histogram.c, tally.c, report.c   what is counted, and how it is printed
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "client_side.h"
#include "options.h"
#include "pattern.h"
#include "sink.h"

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
		r = o.workload == WORKLOAD_SINK ? sink_run(&o) : client_side_run(&o);
	}
	options_close(&o);
	return conclude(r);
}
