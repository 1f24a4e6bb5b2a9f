// SPDX-License-Identifier: BSD-2-Clause
/*
 * Addresses (user/base/addr.c, user/config/endpoint.c) and ranges of them (user/bench/options.c).
 * The first byte says which:
 *
 *   0  an address to connect to      2  a struct sockaddr to be shown, as a peer may have it
 *   1  an address to listen at       3  a range of source addresses
 *
 * What parses is printed, and that parses to the same; what does not parse gives one line of
 * explanation and leaves nothing behind.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "bench/options.h"
#include "config/endpoint.h"
#include "fuzz.h"

#define ERR_ROOM 256

static void check_error(int r, const char *err)
{
	must(r == -EINVAL || r == -ENOENT || r == -EAGAIN || r == -ENOMEM, "returned %d", r);
	must(err[0] && strlen(err) < ERR_ROOM - 1 && is_printable(err, false), "\"%s\"", err);
}

static const char *show(const struct addr *a, char buf[ADDR_STRLEN])
{
	const char *text = addr_format((const struct sockaddr *)&a->ss, a->len, buf, ADDR_STRLEN);

	must(text == buf && strlen(text) < ADDR_STRLEN - 1 && is_printable(text, false), "\"%s\"",
	     text);
	return text;
}

/* What an address is shown as means the same address, or (other bytes became '?') its own text. */
static void check_shown(const struct addr *a, bool passive, bool exact, bool udp)
{
	char shown[ADDR_STRLEN], again[ADDR_STRLEN], written[ADDR_STRLEN + 8];
	struct endpoint e;
	const char *wrong;

	snprintf(written, sizeof(written), "%s%s", show(a, shown), udp ? "/udp" : "");
	wrong = endpoint_parse(written, passive, false, &e);
	must(!wrong, "%s: %s", shown, wrong);
	must(e.udp == udp, "%s: another protocol", written);
	must(e.n_addrs == 1, "%s: %zu addresses", shown, e.n_addrs);
	must(!exact || addr_equal(&e.addrs[0], a), "%s: not the same", shown);
	must(!strcmp(show(&e.addrs[0], again), shown), "%s, then %s", shown, again);
	endpoint_close(&e);
}

static void check_endpoint(const char *text, bool passive)
{
	bool is_unix = !strncmp(text, "unix:", 5);
	struct endpoint e;
	const char *wrong = endpoint_parse(text, passive, false, &e);

	if (wrong) {
		check_error(-EINVAL, wrong);
		must(!e.addrs && !e.n_addrs && !e.text[0], "%s: leaves something", text);
		return;
	}
	must(!strcmp(e.text, text), "%s is kept as %s", text, e.text);
	must(e.named ? !e.n_addrs : e.n_addrs >= 1 && (!is_unix || e.n_addrs == 1), "%zu addresses",
	     e.n_addrs);
	for (size_t i = 0; i < e.n_addrs; i++) {
		must(addr_is_inet(&e.addrs[i]) == !is_unix, "%s: family", text);
		check_shown(&e.addrs[i], passive, !is_unix || is_printable(text, false), e.udp);
	}
	endpoint_close(&e);
	must(!e.addrs && !e.n_addrs, "not closed");
}

/* In memory that ends where the address does. */
static void check_sockaddr(struct input *in)
{
	socklen_t len = input_byte(in) % (sizeof(struct sockaddr_storage) + 1);
	size_t size = input_byte(in) % ADDR_STRLEN + 1;
	const uint8_t *bytes;
	size_t n = input_bytes(in, len, &bytes);
	char *sa = calloc(1, len ? len : 1), *buf = malloc(size), whole[ADDR_STRLEN];

	if (!sa || !buf)
		abort();
	memcpy(sa, bytes, n);
	addr_format((const struct sockaddr *)sa, len, whole, sizeof(whole));
	must(strlen(whole) < sizeof(whole) - 1 && is_printable(whole, false), "\"%s\"", whole);
	addr_format((const struct sockaddr *)sa, len, buf, size);
	must(strlen(buf) < size && !strncmp(buf, whole, strlen(buf)), "\"%s\" of \"%s\"", buf,
	     whole);
	free(sa);
	free(buf);
}

/* The address without its port, as source_range_parse() reads it. */
static void show_host(const struct source_range *range, uint64_t n, char buf[ADDR_STRLEN])
{
	struct addr a;

	source_range_at(range, n, &a);
	must(addr_is_inet(&a) && a.ss.ss_family == range->first.ss.ss_family, "family %d",
	     a.ss.ss_family);
	must(!getnameinfo((struct sockaddr *)&a.ss, a.len, buf, ADDR_STRLEN, NULL, 0,
			  NI_NUMERICHOST),
	     "cannot be shown");
}

static void check_range(const char *text)
{
	char first[ADDR_STRLEN], last[ADDR_STRLEN], both[2 * ADDR_STRLEN + 1];
	struct source_range range, again;
	const char *wrong = source_range_parse(text, &range);

	if (wrong) {
		check_error(-EINVAL, wrong);
		return;
	}
	must(range.count >= 1 && range.count <= SOURCE_RANGE_MAX, "%u addresses", range.count);
	show_host(&range, 0, first);
	show_host(&range, range.count - 1, last);
	snprintf(both, sizeof(both), "%s-%s", first, last);
	wrong = source_range_parse(both, &again);
	must(!wrong, "%s: %s", both, wrong);
	must(addr_equal(&range.first, &again.first) && range.count == again.count, "%s is not %s",
	     text, both);
	show_host(&range, range.count, both);
	must(!strcmp(both, first), "after the last comes %s", both);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	unsigned int mode = input_byte(&in) % 4;
	char *text;

	if (mode == 2) {
		check_sockaddr(&in);
		return 0;
	}
	text = input_text(&in);
	if (mode == 3)
		check_range(text);
	else
		check_endpoint(text, mode == 1);
	free(text);
	return 0;
}
