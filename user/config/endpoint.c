// SPDX-License-Identifier: BSD-2-Clause
#include "config/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define PATH_OFFSET offsetof(struct sockaddr_un, sun_path)
#define PATH_ROOM sizeof(((struct sockaddr_un *)0)->sun_path)
#define TEXT_ROOM sizeof(((struct endpoint *)0)->text)
#define SERVICES_FILE "/etc/services"
#define SPACE " \t\r"

/* Where a parser says what is wrong. */
struct complaint {
	char *buf;
	size_t size;
};

__attribute__((format(printf, 3, 4)))
static int complain(struct complaint *why, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why->buf, why->size, fmt, ap);
	va_end(ap);
	return error;
}

/* The two halves of "host:port". */
struct host_port {
	char host[TEXT_ROOM];
	char port[TEXT_ROOM];
	bool bracketed;
};

/* The <ctype.h> functions depend on the locale. */
static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool all_digits(const char *s)
{
	for (; *s; s++) {
		if (!is_digit(*s))
			return false;
	}
	return true;
}

static bool has_control_character(const char *s)
{
	for (; *s; s++) {
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			return true;
	}
	return false;
}

static int add_addr(struct endpoint *e, const struct sockaddr *sa, socklen_t len)
{
	struct addr a, *addrs;

	memset(&a, 0, sizeof(a));
	memcpy(&a.ss, sa, len);
	a.len = len;
	a = addr_unmapped(&a); /* listeners are of one family, so they take no IPv4 in IPv6 form */
	/* getaddrinfo() repeats an address that /etc/hosts lists twice. */
	for (size_t i = 0; i < e->n_addrs; i++) {
		if (addr_equal(&e->addrs[i], &a))
			return 0;
	}
	addrs = realloc(e->addrs, (e->n_addrs + 1) * sizeof(*addrs));
	if (!addrs)
		return -ENOMEM;
	e->addrs = addrs;
	e->addrs[e->n_addrs++] = a;
	return 0;
}

static int parse_unix(const char *path, struct endpoint *ret, struct complaint *why)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	size_t n = strlen(path);

	if (path[0] != '/' && path[0] != '@')
		return complain(why, -EINVAL,
				"expected unix:/path, or unix:@name for an abstract socket");
	if (path[0] == '@' && n == 1)
		return complain(why, -EINVAL, "no name after the @ of an abstract socket");
	if (n >= PATH_ROOM)
		return complain(why, -EINVAL,
				"path of %zu bytes is too long for a unix socket (at most %zu)", n,
				PATH_ROOM - 1);

	memcpy(un.sun_path, path, n);
	if (path[0] == '@')
		un.sun_path[0] = '\0';
	else
		n++; /* a path is terminated, an abstract name is counted */
	if (add_addr(ret, (struct sockaddr *)&un, (socklen_t)(PATH_OFFSET + n)) < 0)
		return complain(why, -ENOMEM, "out of memory");
	return 0;
}

static int split_bracketed(const char *text, struct host_port *ret, struct complaint *why)
{
	const char *end = strchr(text, ']');

	if (!end)
		return complain(why, -EINVAL, "the bracket [ is never closed");
	if (end == text + 1)
		return complain(why, -EINVAL, "nothing between the brackets");
	if (end[1] && end[1] != ':')
		return complain(why, -EINVAL, "expected a colon and a port after the bracket ]");
	if (!end[1])
		return complain(why, -EINVAL, "no port, expected [IPV6]:PORT");

	memcpy(ret->host, text + 1, (size_t)(end - text - 1));
	ret->host[end - text - 1] = '\0';
	strcpy(ret->port, end + 2);
	ret->bracketed = true;
	return 0;
}

static int split_plain(const char *text, struct host_port *ret, struct complaint *why)
{
	const char *colon = strchr(text, ':');

	if (text[0] == '/')
		return complain(why, -EINVAL, "write unix:/path for a unix socket");
	if (strchr(text, '/'))
		return complain(why, -EINVAL, "expected HOST:PORT, without scheme or path");
	if (strpbrk(text, "[]"))
		return complain(why, -EINVAL, "unbalanced brackets, expected [IPV6]:PORT");
	if (!colon)
		return complain(why, -EINVAL, "no port, expected HOST:PORT");
	if (strchr(colon + 1, ':'))
		return complain(why, -EINVAL, "an IPv6 address needs brackets, as in [::1]:80");

	memcpy(ret->host, text, (size_t)(colon - text));
	ret->host[colon - text] = '\0';
	strcpy(ret->port, colon + 1);
	ret->bracketed = false;
	return 0;
}

/* "8000-8010" */
static bool is_range(const char *port)
{
	const char *dash = strchr(port, '-');

	return dash && dash > port && strspn(port, "0123456789") == (size_t)(dash - port) &&
	       dash[1] && all_digits(dash + 1);
}

/*
 * getaddrinfo() would take " 80", "+80" and "-1" for numbers and cut them to 16 bits; so only
 * digits pass as a number, and a service name needs a letter.
 */
static int check_port(const char *port, bool passive, struct complaint *why)
{
	bool letter = false;

	if (!port[0])
		return complain(why, -EINVAL, "no port after the colon");
	if (all_digits(port)) {
		unsigned long n = strtoul(port, NULL, 10); /* ULONG_MAX on overflow */

		if (n > 65535)
			return complain(why, -EINVAL, "port is above 65535");
		if (n == 0 && !passive)
			return complain(why, -EINVAL, "port 0 cannot be connected to");
		return 0;
	}
	if (is_range(port))
		return complain(why, -EINVAL,
				"a range of ports: each port needs a forward of its own");
	for (const char *p = port; *p; p++) {
		letter = letter || is_letter(*p);
		if (!is_letter(*p) && !is_digit(*p) && !strchr("-_.", *p))
			return complain(why, -EINVAL,
					"bad port, expected 0 to 65535 or a service name");
	}
	if (!letter)
		return complain(why, -EINVAL, "bad port, expected 0 to 65535 or a service name");
	return 0;
}

/*
 * A host whose last label is a number is an IPv4 address or a mistake.  getaddrinfo() would read
 * "127.1" as 127.0.0.1, and ask the name server for "1.2.3.256".
 */
static int check_host(const char *host, bool passive, struct complaint *why)
{
	const char *label = strrchr(host, '.');
	struct in_addr in;

	if (!host[0])
		return passive ? 0 : complain(why, -EINVAL, "no host before the colon");
	for (const char *p = host; *p; p++) {
		if (!is_letter(*p) && !is_digit(*p) && !strchr("-_.", *p))
			return complain(why, -EINVAL,
					"bad host, expected a name or an IPv4 address");
	}
	label = label ? label + 1 : host;
	if (((label[0] && all_digits(label)) || strncasecmp(label, "0x", 2) == 0) &&
	    inet_pton(AF_INET, host, &in) != 1)
		return complain(why, -EINVAL, "bad IPv4 address, expected four numbers up to 255");
	return 0;
}

/* --- services --- */

static char *services; /* the content of SERVICES_FILE, as long as the process lives */
static bool services_read;

void endpoint_keep_services(void)
{
	size_t size = 0;
	FILE *f;

	if (services_read)
		return;
	services_read = true; /* also if it is missing: a daemon that is confined must not try */
	f = fopen(SERVICES_FILE, "re");
	if (f && getdelim(&services, &size, '\0', f) < 0) {
		free(services);
		services = NULL;
	}
	if (f)
		fclose(f);
}

/* "80/tcp"; 0: WORD is nothing of the kind. */
static in_port_t parse_port(const char *word)
{
	char *end;
	unsigned long n = is_digit(*word) ? strtoul(word, &end, 10) : 0;

	return n && n <= UINT16_MAX && !strcmp(end, "/tcp") ? htons((uint16_t)n) : 0;
}

/* The port of the TCP service NAME, or 0.  A line is "http 80/tcp www # World Wide Web". */
static in_port_t find_service(const char *name)
{
	const char *line = services;

	while (line && *line) {
		char buf[256], *rest, *word, *port;
		size_t len = strcspn(line, "\n");
		in_port_t n;

		snprintf(buf, sizeof(buf), "%.*s", (int)len, line);
		buf[strcspn(buf, "#")] = '\0';
		word = strtok_r(buf, SPACE, &rest);
		port = word ? strtok_r(NULL, SPACE, &rest) : NULL;
		n = port ? parse_port(port) : 0;
		for (; n && word; word = strtok_r(NULL, SPACE, &rest))
			if (!strcmp(word, name))
				return n;
		line += len + (line[len] == '\n');
	}
	return 0;
}

/* PORT has passed check_port().  In network byte order. */
static int find_port(const char *port, in_port_t *ret, struct complaint *why)
{
	if (all_digits(port)) {
		*ret = htons((uint16_t)strtoul(port, NULL, 10));
		return 0;
	}
	endpoint_keep_services();
	*ret = find_service(port);
	return *ret ? 0 : complain(why, -EINVAL, "unknown service, expected a port number or a "
				   "name");
}

/* --- addresses --- */

static int add_inet6(const char *host, in_port_t port, struct endpoint *ret, struct complaint *why)
{
	struct sockaddr_in6 in6;
	struct addr a;

	if (addr_parse_host(host, &a) || a.ss.ss_family != AF_INET6)
		return complain(why, -EINVAL, "bad IPv6 address between the brackets%s",
				strchr(host, '%') ? ", or no such network interface" : "");
	memcpy(&in6, &a.ss, sizeof(in6));
	in6.sin6_port = port;
	return add_addr(ret, (struct sockaddr *)&in6, sizeof(in6));
}

/* HOST has passed check_host(): "" for every local address, four numbers, or a name. */
static int add_plain(const char *host, in_port_t port, struct endpoint *ret)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = port };
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = port };
	int r;

	if (!host[0]) {
		r = add_addr(ret, (struct sockaddr *)&in, sizeof(in));
		return r ?: add_addr(ret, (struct sockaddr *)&any, sizeof(any));
	}
	if (inet_pton(AF_INET, host, &in.sin_addr) == 1)
		return add_addr(ret, (struct sockaddr *)&in, sizeof(in));
	ret->named_port = port;
	return 0;
}

static int parse_inet(const char *text, bool passive, struct endpoint *ret, struct complaint *why)
{
	struct host_port hp = { 0 };
	struct in_addr in;
	in_port_t port = 0;
	int r;

	r = text[0] == '[' ? split_bracketed(text, &hp, why) : split_plain(text, &hp, why);
	if (!r && !hp.bracketed)
		r = check_host(hp.host, passive, why);
	r = r ?: check_port(hp.port, passive, why) ?: find_port(hp.port, &port, why);
	if (r)
		return r;
	ret->named = !hp.bracketed && hp.host[0] && inet_pton(AF_INET, hp.host, &in) != 1;
	r = hp.bracketed ? add_inet6(hp.host, port, ret, why) : add_plain(hp.host, port, ret);
	return r == -ENOMEM ? complain(why, r, "out of memory") : r;
}

static int parse(const char *text, bool passive, struct endpoint *ret, struct complaint *why)
{
	memset(ret, 0, sizeof(*ret));
	if (!text[0])
		return complain(why, -EINVAL, "empty, expected HOST:PORT or unix:/path");
	if (strlen(text) >= sizeof(ret->text))
		return complain(why, -EINVAL, "longer than %zu bytes", sizeof(ret->text) - 1);
	if (has_control_character(text))
		return complain(why, -EINVAL, "control character in the address");
	strcpy(ret->text, text);
	return strncmp(text, "unix:", 5) == 0 ? parse_unix(text + 5, ret, why) :
						parse_inet(text, passive, ret, why);
}

/* Give E, which is a host name, all addresses of that name. */
static int look_up(struct endpoint *e, bool passive, struct complaint *why)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
					.ai_flags = passive ? AI_PASSIVE : 0 };
	struct addrinfo *list = NULL;
	char host[TEXT_ROOM];
	int r, error;

	snprintf(host, sizeof(host), "%.*s", (int)strcspn(e->text, ":"), e->text);
	r = getaddrinfo(host, NULL, &hints, &list);
	error = errno;
	if (r == EAI_MEMORY || (r == EAI_SYSTEM && error == ENOMEM))
		return complain(why, -ENOMEM, "out of memory");
	if (r)
		return complain(why, r == EAI_AGAIN ? -EAGAIN : -ENOENT,
				"host name lookup failed: %s",
				r == EAI_SYSTEM ? strerror(error) : gai_strerror(r));
	for (struct addrinfo *ai = list; ai && r == 0; ai = ai->ai_next) {
		if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6)
			continue;
		/* the port is at the same place in sockaddr_in6 */
		((struct sockaddr_in *)ai->ai_addr)->sin_port = e->named_port;
		r = add_addr(e, ai->ai_addr, ai->ai_addrlen);
	}
	freeaddrinfo(list);
	if (r < 0)
		return complain(why, r, "out of memory");
	return e->n_addrs ? 0 : complain(why, -ENOENT, "host has no IPv4 or IPv6 address");
}

// NOLINTBEGIN(readability-non-const-parameter): complain() writes to ERR, by way of WHY
int endpoint_parse_offline(const char *text, bool passive, struct endpoint *ret, char *err,
			   size_t errlen)
{
	struct complaint why = { .buf = err, .size = errlen };
	int r = parse(text, passive, ret, &why);

	if (r)
		endpoint_close(ret);
	return r;
}

int endpoint_parse(const char *text, bool passive, struct endpoint *ret, char *err, size_t errlen)
{
	struct complaint why = { .buf = err, .size = errlen };
	int r = parse(text, passive, ret, &why);

	if (!r && ret->named)
		r = look_up(ret, passive, &why);
	if (r)
		endpoint_close(ret);
	return r;
}
// NOLINTEND

int endpoint_copy_addrs(struct endpoint *e, const struct addr *addrs, size_t n)
{
	if (!n)
		return 0;
	e->addrs = malloc(n * sizeof(*addrs));
	if (!e->addrs)
		return -ENOMEM;
	memcpy(e->addrs, addrs, n * sizeof(*addrs));
	e->n_addrs = n;
	return 0;
}

void endpoint_close(struct endpoint *e)
{
	if (!e)
		return;
	free(e->addrs);
	memset(e, 0, sizeof(*e));
}

bool endpoint_is_unix(const struct endpoint *e)
{
	return e->n_addrs && !addr_is_inet(&e->addrs[0]);
}
