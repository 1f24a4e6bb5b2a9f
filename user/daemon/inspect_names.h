/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_INSPECT_NAMES_H
#define CULVERT_INSPECT_NAMES_H

#include <json-c/json.h>
#include <stdint.h>

#include "relay/names.h"

/*
 * What `culvert status` says of names.  To the object of a forward are added
 *
 *   "addresses": [TEXT...]  what new sessions are led to, in the order in which it is tried
 *   "lookup": null, or of a name
 *             {"interval_ms", "age_ms", "lookups", "failures", "error"}
 *             age_ms: since the addresses were confirmed; error: of the last look-up, or ""
 */
void inspect_upstream(struct json_object *forward, struct upstream *u, uint64_t now_ms);

/* "resolver": "not needed" or "running". */
const char *inspect_resolver(struct names *names);

#endif
