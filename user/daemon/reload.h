/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>

#include "daemon/service.h"

/*
 * `culvert reload` and SIGHUP put the configuration file in force as it is now, or say why not.
 */

/*
 * Make the forwards of the configuration of the start, and open their addresses, which this process
 * can still do itself.  On the main thread, before others run.  -errno, after a complaint.
 */
int reload_first(struct service *sv);

/*
 * Ask for a reload: the number that `finished` reaches when it is done, or 0: culvert is stopping.
 * By any thread; waits for nothing.
 */
uint64_t reload_ask(struct service *sv);
/* How the last reload went.  By any thread. */
struct json_object *reload_json(struct service *sv);

/* For service_open(): reload if somebody has asked for it, and see to drains. */
void reload_after_batch(void *service);
