/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_RINETD_MODEL_H
#define CULVERT_TESTS_RINETD_MODEL_H

/*
 * What rinetd's manual says of `allow` and `deny`, by its own means: addresses as text, patterns
 * tried character by character, lists walked through.
 */

#include <stdbool.h>
#include <string.h>

struct model_rule {
	bool allow;
	char pattern[80];
};

struct model_rules {
	struct model_rule rules[64];
	size_t n;
};

static inline bool model_match(const char *text, const char *pattern)
{
	const char *star = NULL, *again = NULL;

	while (*text) {
		if (*pattern == '*') {
			star = pattern++;
			again = text;
		} else if (*pattern == '?' || *pattern == *text) {
			pattern++;
			text++;
		} else if (star) {
			pattern = star + 1;
			text = ++again;
		} else {
			return false;
		}
	}
	return !pattern[strspn(pattern, "*")];
}

static inline bool model_any(const struct model_rules *l, bool allow, const char *text)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->rules[i].allow == allow && model_match(text, l->rules[i].pattern))
			return true;
	return false;
}

static inline bool model_passes(const struct model_rules *l, const char *text)
{
	bool allows = false;

	for (size_t i = 0; i < l->n; i++)
		allows |= l->rules[i].allow;
	return !model_any(l, false, text) && (!allows || model_any(l, true, text));
}

/* PLAIN: the address of an IPv4 client whose TEXT is that of a mapped one; NULL: it is not. */
static inline bool model_verdict(const struct model_rules *global, const struct model_rules *own,
				 const char *text, const char *plain)
{
	if (plain && (model_any(global, false, plain) || model_any(own, false, plain)))
		return false; /* which rinetd would overlook */
	return model_passes(global, text) && model_passes(own, text);
}

#endif
