// SPDX-License-Identifier: BSD-2-Clause
#include "config_upstream.h"

#include <errno.h>

#include "log.h"

/* The line of the file in which T itself says NAME; 0: it does not. */
static unsigned int own_line(const struct forward_text *t, const char *name)
{
	return t->lines[option_number(option_find_key(name, true))];
}

/* The first of what only a TCP socket to the upstream can have that T itself asks for, or NULL. */
static const char *asks_of_upstream(const struct forward_text *t)
{
	static const char *const names[] = { "source", "interface", "mark", "transparent" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (own_line(t, names[i]))
			return names[i];
	return NULL;
}

static bool is_unix(const struct endpoint *e)
{
	return e->n_addrs && !addr_is_inet(&e->addrs[0]);
}

int config_check_upstream(const struct config *c, struct forward_conf *fc,
			  const struct forward_text *t)
{
	const char *asks = asks_of_upstream(t), *wrong = NULL;
	char at[CONFIG_PLACE_LEN];

	if (is_unix(&fc->upstream)) {
		if (asks)
			return log_complain(-EINVAL, "%s%s: the upstream is a unix socket, which "
					    "has none",
					    config_place(t->file, own_line(t, asks), at), asks);
		fc->source.len = 0;
		fc->interface = NULL;
		fc->mark = 0;
		fc->transparent = false;
		return 0;
	}
	if (fc->transparent && fc->source.len)
		wrong = "not together with source: it is the client's address that is used";
	else if (fc->transparent && is_unix(&fc->listen))
		wrong = "clients of a unix socket have no address";
	if (wrong)
		return log_complain(-EINVAL, "%stransparent: %s",
				    config_place(t->file, own_line(t, "transparent"), at), wrong);
	if (forward_needs_privileges(fc) && !c->privileged_process)
		return log_complain(-EINVAL, "%s%s: needs the privileged process, and "
				    "privileged-process says no",
				    config_place(t->file, own_line(t, fc->mark ? "mark" :
								   "transparent"), at),
				    fc->mark ? "mark" : "transparent");
	return 0;
}
