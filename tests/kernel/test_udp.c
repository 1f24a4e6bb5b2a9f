// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sockets of UDP as the kernel has them: segments, addresses, errors of the path, and which of the
 * sockets at an address it chooses.  All tests run for each family.
 */
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include "datapath/icmp_send.h"
#include "datapath/udp.h"
#include "kt.h"
#include "relay/udp/udp_upstream_socket.h"

#define BATCH UDP_BATCH
#define PORT 5353

static struct udp_batch *batch;
static int family;   /* of this round of tests */
static int last_own; /* descriptor: those above it are a test's */

static int close_all(void **state)
{
	(void)state;
	return close_range((unsigned int)last_own + 1, UINT_MAX, 0);
}

#define UDP_TEST(name) TEST_WITH(name, NULL, close_all)

static void run(const char *command)
{
	if (system(command)) { /* NOLINT(cert-env33-c): a constant command */
		print_error("%s\n", command);
		fail();
	}
}

static union client_addr any(in_port_t port)
{
	union client_addr a = { .sa.sa_family = (sa_family_t)family };

	a.in.sin_port = htons(port);
	return a;
}

/* HOST of a network that is all in this namespace. */
static union client_addr at(unsigned int host, in_port_t port)
{
	union client_addr a = any(port);

	if (family == AF_INET) {
		a.in.sin_addr.s_addr = htonl(0x0a000000 + host);
	} else {
		a.in6.sin6_addr.s6_addr32[0] = htonl(0xfd000000);
		a.in6.sin6_addr.s6_addr32[3] = htonl(host);
	}
	return a;
}

/* By a route every address is this namespace's own, but to IPv6 it must be one of an interface. */
static int bound(const union client_addr *a, bool shared)
{
	int fd = socket(a->sa.sa_family, SOCK_DGRAM | SOCK_NONBLOCK, 0);

	if (a->sa.sa_family == AF_INET6)
		assert_int_equal(
			setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &(int){ 1 }, sizeof(int)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &(int){ shared }, sizeof(int)),
			 0);
	assert_int_equal(bind(fd, &a->sa, sizeof(*a)), 0);
	return fd;
}

/* A socket at LOCAL that is connected to PEER. */
static int flow(const union client_addr *local, const union client_addr *peer)
{
	int fd = bound(local, false);

	assert_int_equal(udp_set_flow(fd, local->sa.sa_family), 0);
	assert_int_equal(connect(fd, &peer->sa, sizeof(*peer)), 0);
	return fd;
}

static int listener(bool shared)
{
	union client_addr a = any(PORT);
	struct addr all = { .ss.ss_family = (sa_family_t)family, .len = sizeof(all.in6) };
	int fd = bound(&a, shared);

	/* systemd's socket may have it (Timestamping=) */
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &(int){ 1 }, sizeof(int)), 0);
	assert_int_equal(udp_set_listener(fd, &all), 0);
	return fd;
}

static union client_addr name_of(int fd)
{
	union client_addr a = any(0);

	assert_int_equal(getsockname(fd, &a.sa, &(socklen_t){ sizeof(a) }), 0);
	return a;
}

static void assert_same(const union client_addr *a, const union client_addr *b)
{
	assert_memory_equal(a, b, sizeof(*a));
}

static uint8_t pattern[UDP_MESSAGE_MAX];

static struct udp_message message(size_t len, unsigned int segment)
{
	return (struct udp_message){ .data = pattern, .len = len, .segment = segment };
}

/* The bytes of M come to FD in datagrams of M's size, behind PREFIX.  Returns messages. */
static unsigned int expect(int fd, const struct udp_message *m, const char *prefix)
{
	size_t len = prefix ? strlen(prefix) : 0, got = 0;
	unsigned int messages = 0, datagrams = 0;

	while (datagrams < udp_datagrams(m)) {
		int n = 0;

		assert_true(KT_WAIT((n = udp_receive(batch, fd)) != 0));
		assert_true(n > 0);
		for (unsigned int i = 0; i < (unsigned int)n; i++) {
			struct udp_message *r = udp_batch_at(batch, i);

			for (size_t off = 0; off < r->len; off += r->segment) {
				size_t one = r->len - off < r->segment ? r->len - off : r->segment;

				assert_memory_equal(r->data + off, prefix ?: "", len);
				assert_memory_equal(r->data + off + len, pattern + got, one - len);
				got += one - len;
				assert_true(one - len == m->segment || got == m->len);
			}
			datagrams += udp_datagrams(r);
		}
		messages += (unsigned int)n;
	}
	assert_int_equal(got, m->len);
	assert_true(kt_quiet(fd));
	return messages;
}

/* LEN bytes go from ONE to OTHER in segments, each behind PREFIX (NULL: none).  Returns messages. */
static unsigned int carry(int one, int other, size_t len, unsigned int segment, const char *prefix)
{
	struct udp_message m = message(len, segment);

	assert_int_equal(udp_send(one, &m, prefix, prefix ? strlen(prefix) : 0), 0);
	return expect(other, &m, prefix);
}

UDP_TEST(segments_arrive_as_they_were_sent)
{
	union client_addr a = at(1, PORT), b = at(2, PORT);
	int one = flow(&a, &b), other = flow(&b, &a);

	assert_int_equal(carry(one, other, 40 * 1200 + 700, 1200, NULL), 1);
	assert_int_equal(carry(one, other, 40 * 1200 + 700, 1200, "PROXY"), 41);
	assert_int_equal(carry(one, other, 900, 900, "PROXY"), 1);
	assert_int_equal(carry(one, other, 0, 0, NULL), 1);
}

/* Which segments the kernel refuses, and which datagrams it fragments. */
UDP_TEST(what_cannot_be_segments_goes_one_by_one)
{
	union client_addr a = at(1, PORT), b = at(2, PORT);
	int one = flow(&a, &b), other = flow(&b, &a);
	struct udp_message m = message(65536, 65536);

	run("ip link set lo mtu 1500");
	assert_int_equal(carry(one, other, 9 * 2000 + 1999, 2000, NULL), 10);
	run("ip link set lo mtu 65536");
	carry(one, other, 199 * 20 + 10, 20, NULL);
	assert_int_equal(udp_send(one, &m, NULL, 0), -EMSGSIZE);
}

/* Nothing but the right source address comes to a connected socket. */
UDP_TEST(a_wildcard_socket_answers_from_where_it_was_asked)
{
	int server = listener(false), clients[BATCH], n = 0;

	for (unsigned int i = 0; i < BATCH; i++) {
		union client_addr c = at(1000 + i, 0), s = at(i, PORT);
		struct udp_message m = message(i + 1, i + 1);

		clients[i] = flow(&c, &s);
		assert_int_equal(udp_send(clients[i], &m, NULL, 0), 0);
	}
	for (int answered = 0; answered < BATCH; answered += n) {
		assert_true(KT_WAIT((n = udp_receive(batch, server)) != 0));
		assert_true(n > 0);
		for (unsigned int k = 0; k < (unsigned int)n; k++) {
			struct udp_message *answer = udp_batch_at(batch, k);
			unsigned int i = answer->len - 1;
			union client_addr s = at(i, 0), c;

			assert_true(i < BATCH);
			assert_same(&answer->local, &s);
			c = name_of(clients[i]);
			assert_same(&answer->peer, &c);
			answer->segment = 10;
			assert_int_equal(udp_send_to(server, answer), 0);
		}
	}
	for (unsigned int i = 0; i < BATCH; i++) {
		struct udp_message m = message(i + 1, 10);

		expect(clients[i], &m, NULL);
	}
}

/* Which interface an address of a link is of is told, and its answers leave there. */
UDP_TEST(addresses_of_a_link_have_their_interface)
{
	union client_addr c = any(0), s = any(PORT);
	struct udp_message m = message(100, 100), *got;
	struct udp_error e;
	int server, client;

	if (family != AF_INET6)
		return;
	server = listener(false);
	inet_pton(AF_INET6, "fe80::1", &s.in6.sin6_addr);
	inet_pton(AF_INET6, "fe80::2", &c.in6.sin6_addr);
	c.in6.sin6_scope_id = s.in6.sin6_scope_id = 1; /* lo */
	client = flow(&c, &s);
	assert_int_equal(udp_send(client, &m, NULL, 0), 0);
	assert_true(KT_WAIT(udp_receive(batch, server) == 1));
	got = udp_batch_at(batch, 0);
	s.in6.sin6_port = 0;
	assert_same(&got->local, &s);
	c = name_of(client);
	assert_same(&got->peer, &c);
	assert_int_equal(udp_send_to(server, got), 0);
	expect(client, &m, NULL);
	s.in6.sin6_port = htons(PORT);
	icmp_tell(&c, &s, ECONNREFUSED, 0);
	assert_true(KT_WAIT(udp_next_error(client, &e)));
	assert_int_equal(e.error, ECONNREFUSED);
}

#define WORKERS 3
#define CLIENTS 600

UDP_TEST(the_kernel_chooses_as_udp_worker_does)
{
	unsigned int count[WORKERS] = { 0 };
	int servers[WORKERS];

	for (unsigned int i = 0; i < WORKERS; i++)
		servers[i] = listener(true);
	assert_int_equal(udp_spread(servers[0], family, WORKERS), 0);
	for (unsigned int i = 0; i < CLIENTS; i++) {
		union client_addr c = at(1000 + i * 7919, 0), s = at(5, PORT);
		int fd = flow(&c, &s);
		struct udp_message m = message(1, 1);

		assert_int_equal(udp_send(fd, &m, NULL, 0), 0);
		c = name_of(fd);
		close(fd);
		fd = servers[udp_worker(&c, WORKERS)];
		assert_true(KT_WAIT(udp_receive(batch, fd) == 1));
		assert_same(&udp_batch_at(batch, 0)->peer, &c);
		count[udp_worker(&c, WORKERS)]++;
	}
	for (unsigned int i = 0; i < WORKERS; i++)
		assert_in_range(count[i], CLIENTS / WORKERS / 2, CLIENTS / WORKERS * 2);
}

UDP_TEST(what_came_is_discarded_and_a_blocked_socket_takes_nothing)
{
	union client_addr c = at(1, 0), s = at(2, PORT);
	int server = listener(false), client = flow(&c, &s);
	struct udp_message m = message(100, 100);

	for (int i = 0; i < 3; i++) {
		assert_int_equal(udp_send(client, &m, NULL, 0), 0);
		assert_true(KT_WAIT(kt_poll(server, POLLIN)));
	}
	udp_discard(server);
	assert_int_equal(udp_receive(batch, server), 0);
	assert_int_equal(udp_send(client, &m, NULL, 0), 0);
	assert_true(KT_WAIT(udp_receive(batch, server) == 1));
	assert_int_equal(udp_block(server), 0);
	assert_int_equal(udp_send(client, &m, NULL, 0), 0);
	assert_int_equal(udp_receive(batch, server), 0);
}

UDP_TEST(an_error_of_the_path_loses_no_datagram)
{
	union client_addr a = at(1, PORT), b = at(2, PORT), c;
	int one = flow(&a, &b), other;
	struct udp_message m = message(100, 100), many = message(1000, 100);
	struct udp_error e;

	assert_int_equal(udp_send(one, &m, NULL, 0), 0);
	assert_true(KT_WAIT(kt_poll(one, POLLERR)));
	other = flow(&b, &a);
	carry(one, other, 100, 100, NULL);
	assert_true(udp_next_error(one, &e));
	assert_false(udp_next_error(one, &e));
	close(other);
	assert_int_equal(udp_send(one, &many, NULL, 0), 0);
	assert_true(KT_WAIT(kt_poll(one, POLLERR)));
	other = flow(&b, &a);
	carry(one, other, 1000, 100, NULL);
	close(one);
	close(other);

	/* of one that listens: the client has gone, another one must have its answer */
	one = listener(false);
	c = at(3, 4444);
	other = flow(&c, &a);
	m.local = a;
	m.peer = at(4, 4444);
	many.local = a;
	many.peer = c;
	assert_int_equal(udp_send_to(one, &m), 0);
	assert_true(KT_WAIT(kt_poll(one, POLLERR)));
	assert_int_equal(udp_send_to(one, &m), 0);
	assert_int_equal(udp_send_to(one, &many), 0);
	expect(other, &many, NULL);
}

UDP_TEST(errors_are_told_with_all_that_is_known)
{
	union client_addr a = at(1, PORT), b = at(2, 4444);
	struct udp_message m = message(100, 100);
	int one = listener(false);
	struct udp_error e;

	m.local = a;
	m.peer = b;
	assert_int_equal(udp_send_to(one, &m), 0);
	assert_true(KT_WAIT(udp_next_error(one, &e)));
	assert_int_equal(e.error, ECONNREFUSED);
	assert_same(&e.peer, &b);
	a.in.sin_port = 0;
	assert_same(&e.local, &a);
	assert_false(udp_next_error(one, &e));
	assert_int_equal(udp_receive(batch, one), 0); /* it is told once */

	m.len = m.segment = 65536;
	assert_int_equal(udp_send_to(one, &m), -EMSGSIZE);
}

static void told(const union client_addr *from)
{
	union client_addr c = at(1, 0);
	int fd = flow(&c, from);
	static const int errors[] = { ECONNREFUSED, EHOSTUNREACH, EMSGSIZE };
	int mtu = 0;

	c = name_of(fd);
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		struct udp_error e;

		icmp_tell(&c, from, errors[i], errors[i] == EMSGSIZE ? 1400 : 0);
		assert_true(KT_WAIT(kt_poll(fd, POLLERR)));
		assert_true(udp_next_error(fd, &e));
		assert_int_equal(e.error, errors[i]);
		assert_int_equal(e.mtu, errors[i] == EMSGSIZE ? 1400 : 0);
		assert_same(&e.peer, from);
	}
	/* and so does who listens to no errors */
	if (family == AF_INET)
		getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &(socklen_t){ sizeof(mtu) });
	else
		getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &(socklen_t){ sizeof(mtu) });
	assert_int_equal(mtu, 1400);
	close(fd);
	fd = bound(&c, false);
	assert_int_equal(connect(fd, &from->sa, sizeof(*from)), 0);
	icmp_tell(&c, from, ECONNREFUSED, 0);
	assert_true(KT_WAIT(kt_poll(fd, POLLERR)));
	assert_int_equal(tcp_take_error(fd), ECONNREFUSED);
	icmp_tell(&c, from, EMSGSIZE, 1399);
	assert_true(KT_WAIT(kt_poll(fd, POLLERR)));
	assert_int_equal(tcp_take_error(fd), EMSGSIZE);
}

UDP_TEST(who_has_sent_a_datagram_is_told)
{
	union client_addr from = at(2, PORT);

	told(&from);
	/* of a transparent listener: an address that is not ours */
	from = at(0x800001, PORT);
	told(&from);
}

/* However many there are to be told, it is 1,000 a second, and the second may have begun anew. */
UDP_TEST(not_all_are_told)
{
	union client_addr from = at(2, PORT), c = at(1, 0);
	unsigned int count = 0;
	int64_t begin = kt_now_ms();
	struct udp_error e;
	int fd;

	if (family == AF_INET6) /* after it there is another round, in which all are told */
		return;
	fd = flow(&c, &from);
	c = name_of(fd);
	for (unsigned int i = 0; i < 5000; i++) {
		icmp_tell(&c, &from, ECONNREFUSED, 0);
		while (udp_next_error(fd, &e))
			count++;
	}
	assert_in_range(count, 900, 1000 * (2 + (kt_now_ms() - begin) / 1000));
}

UDP_TEST(ports_are_those_that_the_machine_lends)
{
	bool seen[10] = { false };
	in_port_t port;

	run("cd /proc/sys/net/ipv4 && echo 40000 40009 >ip_local_port_range && "
	    "echo 40001,40003-40005,40009 >ip_local_reserved_ports");
	udp_ports_open();
	while ((port = udp_port_take(1))) {
		assert_in_range(ntohs(port), 40000, 40009);
		seen[ntohs(port) - 40000] = true;
	}
	for (unsigned int i = 0; i < 10; i++)
		assert_int_equal(seen[i], !(1U << i & (1U << 1 | 7U << 3 | 1U << 9)));
	run("cd /proc/sys/net/ipv4 && echo 32768 60999 >ip_local_port_range && "
	    "echo >ip_local_reserved_ports");
	udp_ports_open();
	assert_int_not_equal(udp_port_take(1), 0);
}

int main(void)
{
	int failed = 0;

	kt_enter();
	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (uint8_t)(i * 7 + (i >> 8) * 13);
	batch = udp_batch_new();
	if (!batch)
		return 1;
	run("ip address add fe80::1/64 dev lo nodad && ip address add fe80::2/64 dev lo nodad &&"
	    "ip route add local 10.0.0.0/9 dev lo && ip -6 route add local fd00::/105 dev lo &&"
	    "ip route add 10.128.0.0/9 dev lo && ip -6 route add fd00::/64 dev lo");
	icmp_open();
	last_own = dup(STDERR_FILENO);
	for (int i = 0; i < 2; i++) {
		family = i ? AF_INET : AF_INET6;
		failed += unit_run(NULL, NULL);
	}
	free(batch);
	return failed;
}
