// SPDX-License-Identifier: BSD-2-Clause
#include "config/endpoint.h"

#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/json_add.h"
#include "base/parse_size.h"

#define PATH_ROOM sizeof(((struct sockaddr_un *)0)->sun_path)
#define TEXT_ROOM sizeof(((struct endpoint *)0)->text)
#define PORTS_MAX 16384 /* of a range: each needs a socket for each worker */
_Static_assert(PATH_ROOM == 108 && TEXT_ROOM == 288, "messages name what fits");

#define BAD_ADDRESS "expected HOST:PORT, [IPV6]:PORT, either perhaps with /udp, or unix:/path"
#define BAD_PORT                                                                                   \
	"bad port, expected a number up to 65535, the name of a service, or a range of "           \
	"at most 16384, such as 30000-30999"
#define DIGITS "0123456789"
#define HOST_CHARACTERS DIGITS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_."

static bool has_addr(const struct endpoint *e, const struct addr *a)
{
	for (size_t i = 0; i < e->n_addrs; i++)
		if (addr_equal(&e->addrs[i], a))
			return true;
	return false;
}

static void add_addr(struct endpoint *e, const struct addr *a)
{
	e->addrs = array_grow(e->addrs, e->n_addrs, sizeof(*e->addrs));
	e->addrs[e->n_addrs++] = *a;
}

/*
 * Add A with each port of E if PASSIVE, else with the first.  Each listener has one family, so IPv4
 * in IPv6 form is added as IPv4.
 */
static void add_ports(struct endpoint *e, struct addr a, bool passive)
{
	a = addr_unmapped(&a);
	for (unsigned int i = 0; i < (passive ? e->n_ports : 1); i++) {
		addr_set_port(&a, htons((uint16_t)(ntohs(e->named_port) + i)));
		if (!i && has_addr(e, &a)) /* getaddrinfo() repeats what /etc/hosts lists twice */
			return;
		add_addr(e, &a);
	}
}

/* False: HOST is no address. */
static bool add_host(struct endpoint *e, const char *host, bool passive)
{
	struct addr a;

	if (addr_parse_host(host, &a))
		return false;
	add_ports(e, a, passive);
	return true;
}

/* This parser and those below return the fault, or NULL. */
static const char *parse_unix(const char *path, struct endpoint *ret)
{
	struct addr a = { .un.sun_family = AF_UNIX };
	size_t n = strlen(path);

	if ((path[0] != '/' && path[0] != '@') || n == 1 || n >= PATH_ROOM)
		return "expected unix:/path, or unix:@name for an abstract socket, of at most 107 "
		       "bytes";
	if (n > 4 && !strcmp(path + n - 4, "/udp"))
		return "a unix socket has no /udp";
	memcpy(a.un.sun_path, path, n);
	if (path[0] == '@')
		a.un.sun_path[0] = '\0';
	else
		n++; /* a path is terminated, an abstract name is counted */
	a.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
	add_addr(ret, &a);
	return NULL;
}

/* --- ports --- */

static struct json_object *services; /* services(5): port, as in a sockaddr, by name/protocol */

void endpoint_keep_services(void)
{
	const struct servent *s;
	char key[TEXT_ROOM];

	if (services)
		return;
	services = allocated(json_object_new_object());
	while ((s = getservent())) {
		char **alias = s->s_aliases;

		for (const char *name = s->s_name; name; name = *alias++) {
			snprintf(key, sizeof(key), "%s/%s", name, s->s_proto);
			json_add_int(services, key, (uint64_t)s->s_port);
		}
	}
	endservent();
}

static const char *parse_ports(const char *port, bool passive, struct endpoint *ret)
{
	unsigned long first = 0, last = 0; /* ULONG_MAX on overflow */
	char key[TEXT_ROOM + 8];
	int n, end = 0;

	if (port[strspn(port, DIGITS "-")]) {
		endpoint_keep_services();
		snprintf(key, sizeof(key), "%s/%s", port, ret->udp ? "udp" : "tcp");
		ret->named_port =
			(in_port_t)json_object_get_int(json_object_object_get(services, key));
		return ret->named_port ? NULL : BAD_PORT;
	}
	n = sscanf(port, "%lu%n-%lu%n", &first, &end, &last, &end);
	if (n == 1)
		last = first;
	if (n < 1 || port[end] || last > UINT16_MAX || last < first || last - first >= PORTS_MAX)
		return BAD_PORT;
	if (!first && (last || !passive))
		return "port 0 is only for listening, and not in a range";
	ret->named_port = htons((uint16_t)first);
	ret->n_ports = (unsigned int)(last - first + 1);
	return NULL;
}

/* --- hosts --- */

/*
 * HOST is an IPv4 address, or a name, or "", which means every local address.  If the last label of
 * HOST is a number, HOST is an IPv4 address or a mistake: getaddrinfo() would read "127.1" as
 * 127.0.0.1, and ask the name server for "1.2.3.256".
 */
static const char *add_plain(const char *host, bool passive, struct endpoint *ret)
{
	const char *dot = strrchr(host, '.'), *label = dot ? dot + 1 : host;

	if (add_host(ret, host[0] ? host : "0.0.0.0", passive)) {
		if (!host[0] && addr_has_ipv6())
			add_host(ret, "::", passive);
		return NULL;
	}
	if (host[strspn(host, HOST_CHARACTERS)] || (*label && !label[strspn(label, DIGITS)]) ||
	    !strncasecmp(label, "0x", 2))
		return "bad host, expected a name, or an IPv4 address of four numbers up to 255";
	ret->named = true;
	return NULL;
}

static const char *parse_inet(const char *text, bool passive, struct endpoint *ret)
{
	bool bracketed = text[0] == '[';
	char host[TEXT_ROOM], *port, *protocol;
	const char *wrong;

	strcpy(host, text);
	port = strstr(host, bracketed ? "]:" : ":");
	if (!port || (port == host && !passive))
		return BAD_ADDRESS;
	*port = '\0';
	port += bracketed ? 2 : 1;
	protocol = port;
	strsep(&protocol, "/"); /* NULL: there is none */
	/* a second colon: of IPv6 without brackets */
	if (strchr(port, ':') || strchr(host, '/') ||
	    (protocol && strcmp(protocol, "udp") != 0 && strcmp(protocol, "tcp") != 0))
		return BAD_ADDRESS;
	if (protocol)
		ret->udp = !strcmp(protocol, "udp");
	if (passive && !strcmp(host, "*"))
		host[0] = '\0';
	wrong = parse_ports(port, passive, ret);
	if (wrong || !bracketed)
		return wrong ?: add_plain(host, passive, ret);
	return strchr(host, ':') && add_host(ret, host + 1, passive) ?
		       NULL :
		       "bad IPv6 address between the brackets, or no such network interface";
}

const char *endpoint_parse(const char *text, bool passive, bool udp, struct endpoint *ret)
{
	bool file = !strncmp(text, "unix:", 5), is_long = strlen(text) >= sizeof(ret->text);
	const char *wrong;

	*ret = (struct endpoint){ .n_ports = 1, .udp = udp && !file };
	wrong = is_long ? "longer than 287 bytes" :
		file    ? parse_unix(text + 5, ret) :
			  parse_inet(text, passive, ret);
	if (wrong)
		endpoint_close(ret);
	else
		strcpy(ret->text, text);
	return wrong;
}

const char *endpoint_add_listen(const char *text, struct endpoint *e)
{
	struct endpoint more;
	size_t used = strlen(e->text);
	const char *wrong = endpoint_parse(text, true, false, &more);

	if (!wrong && !used)
		*e = more;
	if (wrong || !used)
		return wrong;
	endpoint_copy_addrs(e, &more);
	if (e->named_port != more.named_port || e->n_ports != more.n_ports)
		e->n_ports = 0;
	if (e->named || more.named || used + strlen(text) + 1 >= sizeof(e->text))
		wrong = "expected one host name alone, or several addresses of at most 286 "
			"bytes together";
	if (e->udp != more.udp)
		wrong = "one listener has one protocol: UDP and TCP are two forwards";
	snprintf(e->text + used, sizeof(e->text) - used, " %s", text);
	endpoint_close(&more);
	return wrong;
}

int endpoint_look_up(struct endpoint *e, bool passive, char *err, size_t errlen)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL;
	char host[TEXT_ROOM];
	int r;

	snprintf(host, sizeof(host), "%.*s", (int)strcspn(e->text, ":"), e->text);
	r = getaddrinfo(host, NULL, &hints, &list);
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next) {
		struct addr a = { .len = ai->ai_addrlen };

		if (ai->ai_family != AF_INET && (ai->ai_family != AF_INET6 || !addr_has_ipv6()))
			continue;
		memcpy(&a.ss, ai->ai_addr, ai->ai_addrlen);
		add_ports(e, a, passive);
	}
	freeaddrinfo(list);
	if (!r && !e->n_addrs)
		r = EAI_NONAME;
	if (r)
		snprintf(err, errlen, "host name lookup failed: %s", gai_strerror(r));
	return !r ? 0 : r == EAI_AGAIN || r == EAI_MEMORY ? -EAGAIN : -ENOENT;
}

void endpoint_copy_addrs(struct endpoint *e, const struct endpoint *from)
{
	for (size_t i = 0; i < from->n_addrs; i++)
		if (!has_addr(e, &from->addrs[i]))
			add_addr(e, &from->addrs[i]);
}

void endpoint_close(struct endpoint *e)
{
	free(e->addrs);
	memset(e, 0, sizeof(*e));
}

bool endpoint_is_unix(const struct endpoint *e)
{
	return e->n_addrs && !addr_is_inet(&e->addrs[0]);
}

/* --- upstreams --- */

/* Do A and B lead to one server, as far as that is seen without a look-up? */
static bool is_same(const struct endpoint *a, const struct endpoint *b)
{
	if (!a->named && !b->named)
		return addr_equal(&a->addrs[0], &b->addrs[0]);
	return a->named_port == b->named_port &&
	       !strncasecmp(a->text, b->text, strcspn(a->text, ":") + 1);
}

static const char *add_server(const char *word, bool udp, struct upstream *u)
{
	struct server_conf s = { .weight = 1 };
	const char *wrong;

	if (u->n == SERVERS_MAX)
		return "more than 64 servers";
	wrong = endpoint_parse(word, false, udp, &s.at);
	if (wrong)
		return wrong;
	u->servers = array_grow(u->servers, u->n, sizeof(*u->servers));
	u->servers[u->n++] = s;
	if (endpoint_is_unix(&s.at) != upstreams_are_unix(u))
		return "unix sockets and other addresses do not mix";
	if (s.at.udp != udp)
		return udp ? "not UDP, but the listener is" : "not TCP, but the listener is";
	for (size_t i = 0; i + 1 < u->n; i++)
		if (is_same(&u->servers[i].at, &s.at))
			return "given twice";
	if (s.at.n_ports != u->servers[0].at.n_ports)
		return "all servers need the same number of ports";
	return NULL;
}

/* WORD is another server, or an attribute of the server before. */
static const char *take_word(const char *word, bool udp, struct upstream *u)
{
	struct server_conf *last = u->n ? &u->servers[u->n - 1] : NULL;
	const char *value = strchr(word, '=');
	uint64_t n = 0;
	bool counts = value && !count_parse(value + 1, &n) && n;

	if (last && !strcmp(word, "backup"))
		last->backup = true;
	else if (last && !strncmp(word, "weight=", 7) && counts && n <= SERVER_WEIGHT_MAX)
		last->weight = (unsigned int)n;
	else if (last && !strncmp(word, "weight=", 7))
		return "expected a weight from 1 to 100";
	else if (last && !strncmp(word, "max-sessions=", 13) && counts && n <= 1000000)
		last->max_sessions = (unsigned int)n, u->limited = true;
	else if (last && !strncmp(word, "max-sessions=", 13))
		return "expected a number from 1 to 1000000";
	else if (last && !strncmp(word, "check-port=", 11) && counts && n <= UINT16_MAX)
		last->check_port = (in_port_t)n;
	else if (last && !strncmp(word, "check-port=", 11))
		return "expected a port from 1 to 65535";
	else
		return add_server(word, udp, u);
	return NULL;
}

int upstreams_parse(const char *text, bool udp, struct upstream *ret, char *err, size_t errlen)
{
	char *copy = allocated(strdup(text)), *rest = copy, *word = NULL;
	const char *wrong = NULL;

	*ret = (struct upstream){ .text = text };
	while (!wrong && (word = strsep(&rest, UPSTREAM_SEPARATORS)))
		if (*word)
			wrong = take_word(word, udp, ret);
	if (wrong && strcmp(word, text) != 0)
		snprintf(err, errlen, "%.64s: %s", word, wrong);
	else if (wrong || !ret->n)
		snprintf(err, errlen, "%s", wrong ?: "no server");
	free(copy);
	if (!wrong && ret->n)
		return 0;
	upstreams_close(ret);
	return -EINVAL;
}

void upstreams_close(struct upstream *u)
{
	for (size_t i = 0; i < u->n; i++)
		endpoint_close(&u->servers[i].at);
	free(u->servers);
	*u = (struct upstream){ 0 };
}

bool upstreams_are_unix(const struct upstream *u)
{
	return u->n && endpoint_is_unix(&u->servers[0].at);
}
