// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/inspect_names.h"

#include "base/json_add.h"

static struct json_object *addresses_json(const struct addr_list *list)
{
	struct json_object *o = json_object_new_array();
	char text[ADDR_STRLEN];

	for (size_t i = 0; i < list->n; i++) {
		const struct addr *a = &list->addrs[i];

		addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text));
		json_append(o, json_object_new_string(text));
	}
	return o;
}

static void add_int(struct json_object *o, const char *key, uint64_t value)
{
	json_add(o, key, json_object_new_int64((int64_t)value));
}

static struct json_object *lookup_json(struct upstream *u, uint64_t now_ms)
{
	struct json_object *o = json_object_new_object();
	struct lookup_record record;

	upstream_record(u, &record);
	add_int(o, "interval_ms", u->interval_ms);
	add_int(o, "age_ms", now_ms > record.resolved_ms ? now_ms - record.resolved_ms : 0);
	add_int(o, "lookups", record.lookups);
	add_int(o, "failures", record.failures);
	json_add(o, "error", json_object_new_string(record.why));
	return o;
}

void inspect_upstream(struct json_object *forward, struct upstream *u, uint64_t now_ms)
{
	struct addr_list *list = upstream_get(u);

	json_add(forward, "addresses", addresses_json(list));
	if (u->conf->named)
		json_add(forward, "lookup", lookup_json(u, now_ms));
	else
		json_add_null(forward, "lookup");
	addr_list_put(list);
}

const char *inspect_resolver(struct names *names)
{
	return names ? "running" : "not needed";
}
