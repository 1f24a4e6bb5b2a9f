/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * Two machines beside this one, as network namespaces without a name: they end with this process.
 *
 *	client  10.77.1.1 --- c  gateway (this process)  s --- 10.77.2.1  server
 *	        fd77:1::1        10.77.1.2   10.77.2.2         fd77:2::1
 *	                         fd77:1::2   fd77:2::2
 *
 * The gateway does not forward packets.  The other two have it as their default route.
 */
enum machine { GATEWAY, CLIENT_MACHINE, SERVER_MACHINE, MACHINES };

/* After env_enter(), once.  Exits with EXIT_SKIP and a reason if it cannot be made. */
void netlab_up(const char *prog);

/* Sockets that this thread makes from now on are M's. */
void netlab_enter(enum machine m);

/* Run COMMAND (sh) there.  Returns its exit code. */
int netlab_run(enum machine m, const char *command);
