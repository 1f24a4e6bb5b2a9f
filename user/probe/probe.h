/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_H
#define CULVERT_PROBE_H

/*
 * `culvert probe`: tries, on loopback sockets of its own, each kernel behaviour that the sockmap
 * and splice carriers rely on, with the real verdict program and the real hand-over code.  ARGV[0]
 * is "probe".  Returns the exit code: 0 when all hold, 3 when one does not or cannot be tried, 2
 * for a mistake in ARGV.  With --json one line goes to stdout:
 *
 *	{"kernel":"6.18.44","usable":true,"splice_usable":true,"checks":[{"name":"load","ok":true,
 *	 "detail":"...","why":"..."}, ...]}
 *
 * where "ok" is null for a check that was skipped because one that it needs has not held; "usable"
 * is about sockmap.  For the daemon's own use of the checks see probe_start.h; for the way to make
 * them fail, probe_try.h.
 */
int probe_run(int argc, char **argv);
void probe_help(void);

#endif
