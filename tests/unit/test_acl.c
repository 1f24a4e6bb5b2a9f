// SPDX-License-Identifier: BSD-2-Clause
/* Who may connect: what lists of allow and deny decide, and which of them are refused. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "unit.h"
#include "client.h"
#include "config/acl.h"

/* RULES: "+" allows what follows up to the next sign, "-" denies it. */
static int make(struct acl *a, const char *rules)
{
	char list[200];
	int r = 0;

	*a = (struct acl){ 0 };
	while (!r && *rules) {
		bool allow = *rules == '+';
		size_t len = strcspn(++rules, "+-");

		snprintf(list, sizeof(list), "%.*s", (int)len, rules);
		rules += len;
		r = acl_add(a, allow, list);
	}
	return r;
}

/* Clients between blanks; "unix" is one of a unix socket. */
static const struct {
	const char *rules, *allowed, *denied;
} decisions[] = {
	{ "", "1.2.3.4 ::1 unix", "" },
	/* what nginx's users know: the first that matches decides */
	{ "-192.168.1.1+192.168.1.0/24,10.1.0.0/16-all", "192.168.1.2 10.1.255.255",
	  "192.168.1.1 10.2.0.0 ::1 unix" },
	/* what rinetd's users know: who is not among those allowed is not */
	{ "+10.0.0.0/8", "10.0.0.0 10.255.255.255", "11.0.0.0 9.255.255.255 :: unix" },
	/* only what is denied is not */
	{ "-10.0.0.0/8,2001:db8::/32", "11.0.0.0 2001:db9:: ::1 unix", "10.0.0.0 2001:db8:ffff::" },
	{ "-all", "", "1.2.3.4 ::1 unix" },
	{ "-unix:", "1.2.3.4 ::", "unix" },
	{ "-0.0.0.0/0", ":: unix", "0.0.0.0 255.255.255.255 ::ffff:1.2.3.4" },
	{ "-::/0", "1.2.3.4 unix ::ffff:1.2.3.4", ":: ::1 ff::" },
	/* prefixes that end within a byte */
	{ "+10.0.0.16/29,10.0.0.32/31", "10.0.0.16 10.0.0.23 10.0.0.32 10.0.0.33",
	  "10.0.0.15 10.0.0.24 10.0.0.34 10.0.0.31" },
	{ "+2001:db8:8000::/33", "2001:db8:8000::1 2001:db8:ffff::", "2001:db8:7fff:: 2001:db8::" },
	/* an address of one family is no prefix of the other */
	{ "+32.1.13.184/32", "32.1.13.184", "2001:db8::" },
	/* IPv4 in IPv6 is IPv4 */
	{ "+10.0.0.0/8", "10.1.2.3 ::ffff:10.1.2.3", "11.0.0.0 ::ffff:11.0.0.0" },
	/* masks, with holes and without */
	{ "+10.0.0.0/255.0.0.0", "10.1.2.3", "11.0.0.0 ::1" },
	{ "-10.0.3.4/255.0.255.255+10.0.0.0/8", "10.7.3.5 10.7.2.4",
	  "10.0.3.4 10.7.3.4 10.255.3.4 11.7.3.4" },
	{ "+2001:618::e43f/ffff:ffff::ffff", "2001:618::e43f 2001:618:1:2:3:4:5:e43f",
	  "2001:618::e43e 2001:619::e43f 0.0.228.63" },
	/* patterns of the text */
	{ "+10.*", "10.0.0.1 10.255.0.0 ::ffff:10.1.2.3", "100.0.0.1 11.0.0.1 10::1 unix" },
	{ "-192.168.2.1?+192.168.2.*", "192.168.2.1 192.168.2.100 192.168.2.20",
	  "192.168.2.10 192.168.2.19 192.168.3.1" },
	{ "+2001:DB8:*:bad", "2001:db8::bad 2001:db8:1:2:3:4:5:bad", "2001:db8::1" },
	{ "+*", "1.2.3.4 ::1 unix", "" },
	/* both */
	{ "+10.*&*.7,fe80::/10&*:1", "10.0.0.7 fe80::1", "10.0.0.8 11.0.0.7 fe80::2 fec0::1" },
	{ "+1*&::/0", "1::2", "1.2.3.4 2::1" },
	{ "-10.*&10.0.*&10.0.0.*&*.9+all", "10.0.1.9 10.0.0.8", "10.0.0.9" },
	{ "-*&*&1*&*&*&*&*.1", "1.2.3.4", "1.0.0.1" },
	{ "+10.*,10.0.0.*,10.0.0.1,10.1.*&*.1", "10.1.2.1", "11.0.0.1" },
	/* nothing new, and no contradiction */
	{ "+10.0.0.0/8-0.0.0.0/0+all", "10.0.0.1 ::1 unix", "11.0.0.1" },
	{ "+10.0.0.0/8,10.1.0.0/16,10.0.0.0/8", "10.1.0.0", "11.0.0.0" },
	{ "+ 10.0.0.1\t10.0.0.2 , ,10.0.0.3,", "10.0.0.1 10.0.0.2 10.0.0.3", "10.0.0.4" },
};

TEST(test_decisions)
{
	struct acl a;

	for (size_t i = 0; i < sizeof(decisions) / sizeof(decisions[0]); i++) {
		assert_int_equal(make(&a, decisions[i].rules), 0);
		expect_clients(&a, decisions[i].rules, decisions[i].allowed, true);
		expect_clients(&a, decisions[i].rules, decisions[i].denied, false);
		acl_close(&a);
	}
}

TEST(test_bad)
{
	char bad[] =
		"| |,|x|10|10.0.0.256|010.0.0.1|10.0.0.0/|10.0.0.0/33|10.0.0.0/-1|10.0.0.0/8/8|"
		"10.0.0.1/255.0.0.0|10.0.0.0/ff::|::/255.0.0.0|::1/ffff::|unix:/255.0.0.0|"
		"10.0.0.1/8|/8|10.x*|10.*/8|10.*&|10.*&&10.*|?[1]|::/129|[::1]|::1%lo|"
		"1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*|fe80::1%1|ALL|all/0|unix|"
		"127.0.0.1:80|10.0.0.0/8;x|10.0.0.1 x|::ffff:10.0.0.1/104|::ffff:10.0.0.0/104|"
		"::ffff:10.0.0.1|1111:1111:1111:1111:1111:1111:1111:1111:1111:1111:1111:1111:1111:"
		"1111:1111:1111";
	struct acl a = { 0 };
	char *at = bad;

	for (const char *one; (one = strsep(&at, "|"));) {
		if (acl_add(&a, true, one) != -EINVAL)
			fail_msg("\"%s\"", one);
		acl_close(&a);
	}
}

UNIT_MAIN(NULL, NULL)
