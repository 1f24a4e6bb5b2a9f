/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_PROXY_HEADERS_H
#define CULVERT_TEST_PROXY_HEADERS_H

/* PROXY headers for the flow tests, and what `sessions` must show of them. */
#include "forward_rig.h"

#include <arpa/inet.h>

#include "../unit/proxy_rig.h"

/* The kernel is tried by other tests. */
#define CULVERT "[culvert]\nprobe = no\n"

static inline struct bytes text(const char *line)
{
	return bytes_of(line, strlen(line));
}

/* --- what a client says first --- */

static inline struct bytes v2_told(void)
{
	return v2_inet(0x21, 0x11);
}

static inline struct bytes v2_told_inet6(void)
{
	struct bytes b = v2_begin(0x21, 0x21);
	struct in6_addr a[2];

	inet_pton(AF_INET6, "2001:db8::1", &a[0]);
	inet_pton(AF_INET6, "2001:db8::2", &a[1]);
	put(&b, a, sizeof(a));
	put(&b, "\x1\x2\x3\x4", 4);
	v2_end(&b);
	return b;
}

/* As from a terminator of TLS: a name, the version, nested TLVs, a checksum; and long. */
static inline struct bytes v2_told_tlvs(void)
{
	static const char filler[3000];
	struct bytes b = v2_told();
	size_t at;

	v2_tlv(&b, 0x02, "db.example.org", 14);
	v2_tlv(&b, 0x20, "\x01\0\0\0\0\x21\0\x07TLSv1.3", 15);
	v2_tlv(&b, 0x04, filler, sizeof(filler));
	at = b.n + 3;
	v2_tlv(&b, 0x03, "\0\0\0\0", 4);
	v2_end(&b);
	v2_checksum(&b, at);
	return b;
}

static inline struct bytes v2_local(void)
{
	struct bytes b = v2_begin(0x20, 0);

	v2_end(&b);
	return b;
}

/* unit/test_proxy_protocol has more; here it is what becomes of them that counts. */
#define VARIANTS 4

/* Number I, and the client that it tells; NULL: none. */
static inline struct bytes variant(size_t i, const char **ret_client)
{
	static const char *const clients[VARIANTS] = {
		"203.0.113.7:4711", "[2001:db8::1]:258", "1.2.3.4:5", NULL,
	};

	*ret_client = clients[i];
	switch (i) {
	case 0:
		return text("PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n");
	case 1:
		return v2_told_inet6();
	case 2:
		return v2_told_tlvs();
	default:
		return v2_local();
	}
}

/* --- waiting and looking --- */

static inline size_t in_state(struct daemon *d, const char *state)
{
	struct json_object *o = query(d, "sessions"), *list = json_at(o, "sessions");
	size_t n = 0;

	for (size_t i = 0; i < json_object_array_length(list); i++)
		n += !strcmp(json_text(json_object_array_get_idx(list, i), "state"), state);
	json_object_put(o);
	return n;
}

static inline void wait_state(struct daemon *d, const char *state, size_t n)
{
	RIG_WAIT(in_state(d, state) == n, "it is not %zu sessions that are in state %s", n, state);
}

/* The one session of FORWARD: CLIENT NULL if FD's own address is to be shown, without "via". */
static inline void check_client(struct daemon *d, const char *forward, int fd, const char *client)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	struct json_object *s;
	char own[ADDR_STRLEN];

	assert_int_equal(getsockname(fd, (struct sockaddr *)&ss, &len), 0);
	addr_format((struct sockaddr *)&ss, len, own, sizeof(own));
	assert_int_equal(rig_sessions(d, forward, &s), 1);
	assert_string_equal(json_text(s, "client"), client ? client : own);
	assert_string_equal(json_text(s, "via"), client ? own : "");
	json_object_put(s);
}

static inline void expect_bytes(int fd, const struct bytes *want)
{
	struct bytes got = { .n = want->n };

	rig_receive(fd, got.at, got.n);
	assert_memory_equal(got.at, want->at, want->n);
}

#endif
