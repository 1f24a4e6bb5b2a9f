// SPDX-License-Identifier: BSD-2-Clause
#include "config/config_names.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "relay/listen_socket.h"

static size_t add(struct config_name *ret, size_t n, size_t forward, struct endpoint *e,
		  bool listen)
{
	if (e->n_addrs)
		return n;
	if (ret)
		ret[n] = (struct config_name){ e, forward, listen };
	return n + 1;
}

size_t config_names(struct config *c, bool listen, struct config_name *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n_forwards; i++) {
		n = add(ret, n, i, &c->forwards[i].listen, true);
		if (!listen)
			n = add(ret, n, i, &c->forwards[i].upstream, false);
	}
	return n;
}

struct question *config_questions(const struct config_name *names, size_t n)
{
	struct question *q = calloc(n, sizeof(*q));

	if (!q)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		q[i].text = names[i].endpoint->text;
		q[i].passive = names[i].listen;
	}
	return q;
}

/* The port is that of the configuration, whatever the answer says. */
static bool has_port(const struct endpoint *e, in_port_t port)
{
	for (size_t i = 0; port && i < e->n_addrs; i++)
		if (addr_port(&e->addrs[i]) != port)
			return false;
	return true;
}

int config_name_found(struct config_name *name, const struct question *q, char *err, size_t errlen)
{
	struct endpoint found, *e = name->endpoint;
	int r = question_result(q, &found, err, errlen);

	if (r)
		return r;
	if (!has_port(&found, e->named_port)) {
		endpoint_close(&found);
		snprintf(err, errlen, "the answer is malformed: it has another port");
		return -EINVAL;
	}
	e->addrs = found.addrs;
	e->n_addrs = found.n_addrs;
	return 0;
}

static int look_up(struct config *c, struct names *n, struct config_name *names, size_t count,
		   char *err, size_t errlen)
{
	struct question *q = config_questions(names, count);
	char why[LOOKUP_WHY_LEN];
	int r = 0;

	if (!q) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	names_look_up_all(n, q, count);
	for (size_t i = 0; !r && i < count; i++) {
		r = config_name_found(&names[i], &q[i], why, sizeof(why));
		if (r)
			snprintf(err, errlen, "forward %s: listen \"%s\": %s",
				 forward_name(&c->forwards[names[i].forward]),
				 names[i].endpoint->text, why);
	}
	free(q);
	return r ?: config_check_listeners(c, err, errlen);
}

static int find_names(struct config *c, struct names *n, size_t count, char *err, size_t errlen)
{
	struct config_name *names;
	int r;

	if (!n) {
		snprintf(err, errlen, "a name to listen at cannot be looked up: the resolver has "
			 "not been started");
		return -EAGAIN;
	}
	names = calloc(count, sizeof(*names));
	if (!names) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	config_names(c, true, names);
	r = look_up(c, n, names, count, err, errlen);
	free(names);
	return r;
}

/* --- a kernel without IPv6 --- */

/* Those that are left; 0: there is nothing but IPv6, or unix. */
static size_t leave_out_ipv6(struct endpoint *e)
{
	size_t n = 0;

	for (size_t i = 0; i < e->n_addrs; i++)
		n += e->addrs[i].ss.ss_family == AF_INET;
	if (!n || n == e->n_addrs)
		return 0;
	for (size_t i = 0, at = 0; i < e->n_addrs; i++)
		if (e->addrs[i].ss.ss_family == AF_INET)
			e->addrs[at++] = e->addrs[i];
	e->n_addrs = n;
	return n;
}

/* ":80", or a name, means whatever there is; "[::]:80" means IPv6. */
static void keep_what_there_is(struct config *c)
{
	if (listen_socket_has_ipv6())
		return;
	for (size_t i = 0; i < c->n_forwards; i++) {
		struct forward_conf *fc = &c->forwards[i];

		if (leave_out_ipv6(&fc->listen))
			log_write(LOG_NOTICE, "forward %s: listens on IPv4 only: this kernel has "
				  "no IPv6", forward_name(fc));
	}
}

int config_find_listeners(struct config *c, struct names *n, char *err, size_t errlen)
{
	size_t count = config_names(c, true, NULL);
	int r = count ? find_names(c, n, count, err, errlen) : 0;

	if (!r)
		keep_what_there_is(c);
	return r;
}
