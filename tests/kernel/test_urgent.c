/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An urgent byte that waits in the receive queue when a socket is taken out of a verdict map: what
 * the kernel then tells of the bytes that are unread, and that the removal is proved all the same.
 */
#include "datapath/carrier_sockmap.h"
#include "datapath/kernel.h"
#include "datapath/tcp.h"
#include "kt.h"

#define BEFORE 99
#define AFTER 1000
#define ALL (BEFORE + 1 + AFTER)


static struct kt_session *open_inline(void)
{
	struct kt_session *s = kt_open(0);
	int one = 1;

	assert_int_equal(setsockopt(s->a, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one)), 0);
	return s;
}

/* The last byte of the first segment is urgent. */
static void send_with_urgent(const struct kt_session *s)
{
	uint8_t buf[BEFORE + 1];

	kt_fill(buf, sizeof(buf), 0);
	assert_int_equal(send(s->client, buf, sizeof(buf), MSG_OOB), sizeof(buf));
	assert_int_equal(kt_send(s->client, sizeof(buf), AFTER), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == ALL));
}

/* tcp_recvmsg_locked: a look ends before the urgent byte, unless it begins there. */
static void a_look_ends_before_an_urgent_byte(void **state)
{
	struct kt_session *s = open_inline();
	uint64_t unread = 0;

	(void)state;
	send_with_urgent(s);
	assert_int_equal(tcp_unread(s->a, &unread), 0);
	assert_int_equal(unread, BEFORE);
	assert_int_equal(kt_expect(s->a, 0, BEFORE), 0);
	assert_int_equal(tcp_unread(s->a, &unread), 0);
	assert_int_equal(unread, 1 + AFTER);
	assert_int_equal(kt_expect(s->a, BEFORE, 1 + AFTER), 0);
}

static void expect_pending(const struct flow *f, uint64_t offset)
{
	for (const struct buffer *b = f->head; b; b = b->next) {
		assert_true(kt_same(b->data + b->at, b->len - b->at, offset));
		offset += b->len - b->at;
	}
	assert_int_equal(offset, f->pending);
}

static void it_does_not_hinder_a_removal(void **state)
{
	struct kt_session *s = open_inline();
	struct forward_conf limits = { .soft_limit = MIB, .hard_limit = MIB };
	struct flow flow = { .phase = FLOW_USER };
	struct policy policy;
	struct pool pool;
	uint64_t cookies[2];
	struct sockmap_io io = {
		.flow = &flow, .kernel = kt_culvert, .pool = &pool, .src = s->a, .dst = s->b,
		.dst_connected = true, .read_ahead = MIB,
	};

	(void)state;
	pool_init(&pool, 4096);
	policy_init(&policy, ENGINE_SOCKMAP, 0, 0);
	assert_int_equal(kernel_admit(kt_culvert, 0, s->a, &cookies[0]), 0);
	assert_int_equal(kernel_admit(kt_culvert, 1, s->b, &cookies[1]), 0);
	assert_int_equal(sockmap_enter(&io, &limits, &policy, 0), 0);
	flow_set_phase(&flow, FLOW_KERNEL);

	/* half of the fence, so that they stay unread */
	assert_int_equal(tcp_set_lowat(s->a, MIB), 0);
	send_with_urgent(s);
	assert_int_equal(sockmap_redirected(kt_culvert, 0, &flow), 0);
	flow_set_phase(&flow, FLOW_LEAVING);
	assert_int_equal(sockmap_leave(&io), STEP_DONE);
	assert_int_equal(flow.pending, BEFORE);
	expect_pending(&flow, 0);
	assert_int_equal(kt_expect(s->a, BEFORE, 1 + AFTER), 0);

	kt_close(&s->a);
	kt_close(&s->b);
	kernel_forget(kt_culvert, 0, cookies[0], true);
	kernel_forget(kt_culvert, 1, cookies[1], true);
	pool_buffer_put(&pool, flow.head);
	pool_close(&pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(a_look_ends_before_an_urgent_byte),
		kt_test(it_does_not_hinder_a_removal),
	};

	kt_enter();
	return cmocka_run_group_tests(tests, kt_load_culvert, kt_unload_culvert);
}
