// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation.  An IPv4 address has one text only, and its octets are read one behind the
 * other: from the set of places of the pattern at which a reader may be (a "*" lets it be at
 * several), each of the 256 values of an octet leads to another set.  Aligned blocks of values that
 * lead to the same set are one branch, from which the next octet goes on.  So every pattern is a
 * list of masks, mostly of one.
 *
 * The text of an IPv6 address is abbreviated: "::" stands for the longest run of zeros.  Taken are
 * those patterns to which this does no harm, because what they name is not zero, and stands at
 * either end: groups, then "*", then groups (rinetd_pattern6.c).
 */
#include "config/rinetd_pattern.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "config/rinetd_pattern6.h"

#define PLACES_MAX 63
#define BRANCHES_MAX RULE_SET_MAX
#define MAPPED "::ffff:"

/* A set of places: bit I is before character I of the pattern. */
typedef uint64_t places;

struct reader {
	size_t len;
	places stars;      /* before a "*" */
	places steps[128]; /* by character: before one that it may be */
	places useful[5];  /* before octet N, from which the end can be reached with the last */
	char octets[256][4];
};

/* Addresses whose octets so far RULE has, and where a reader of them is. */
struct branch {
	places at;
	struct acl_rule rule;
};

struct branches {
	struct branch *all; /* owned */
	size_t n;
};

static int branch_add(struct branches *b, places at, const struct acl_rule *rule)
{
	struct branch *more;

	if (b->n >= BRANCHES_MAX)
		return -E2BIG;
	more = array_grow(b->all, b->n, sizeof(*more));
	if (!more)
		return -ENOMEM;
	b->all = more;
	more[b->n++] = (struct branch){ .at = at, .rule = *rule };
	return 0;
}

/* A "*" may be left without a character.  There are never two in a row. */
static places settle(const struct reader *rd, places at)
{
	return at | (at & rd->stars) << 1;
}

static places read_char(const struct reader *rd, places at, char c)
{
	return settle(rd, (at & rd->stars) | (at & rd->steps[(unsigned char)c & 127]) << 1);
}

static places read_text(const struct reader *rd, places at, const char *text)
{
	while (at && *text)
		at = read_char(rd, at, *text++);
	return at;
}

/* The largest aligned block of values that begins with BASE and has one NEXT: how many bits. */
static unsigned int block_at(const places *next, unsigned int base)
{
	unsigned int bits = base ? (unsigned int)__builtin_ctz(base) : 8;

	for (unsigned int i = 1; i < 1U << bits; i++)
		if (next[base + i] != next[base])
			bits = 31 - (unsigned int)__builtin_clz(i);
	return bits;
}

/* What becomes of BRANCH with octet number DEPTH. */
static int grow(const struct reader *rd, unsigned int depth, const struct branch *branch,
		struct branches *to)
{
	struct acl_rule rule = branch->rule;
	places next[256];
	int r = 0;

	for (unsigned int i = 0; i < 256; i++) {
		next[i] = read_text(rd, branch->at, rd->octets[i]);
		if (depth < 3)
			next[i] = read_char(rd, next[i], '.');
		next[i] &= rd->useful[depth + 1];
	}
	for (unsigned int i = 0, bits; i < 256 && !r; i += 1U << bits) {
		bits = block_at(next, i);
		rule.addr[depth] = (uint8_t)i;
		rule.mask[depth] = (uint8_t)(0xff << bits);
		r = next[i] ? branch_add(to, next[i], &rule) : 0;
	}
	return r;
}

static void learn(struct reader *rd, const char *text)
{
	rd->len = strlen(text);
	for (size_t i = 0; i < rd->len; i++) {
		places at = (places)1 << i;

		if (text[i] == '*')
			rd->stars |= at;
		else if (text[i] != '?')
			rd->steps[(unsigned char)text[i] & 127] |= at;
		for (size_t c = 0; c < 128 && text[i] == '?'; c++)
			rd->steps[c] |= at;
	}
	for (unsigned int i = 0; i < 256; i++)
		snprintf(rd->octets[i], sizeof(rd->octets[i]), "%u", i);
}

/* Branches that lead nowhere are not followed, and those that differ in nothing else are one. */
static void look_ahead(struct reader *rd)
{
	places beyond[PLACES_MAX + 1] = { 0 }; /* where one octet and a dot may lead */

	rd->useful[4] = (places)1 << rd->len;
	for (size_t at = 0; at <= rd->len; at++) {
		for (unsigned int i = 0; i < 256; i++) {
			places next = read_text(rd, settle(rd, (places)1 << at), rd->octets[i]);

			if (next & rd->useful[4])
				rd->useful[3] |= (places)1 << at;
			beyond[at] |= read_char(rd, next, '.');
		}
	}
	for (unsigned int depth = 3; depth-- > 0;)
		for (size_t at = 0; at <= rd->len; at++)
			if (beyond[at] & rd->useful[depth + 1])
				rd->useful[depth] |= (places)1 << at;
}

/* The IPv4 addresses that TEXT matches behind PREFIX. */
static int match_inet(const char *text, const char *prefix, struct rule_set *set)
{
	const struct acl_rule none = { .family = AF_INET };
	struct branches level = { 0 };
	struct reader rd = { 0 };
	places at;
	int r;

	learn(&rd, text);
	look_ahead(&rd);
	at = read_text(&rd, settle(&rd, 1), prefix) & rd.useful[0];
	r = at ? branch_add(&level, at, &none) : 0;
	for (unsigned int depth = 0; depth < 4 && !r; depth++) {
		struct branches next = { 0 };

		for (size_t i = 0; i < level.n && !r; i++)
			r = grow(&rd, depth, &level.all[i], &next);
		free(level.all);
		level = next;
	}
	for (size_t i = 0; i < level.n && !r; i++)
		r = rule_set_add(set, &level.all[i].rule);
	free(level.all);
	return r;
}

/* An address with a prefix or a mask. */
static int take_prefix(const char *text, struct rinetd_pattern *p)
{
	struct acl_rule rule = { .family = AF_UNSPEC };

	if (acl_rule_parse(text, &rule))
		return -EINVAL;
	return rule.family == AF_INET6 ? rule_set_add(&p->inet6, &rule) :
	       rule_set_add(&p->inet, &rule) ?: rule_set_add(&p->mapped, &rule);
}

int rinetd_pattern_parse(const char *text, struct rinetd_pattern *ret)
{
	char buf[PLACES_MAX + 1];
	size_t len = 0;
	int r;

	*ret = (struct rinetd_pattern){ 0 };
	if (strchr(text, '/'))
		return take_prefix(text, ret);
	if (!*text || text[strspn(text, "0123456789abcdefABCDEF.:[]?*")])
		return -EINVAL;
	for (; *text; text++) {
		if (*text == '*' && len && buf[len - 1] == '*')
			continue;
		if (len == PLACES_MAX)
			return -E2BIG;
		buf[len++] = *text;
	}
	buf[len] = '\0';
	r = match_inet(buf, "", &ret->inet);
	r = r ?: match_inet(buf, MAPPED, &ret->mapped);
	r = r ?: rinetd_pattern6(buf, &ret->inet6, &ret->inet6_unclear);
	if (!r && !ret->inet.n && !ret->mapped.n && !ret->inet6.n && !ret->inet6_unclear)
		r = -ENOENT;
	return r;
}

void rinetd_pattern_close(struct rinetd_pattern *p)
{
	rule_set_close(&p->inet);
	rule_set_close(&p->mapped);
	rule_set_close(&p->inet6);
}
