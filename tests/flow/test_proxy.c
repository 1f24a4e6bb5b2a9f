// SPDX-License-Identifier: BSD-2-Clause
/*
 * PROXY headers that are received, with every engine.  What the upstream gets is compared byte by
 * byte: a header that is cut one byte too late or too early is a wrong byte.
 */
#include "proxy_headers.h"

#define TEST_SECONDS 280
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

static void receive(void **state)
{
	struct daemon *d = rig_start(*state, CULVERT "proxy-protocol = receive\n"
					     "[forward in]\nlisten = " ONE "\n" TO_UPSTREAM);
	struct bytes hello = text("hello");

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
	}
	assert_int_equal(rig_status(d, "errors.proxy-header-bad"), 0);
	rig_stop(d);
}

/* Nothing behind the header but FIN; then the upstream's answer and its FIN. */
static void only_fin(void **state)
{
	struct daemon *d = rig_start(*state, CULVERT "proxy-protocol = receive\n"
					     "[forward in]\nlisten = " ONE "\n" TO_UPSTREAM);
	struct bytes answer = text("answer");

	for (size_t i = 0; i < 3; i++) {
		const char *client;
		struct bytes header = variant(i, &client);
		int fd = rig_dial(NULL, ONE), server;

		rig_send(fd, header.at, header.n - 1);
		wait_state(d, "header", 1);
		/* the last byte and the FIN in one segment */
		assert_int_equal(send(fd, header.at + header.n - 1, 1, MSG_MORE), 1);
		assert_int_equal(shutdown(fd, SHUT_WR), 0);
		server = rig_accept();
		assert_int_equal(rig_end(server, RIG_PATIENCE_MS), 0);
		rig_send(server, answer.at, answer.n);
		expect_bytes(fd, &answer);
		assert_int_equal(shutdown(server, SHUT_WR), 0);
		assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), 0);
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

static void bad(void **state)
{
	struct daemon *d = rig_start(*state, CULVERT "proxy-protocol = receive\n"
					     "[forward in]\nlisten = " ONE "\n" TO_UPSTREAM);
	struct bytes b = v2_told_tlvs(), none = { .n = 0 };

	rig_wait_log(d, "forward in believes what PROXY headers say");
	b.at[b.n - 1] ^= 1;
	is_bad(d, &b, false, "to forward in: wrong checksum");
	b = text("GET / HTTP/1.1\r\n\r\n");
	is_bad(d, &b, false, "to forward in: no PROXY header");
	b = v2_told();
	b.n--;
	is_bad(d, &b, true, "to forward in: the stream ended within it");
	b = text("PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n");
	is_bad(d, &b, false, "to forward in: bad destination port");
	is_bad(d, &none, true, "to forward in: the stream ended before it");
	rig_accept_none();
	assert_int_equal(rig_status(d, "resources.sessions"), 0);
	rig_stop(d);
}

/*
 * Silent, with a part of the header, on a unix socket too, which epoll reports as readable all the
 * time; nobody spins.  And one that is reset.
 */
static void late(void **state)
{
	char conf[500], listen[100];
	struct bytes half = text("PROXY TCP4 203.0.");
	int silent, part, local, gone;
	int64_t start, cpu;
	struct daemon *d;

	snprintf(listen, sizeof(listen), "unix:%s/in.sock", env_dir());
	snprintf(conf, sizeof(conf), CULVERT "proxy-protocol = receive\n"
		 "[forward in]\nlisten = " ONE "\n" TO_UPSTREAM "proxy-timeout = 0.3\n"
		 "[forward local]\nlisten = %s\n" TO_UPSTREAM "proxy-timeout = 0.3\n"
		 "[forward patient]\nlisten = " TWO "\n" TO_UPSTREAM, listen);
	d = rig_start(*state, conf);
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
static void limits(void **state)
{
	struct daemon *d = rig_start(*state, CULVERT
				     "[forward in]\nlisten = " ONE "\n" TO_UPSTREAM
				     "proxy-protocol = receive\nallow = 127.0.0.11\n"
				     "max-sessions-per-client = 2\n");
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
	rig_wait_log(d, "refused 203.0.113.1:3: it has 2 sessions of forward in");
	rig_not_logged(d, "believes"); /* it says who its proxies are */
	rig_close_sockets();
	rig_wait_status(d, "resources.sessions", 0);
	assert_int_equal(rig_status(d, "resources.clients"), 0);
	rig_stop(d);
}

/* --- the end --- */

/* SIGTERM: who is in time with the header is served; who is not has as long as all others. */
static void stop(void **state)
{
	struct daemon *d = rig_start(*state, CULVERT "grace = 0.3\nproxy-protocol = receive\n"
					     "[forward in]\nlisten = " ONE "\n" TO_UPSTREAM);
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

static const struct rig_row rows[] = {
	{ "receive", receive }, { "only-fin", only_fin }, { "bad", bad },
	{ "late", late },       { "limits", limits },     { "stop", stop },
};

int main(void)
{
	return rig_run("test_proxy", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
