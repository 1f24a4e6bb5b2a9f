// SPDX-License-Identifier: BSD-2-Clause
/* What is kept of a session that ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "relay/forward.h"
#include "relay/session_record.h"

static struct addr addrs[2];
static struct forward_conf conf = { .name = "web", .upstream = { .addrs = addrs, .n_addrs = 2 } };
static struct forward forward = { .conf = &conf };
static struct worker worker;
static struct session session;
static union session_record_room room;

static int make(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		struct sockaddr_in *in = (struct sockaddr_in *)&addrs[i].ss;

		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)(80 + i));
		addrs[i].len = sizeof(*in);
	}
	memset(&session, 0, sizeof(session));
	memset(&room, 0xaa, sizeof(room));
	session.worker = &worker;
	session.state = SESSION_OPEN;
	session.forward = &forward;
	session.addrs = malloc(sizeof(*session.addrs) + sizeof(addrs));
	assert_non_null(session.addrs);
	atomic_init(&session.addrs->refs, 1);
	session.addrs->n = 2;
	memcpy(session.addrs->addrs, addrs, sizeof(addrs));
	session.id = 5;
	session.born_ms = 1000;
	session.connected_ms = 1010;
	worker.loop.now_ms = 3000;
	session.client.in.sin_family = AF_INET;
	session.client.in.sin_port = htons(4444);
	return 0;
}

static int unmake(void **state)
{
	(void)state;
	addr_list_put(session.addrs);
	session.addrs = NULL;
	return 0;
}

static unsigned int upstream_port(const struct session_record *r)
{
	struct sockaddr_in in;

	assert_int_equal(r->upstream_len, sizeof(in));
	memcpy(&in, r->tail, sizeof(in));
	return ntohs(in.sin_port);
}

static void test_open(void **state)
{
	static const uint64_t kernel[2] = { 700, 0 };
	struct session_record *r = &room.record;
	struct pipe pipe = { .size = 1 };

	(void)state;
	/* 1000 bytes were read by splice, 40 of which wait in the pipe; 250 were copied */
	session.flows[0] = (struct flow){ .phase = FLOW_USER, .user_carrier = CARRIER_SPLICE,
					  .reason = REASON_BULK, .spliced = 1000, .pending = 40,
					  .pipe = &pipe, .user_in = 1250, .user_out = 1210,
					  .handovers = 3 };
	/* what waits in a buffer was copied, or will not be */
	session.flows[1] = (struct flow){ .phase = FLOW_DONE, .pending = 7, .user_in = 107,
					  .user_out = 100, .ended_in_kernel = true };
	session.upstream = 1;
	session_record_ended(&room, &session, kernel, CAUSE_CLIENT_RESET);
	assert_int_equal(r->id, 5);
	assert_int_equal(r->end, CAUSE_CLIENT_RESET);
	assert_int_equal(r->born_ms, 1000);
	assert_int_equal(r->ended_ms, 3000);
	assert_int_equal(r->connect_ms, 10);
	assert_int_equal(r->flows[0].bytes[CARRIER_SPLICE], 960);
	assert_int_equal(r->flows[0].bytes[CARRIER_COPY], 250);
	assert_int_equal(r->flows[0].bytes[CARRIER_SOCKMAP], 700);
	assert_int_equal(r->flows[0].handovers, 3);
	assert_int_equal(r->flows[0].carrier, CARRIER_SPLICE);
	assert_int_equal(r->flows[0].reason, REASON_BULK);
	assert_int_equal(r->flows[1].bytes[CARRIER_COPY], 100);
	assert_int_equal(r->flows[1].bytes[CARRIER_SPLICE], 0);
	assert_int_equal(r->flows[1].carrier, CARRIER_SOCKMAP);
	assert_int_equal(ntohs(r->client.in.sin_port), 4444);
	assert_int_equal(upstream_port(r), 81);
	assert_int_equal(r->forward_len, 3);
	assert_memory_equal(r->tail + r->upstream_len, "web", 3);
	assert_true(r->size >= sizeof(*r) + r->upstream_len + r->forward_len);
	assert_int_equal(r->size % _Alignof(struct session_record), 0);
	assert_true(r->size <= sizeof(room));
}

/* After the last address has failed, that one is named. */
static void test_never_connected(void **state)
{
	static const uint64_t kernel[2];

	(void)state;
	session.connected_ms = 0;
	session.upstream = 1;
	session_record_ended(&room, &session, kernel, CAUSE_CONNECT_REFUSED);
	assert_int_equal(room.record.connect_ms, SESSION_NEVER_CONNECTED);
	assert_int_equal(upstream_port(&room.record), 81);
}

/* Its client is told by a proxy, and is not known yet, or is. */
static void test_told(void **state)
{
	static const uint64_t kernel[2];
	struct told told = { .size = 0 };

	(void)state;
	told.peer.in.sin_family = AF_INET;
	told.peer.in.sin_port = htons(99);
	session.told = &told;
	session.state = SESSION_HEADER;
	session.connected_ms = 0;
	unmake(NULL);
	session_record_ended(&room, &session, kernel, CAUSE_CLIENT_RESET);
	assert_int_equal(room.record.upstream_len, 0);
	assert_int_equal(room.record.via.sa.sa_family, AF_UNSPEC); /* it has told nothing yet */
	assert_int_equal(ntohs(room.record.client.in.sin_port), 4444);
	told.kind = PROXY_ADDRESSES;
	session_record_ended(&room, &session, kernel, CAUSE_CLIENT_RESET);
	assert_int_equal(ntohs(room.record.via.in.sin_port), 99);
	told.kind = PROXY_LOCAL;
	session_record_ended(&room, &session, kernel, CAUSE_CLIENT_RESET);
	assert_int_equal(room.record.via.sa.sa_family, AF_UNSPEC);
	session.told = NULL;
	session_record_ended(&room, &session, kernel, CAUSE_CLIENT_RESET);
	assert_int_equal(room.record.via.sa.sa_family, AF_UNSPEC);
}

static void test_clients(void **state)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(1) };
	struct sockaddr_storage other = { .ss_family = AF_UNIX };

	(void)state;
	session_record_refused(&room, "x", (struct sockaddr *)&six, 1, CAUSE_CLIENT_LIMIT);
	assert_int_equal(room.record.client.in6.sin6_port, htons(1));
	assert_int_equal(room.record.upstream_len, 0);
	assert_int_equal(room.record.id, 0);
	assert_int_equal(room.record.end, CAUSE_CLIENT_LIMIT);
	session_record_refused(&room, "x", (struct sockaddr *)&other, 1, CAUSE_DENIED);
	assert_int_equal(room.record.client.sa.sa_family, AF_UNIX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_open, make, unmake),
		cmocka_unit_test_setup_teardown(test_never_connected, make, unmake),
		cmocka_unit_test_setup_teardown(test_told, make, unmake),
		cmocka_unit_test_setup_teardown(test_clients, make, unmake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
