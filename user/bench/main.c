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
#include "client_side.h"
#include "exit_codes.h"
#include "options.h"
#include "pattern.h"
#include "sink.h"

int main(int argc, char **argv)
{
	static struct options o;
	int r = options_parse(argc, argv, &o);

	if (r) {
		r = r > 0 ? EXIT_CODE_OK : EXIT_CODE_USAGE;
	} else {
		pattern_init();
		r = o.workload == WORKLOAD_SINK ? sink_run(&o) : client_side_run(&o);
	}
	options_close(&o);
	return r;
}
