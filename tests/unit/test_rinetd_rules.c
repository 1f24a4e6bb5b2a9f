// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>

#include "config/rinetd_rules.h"
#include "relay/acl.h"
#include "rinetd_model.h"
#include "seeded.h"

/* --- one pattern --- */

static void show(const struct rule_set *s, char *buf, size_t size)
{
	char rule[ACL_RULE_STRLEN];
	size_t len = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < s->n && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%s", i ? " " : "",
					acl_rule_format(&s->rules[i], rule));
}

#define UNCLEAR "?"

static const struct {
	const char *pattern, *inet, *mapped, *inet6;
} patterns[] = {
	{ "192.168.1.2", "192.168.1.2", "", "" },
	{ "192.168.1.*", "192.168.1.0/24", "", "" },
	{ "192.168.*", "192.168.0.0/16", "", "" },
	{ "10.*.*.*", "10.0.0.0/8", "", "" },
	{ "*.*.*.*", "0.0.0.0/0", "0.0.0.0/0", "" },
	{ "*", "0.0.0.0/0", "0.0.0.0/0", "::/0" },
	{ "***", "0.0.0.0/0", "0.0.0.0/0", "::/0" },
	{ "10.*.3.4", "10.0.3.4/255.0.255.255", "", "" },
	{ "*.5", "0.0.0.5/0.0.0.255", "0.0.0.5/0.0.0.255", "" },
	{ "1.2.3.1?", "1.2.3.10/31 1.2.3.12/30 1.2.3.16/30", "", "" },
	{ "1.2.3.?", "1.2.3.0/29 1.2.3.8/31", "", "" },
	{ "1.2.3.25?", "1.2.3.250/31 1.2.3.252/30", "", "" },
	{ "1.2.3.2*", "1.2.3.2 1.2.3.20/30 1.2.3.24/30 1.2.3.28/31 1.2.3.200/29 1.2.3.208/28 "
	  "1.2.3.224/27", "", "" },
	{ "1.2?3.4.5", "1.203.4.5 1.213.4.5 1.223.4.5 1.233.4.5 1.243.4.5 1.253.4.5", "", "" },
	{ "1?2.3.4", "1.2.3.4", "", "" }, /* "?" may be the dot */
	{ "127.*25.19.4", "127.25.19.4 127.125.19.4 127.225.19.4", "", "" },
	{ "*.25?.1.*", "0.250.1.0/0.254.255.0 0.252.1.0/0.252.255.0",
	  "0.250.1.0/0.254.255.0 0.252.1.0/0.252.255.0", "" },
	{ "*127.0.0.1", "127.0.0.1", "127.0.0.1", "" },
	{ "::ffff:10.*", "", "10.0.0.0/8", "" },
	{ "*:10.0.0.1", "", "10.0.0.1", "" },
	{ "10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8", "" },
	{ "2001:db8::/32", "", "", "2001:db8::/32" },
	{ "::1", "", "", "::1" },
	{ "2001:db8::5", "", "", "2001:db8::5" },
	{ "fe80:*", "", "", "fe80::/16" },
	{ "2001:618:*:e43f", "", "", "2001:618::e43f/ffff:ffff::ffff" },
	{ "2001:db8:2*", "", "", "2001:db8:2::/48 2001:db8:20::/44 2001:db8:200::/40 "
	  "2001:db8:2000::/36" },
	{ "2001:db8:1::*", "", "", "2001:db8:1::/80" },
	{ "*:*", "", "0.0.0.0/0", "::/0" },
	{ "*:1:2", "", "", "::0.1.0.2/::255.255.255.255" },
	{ "fe80::*", "", "", UNCLEAR },
	{ "2001:db8::*", "", "", UNCLEAR },
	{ "2001:db8:0:*", "", "", UNCLEAR },
	{ "2001:db8:*:*", "", "", UNCLEAR },
	{ "2001:db8:1?:*", "", "", UNCLEAR },
	{ "::*", "", "0.0.0.0/0", UNCLEAR },
};

static void test_patterns(void **state)
{
	char inet[400], mapped[400], inet6[400];

	(void)state;
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
		struct rinetd_pattern p;
		int r = rinetd_pattern_parse(patterns[i].pattern, &p);

		show(&p.inet, inet, sizeof(inet));
		show(&p.mapped, mapped, sizeof(mapped));
		show(&p.inet6, inet6, sizeof(inet6));
		if (r || strcmp(inet, patterns[i].inet) || strcmp(mapped, patterns[i].mapped) ||
		    strcmp(p.inet6_unclear ? UNCLEAR : inet6, patterns[i].inet6))
			fail_msg("\"%s\": %d, \"%s\", \"%s\", \"%s\"%s", patterns[i].pattern, r,
				 inet, mapped, inet6, p.inet6_unclear ? ", unclear" : "");
		rinetd_pattern_close(&p);
	}
}

static const struct {
	const char *pattern;
	int error;
} bad[] = {
	{ "", -EINVAL },
	{ "localhost", -EINVAL },
	{ "10.0.0.1,10.0.0.2", -EINVAL },
	{ "10.0.0.1|10.0.0.2", -EINVAL },
	{ "10.0.0.1 10.0.0.2", -EINVAL },
	{ "10.0.0.1/8", -EINVAL },
	{ "10.0.0.*/24", -EINVAL },
	{ "fe80::1%eth0", -EINVAL },
	{ "10.0.0", -ENOENT },
	{ "10.0.0.256", -ENOENT },
	{ "10.0.0.01", -ENOENT },
	{ "10.0.0.1.*", -ENOENT },
	{ "[::1]", -ENOENT },
	{ "2001:DB8::1", -ENOENT },
	{ "2001:0db8::1", -ENOENT },
	{ "2001:db8:0:0:0:0:0:1", -ENOENT },
	{ "1:2:3:4:5:6:7:8:*", -ENOENT },
	{ "*:1:2:3:4:5:6:7:8", -ENOENT },
	{ "02001:*", -ENOENT },
	{ "*4*", -E2BIG },
	{ "1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*", -E2BIG },
};

static void test_bad(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct rinetd_pattern p;
		int r = rinetd_pattern_parse(bad[i].pattern, &p);

		rinetd_pattern_close(&p);
		if (r != bad[i].error)
			fail_msg("\"%s\": %d", bad[i].pattern, r);
	}
}

/* --- lists, beside the model --- */

struct client {
	struct sockaddr_storage ss;
	char text[INET6_ADDRSTRLEN], plain[INET_ADDRSTRLEN];
};

static void make_inet(struct seeded *r, bool is_mapped, struct client *c)
{
	static const uint8_t octets[] = { 0, 1, 2, 10, 19, 25, 100, 192, 200, 255 };
	struct sockaddr_in *in = (struct sockaddr_in *)&c->ss;
	uint8_t addr[4];

	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < 4; i++)
		addr[i] = seeded_below(r, 5) ? octets[seeded_below(r, sizeof(octets))] :
					       (uint8_t)seeded_next(r);
	in->sin_family = AF_INET;
	memcpy(&in->sin_addr, addr, 4);
	inet_ntop(AF_INET, addr, c->plain, sizeof(c->plain));
	snprintf(c->text, sizeof(c->text), "%s%s", is_mapped ? "::ffff:" : "", c->plain);
	if (!is_mapped)
		c->plain[0] = '\0';
}

static void make_inet6(struct seeded *r, struct client *c)
{
	static const uint16_t groups[] = { 0, 0, 0, 1, 0x10, 0xa, 0x2001, 0xdb8, 0xfe80, 0xffff };
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&c->ss;

	memset(c, 0, sizeof(*c));
	in6->sin6_family = AF_INET6;
	/* not in ::/96 or ::ffff:0:0/96, whose text is another */
	do {
		for (size_t i = 0; i < 8; i++) {
			uint16_t g = groups[seeded_below(r, 10)];

			g = htons(seeded_below(r, 5) ? g : (uint16_t)seeded_size(r, 16));
			memcpy(in6->sin6_addr.s6_addr + 2 * i, &g, sizeof(g));
		}
		inet_ntop(AF_INET6, &in6->sin6_addr, c->text, sizeof(c->text));
	} while (strchr(c->text, '.'));
}

static void make_client(struct seeded *r, unsigned int kinds, struct client *c)
{
	if (kinds == CLIENTS_INET6 || (kinds & CLIENTS_INET6 && seeded_below(r, 2)))
		make_inet6(r, c);
	else
		make_inet(r, kinds & CLIENTS_MAPPED, c);
}

/* A client's text of which pieces became wildcards. */
static void make_pattern(struct seeded *r, unsigned int kinds, char *buf, size_t size)
{
	struct client c;
	size_t len, at, n;

	make_client(r, seeded_below(r, 4) ? kinds & ~(unsigned int)CLIENTS_MAPPED : kinds, &c);
	len = strlen(c.text);
	snprintf(buf, size, "%s", c.text);
	for (uint64_t i = seeded_below(r, 3); i; i--) {
		at = seeded_below(r, len + 1);
		n = seeded_below(r, len - at + 1);
		if (seeded_below(r, 3)) {
			memmove(buf + at + 1, buf + at + n, len - at - n + 1);
			buf[at] = '*';
			len = len - n + 1;
		} else if (at < len) {
			buf[at] = '?';
		}
	}
}

static void make_list(struct seeded *r, unsigned int kinds, struct rinetd_rules *l,
		      struct model_rules *model, unsigned int *taken)
{
	*l = (struct rinetd_rules){ 0 };
	model->n = 0;
	for (uint64_t i = seeded_below(r, 5); i; i--) {
		struct model_rule *m = &model->rules[model->n];
		int e;

		m->allow = seeded_below(r, 2);
		make_pattern(r, kinds, m->pattern, sizeof(m->pattern));
		e = rinetd_rules_add(l, m->allow, m->pattern, 1);
		if (e && e != -E2BIG && e != -ENOENT)
			fail_msg("\"%s\": %d", m->pattern, e);
		if (!e && kinds & CLIENTS_INET6 && l->rules[l->n - 1].pattern.inet6_unclear)
			rinetd_pattern_close(&l->rules[--l->n].pattern);
		else if (!e)
			model->n++;
	}
	*taken += (unsigned int)model->n;
}

/* By way of what a file would say. */
static void make_acl(const struct rule_set *set, struct acl *a)
{
	char rule[ACL_RULE_STRLEN];

	*a = (struct acl){ 0 };
	for (size_t i = 0; i < set->n; i++) {
		acl_rule_format(&set->rules[i], rule);
		if (acl_add(a, set->rules[i].allow, rule))
			fail_msg("%s", rule);
	}
}

static void show_lists(const struct model_rules *global, const struct model_rules *own)
{
	for (size_t i = 0; i < global->n + own->n; i++) {
		const struct model_rule *m = i < global->n ? &global->rules[i] :
							     &own->rules[i - global->n];

		print_error("%s %s %s\n", i < global->n ? "global" : "own",
			    m->allow ? "allow" : "deny", m->pattern);
	}
}

/* Returns how many clients may connect. */
static unsigned int check_clients(struct seeded *r, unsigned int kinds, const struct acl *a,
				  const struct model_rules *global, const struct model_rules *own)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < 40; i++) {
		struct client c;
		bool expected, is;

		make_client(r, kinds, &c);
		expected = model_verdict(global, own, c.text, c.plain[0] ? c.plain : NULL);
		is = acl_allows(a, (struct sockaddr *)&c.ss);
		if (is != expected) {
			show_lists(global, own);
			fail_msg("%s %s", c.text, is ? "is allowed" : "is denied");
		}
		n += is;
	}
	return n;
}

#define ROUNDS 1200

static void test_random(void **state)
{
	static const unsigned int kinds[] = { CLIENTS_INET, CLIENTS_INET6,
					      CLIENTS_INET | CLIENTS_INET6,
					      CLIENTS_MAPPED | CLIENTS_INET6 };
	unsigned int allowed = 0, taken = 0, too_many = 0;
	struct seeded r = { 7 };

	(void)state;
	for (unsigned int i = 0; i < ROUNDS; i++) {
		static struct model_rules model_global, model_own;
		const struct rinetd_rule *rule;
		struct rinetd_rules global, own;
		struct rule_set set;
		struct acl a;
		int e;

		make_list(&r, kinds[i % 4], &global, &model_global, &taken);
		make_list(&r, kinds[i % 4], &own, &model_own, &taken);
		e = rinetd_rules_compile(&global, &own, kinds[i % 4], &set, &rule);
		too_many += e == -E2BIG;
		if (e && e != -E2BIG)
			fail_msg("%d", e);
		make_acl(&set, &a);
		if (!e)
			allowed += check_clients(&r, kinds[i % 4], &a, &model_global, &model_own);
		acl_close(&a);
		rule_set_close(&set);
		rinetd_rules_close(&global);
		rinetd_rules_close(&own);
	}
	/* both answers are there, and most patterns are taken */
	assert_in_range(allowed, ROUNDS * 40 / 20, ROUNDS * 40 * 19 / 20);
	assert_in_range(taken, ROUNDS * 2, ROUNDS * 8);
	assert_in_range(too_many, 0, ROUNDS / 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_patterns),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
