/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_H
#define CULVERT_PROBE_H

#include <stddef.h>

/*
 * `culvert probe`: tries, on loopback sockets of its own, each kernel behaviour that the sockmap
 * carrier relies on, with the real verdict program and the real hand-over code.  ARGV[0] is
 * "probe".  Returns the exit code: 0 when all hold, 3 when one does not or cannot be tried, 2 for a
 * mistake in ARGV.  With --json one line goes to stdout:
 *
 *	{"kernel":"6.18.44","usable":true,"checks":[{"name":"load","ok":true,"detail":"...",
 *	 "why":"..."}, ...]}
 *
 * where "ok" is null for a check that was skipped because one that it needs has not held.
 *
 * For tests: the environment variable CULVERT_PROBE_FAIL names a check that is taken to fail
 * without being tried.  probe_sockmap() obeys it too.
 */
int probe_run(int argc, char **argv);
void probe_help(void);

/*
 * The same checks without output: 0 when all hold; else -EOPNOTSUPP, and WHY names the first that
 * does not, and says how.  Takes about 0.1 s on an idle machine; each check waits 2 s at the most,
 * and is given up after 10 s without a result.  Needs the privileges of kernel_open().
 *
 * Everything happens in a process of its own, which has ended on return, so nothing is left behind:
 * no descriptor, no map, no change of network namespace, even if the kernel should crash it.  To be
 * called before there are threads.
 */
int probe_sockmap(char *why, size_t len);

#endif
