// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation.  An IPv6 address as text is up to eight groups of hexadecimal digits without
 * leading zeros; the longest run of two or more groups of zero is "::".  So a group that is not
 * zero always stands there as itself, with a colon between it and the next, and where it is counted
 * from the end that it is nearer to.  Patterns which say nothing but that are masks:
 *
 *	HEAD*TAIL	HEAD: "", G:G:G:, G:G:G (of whose last group the first digits)
 *			TAIL: "", :H:H:H, H:H:H (of whose first group the last digits)
 *	G:G:G::*	from three groups on: then no later run of zeros can be the longer one
 *	*:*		all
 *
 * All others are unclear, but for a whole address and for what no address can look like.
 */
#include "config/rinetd_pattern6.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS 8
#define DIGITS 4

/* Values of one group: any of these. */
struct group {
	uint16_t value[16], mask[16];
	size_t n;
};

/* Of all eight; with no value nothing is said of one. */
struct groups {
	struct group at[GROUPS];
};

enum verdict { MATCHES_NONE, MATCHES, UNCLEAR };

static void group_add(struct group *g, unsigned int value, unsigned int mask)
{
	g->value[g->n] = (uint16_t)value;
	g->mask[g->n++] = (uint16_t)mask;
}

/* The group that the LEN digits of TEXT are. */
static enum verdict whole(struct group *g, const char *text, size_t len)
{
	if (!len || (len == 1 && *text == '0'))
		return UNCLEAR;
	if (len > DIGITS || *text == '0')
		return MATCHES_NONE;
	group_add(g, (unsigned int)strtoul(text, NULL, 16), 0xffff);
	return MATCHES;
}

/* Those that begin with them: as many digits more as there is room for. */
static enum verdict begins(struct group *g, const char *text, size_t len)
{
	unsigned int value = (unsigned int)strtoul(text, NULL, 16);
	enum verdict v = whole(g, text, len);

	for (size_t more = 1; v == MATCHES && more <= DIGITS - len; more++)
		group_add(g, value << 4 * more, 0xffffU << 4 * more & 0xffff);
	return v;
}

/* Those that end with them.  If these begin with 0 there must be another digit, which is not. */
static enum verdict ends(struct group *g, const char *text, size_t len)
{
	unsigned int value = (unsigned int)strtoul(text, NULL, 16), low;

	if (!len || (len == 1 && *text == '0'))
		return UNCLEAR;
	if (len > DIGITS || (len == DIGITS && *text == '0'))
		return MATCHES_NONE;
	low = (1U << 4 * len) - 1;
	if (*text != '0')
		group_add(g, value, low);
	for (size_t at = 4 * len; *text == '0' && at < 4 * DIGITS; at++)
		group_add(g, value | 1U << at, (0xffffU << at & 0xffff) | low);
	return MATCHES;
}

/* --- "G:G:G", from the left --- */

/* *RET_N: how many groups HEAD speaks of. */
static enum verdict read_head(const char *head, size_t len, struct groups *all, size_t *ret_n)
{
	enum verdict v = MATCHES;
	size_t n = 0;

	while (len && v == MATCHES) {
		const char *colon = memchr(head, ':', len);
		size_t digits = colon ? (size_t)(colon - head) : len;

		if (n == GROUPS)
			return MATCHES_NONE;
		v = colon ? whole(&all->at[n], head, digits) : begins(&all->at[n], head, digits);
		n++;
		head += digits + !!colon;
		len -= digits + !!colon;
	}
	*ret_n = n;
	return v;
}

/* --- and from the right --- */

static enum verdict read_tail(const char *tail, struct groups *all, size_t *ret_n)
{
	enum verdict v = MATCHES;
	size_t n = 0, len = strlen(tail);

	while (len && v == MATCHES) {
		const char *colon = memrchr(tail, ':', len);
		size_t digits = colon ? (size_t)(tail + len - colon - 1) : len;
		struct group *g = &all->at[GROUPS - 1 - n];

		if (n == GROUPS)
			return MATCHES_NONE;
		v = colon ? whole(g, colon + 1, digits) : ends(g, tail, digits);
		n++;
		len -= digits + !!colon;
	}
	*ret_n = n;
	return v;
}

static void put_group(struct acl_rule *rule, size_t at, unsigned int value, unsigned int mask)
{
	rule->addr[2 * at] = (uint8_t)(value >> 8);
	rule->addr[2 * at + 1] = (uint8_t)value;
	rule->mask[2 * at] = (uint8_t)(mask >> 8);
	rule->mask[2 * at + 1] = (uint8_t)mask;
}

/* Every choice of one value for each group that has any. */
static int add_all(const struct groups *all, struct rule_set *set)
{
	size_t choices = 1;
	int r = 0;

	for (size_t at = 0; at < GROUPS; at++)
		choices *= all->at[at].n ?: 1;
	for (size_t i = 0; i < choices && !r; i++) {
		struct acl_rule rule = { .family = AF_INET6 };
		size_t left = i;

		for (size_t at = GROUPS; at-- > 0;) {
			const struct group *g = &all->at[at];

			if (!g->n)
				continue;
			put_group(&rule, at, g->value[left % g->n], g->mask[left % g->n]);
			left /= g->n;
		}
		r = rule_set_add(set, &rule);
	}
	return r;
}

/* "G:G:G::*": HEAD ends in two colons. */
static enum verdict read_zeros(const char *head, size_t len, struct groups *all)
{
	enum verdict v;
	size_t n;

	v = read_head(head, len - 1, all, &n);
	if (v != MATCHES)
		return v;
	if (n < 3)
		return UNCLEAR;
	if (n > GROUPS - 2)
		return MATCHES_NONE;
	group_add(&all->at[n], 0, 0xffff);
	group_add(&all->at[n + 1], 0, 0xffff);
	return MATCHES;
}

/* HEAD has LEN bytes; then come the "*" and TAIL. */
static enum verdict read_both(const char *head, size_t len, const char *tail, struct groups *all)
{
	bool head_ends = len && head[len - 1] == ':', tail_begins = *tail == ':';
	struct groups right = { 0 };
	enum verdict v, w;
	size_t n, m;

	if (len >= 2 && !memcmp(head + len - 2, "::", 2) && !*tail)
		return read_zeros(head, len, all);
	v = read_head(head, len, all, &n);
	w = read_tail(tail, &right, &m);
	if (v != MATCHES || w != MATCHES)
		return v == MATCHES_NONE || w == MATCHES_NONE ? MATCHES_NONE : UNCLEAR;
	/* a colon has a group on either side */
	if ((head_ends && n == GROUPS) || (tail_begins && m == GROUPS) ||
	    (head_ends && tail_begins && n + m == GROUPS))
		return MATCHES_NONE;
	if (n + m > GROUPS)
		return UNCLEAR;
	memcpy(&all->at[GROUPS - m], &right.at[GROUPS - m], m * sizeof(right.at[0]));
	return MATCHES;
}

static enum verdict read_pattern(const char *text, struct groups *all)
{
	const char *star = strchr(text, '*');
	struct in6_addr in6;
	char canonical[INET6_ADDRSTRLEN];

	if (strpbrk(text, ".[]ABCDEF"))
		return MATCHES_NONE; /* IPv6 is written without */
	if (!strcmp(text, "*:*"))
		return MATCHES;
	if (strchr(text, '?') || (star && strchr(star + 1, '*')))
		return UNCLEAR;
	if (star)
		return read_both(text, (size_t)(star - text), star + 1, all);
	if (inet_pton(AF_INET6, text, &in6) != 1 ||
	    strcmp(inet_ntop(AF_INET6, &in6, canonical, sizeof(canonical)), text))
		return MATCHES_NONE;
	for (size_t i = 0; i < GROUPS; i++)
		group_add(&all->at[i], (unsigned int)in6.s6_addr[2 * i] << 8 |
			  in6.s6_addr[2 * i + 1], 0xffff);
	return MATCHES;
}

int rinetd_pattern6(const char *text, struct rule_set *set, bool *ret_unclear)
{
	struct groups all = { 0 };
	enum verdict v = read_pattern(text, &all);

	*ret_unclear = v == UNCLEAR;
	return v == MATCHES ? add_all(&all, set) : 0;
}
