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
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "client.h"
#include "options.h"
#include "sink.h"
#include "wire.h"

int main(int argc, char **argv)
{
	static struct options o;
	int r;

	setlinebuf(stderr); /* so that processes never mix their lines */
	/* Else a socket would get descriptor 1, and the report would go to the socket's peer. */
	if (fcntl(STDOUT_FILENO, F_GETFD) < 0)
		errx(EXIT_CODE_FAILURE, "the standard output is closed");
	options_parse(argc, argv, &o);
	pattern_init();
	r = o.workload == WORKLOAD_SINK ? sink_run(&o) : load_run(&o);
	if (fflush(stdout) || ferror(stdout)) {
		warn("cannot write to the standard output");
		r = r ?: EXIT_CODE_FAILURE;
	}
	return r;
}
