// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests to the privileged process (user/daemon/privileged_process.c): any bytes, of any length.  Most
 * inputs change parts of a request that is allowed, so that more than its size is looked at.
 *
 * The oracle: what is allowed to listen is one of few addresses, written down here.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

#include "config_model.h"
#include "daemon/privileged_process.h"
#include "fuzz.h"

static struct config known[2];

static const struct sockaddr_in four = { .sin_family = AF_INET };
static const struct sockaddr_in6 six = {
	.sin6_family = AF_INET6,
	.sin6_addr = IN6ADDR_LOOPBACK_INIT,
};
static const struct sockaddr_un file = { .sun_family = AF_UNIX, .sun_path = "/run/a" };
#define FILE_LEN (offsetof(struct sockaddr_un, sun_path) + sizeof("/run/a"))

static void know(struct config *c, const char *text)
{
	must(!model_parse((const uint8_t *)text, strlen(text), c), "%s", said());
}

static void make_known(void)
{
	if (known[0].n_forwards)
		return;
	know(&known[0], "[forward web]\nlisten = 0.0.0.0:443\nupstream = 192.0.2.1:1\n"
			"[forward any]\nlisten = [::1]:0\nupstream = 192.0.2.1:2\n"
			"[forward host]\nlisten = host.invalid:993\nupstream = 192.0.2.1:3\n"
			"[forward udp]\nlisten = 0.0.0.0:445/udp\nupstream = 192.0.2.1:3\n"
			"[forward file]\nlisten = unix:/run/a\nupstream = 192.0.2.1:3\nmark = 9\n");
	know(&known[1], "[forward web]\nlisten = 0.0.0.0:444\nupstream = 192.0.2.1:1\n");
}

/* Is A the LEN bytes at WANT, but for its port? */
static bool is(const struct addr *a, const void *want, size_t len)
{
	struct addr b = *a;

	if (addr_is_inet(a))
		((struct sockaddr_in *)&b.ss)->sin_port = 0;
	return a->len == len && !memcmp(&b.ss, want, len);
}

static bool may_listen(const struct privileged_request *q)
{
	const struct addr *a = &q->addr;
	unsigned int port = ntohs(((const struct sockaddr_in *)&a->ss)->sin_port);

	if (q->transparent)
		return false;
	if (q->udp)
		return is(a, &four, sizeof(four)) && port == 445;
	if (a->ss.ss_family == AF_UNIX)
		return is(a, &file, FILE_LEN) && q->count == 1 && !q->joins;
	if ((a->ss.ss_family == AF_INET && a->len == sizeof(four)) ||
	    (a->ss.ss_family == AF_INET6 && a->len == sizeof(six)))
		return port == 993 ||
		       (is(a, &four, sizeof(four)) && (port == 443 || port == 444)) ||
		       (is(a, &six, sizeof(six)) && (!port || port >= 1024));
	return false;
}

static bool is_ipv6(const struct graft_addr *a)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(a, mapped, sizeof(mapped)) != 0;
}

static bool may_have(const struct privileged_request *q)
{
	if (q->took > 1 || q->joins > 1 || q->udp > 1 || q->link >= GRAFT_LINKS)
		return false;
	if (q->op == PRIVILEGED_FILTERS)
		return !q->count && q->transparent < 2;
	if (!q->count || q->count > WORKERS_MAX)
		return false;
	switch (q->op) {
	case PRIVILEGED_READ_CONFIG:
		return q->count == PRIVILEGED_FILES && q->transparent < 2;
	case PRIVILEGED_LISTEN:
		return may_listen(q);
	case PRIVILEGED_SOCKETS:
		return q->mark == 9 && !q->transparent && !q->udp &&
		       (q->family == AF_INET || q->family == AF_INET6);
	case PRIVILEGED_REVIVE:
		return q->count == 1 && q->transparent < 2 && q->side.window_left < 15 &&
		       q->side.read_shift < 15 && is_ipv6(&q->side.tuple.local) == q->side.ipv6 &&
		       is_ipv6(&q->side.tuple.remote) == q->side.ipv6;
	default:
		return false;
	}
}

static void choose_address(struct addr *a, uint8_t which)
{
	const void *const bytes[] = { &four, &six, &file };
	const size_t lens[] = { sizeof(four), sizeof(six), FILE_LEN };

	a->len = (socklen_t)lens[which % 3];
	memcpy(&a->ss, bytes[which % 3], a->len);
}

static void mutate(struct privileged_request *q, struct input *in)
{
	choose_address(&q->addr, input_byte(in));
	if (addr_is_inet(&q->addr))
		((struct sockaddr_in *)&q->addr.ss)->sin_port = htons((uint16_t)input_number(in, 2));
	q->op = (uint32_t)input_size(in);
	q->transparent = (uint32_t)input_size(in);
	q->mark = (uint32_t)input_size(in);
	q->count = (uint32_t)input_size(in);
	q->joins = (uint32_t)input_size(in);
	q->family = (uint32_t)input_size(in);
	q->udp = (uint32_t)input_size(in);
	while (in->left >= 2) {
		uint8_t at = input_byte(in);

		((uint8_t *)q)[at % sizeof(*q)] ^= input_byte(in);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct privileged_request q = { 0 };
	const struct forward_conf *fc = NULL;
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
	r = privileged_judge(&q, len, known, &fc, &why);
	must(r == 0 || r == -EPERM || r == -EBADMSG, "%d", r);
	must(!r || (why && *why), "no reason");
	must(!r == (len == sizeof(q) && may_have(&q)), "op %u: %d", q.op, r);
	must(r || (fc == NULL) == (q.op == PRIVILEGED_READ_CONFIG || q.op == PRIVILEGED_FILTERS),
	     "forward");
	return 0;
}
