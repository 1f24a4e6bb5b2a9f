/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_PROXY_HEADERS_H
#define CULVERT_TEST_PROXY_HEADERS_H

/* PROXY headers for the flow tests, and what `sessions` must show of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "../unit/proxy_rig.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* each program uses a part of the rig */
#include "forward_rig.h"
#pragma GCC diagnostic pop

#define ONE "127.0.0.1:9001"
#define TWO "127.0.0.1:9002"
#define TO_UPSTREAM "upstream = " RIG_UPSTREAM "\n"
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

static inline struct bytes v2_told_unix(void)
{
	struct bytes b = v2_begin(0x21, 0x31);
	char paths[216] = "/run/client";

	put(&b, paths, sizeof(paths));
	v2_end(&b);
	return b;
}

static inline struct bytes v2_local(void)
{
	struct bytes b = v2_begin(0x20, 0);

	v2_end(&b);
	return b;
}

static inline struct bytes v2_unspec(void)
{
	struct bytes b = v2_begin(0x21, 0);

	put(&b, "and what nobody knows", 21);
	v2_end(&b);
	return b;
}

#define VARIANTS 9

/* Number I, and the client that it tells; NULL: none. */
static inline struct bytes variant(size_t i, const char **ret_client)
{
	static const char *const clients[VARIANTS] = {
		"203.0.113.7:4711", "[2001:db8::7]:65535", NULL, "1.2.3.4:5", "[2001:db8::1]:258",
		"1.2.3.4:5",        "unix:",               NULL, NULL,
	};

	*ret_client = clients[i];
	switch (i) {
	case 0:
		return text("PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n");
	case 1:
		return text("PROXY TCP6 2001:db8::7 2001:db8::8 65535 443\r\n");
	case 2:
		return text("PROXY UNKNOWN ffff::1 whatever\r\n");
	case 3:
		return v2_told();
	case 4:
		return v2_told_inet6();
	case 5:
		return v2_told_tlvs();
	case 6:
		return v2_told_unix();
	case 7:
		return v2_local();
	default:
		return v2_unspec();
	}
}

/* --- waiting and looking --- */

/* Wait until N sessions are in STATE. */
static inline void wait_state(struct daemon *d, const char *state, size_t n)
{
	int64_t deadline = now_ms() + RIG_PATIENCE_MS;
	size_t is;

	do {
		struct json_object *o = query(d, "sessions"), *list = json_at(o, "sessions");

		is = 0;
		for (size_t i = 0; i < json_object_array_length(list); i++) {
			struct json_object *session = json_object_array_get_idx(list, i);

			is += !strcmp(json_text(session, "state"), state);
		}
		json_object_put(o);
		if (is == n)
			return;
		poll(NULL, 0, 2);
	} while (now_ms() < deadline);
	fail_msg("%zu sessions are in state %s, not %zu", is, state, n);
}

static inline const char *name_of(int fd, bool far, char buf[ADDR_STRLEN])
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	assert_int_equal((far ? getpeername : getsockname)(fd, (struct sockaddr *)&ss, &len), 0);
	return addr_format((struct sockaddr *)&ss, len, buf, ADDR_STRLEN);
}

/* The one session of FORWARD: CLIENT NULL if FD's own address is to be shown, without "via". */
static inline void check_client(struct daemon *d, const char *forward, int fd, const char *client)
{
	struct json_object *s;
	char own[ADDR_STRLEN];

	name_of(fd, false, own);
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
