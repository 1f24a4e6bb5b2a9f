// SPDX-License-Identifier: BSD-2-Clause
/*
 * getaddrinfo(3) without a network: numbers are what they are, and a name has addresses, or an
 * error, that depend on the name alone.  It also sees what the parsers let through to the resolver.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static bool all_of(const char *text, const char *set)
{
	return text[strspn(text, set)] == '\0';
}

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

static int find_port(const char *service, int flags, uint16_t *ret)
{
	if (all_of(service, DIGITS)) {
		unsigned long n = strtoul(service, NULL, 10);

		must(service[0] && n <= 65535, "port \"%s\" looked up", service);
		*ret = htons((uint16_t)n);
		return 0;
	}
	must(!(flags & AI_NUMERICSERV) && all_of(service, DIGITS LETTERS "-_.") &&
	     !all_of(service, DIGITS "-_."), "service \"%s\" looked up", service);
	if (strlen(service) > 8)
		return EAI_SERVICE;
	*ret = htons((uint16_t)(80 + service[0]));
	return 0;
}

static struct addrinfo *add(struct addrinfo **list, int family, const void *address, uint16_t port,
			    uint32_t scope)
{
	struct addrinfo *ai = calloc(1, sizeof(*ai));
	struct sockaddr_in6 *in6 = calloc(1, sizeof(*in6));
	struct sockaddr_in *in = (struct sockaddr_in *)in6;

	if (!ai || !in6)
		abort();
	ai->ai_family = family;
	ai->ai_addr = (struct sockaddr *)in6;
	in6->sin6_family = (sa_family_t)family;
	in6->sin6_port = port; /* at the same place in sockaddr_in */
	if (family == AF_INET6) {
		memcpy(&in6->sin6_addr, address, 16);
		in6->sin6_scope_id = scope;
		ai->ai_addrlen = sizeof(*in6);
	} else {
		memcpy(&in->sin_addr, address, 4);
		ai->ai_addrlen = sizeof(*in);
	}
	while (*list)
		list = &(*list)->ai_next;
	*list = ai;
	return ai;
}

static int add_bracketed(struct addrinfo **list, const char *host, uint16_t port)
{
	const char *percent = strchrnul(host, '%');
	char text[INET6_ADDRSTRLEN];
	uint8_t address[16];
	unsigned long scope = 0;

	if ((size_t)(percent - host) >= sizeof(text))
		return EAI_NONAME;
	memcpy(text, host, (size_t)(percent - host));
	text[percent - host] = '\0';
	if (*percent) {
		if (!percent[1] || !all_of(percent + 1, DIGITS) || strlen(percent + 1) > 9)
			return EAI_NONAME;
		scope = strtoul(percent + 1, NULL, 10);
	}
	if (inet_pton(AF_INET6, text, address) != 1)
		return EAI_NONAME;
	add(list, AF_INET6, address, port, (uint32_t)scope);
	return 0;
}

static int add_name(struct addrinfo **list, const char *host, uint16_t port)
{
	static const int errors[] = { EAI_NONAME, EAI_AGAIN, EAI_MEMORY, EAI_SYSTEM };
	uint8_t address[16] = { 10 };

	must(all_of(host, DIGITS LETTERS "-_."), "host \"%s\" looked up", host);
	for (const char *p = host; *p; p++)
		address[15] = (uint8_t)(address[15] * 31 + *p);
	address[3] = address[15];
	switch (address[15] % 8) {
	case 0: case 1: case 2: case 3:
		errno = address[15] & 16 ? ENOMEM : EIO;
		return errors[address[15] % 8];
	case 4: /* the same twice, as from a file of hosts that lists it twice */
		add(list, AF_INET, address, port, 0);
		add(list, AF_INET, address, port, 0);
		break;
	case 5:
		add(list, AF_INET6, address, port, 0);
		add(list, AF_INET, address, port, 0);
		break;
	case 6: /* something that nobody has asked for, and nothing else */
		add(list, AF_INET, address, port, 0)->ai_family = AF_UNIX;
		break;
	default:
		add(list, AF_INET6, address, port, 7);
	}
	return 0;
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
		struct addrinfo **ret)
{
	static const uint8_t any[16];
	uint8_t address[16];
	uint16_t port;
	int r = find_port(service, hints->ai_flags, &port);

	*ret = NULL;
	if (r)
		return r;
	if (!host) {
		must(hints->ai_flags & AI_PASSIVE, "no host, and not to bind");
		add(ret, AF_INET, any, port, 0);
		add(ret, AF_INET6, any, port, 0);
		return 0;
	}
	if (hints->ai_flags & AI_NUMERICHOST)
		return add_bracketed(ret, host, port);
	if (inet_pton(AF_INET, host, address) == 1) {
		add(ret, AF_INET, address, port, 0);
		return 0;
	}
	return add_name(ret, host, port);
}

void freeaddrinfo(struct addrinfo *list)
{
	while (list) {
		struct addrinfo *next = list->ai_next;

		free(list->ai_addr);
		free(list);
		list = next;
	}
}
