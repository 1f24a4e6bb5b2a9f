// SPDX-License-Identifier: BSD-2-Clause
/*
 * Who may connect (user/relay/acl.c): lists of rules, then clients.  The input is texts that end in NUL,
 * each with "+" or "-" in front of a list; what follows the first text without either is clients.
 *
 * The oracle keeps every element that is accepted, in order, and compares bit by bit.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "config/acl.h"

#define MODEL_MAX 1024 /* an input has 4,096 bytes, an element three and a separator */
#define LONGEST 95     /* more is no address and mask, but for needless zeros */

struct model_rule {
	int family; /* AF_UNSPEC: all */
	uint8_t addr[16], mask[16];
	bool allow;
};

static struct model_rule model[MODEL_MAX];
static size_t n_model;

static bool bit_of(const uint8_t *addr, unsigned long i)
{
	return addr[i / 8] >> (7 - i % 8) & 1;
}

/* The last 32 bits of IPv4-mapped addresses are what counts. */
static void model_unmap(struct model_rule *r)
{
	static const uint8_t prefix[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

	for (size_t i = 0; i < sizeof(prefix); i++)
		if (r->family != AF_INET6 || r->mask[i] != 0xff || r->addr[i] != prefix[i])
			return;
	for (size_t i = 0; i < 4; i++) {
		r->addr[i] = r->addr[12 + i];
		r->mask[i] = r->mask[12 + i];
	}
	for (size_t i = 4; i < 16; i++)
		r->addr[i] = r->mask[i] = 0;
	r->family = AF_INET;
}

static bool model_matches(const struct model_rule *r, const struct model_rule *whom)
{
	if (r->family == AF_UNSPEC)
		return true;
	if (r->family != whom->family)
		return false;
	for (unsigned long i = 0; i < 128; i++)
		if (bit_of(r->mask, i) && (!bit_of(whom->mask, i) ||
					   bit_of(r->addr, i) != bit_of(whom->addr, i)))
			return false;
	return true;
}

/* The first N bits. */
static void model_prefix(struct model_rule *r, unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		r->mask[i / 8] |= (uint8_t)(0x80 >> i % 8);
}

/* False: the element is none. */
static bool model_parse(char *element, struct model_rule *r)
{
	char *slash = strchr(element, '/');
	unsigned long most, bits;

	*r = (struct model_rule){ .family = AF_UNSPEC };
	if (strlen(element) > LONGEST)
		return false;
	if (!strcmp(element, "all"))
		return true;
	r->family = AF_UNIX;
	if (!strcmp(element, "unix:"))
		return true;
	if (slash)
		*slash++ = '\0';
	r->family = strchr(element, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(r->family, element, r->addr) != 1)
		return false;
	most = r->family == AF_INET ? 32 : 128;
	if (!slash) {
		model_prefix(r, most);
	} else if (inet_pton(r->family, slash, r->mask) != 1) {
		if (!*slash || slash[strspn(slash, "0123456789")])
			return false;
		bits = strtoul(slash, NULL, 10);
		if (bits > most)
			return false;
		model_prefix(r, bits);
	}
	for (unsigned long i = 0; i < most; i++)
		if (bit_of(r->addr, i) && !bit_of(r->mask, i))
			return false;
	return true;
}

/* What acl_add() should return, and what it should have added. */
static int model_add(bool allow, char *list)
{
	char *at, *element = strtok_r(list, ", \t", &at);

	if (!element)
		return -EINVAL;
	for (; element; element = strtok_r(NULL, ", \t", &at)) {
		struct model_rule r;
		size_t i = 0;

		if (!model_parse(element, &r))
			return -EINVAL;
		r.allow = allow;
		model_unmap(&r);
		while (i < n_model && !model_matches(&model[i], &r))
			i++;
		if (i < n_model && model[i].allow != allow)
			return -EEXIST;
		must(n_model < MODEL_MAX, "more elements than there can be");
		model[n_model++] = r;
	}
	return 0;
}

static bool model_allows(const struct model_rule *client)
{
	bool allows = false;

	for (size_t i = 0; i < n_model; i++) {
		if (model_matches(&model[i], client))
			return model[i].allow;
		allows |= model[i].allow;
	}
	return !allows;
}

static void check_client(const struct acl *a, struct input *in)
{
	struct model_rule r = { .family = AF_UNIX };
	struct sockaddr un = { .sa_family = AF_UNIX };
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	unsigned int kind = input_byte(in) % 3;
	const uint8_t *bytes;
	size_t n = input_bytes(in, sizeof(r.addr), &bytes);
	bool is;

	memcpy(r.addr, bytes, n);
	memcpy(&v4.sin_addr, r.addr, 4);
	memcpy(&v6.sin6_addr, r.addr, 16);
	if (kind == 0) {
		is = acl_allows(a, &un);
	} else if (kind == 1) {
		r.family = AF_INET;
		model_prefix(&r, 32);
		for (size_t i = 4; i < 16; i++)
			r.addr[i] = 0;
		is = acl_allows(a, (struct sockaddr *)&v4);
	} else {
		r.family = AF_INET6;
		model_prefix(&r, 128);
		model_unmap(&r);
		is = acl_allows(a, (struct sockaddr *)&v6);
	}
	must(is == model_allows(&r), "%d", is);
}

/* Each rule's own address, which is where prefixes end. */
static void check_edges(const struct acl *a)
{
	for (size_t i = 0; i < n_model; i++) {
		struct sockaddr_in v4 = { .sin_family = AF_INET };
		struct model_rule r = model[i];

		if (r.family != AF_INET)
			continue;
		model_prefix(&r, 32);
		memcpy(&v4.sin_addr, r.addr, 4);
		must(acl_allows(a, (struct sockaddr *)&v4) == model_allows(&r), "rule %zu", i);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct acl a = { 0 }, copy;
	bool more = true;

	n_model = 0;
	while (more && in.left) {
		char *text = input_text(&in);
		int is, expected;

		more = text[0] == '+' || text[0] == '-';
		if (more) {
			is = acl_add(&a, text[0] == '+', text + 1);
			expected = model_add(text[0] == '+', text + 1);
			must(is == expected, "%d instead of %d", is, expected);
		}
		free(text);
	}
	must(a.n <= n_model && (a.n > 0) == (n_model > 0), "%zu rules of %zu", a.n, n_model);
	check_edges(&a);
	if (acl_copy(&copy, &a))
		abort();
	acl_close(&a);
	while (in.left)
		check_client(&copy, &in);
	acl_close(&copy);
	return 0;
}
