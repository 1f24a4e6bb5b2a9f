// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests to the privileged process (user/daemon/privileged.c): any bytes, of any length.  Most
 * inputs change parts of a request that is allowed, so that more than its size is looked at.
 *
 * The oracle: what is allowed to listen is one of few addresses, written down here.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

#include "daemon/privileged.h"
#include "fuzz.h"

static struct privileged_known known;

static void know(struct config *c, uint32_t generation, const char *text)
{
	char *argv[] = { (char *)"run", (char *)"--config", (char *)"a.conf" };
	struct config_source from = { text, strlen(text) };

	must(!config_parse_from(3, argv, &from, c), "%s", said());
	c->generation = generation;
}

static void make_known(void)
{
	if (known.configs[0].n_forwards)
		return;
	know(&known.configs[0], 0,
	     "[forward web]\nlisten = 0.0.0.0:443\nupstream = 192.0.2.1:1\n"
	     "[forward any]\nlisten = [::1]:0\nupstream = 192.0.2.1:2\n"
	     "[forward host]\nlisten = host.invalid:993\nupstream = 192.0.2.1:3\n"
	     "[forward file]\nlisten = unix:/run/a\nupstream = 192.0.2.1:3\nmark = 9\n");
	known.log = "/run/log";
	know(&known.configs[1], 1, "[forward web]\nlisten = 0.0.0.0:444\nupstream = 192.0.2.1:1\n");
}

static bool is_in(const struct addr *a, uint32_t host, unsigned int port)
{
	const struct sockaddr_in want = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { host },
	};

	return a->len == sizeof(want) && !memcmp(&a->ss, &want, sizeof(want));
}

static unsigned int port_of(const struct addr *a)
{
	return ntohs(((const struct sockaddr_in *)&a->ss)->sin_port);
}

/* Forward ANY. */
static bool is_loopback6(const struct addr *a)
{
	struct sockaddr_in6 want = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };

	want.sin6_port = htons((uint16_t)port_of(a));
	return a->len == sizeof(want) && !memcmp(&a->ss, &want, sizeof(want)) &&
	       (!port_of(a) || port_of(a) >= 1024);
}

static bool is_path(const struct addr *a)
{
	const struct sockaddr_un want = { .sun_family = AF_UNIX, .sun_path = "/run/a" };
	size_t len = offsetof(struct sockaddr_un, sun_path) + sizeof("/run/a");

	return a->len == len && !memcmp(&a->ss, &want, len);
}

static bool is_host(const struct addr *a)
{
	return port_of(a) == 993 &&
	       ((a->ss.ss_family == AF_INET && a->len == sizeof(struct sockaddr_in)) ||
		(a->ss.ss_family == AF_INET6 && a->len == sizeof(struct sockaddr_in6)));
}

static bool may_listen(const struct privileged_request *q)
{
	const struct addr *a = &q->addr;

	if (!q->count || q->count > PRIVILEGED_FDS || q->joins > 1)
		return false;
	if (q->generation == 1)
		return q->forward == 0 && is_in(a, 0, 444);
	if (q->generation)
		return false;
	switch (q->forward) {
	case 0:
		return is_in(a, 0, 443);
	case 1:
		return is_loopback6(a);
	case 2:
		return is_host(a);
	case 3:
		return is_path(a) && q->count == 1 && !q->joins;
	default:
		return false;
	}
}

static bool may_have_sockets(const struct privileged_request *q)
{
	return q->generation == 0 && q->forward == 3 && q->count && q->count <= PRIVILEGED_FDS &&
	       (q->family == AF_INET || q->family == AF_INET6);
}

static void choose_address(struct addr *a, uint8_t which)
{
	static const struct sockaddr_in6 six = {
		.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT,
	};
	static const struct sockaddr_in four = { .sin_family = AF_INET };
	static const struct sockaddr_un file = { .sun_family = AF_UNIX, .sun_path = "/run/a" };

	if (which % 3 == 0) {
		memcpy(&a->ss, &four, sizeof(four));
		a->len = sizeof(four);
	} else if (which % 3 == 1) {
		memcpy(&a->ss, &six, sizeof(six));
		a->len = sizeof(six);
	} else {
		memcpy(&a->ss, &file, sizeof(file));
		a->len = offsetof(struct sockaddr_un, sun_path) + sizeof("/run/a");
	}
}

static void mutate(struct privileged_request *q, struct input *in)
{
	choose_address(&q->addr, input_byte(in));
	if (addr_is_inet(&q->addr))
		((struct sockaddr_in *)&q->addr.ss)->sin_port =
			htons((uint16_t)input_number(in, 2));
	q->op = (uint32_t)input_size(in);
	q->generation = (uint32_t)input_size(in);
	q->forward = (uint32_t)input_size(in);
	q->count = (uint32_t)input_size(in);
	q->joins = (uint32_t)input_size(in);
	q->family = (uint32_t)input_size(in);
	while (in->left >= 2) {
		uint8_t at = input_byte(in);

		((uint8_t *)q)[at % sizeof(*q)] ^= input_byte(in);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct privileged_request q = { 0 };
	const struct config *c = NULL;
	const char *why = NULL;
	bool raw = input_byte(&in) & 1;
	size_t len = sizeof(q);
	int r;

	make_known();
	if (raw) {
		len = in.left;
		memcpy(&q, in.at, len < sizeof(q) ? len : sizeof(q));
	} else {
		mutate(&q, &in);
	}
	r = privileged_judge(&q, len, &known, &c, &why);
	must(r == 0 || r == -EPERM || r == -EBADMSG, "%d", r);
	must(!r || (why && *why), "no reason");
	must(r || len == sizeof(q), "size");
	if (!r && q.op == PRIVILEGED_OPEN_LOG) {
		must(q.count == 1 && !c, "one log");
		return 0;
	}
	must(r || (c && c->generation == q.generation), "configuration");
	if (q.op == PRIVILEGED_LISTEN && len == sizeof(q))
		must(!r == may_listen(&q), "forward %u: %d", q.forward, r);
	else if (q.op == PRIVILEGED_SOCKETS && len == sizeof(q))
		must(!r == may_have_sockets(&q), "forward %u: %d", q.forward, r);
	else if (!r)
		must(q.op == PRIVILEGED_READ_CONFIG && q.generation < 2, "op %u", q.op);
	return 0;
}
