// SPDX-License-Identifier: BSD-2-Clause
#include "config/haproxy_rules.h"

#include <string.h>

/* --- conditions --- */

/*
 * The values of WORDS up to END, "req.ssl_sni -i A B" or "src A B", or which test of TLS it is.
 * NULL: they are about something else, or compare otherwise.
 */
static const char *values_of(struct foreign *f, char **words, const char *end, enum about about)
{
	static const char names[] = " req_ssl_sni req.ssl_sni req.ssl_sni,lower ";
	static const char tests[] = " req_ssl_hello_type req.ssl_hello_type payload(0,7) "
				    "req.payload(0,7) req_len req.len ";
	bool suffix = false, bad = false;
	char *all = NULL;

	if (about == TLS && (has_word(f, names, *words, "") || has_word(f, tests, *words, "")))
		return *words;
	if (about == TLS || !has_word(f, about == SOURCE ? " src " : names, *words, ""))
		return NULL;
	for (words++; *words != end && **words == '-'; words++)
		if (about == TLS_NAME && !strcmp(*words, "-m") && words[1] != end &&
		    !strcmp(words[1], "end"))
			suffix = words++;
		else
			bad |= !has_word(f, about == SOURCE ? " -- -n " : " -- -i -m ", *words, "");
	for (; *words != end; words++) {
		bad |= suffix && **words != '.';
		all = text_join(all, " ", suffix ? "*" : "");
		all = text_join(all, "", about == SOURCE ? foreign_network(f, *words) : *words);
	}
	end = text_keep(f, all);
	return bad ? NULL : end;
}

/* The values of the term at *AT, "{ src A }" or the name of an `acl` above, which is skipped. */
static const char *term_of(struct draft *d, char ***at, enum about about, bool *inverted)
{
	const char *first = **at ?: "", *more = NULL;
	struct statement *s = d->s;
	char **words, *all = NULL;

	*inverted = *first == '!';
	if (*inverted)
		first = first[1] || !(*at)[1] ? first + 1 : *++*at;
	words = *at += !!**at;
	if (!strcmp(first, "{")) {
		while (**at && strcmp(**at, "}") != 0)
			++*at;
		return **at && *at != words ? values_of(d->f, words, *(*at)++, about) : NULL;
	}
	if (about == SOURCE && has_word(d->f, " TRUE WAIT_END ", first, ""))
		return "all";
	while (s->depth)
		s--;
	for (; s < d->s; s++) {
		if (s->n < 3 || strcmp(s->words[0], "acl") != 0 || strcmp(s->words[1], first) != 0)
			continue;
		more = values_of(d->f, s->words + 2, NULL, about);
		if (!more)
			break;
		all = text_join(all, " ", more);
	}
	first = text_keep(d->f, all);
	return more ? first : NULL;
}

const char *condition_of(struct draft *d, char **at, enum about about, bool *inverted)
{
	char *all = NULL;
	const char *more;
	bool good;

	do {
		more = term_of(d, &at, about, inverted);
		good = more && (!*at || (!*inverted && has_word(d->f, " or || ", *at, ""))) &&
		       !(all && *inverted);
		all = good ? text_join(all, " ", more) : all;
	} while (good && *at++);
	more = text_keep(d->f, all);
	return good ? more : NULL;
}

/* --- who may connect --- */

/* A setting of the list of rules that the statement belongs to. */
static const char *list_find(const struct draft *d, const char *what)
{
	return draft_find(d, foreign_keep(d->f, "%s%s", what, d->text));
}

static void list_set(struct draft *d, const char *what, const char *value)
{
	draft_set(d, foreign_keep(d->f, "%s%s", what, d->text), value);
}

/* True if the condition of the rule means that the client speaks TLS, or (*INVERTED) does not. */
static bool is_about_tls(struct draft *d, bool *inverted)
{
	const char *test = condition_of(d, d->args + 2, TLS, inverted);

	*inverted ^= !strcmp(d->args[1], "unless");
	return test && strstr(test, "hello_type") && !strchr(test, ' ');
}

/* A rule that cannot be an access rule of culvert.  It may mean that all must speak TLS. */
static void take_other_rule(struct draft *d, bool refuses, bool whole)
{
	const char *rest = list_find(d, ".rest");
	bool inverted = false, tls = !whole && is_about_tls(d, &inverted);
	bool nobody_else = !list_find(d, "allow") && strcmp(list_find(d, ".others") ?: "", "allow");

	if (d->roles != BACK && refuses && nobody_else &&
	    (whole ? rest && !strcmp(rest, "not-tls") : tls && inverted && !rest))
		draft_set(d, ".tls-only", "");
	else if (refuses)
		lose(d, NULL, ADMITS);
	else if (!rest)
		list_set(d, ".rest", tls && !inverted ? "not-tls" : "some");
}

/*
 * A list has the rules about the peer, or (TEXT "-client") about the client of a PROXY header.
 * TEXT ends the keys of culvert, and those with what has been read:
 *
 *	.rest    whom the next rules are about: everyone (NULL), nobody ("all" is decided), those who
 *	         do not speak TLS, or some, as a rule that accepts could not be converted
 *	.scope   what X was in `reject if !X`: next rules are about X alone
 *	.others  what a last rule does with all others
 */
void take_request(struct draft *d)
{
	const char *action = *d->args ?: "", *word = *action ? d->args[1] ?: "" : "";
	const char *rest = list_find(d, ".rest"), *scope = list_find(d, ".scope"), *values = "all";
	bool refuses = has_word(d->f, " reject silent-drop ", action, ""), inverted = false, whole;
	const char *verdict = refuses ? "deny" : "allow";

	if (rest && !strcmp(rest, "all") && d->roles != BACK)
		return;
	if (*word)
		values = condition_of(d, d->args + 2, SOURCE, &inverted);
	inverted ^= !strcmp(word, "unless");
	whole = values && !inverted && !strcmp(values, "all");
	if (!refuses && strcmp(action, "accept") != 0) {
		lose(d, NULL, NO_EQUAL);
	} else if (!values || rest || d->roles == BACK ||
		   (scope && !whole &&
		    (inverted || strcmp(verdict, list_find(d, ".others")) != 0))) {
		take_other_rule(d, refuses, whole);
	} else if (inverted) {
		list_set(d, ".scope", values);
		list_set(d, ".others", verdict);
	} else {
		list_set(d, verdict, whole && scope ? scope : values);
		if (whole)
			list_set(d, ".rest", "all");
	}
}

/* Add what becomes of clients that no rule matches: HAProxy admits them. */
static void end_list(struct draft *d, const char *list)
{
	const char *rest, *scope;

	d->text = list;
	rest = list_find(d, ".rest");
	scope = list_find(d, ".scope");
	if ((scope || list_find(d, "allow")) && (!rest || strcmp(rest, "all") != 0))
		list_set(d, "allow", scope ?: "all");
	if (scope)
		list_set(d, list_find(d, ".others"), "all");
}

void end_requests(struct draft *d)
{
	bool both, late, told = false;
	size_t n;

	end_list(d, "");
	end_list(d, "-client");
	late = draft_find(d, "allow");
	both = late && draft_find(d, "allow-client");
	/* without a PROXY header both lists are about the peer; one that only denies comes first */
	n = draft_find(d, ".receive") ? 0 : d->n_keys;
	for (size_t i = 0; i < n; i++) {
		const char *key = d->keys[i].key;
		bool second = has_word(d->f, " allow-client deny-client ", key, "");

		if (!second && !has_word(d->f, " allow deny ", key, ""))
			continue;
		if (second && both && !told)
			lose(d, "tcp-request content", ADMITS);
		told |= second && both;
		key = second && both ? "." : *key == 'a' ? "allow" : "deny";
		if (second != late && *key != '.') {
			draft_set(d, key, d->keys[i].value);
			d->keys[d->n_keys - 1].from = d->keys[i].from;
			key = ".";
		}
		d->keys[i].key = key;
	}
}
