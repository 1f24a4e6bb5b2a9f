/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SERVICES_H
#define CULVERT_SERVICES_H

#include <netinet/in.h>

/*
 * Ports by the names of services.  The daemon can open no file any more when it takes over a
 * configuration that was read again, so it keeps what /etc/services (services(5), and what
 * nsswitch.conf says besides) had at the start.
 */

/* Keep all of TCP, for the process; once, before there are threads.  -errno. */
int services_keep(void);
void services_forget(void);

/* The port of NAME, in network byte order.  -ENOENT. */
int service_find(const char *name, in_port_t *ret);

#endif
