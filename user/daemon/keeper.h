/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_KEEPER_H
#define CULVERT_KEEPER_H

#include "config/config.h"
#include "datapath/graft_clsact.h"

/*
 * Start the filter keeper (of packet filters), a child that attaches and removes the packet programs where that needs
 * CAP_NET_ADMIN (Linux before 6.6).  Before there are threads and before root is given up.  C asks it
 * from now on, and it ends when C is closed or this process ends.  -errno, after a
 * complaint.
 */
int keeper_start(struct clsact *c, enum filter_mode seccomp);

#endif
