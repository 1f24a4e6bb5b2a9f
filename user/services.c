// SPDX-License-Identifier: BSD-2-Clause
#include "services.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_ROOM 4096

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what is stored: it is in `kept`, and services_forget() frees it */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

struct service {
	char *name; /* owned */
	in_port_t port;
};

static struct service *kept;
static size_t n_kept;
static bool is_kept;

static int add(const char *name, in_port_t port)
{
	struct service *more = realloc(kept, (n_kept + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	kept = more;
	more[n_kept] = (struct service){ .name = strdup(name), .port = port };
	return more[n_kept].name ? (n_kept++, 0) : -ENOMEM;
}

int services_keep(void)
{
	struct servent entry, *found = NULL;
	char buf[ENTRY_ROOM];
	int r = 0;

	setservent(0);
	while (!r && !getservent_r(&entry, buf, sizeof(buf), &found) && found) {
		if (strcmp(entry.s_proto, "tcp") != 0)
			continue;
		r = add(entry.s_name, (in_port_t)entry.s_port);
		for (char **alias = entry.s_aliases; !r && *alias; alias++)
			r = add(*alias, (in_port_t)entry.s_port);
	}
	endservent();
	if (r)
		services_forget();
	is_kept = !r;
	return r;
}

void services_forget(void)
{
	for (size_t i = 0; i < n_kept; i++)
		free(kept[i].name);
	free(kept);
	kept = NULL;
	n_kept = 0;
	is_kept = false;
}

int service_find(const char *name, in_port_t *ret)
{
	struct servent entry, *found = NULL;
	char buf[ENTRY_ROOM];

	for (size_t i = 0; i < n_kept; i++) {
		if (!strcmp(kept[i].name, name)) {
			*ret = kept[i].port;
			return 0;
		}
	}
	if (is_kept || getservbyname_r(name, "tcp", &entry, buf, sizeof(buf), &found) || !found)
		return -ENOENT;
	*ret = (in_port_t)found->s_port;
	return 0;
}
