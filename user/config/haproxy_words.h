/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "config/foreign.h"

/* The keywords of HAProxy, in the words of culvert.conf. */

/* Sections in which keywords have a meaning. */
enum { FRONT = 1, BACK = 2, GLOBAL = 4 };
/* Times that are combined. */
enum time { CLIENT, SERVER, TUNNEL, CLIENT_FIN, SERVER_FIN, TIMES };

struct proxy_server {
	const struct statement *s;
	const char *address;
	unsigned long weight, check_port;
	bool backup, off, checked;
};

/* What the statements of its sections say. */
struct proxy {
	struct foreign *f;
	unsigned int roles;        /* of the section that is applied */
	const struct statement *s; /* that is applied */
	char **args;               /* its words behind the keyword */
	const char *text;          /* of the keyword's row */
	struct keys keys;
	struct proxy_server *servers, usual; /* USUAL: default-server */
	size_t n_servers;
	unsigned long long ms[TIMES];
	const struct statement *http, *disabled;
	const char *backend; /* default_backend */
	const char *send, *expect;
	size_t n_checked;
	bool receives, closed, accepts; /* CLOSED: whom no rule allows may not connect */
	int sends;                      /* the version of the PROXY header */
};

/* Apply S.  What has a meaning in other sections only is skipped. */
void proxy_apply(struct proxy *p, struct statement *s);

/*
 * The TLS server names for which the condition of S, `use_backend BACKEND if ...`, holds; NULL: it is
 * about something else.
 */
const char *proxy_names(struct proxy *p, const struct statement *s);
