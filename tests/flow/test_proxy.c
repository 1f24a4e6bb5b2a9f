// SPDX-License-Identifier: BSD-2-Clause
/*
 * PROXY headers that are received and told on; and, on every engine, the hand-overs of sessions
 * that began with headers.  What the upstream gets is compared byte by byte: a header that is cut
 * one byte too late or too early is a wrong byte.  real_programs.py has what is told of the clients
 * themselves.
 */
#include "forward_rig.h"

#include <arpa/inet.h>

#include "../unit/proxy_rig.h"
#include "pattern.h"

#define TEST_SECONDS 280
/* The kernel is tried by other tests. */
#define CULVERT "[culvert]\nprobe = no\n"
#define IN(more) CULVERT "proxy-protocol = receive\n" more FORWARD("in", ONE, "")

static inline struct bytes text(const char *line)
{
	return bytes_of(line, strlen(line));
}

/* --- what a client says first --- */

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

/* As from a terminator of TLS: a name, the version, nested TLVs; and long. */
static inline struct bytes v2_told_tlvs(void)
{
	static const char filler[3000];
	struct bytes b = v2_inet(0x21, 0x11);

	v2_tlv(&b, 0x02, "db.example.org", 14);
	v2_tlv(&b, 0x20, "\x01\0\0\0\0\x21\0\x07TLSv1.3", 15);
	v2_tlv(&b, 0x04, filler, sizeof(filler));
	v2_end(&b);
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
		"203.0.113.7:4711",
		"[2001:db8::1]:258",
		"1.2.3.4:5",
		NULL,
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
	struct json_object *list = json_at(query(d, "sessions"), "sessions");
	size_t n = 0;

	for (size_t i = 0; i < json_object_array_length(list); i++)
		n += !strcmp(json_text(json_object_array_get_idx(list, i), "state"), state);
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
	s = rig_session(d, forward);
	assert_string_equal(json_text(s, "client"), client ? client : own);
	assert_string_equal(json_text(s, "via"), client ? own : "");
}

static inline void expect_bytes(int fd, const struct bytes *want)
{
	struct bytes got = { .n = want->n };

	rig_receive(fd, got.at, got.n);
	assert_memory_equal(got.at, want->at, want->n);
}

#define CLIENT_A "127.0.0.11:0"
#define CLIENT_B "127.0.0.12:0"

/* --- receiving --- */

enum delivery {
	GLUED,    /* the header and payload in one segment */
	APART,    /* the payload when the upstream is connected */
	BY_BYTES, /* first one byte, then one by one, with the payload */
	DELIVERIES,
};

static void deliver(struct daemon *d, int fd, const struct bytes *header, enum delivery how)
{
	struct bytes all = *header;

	put(&all, "hello", 5);
	if (how == GLUED) {
		rig_send(fd, all.at, all.n);
	} else if (how == APART) {
		rig_send(fd, header->at, header->n);
	} else {
		for (size_t i = 0; i < all.n; i++) {
			rig_send(fd, all.at + i, 1);
			if (i == 0 || i == header->n / 2)
				wait_state(d, "header", 1);
		}
	}
}

ROW_ONCE(receive)
{
	struct daemon *d = rig_start(*state, IN(""));
	struct bytes hello = text("hello");
	int64_t sessions = 0;

	for (size_t i = 0; i < VARIANTS * DELIVERIES; i++) {
		enum delivery how = (enum delivery)(i / VARIANTS);
		const char *client;
		struct bytes header = variant(i % VARIANTS, &client);
		int fd, server;

		if (how == BY_BYTES && header.n > 1000)
			continue; /* the same in twenty times the time */
		fd = rig_dial(NULL, ONE);
		deliver(d, fd, &header, how);
		server = rig_accept();
		if (how == APART)
			rig_send(fd, "hello", 5);
		expect_bytes(server, &hello);
		check_client(d, "in", fd, client);
		rig_talk(fd, server, 3);
		rig_reset(server);
		assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), ECONNRESET);
		rig_reset(fd);
		sessions++;
	}
	assert_int_equal(rig_status(d, "errors.proxy-header-bad"), 0);
	assert_int_equal(json_int(rig_forward(d, "in"), "accepted"), sessions);
	rig_stop(d);
}

/* A FIN that comes with the end of the header, behind a few bytes or none; then the answer. */
ROW_ONCE(early_fin)
{
	struct daemon *d = rig_start(*state, IN(""));
	struct bytes answer = text("answer");

	for (size_t i = 0; i < 6; i++) {
		const char *client;
		struct bytes header = variant(i / 2, &client), rest = { .n = 0 };
		struct bytes payload = text(i % 2 ? "hello" : "");
		int fd = rig_dial(NULL, ONE), server;

		rig_send(fd, header.at, header.n - 1);
		wait_state(d, "header", 1);
		/* all in one segment */
		put(&rest, header.at + header.n - 1, 1);
		put(&rest, payload.at, payload.n);
		assert_int_equal(send(fd, rest.at, rest.n, MSG_MORE), rest.n);
		assert_int_equal(shutdown(fd, SHUT_WR), 0);
		server = rig_accept();
		expect_bytes(server, &payload);
		assert_int_equal(rig_end(server, RIG_PATIENCE_MS), 0);
		rig_send(server, answer.at, answer.n);
		expect_bytes(fd, &answer);
		ends_with_fin(server, fd);
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_stop(d);
}

/* --- refusing --- */

static void is_bad(struct daemon *d, const struct bytes *b, bool fin, const char *reason)
{
	int64_t before = rig_status(d, "errors.proxy-header-bad");
	int fd = rig_dial(NULL, ONE);

	if (b->n)
		rig_send(fd, b->at, b->n);
	if (fin)
		assert_int_equal(shutdown(fd, SHUT_WR), 0);
	assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_status(d, "errors.proxy-header-bad"), before + 1);
	rig_wait_log(d, reason);
}

ROW_ONCE(bad)
{
	struct daemon *d = rig_start(*state, IN(""));
	struct bytes b = v2_told_tlvs(), none = { .n = 0 };

	rig_wait_log(d, "forward in believes what PROXY headers say");
	b.at[12] = 0x31;
	is_bad(d, &b, false, "to forward in: unknown version or command");
	b = text("GET / HTTP/1.1\r\n\r\n");
	is_bad(d, &b, false, "to forward in: no PROXY header");
	b = v2_inet(0x21, 0x11);
	b.n--;
	is_bad(d, &b, true, "to forward in: the stream ended within it");
	b = text("PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n");
	is_bad(d, &b, false, "to forward in: bad addresses or ports");
	is_bad(d, &none, true, "to forward in: the stream ended before it");
	rig_accept_none();
	assert_int_equal(rig_status(d, "resources.sessions"), 0);
	rig_stop(d);
}

/*
 * Silent, with a part of the header, on a unix socket too, which epoll reports as readable all the
 * time; nobody spins.  And one that is reset.
 */
ROW_ONCE(late)
{
	const char *listen = textf("unix:%s/in.sock", env_dir());
	struct bytes half = text("PROXY TCP4 203.0.");
	int silent, part, local, gone;
	int64_t start, cpu;
	struct daemon *d;

	d = rig_start(*state, textf(IN("") "proxy-timeout = 0.3\n" FORWARD("local", "%s",
									   "proxy-timeout = 0.3\n")
					    FORWARD("patient", TWO, ""),
				    listen));
	gone = rig_dial(NULL, TWO);
	rig_send(gone, half.at, half.n);
	wait_state(d, "header", 1);
	rig_reset(gone);
	rig_wait_status(d, "errors.client-reset", 1);
	start = now_ms();
	cpu = daemon_cpu_ms(d);
	silent = rig_dial(NULL, ONE);
	part = rig_dial(NULL, ONE);
	local = rig_dial(NULL, listen);
	rig_send(part, half.at, half.n);
	rig_send(local, half.at, half.n);
	assert_int_equal(rig_end(silent, RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_end(part, RIG_PATIENCE_MS), ECONNRESET);
	rig_end(local, RIG_PATIENCE_MS);
	assert_true(now_ms() - start >= 290);
	assert_true((daemon_cpu_ms(d) - cpu) * 2 < now_ms() - start);
	assert_int_equal(rig_status(d, "errors.proxy-header-late"), 3);
	rig_wait_log(d, "to forward local: not whole within proxy-timeout");
	rig_accept_none();
	rig_stop(d);
}

/* The real peer is who may connect; the told client is who may have so many sessions. */
ROW_ONCE(limits)
{
	struct daemon *d = rig_start(*state,
				     IN("") "allow = 127.0.0.11\nmax-sessions-per-client = 2\n");
	static const struct {
		const char *header;
		bool served;
	} dials[] = {
		{ "PROXY TCP4 203.0.113.1 192.0.2.1 1 2\r\n", true },
		{ "PROXY TCP4 203.0.113.1 192.0.2.1 2 2\r\n", true },
		{ "PROXY TCP4 203.0.113.1 192.0.2.1 3 2\r\n", false },
		{ "PROXY TCP6 ::ffff:203.0.113.1 ::1 4 2\r\n", false },
		{ "PROXY TCP4 203.0.113.2 192.0.2.1 1 2\r\n", true },
		{ "PROXY UNKNOWN\r\n", true }, /* the proxy's own */
		{ "PROXY UNKNOWN\r\n", true },
		{ "PROXY UNKNOWN\r\n", false },
		{ "PROXY TCP4 127.0.0.11 192.0.2.1 1 2\r\n", false },
	};
	for (size_t i = 0; i < sizeof(dials) / sizeof(dials[0]); i++) {
		int fd = rig_dial(CLIENT_A, ONE);

		rig_send(fd, dials[i].header, strlen(dials[i].header));
		if (dials[i].served)
			rig_talk(fd, rig_accept(), 1);
		else
			assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), ECONNRESET);
	}
	assert_int_equal(rig_end(rig_dial(CLIENT_B, ONE), RIG_PATIENCE_MS), ECONNRESET);
	rig_accept_none();
	assert_int_equal(rig_status(d, "errors.denied"), 1);
	assert_int_equal(rig_status(d, "errors.client-limit"), 4);
	assert_int_equal(rig_status(d, "resources.sessions"), 5);
	rig_wait_log(d, "client-limit: forward in: refused 203.0.113.1:3: the client's sessions");
	rig_not_logged(d, "believes"); /* it says who its proxies are */
	rig_close_sockets();
	rig_wait_status(d, "resources.sessions", 0);
	assert_int_equal(rig_status(d, "resources.clients"), 0);
	rig_stop(d);
}

/* --- the end --- */

/* SIGTERM: who is in time with the header is served; who is not has as long as all others. */
ROW_ONCE(stop)
{
	struct daemon *d = rig_start(*state, IN("grace = 0.3\n"));
	int never = rig_dial(NULL, ONE), soon = rig_dial(NULL, ONE), server;

	rig_send(soon, "PROXY UNKN", 10);
	wait_state(d, "header", 2);
	daemon_signal(d, SIGTERM);
	rig_wait_log(d, "no new sessions");
	rig_send(soon, "OWN\r\n", 5);
	server = rig_accept();
	rig_talk(soon, server, 1);
	rig_reset(server);
	assert_int_equal(rig_end(soon, RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_end(never, RIG_PATIENCE_MS), ECONNRESET);
	rig_close_sockets();
	rig_join(d);
}

/* --- telling on --- */

/*
 * The addresses of a header that came are sent on; without such addresses the header is UNKNOWN.
 * real_programs.py passes on version 2, and unit/test_proxy_protocol compares its bytes.
 */
ROW_ONCE(passing_on)
{
	struct daemon *d = rig_start(
		*state, CULVERT FORWARD("one", ONE, "proxy-protocol = receive, send-v1\n"));
	static const char *const lines[VARIANTS] = {
		"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n",
		"PROXY TCP6 2001:db8::1 2001:db8::2 258 772\r\n",
		"PROXY TCP4 1.2.3.4 6.7.8.9 5 10\r\n",
		"PROXY UNKNOWN\r\n",
	};

	for (size_t i = 0; i < VARIANTS; i++) {
		const char *client;
		struct bytes header = variant(i, &client), want = text(lines[i]);
		int fd = rig_dial(NULL, ONE), server;

		put(&want, "hello", 5);
		put(&header, "hello", 5);
		rig_send(fd, header.at, header.n);
		server = rig_accept();
		expect_bytes(server, &want);
		rig_talk(fd, server, 2);
		rig_reset(server);
		rig_reset(fd);
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_stop(d);
}

/* --- hand-overs --- */

#define GLUED_BYTES 300000U
#define POUR_BYTES 12000000U

/* A flood to a reader that reads late, so that it must leave the kernel if it was there. */
static void flood(struct daemon *d, int from, int to, size_t dir, const uint8_t *data)
{
	bool by_kernel = !strcmp(rig_flow_text(d, "both", dir, "carrier"), "sockmap");
	int64_t deadline = now_ms() + RIG_PATIENCE_MS;
	int64_t before = rig_flow_int(d, "both", dir, "handovers");
	struct pouring p;

	start_pouring(&p, from, data, POUR_BYTES);
	while (by_kernel && rig_flow_int(d, "both", dir, "handovers") == before &&
	       now_ms() < deadline)
		poll(NULL, 0, 2);
	drink(to, data, POUR_BYTES);
	pthread_join(p.thread, NULL);
	if (by_kernel)
		assert_true(rig_flow_int(d, "both", dir, "handovers") > before);
}

/*
 * A big payload in one piece with the header, a conversation, floods both ways, half-closes: the
 * books of every hand-over and of both FINs must add up, which headers are no part of.
 */
ROW(handovers)
{
	struct daemon *d = rig_start(*state,
				     CULVERT "soft-limit = 64K\nhard-limit = 128K\n" FORWARD(
					     "both", ONE, "proxy-protocol = receive, send-v1\n"));
	const char *carrier = rig_carrier(d, *state), *client;
	bool by_kernel = !strcmp(carrier, "sockmap");
	struct bytes tlvs = variant(2, &client);
	struct bytes want = text("PROXY TCP4 1.2.3.4 6.7.8.9 5 10\r\n");
	uint8_t *data = malloc(tlvs.n + POUR_BYTES), *stream = data + tlvs.n;
	int fd = rig_dial(NULL, ONE), server;
	struct pattern pattern;
	struct pouring p;

	assert_non_null(data);
	pattern_init(&pattern, 1, 1, PATTERN_TO_SERVER);
	memcpy(data, tlvs.at, tlvs.n);
	pattern_fill(&pattern, 0, stream, POUR_BYTES);
	start_pouring(&p, fd, data, tlvs.n + GLUED_BYTES);
	server = rig_accept();
	expect_bytes(server, &want);
	drink(server, stream, GLUED_BYTES);
	pthread_join(p.thread, NULL);
	check_client(d, "both", fd, "1.2.3.4:5");
	rig_talk_until(d, "both", carrier, fd, server);
	rig_talk(fd, server, 50); /* by that carrier, before `auto` may find a reason to leave it */
	for (int i = 0; i < 2; i++) {
		flood(d, fd, server, 0, stream);
		flood(d, server, fd, 1, stream);
	}
	if (by_kernel) {
		assert_true(rig_flow_int(d, "both", 0, "kernel_bytes") > 0);
		assert_true(rig_flow_int(d, "both", 1, "kernel_bytes") > 0);
	}
	/* of the header nothing is counted */
	assert_int_equal(rig_flow_int(d, "both", 0, "bytes") - rig_flow_int(d, "both", 1, "bytes"),
			 GLUED_BYTES);
	ends_with_fin(fd, server);
	rig_send(server, "last", 4);
	assert_int_equal(shutdown(server, SHUT_WR), 0);
	drink(fd, (const uint8_t *)"last", 4);
	assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), 0);
	assert_int_equal(rig_status(d, "errors.handover-unproved"), 0);
	rig_wait_status(d, "resources.sessions", 0);
	free(data);
	rig_stop(d);
}

int main(void)
{
	env_need_ipv6("test_proxy");
	return rig_run("test_proxy", TEST_SECONDS);
}
