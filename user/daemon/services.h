/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SERVICES_H
#define CULVERT_SERVICES_H

#include <netinet/in.h>
#include <stdbool.h>

/*
 * Ports by the names of services, as services(5) had them when culvert started.  A port beside an
 * address that is a number has nothing to do with name servers, and a daemon that is confined, and
 * can open no file any more, would have to ask the resolver for it: which may be busy with names
 * that are not answered, or gone.  The file is read, and no module of nsswitch.conf asked, because
 * those may wait for somebody else; what only they know is the resolver's business as before.
 */
#define SERVICES_FILE "/etc/services"

/*
 * Keep those of TCP that PATH has, for the process; before there are threads.  It need not exist.
 * -errno: none are kept.
 */
int services_keep(const char *path);
void services_forget(void);

/* The port of NAME, in network byte order.  False: it is not known. */
bool services_find(const char *name, in_port_t *ret);

#endif
