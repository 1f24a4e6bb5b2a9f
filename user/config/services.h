/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SERVICES_H
#define CULVERT_SERVICES_H

#include <netinet/in.h>
#include <stdbool.h>

/*
 * Ports by the names of services, as services(5) had them when culvert started: a daemon that is
 * confined can open no file any more.  The file is read, and no module of nsswitch.conf asked,
 * because those may wait for somebody else.
 */
#define SERVICES_FILE "/etc/services"

/*
 * Keep those of TCP that PATH has, for the process; before there are threads.  It need not exist.
 * -errno: none are kept.
 */
int services_keep(const char *path);
void services_forget(void);

/*
 * The port of NAME, in network byte order.  False: it is not known.  *RET_KEPT: services_keep() has
 * been called, so there is nobody else to ask.
 */
bool services_find(const char *name, in_port_t *ret, bool *ret_kept);

#endif
