// SPDX-License-Identifier: BSD-2-Clause
/*
 * PROXY headers that are sent, and told on, with every engine; and the hand-overs of sessions that
 * began with headers.
 */
#include "proxy_headers.h"


#include "pattern.h"

#define TEST_SECONDS 280

/* --- sending --- */

/* What the upstream is to hear of FD, which culvert has accepted. */
static struct bytes expected(int fd, unsigned int version)
{
	struct sockaddr_storage ss[2] = { 0 };
	struct bytes b;
	char line[120], name[2][INET6_ADDRSTRLEN];
	unsigned int port[2];
	bool six;

	for (int i = 0; i < 2; i++) {
		socklen_t len = sizeof(ss[i]);

		assert_int_equal((i ? getpeername : getsockname)(fd, (struct sockaddr *)&ss[i],
								 &len), 0);
	}
	if (ss[0].ss_family == AF_UNIX)
		return version == 1 ? text("PROXY UNKNOWN\r\n") : v2_local();
	six = ss[0].ss_family == AF_INET6;
	b = v2_begin(0x21, six ? 0x21 : 0x11);
	for (int i = 0; i < 2; i++) {
		const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ss[i];
		const struct sockaddr_in *in = (struct sockaddr_in *)&ss[i];
		const void *a = six ? (const void *)&in6->sin6_addr : &in->sin_addr;

		put(&b, a, six ? 16 : 4);
		inet_ntop(ss[i].ss_family, a, name[i], sizeof(name[i]));
		port[i] = ntohs(in->sin_port);
	}
	for (int i = 0; i < 2; i++)
		put(&b, (uint8_t[]){ (uint8_t)(port[i] >> 8), (uint8_t)port[i] }, 2);
	v2_end(&b);
	snprintf(line, sizeof(line), "PROXY TCP%d %s %s %u %u\r\n", six ? 6 : 4, name[0], name[1],
		 port[0], port[1]);
	return version == 1 ? text(line) : b;
}

static void send_one(struct daemon *d, const char *forward, const char *to, unsigned int version,
		     const char *carrier)
{
	struct ends e = connect_pair(NULL, to);
	struct bytes want = expected(e.client, version);

	expect_bytes(e.server, &want);
	if (strncmp(to, "unix:", 5) != 0)
		rig_talk_until(d, forward, carrier, e.client, e.server);
	close_both(e);
	rig_wait_status(d, "resources.sessions", 0);
}

static void sending(void **state)
{
	char conf[900], path[2][100];
	struct daemon *d;
	const char *carrier;

	for (int i = 0; i < 2; i++)
		snprintf(path[i], sizeof(path[i]), "unix:%s/send-%d.sock", env_dir(), i + 1);
	snprintf(conf, sizeof(conf), CULVERT "proxy-protocol = send-v2\n"
		 "[forward one]\nlisten = :9001\n" TO_UPSTREAM "proxy-protocol = send-v1\n"
		 "[forward two]\nlisten = :9002\n" TO_UPSTREAM
		 "[forward unix1]\nlisten = %s\n" TO_UPSTREAM "proxy-protocol = send-v1\n"
		 "[forward unix2]\nlisten = %s\n" TO_UPSTREAM, path[0], path[1]);
	d = rig_start(*state, conf);
	carrier = rig_carrier(d, *state);
	send_one(d, "one", ONE, 1, carrier);
	send_one(d, "one", "[::1]:9001", 1, carrier);
	send_one(d, "two", TWO, 2, carrier);
	send_one(d, "two", "[::1]:9002", 2, carrier);
	send_one(d, "unix1", path[0], 1, carrier);
	send_one(d, "unix2", path[1], 2, carrier);
	assert_int_equal(rig_status(d, "errors.handover-unproved"), 0);
	rig_stop(d);
}

/* What is told on of variant() NUMBER in version 2. */
static struct bytes v2_on(size_t number)
{
	struct bytes b = v2_begin(0x21, 0x11);

	switch (number) {
	case 0:
		put(&b, "\xcb\x00\x71\x07\xc0\x00\x02\x01\x12\x67\x01\xbb", 12);
		v2_end(&b);
		return b;
	case 1:
		return v2_told_inet6();
	case 2:
		return v2_told();
	default:
		return v2_local();
	}
}

/* What was told is told on; what was not is LOCAL or UNKNOWN. */
static void passing_on(void **state)
{
	struct daemon *d = rig_start(*state, CULVERT
				     "[forward one]\nlisten = " ONE "\n" TO_UPSTREAM
				     "proxy-protocol = receive, send-v1\n"
				     "[forward two]\nlisten = " TWO "\n" TO_UPSTREAM
				     "proxy-protocol = receive, send-v2\n");
	static const char *const lines[VARIANTS] = {
		"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n",
		"PROXY TCP6 2001:db8::1 2001:db8::2 258 772\r\n",
		"PROXY TCP4 1.2.3.4 6.7.8.9 5 10\r\n",
		"PROXY UNKNOWN\r\n",
	};

	for (size_t i = 0; i < 2 * VARIANTS; i++) {
		size_t number = i % VARIANTS;
		const char *client;
		struct bytes header = variant(number, &client), want = text(lines[number]);
		int fd = rig_dial(NULL, i < VARIANTS ? ONE : TWO), server;

		if (i >= VARIANTS)
			want = v2_on(number);
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
static void handovers(void **state)
{
	struct daemon *d = rig_start(*state, CULVERT "soft-limit = 64K\nhard-limit = 128K\n"
				     "[forward both]\nlisten = " ONE "\n" TO_UPSTREAM
				     "proxy-protocol = receive, send-v1\n");
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
	for (int i = 0; i < 2; i++) {
		flood(d, fd, server, 0, stream);
		flood(d, server, fd, 1, stream);
	}
	if (by_kernel) {
		assert_true(rig_flow_int(d, "both", 0, "kernel_bytes") > 0);
		assert_true(rig_flow_int(d, "both", 1, "kernel_bytes") > 0);
	}
	/* of the header nothing is counted */
	assert_int_equal(rig_flow_int(d, "both", 0, "bytes") -
			 rig_flow_int(d, "both", 1, "bytes"), GLUED_BYTES);
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	assert_int_equal(rig_end(server, RIG_PATIENCE_MS), 0);
	rig_send(server, "last", 4);
	assert_int_equal(shutdown(server, SHUT_WR), 0);
	drink(fd, (const uint8_t *)"last", 4);
	assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), 0);
	assert_int_equal(rig_status(d, "errors.handover-unproved"), 0);
	rig_wait_status(d, "resources.sessions", 0);
	free(data);
	rig_stop(d);
}

static const struct rig_row rows[] = {
	{ "sending", sending },
	{ "passing-on", passing_on },
	{ "handovers", handovers },
};

int main(void)
{
	env_need_ipv6("test_proxy_send");
	return rig_run("test_proxy_send", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
