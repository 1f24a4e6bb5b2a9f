/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What culvert's own program does where no peer can make it do so at will: the daemon's half of the
 * contract (include/sockmap_contract.h) is played by hand here.
 */
#include "datapath/sockmap/carrier_sockmap.h"
#include "datapath/sockmap/sockmap.h"
#include "kt.h"

#define CLIENT 0 /* slots */
#define UPSTREAM 1
#define SENT 100
#define AGAIN 40 /* of SENT */
#define FRESH 10
#define LOST (AGAIN + FRESH)

/* Make the program know the session; neither flow is in rx yet. */
static struct kt_session *admit(struct kt_session *s)
{
	uint32_t pair;

	assert_int_equal(sockmap_pair_get(kt_culvert, &pair), 0);
	assert_int_equal(pair, 0); /* there is only one */
	assert_int_equal(sockmap_admit(kt_culvert, CLIENT, s->a), 0);
	assert_int_equal(sockmap_admit(kt_culvert, UPSTREAM, s->b), 0);
	return s;
}

/* Close the session: its slots are free for the next one. */
static void forget(struct kt_session *s)
{
	kt_close(&s->a);
	kt_close(&s->b);
	sockmap_pair_put(kt_culvert, 0);
}

/* The flow from SLOT's socket FD, with all that was passed before written. */
static volatile struct culvert_ctl *enter_slot(uint32_t slot, int fd)
{
	volatile struct culvert_ctl *ctl = &kt_culvert->ctls[slot];

	ctl->soft_limit = ctl->hard_limit = UINT64_MAX;
	ctl->bulk_bytes = 0;
	ctl->no_pass = 0;
	ctl->fence = 0;
	ctl->credit = kt_culvert->stats[slot].passed;
	ctl->epoch++;
	assert_int_equal(sockmap_gate(kt_culvert, fd, true), 0);
	assert_int_equal(sockmap_rx_add(kt_culvert, slot, fd), 0);
	kt_kick(fd);
	return ctl;
}

static volatile struct culvert_ctl *enter(const struct kt_session *s)
{
	return enter_slot(CLIENT, s->a);
}

static uint64_t redirected(void)
{
	return kt_culvert->stats[CLIENT].bytes;
}

static uint64_t passed(void)
{
	return kt_culvert->stats[CLIENT].passed;
}

/*
 * Bytes that the daemon has read ahead and not yet written come first, whatever it asks for: a
 * segment that slips past the fence while a flow is taken out of rx must not overtake them.
 */
KT_TEST(no_pass_lets_nothing_overtake_passed_bytes)
{
	struct kt_session *s = admit(kt_open(0));
	volatile struct culvert_ctl *ctl = enter(s);
	uint64_t bytes = redirected(), before = passed();

	ctl->credit = before - 1; /* as if a byte were still to be written */
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_true(KT_WAIT(passed() == before + SENT));
	ctl->no_pass = 1;
	assert_int_equal(kt_send(s->client, SENT, FRESH), 0);
	assert_true(KT_WAIT(passed() + redirected() == before + bytes + SENT + FRESH));
	assert_int_equal(redirected(), bytes);
	assert_int_equal(passed(), before + SENT + FRESH);
	assert_int_equal(kt_expect(s->a, 0, SENT + FRESH), 0);

	/* once they are written, it redirects */
	ctl->credit = passed();
	kt_carry(s->client, s->server, SENT + FRESH, FRESH);
	assert_int_equal(redirected(), bytes + FRESH);
	forget(s);
}

/* T17: what has come before is cut off. */
KT_TEST(an_overlap_is_cut_off)
{
	struct kt_session *s = admit(kt_open(0));
	uint64_t bytes = redirected(), overlap = kt_culvert->stats[CLIENT].overlap;

	enter(s);
	kt_carry(s->client, s->server, 0, SENT);
	assert_int_equal(kt_inject(s->client, SENT - AGAIN, AGAIN + FRESH, AGAIN), 0);
	assert_int_equal(kt_expect(s->server, SENT, FRESH), 0);
	assert_true(kt_quiet(s->server));
	assert_int_equal(redirected(), bytes + SENT + FRESH);
	assert_int_equal(kt_culvert->stats[CLIENT].overlap, overlap + AGAIN);
	assert_int_equal(kt_culvert->stats[CLIENT].dropped, 0);
	forget(s);
}

/* T3, which the daemon avoids: the cut holds for many pages and odd lengths as well. */
KT_TEST(a_large_part_is_cut_off)
{
	static const size_t parts[] = { 1, 4094, 4095, 4096, 8190, 20001, 48 * KIB - 1 };
	const size_t size = 48 * KIB;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		struct kt_session *s = kt_open(0);

		assert_int_equal(kt_send(s->client, 0, size), 0);
		assert_true(KT_WAIT(kt_queued(s->a, SIOCINQ) == (int)size));
		assert_int_equal(kt_expect(s->a, 0, parts[i]), 0);
		admit(s);
		enter(s);
		assert_int_equal(kt_expect(s->server, parts[i], size - parts[i]), 0);
		assert_int_equal(redirected(), size - parts[i]);
		assert_int_equal(kt_culvert->stats[CLIENT].dropped, 0);
		forget(s);
	}
}

/* Sends until nothing more goes, which is the sender's window or its buffer. */
static size_t send_all_it_takes(int fd, size_t most)
{
	size_t sent = 0;

	while (sent < most) {
		ssize_t n = 0;

		if (KT_HOLDS((n = rig_send(fd, sent, most - sent)) == 0, 500))
			break;
		assert_true(n > 0);
		sent += (size_t)n;
	}
	return sent;
}

/* Both ends of S send and do not read: the client first has a backlog of the other direction. */
static size_t fill_both(struct kt_session *s, size_t backlog)
{
	assert_int_equal(kt_send(s->server, 0, backlog), 0);
	assert_true(KT_WAIT(kt_culvert->stats[UPSTREAM].bytes >= backlog));
	return send_all_it_takes(s->client, 64 * MIB);
}

/* Out of rx with CLIENT's flow: nothing was passed, so it can go at once. */
static void leave(struct kt_session *s)
{
	assert_int_equal(sockmap_rx_del(kt_culvert, CLIENT), 0);
	assert_int_equal(sockmap_gate(kt_culvert, s->a, false), 0);
}

/* User space carries what comes after the first GOT bytes of TOTAL; whoever reads, reads all. */
static void carry_rest(struct kt_session *s, uint64_t at, uint64_t got, uint64_t total)
{
	static char buf[64 * KIB];
	int64_t end = kt_now_ms() + KT_DEADLINE_MS;
	size_t have = 0, done = 0;

	while (got < total && kt_now_ms() < end) {
		ssize_t n;

		if (done == have) {
			n = recv(s->a, buf, sizeof(buf), MSG_DONTWAIT);
			have = n > 0 ? (size_t)n : 0;
			done = 0;
			assert_memory_equal(buf, rig_pattern(at), have);
			at += have;
		}
		n = send(s->b, buf + done, have - done, MSG_DONTWAIT | MSG_NOSIGNAL);
		done += n > 0 ? (size_t)n : 0;
		n = rig_receive(s->server, got, 256 * KIB);
		assert_true(n >= 0);
		got += (uint64_t)n;
	}
	assert_int_equal(got, total);
}

/*
 * T18: over the hard limit, with a backlog of the other direction, nothing is passed; the gate is
 * closed, what TCP held is redirected, and nothing more comes.  Once the flow is out of rx, what
 * the gate kept out is sent again.
 */
KT_TEST(where_passing_has_no_bound_the_gate_is_closed)
{
	struct kt_session *s = admit(kt_open(KT_SMALL_A | KT_SMALL_B));
	volatile struct culvert_ctl *ctl = enter(s);
	const volatile struct culvert_stat *st = &kt_culvert->stats[CLIENT];
	uint64_t before = redirected(), passed_before = passed(), through;
	const size_t backlog = 512 * KIB;
	size_t sent;

	enter_slot(UPSTREAM, s->b);
	ctl->hard_limit = 256 * KIB;
	sent = fill_both(s, backlog);
	assert_in_range(sent, 256 * KIB, 16 * MIB);
	assert_int_equal(st->closed, ctl->epoch);
	assert_int_equal(passed(), passed_before);
	through = redirected() - before;
	assert_in_range(through, 256 * KIB, 4 * MIB);
	assert_true(KT_HOLDS(redirected() - before == through, 300));

	leave(s);
	assert_int_equal(kt_expect(s->client, 0, backlog), 0);
	/* the backlog drains before user space may write */
	assert_int_equal(kt_expect(s->server, 0, through), 0);
	carry_rest(s, through, through, sent);
	forget(s);
}

static int keep(void *arg, void *event, size_t size)
{
	assert_int_equal(size, sizeof(struct culvert_event));
	*(struct culvert_event *)arg = *(const struct culvert_event *)event;
	return 0;
}

/*
 * A stay that cannot begin because the target is gone: told as one of this stay, not of the last.
 */
KT_TEST(a_target_that_is_gone_is_told)
{
	struct kt_session *s = admit(kt_open(0));
	volatile struct culvert_ctl *ctl = enter(s);
	uint64_t dropped = kt_culvert->stats[CLIENT].dropped;
	struct culvert_event last = { 0 };
	struct ring_buffer *ring;

	ring = ring_buffer__new(kt_culvert->rings.fds[0], keep, &last, NULL);
	assert_non_null(ring);
	sockmap_forget(kt_culvert, UPSTREAM);
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_true(KT_WAIT(kt_culvert->stats[CLIENT].dropped == dropped + SENT));
	assert_true(KT_WAIT(ring_buffer__consume(ring) >= 0 && last.kind == CULVERT_EVENT_LOST));
	assert_int_equal(last.slot, CLIENT);
	assert_int_equal(last.epoch, (uint16_t)ctl->epoch);
	ring_buffer__free(ring);
	forget(s);
}

/* The three ways to lose bytes; each leaves flow CLIENT in rx with LOST bytes gone for good. */
static void lose_by_redirect(struct kt_session *s)
{
	enter(s);
	kt_carry(s->client, s->server, 0, SENT);
	sockmap_forget(kt_culvert, UPSTREAM); /* out of tx */
	assert_int_equal(kt_send(s->client, SENT, LOST), 0);
}

/* The first skb of the stay already finds no target. */
static void lose_at_entry(struct kt_session *s)
{
	enter(s);
	kt_carry(s->b, s->server, 0, SENT); /* as user space has carried these */
	sockmap_forget(kt_culvert, UPSTREAM);
	assert_int_equal(kt_send(s->client, SENT, LOST), 0);
}

/* Bytes that came, and went, while the program did not run (T16). */
static void lose_by_gap(struct kt_session *s)
{
	enter(s);
	kt_carry(s->client, s->server, 0, SENT);
	assert_int_equal(sockmap_rx_del(kt_culvert, CLIENT), 0);
	kt_carry(s->client, s->a, SENT, AGAIN);
	assert_int_equal(sockmap_rx_add(kt_culvert, CLIENT, s->a), 0);
	assert_int_equal(kt_send(s->client, SENT + AGAIN, LOST - AGAIN), 0);
}

/*
 * Once bytes are lost, none that follow may reach the target, which would take them for the next
 * of the stream; neither with the gate, which keeps them out of TCP, nor past it.
 */
KT_TEST(what_follows_a_loss_is_dropped)
{
	static void (*const ways[])(struct kt_session *) = { lose_by_redirect, lose_at_entry,
							     lose_by_gap };
	const volatile struct culvert_stat *st = &kt_culvert->stats[CLIENT];

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct kt_session *s = admit(kt_open(0));
		uint64_t dropped = st->dropped, lost;

		ways[i](s);
		assert_true(KT_WAIT(st->dropped != dropped));
		lost = st->dropped;
		if (ways[i] != lose_by_gap) /* the target is back */
			assert_int_equal(sockmap_admit(kt_culvert, UPSTREAM, s->b), 0);

		assert_int_equal(kt_send(s->client, SENT + LOST, FRESH), 0);
		assert_true(KT_HOLDS(kt_quiet(s->server), 100));
		assert_int_equal(kt_queued(s->client, SIOCOUTQ), FRESH); /* not acknowledged */
		assert_int_equal(sockmap_gate(kt_culvert, s->a, false), 0);
		assert_true(KT_WAIT(st->dropped == lost + FRESH));
		assert_int_equal(kt_send(s->client, SENT + LOST + FRESH, FRESH), 0);
		assert_true(KT_WAIT(st->dropped == lost + 2 * FRESH));
		assert_true(kt_quiet(s->server));
		forget(s);
	}
}

#define MEMORY (256 * KIB)         /* limit of all flows; this one has none of its own */
#define LOOK (64 * KIB + 64 * KIB) /* between two looks, and one skb */

static int note(void *arg, void *event, size_t size)
{
	(void)size;
	*(unsigned int *)arg |= 1U << ((const struct culvert_event *)event)->kind;
	return 0;
}

/* CLIENT's flow enters, and brings what it can while nobody reads.  How much, in all. */
static size_t fill_memory(struct kt_session *s)
{
	uint64_t before = redirected(), passed_before = passed();
	size_t sent;

	enter(s);
	sent = send_all_it_takes(s->client, 64 * MIB);
	assert_in_range(sockmap_memory(kt_culvert), MEMORY + 1, MEMORY + LOOK);
	assert_in_range(redirected() - before, MEMORY / 2, 2 * MEMORY + LOOK);
	assert_true(passed() > passed_before);
	assert_true(sockmap_memory_short(kt_culvert));
	assert_true(sockmap_is_charged(kt_culvert, CLIENT));
	return sent;
}

/*
 * Over the limit of all flows together the program passes, whatever its own limits say; and each
 * stay is released once, by whichever way it ends.
 */
KT_TEST(all_flows_together_have_a_limit)
{
	const struct sockmap_limits limits = { .pairs = 1, .workers = 1, .memory = MEMORY };
	struct sockmap *without = kt_culvert;
	struct ring_buffer *ring;
	unsigned int kinds = 0;
	struct kt_session *s;
	uint64_t through;
	char err[512];
	size_t sent;

	assert_int_equal(sockmap_open(&limits, &kt_culvert, err, sizeof(err)), 0);
	ring = ring_buffer__new(kt_culvert->rings.fds[0], note, &kinds, NULL);
	assert_non_null(ring);
	s = admit(kt_open(KT_SMALL_A | KT_SMALL_B));
	sent = fill_memory(s);
	through = redirected();
	assert_true(ring_buffer__consume(ring) >= 2);
	assert_int_equal(kinds, 1U << CULVERT_EVENT_MEMORY | 1U << CULVERT_EVENT_PASSED);

	/* what it was charged at the last look, it is charged until it has left */
	assert_int_equal(kt_expect(s->server, 0, through), 0);
	carry_rest(s, through, through, sent);
	leave(s);
	assert_in_range(sockmap_memory(kt_culvert), MEMORY + 1, MEMORY + LOOK);
	for (int i = 0; i < 2; i++) { /* once more does no harm */
		sockmap_stay_over(kt_culvert, CLIENT);
		assert_int_equal(sockmap_memory(kt_culvert), 0);
		assert_false(sockmap_is_charged(kt_culvert, CLIENT));
		assert_false(sockmap_memory_short(kt_culvert));
	}

	/* a stay that has only begun is not charged; its first skb finds that there is memory */
	enter(s);
	kt_carry(s->client, s->server, sent, FRESH);
	assert_int_equal(redirected(), through + FRESH);
	assert_int_equal(sockmap_memory(kt_culvert), 0);
	forget(s);
	assert_int_equal(sockmap_memory(kt_culvert), 0);

	/* closed in the middle */
	s = admit(kt_open(KT_SMALL_A | KT_SMALL_B));
	fill_memory(s);
	forget(s);
	assert_int_equal(sockmap_memory(kt_culvert), 0);
	ring_buffer__free(ring);
	sockmap_close(kt_culvert);
	kt_culvert = without;
}

/* --- an urgent byte that waits in the receive queue when a flow is taken out of rx --- */

#define BEFORE 99
#define AFTER 1000
#define ALL (BEFORE + 1 + AFTER)

/* The last byte of the first segment is urgent. */
static void send_with_urgent(const struct kt_session *s)
{
	assert_int_equal(send(s->client, rig_pattern(0), BEFORE + 1, MSG_OOB), BEFORE + 1);
	assert_int_equal(kt_send(s->client, BEFORE + 1, AFTER), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == ALL));
}

static void expect_pending(const struct flow *f, uint64_t offset)
{
	for (const struct buffer *b = f->head; b; b = b->next) {
		assert_memory_equal(b->data + b->at, rig_pattern(offset), b->len - b->at);
		offset += b->len - b->at;
	}
	assert_int_equal(offset, f->pending);
}

KT_TEST(an_urgent_byte_does_not_hinder_a_removal)
{
	struct kt_session *s = kt_open(0);
	struct forward_conf limits = { .soft_limit = MIB, .hard_limit = MIB };
	struct flow flow = { .phase = FLOW_USER };
	struct pool pool = { 0 };
	struct sockmap_io io = {
		.pump = { .flow = &flow,
			  .pool = &pool,
			  .src = s->a,
			  .dst = s->b,
			  .buffer_size = 4096 },
		.kernel = kt_culvert,
		.dst_connected = true,
		.read_ahead = MIB,
	};

	assert_int_equal(setsockopt(s->a, SOL_SOCKET, SO_OOBINLINE, &(int){ 1 }, sizeof(int)), 0);
	admit(s);
	assert_int_equal(sockmap_enter(&io, &limits, 0), 0);
	flow_set_phase(&flow, FLOW_KERNEL);

	/* half of the fence, so that they stay unread */
	assert_int_equal(tcp_set_lowat(s->a, MIB), 0);
	send_with_urgent(s);
	assert_int_equal(redirected(), 0);
	flow_set_phase(&flow, FLOW_LEAVING);
	assert_int_equal(sockmap_leave(&io), STEP_DONE);
	assert_int_equal(flow.pending, BEFORE);
	expect_pending(&flow, 0);
	assert_int_equal(kt_expect(s->a, BEFORE, 1 + AFTER), 0);

	forget(s);
	pool_buffer_put(&pool, flow.head);
	pool_close(&pool);
}

KT_MAIN(kt_load_culvert, kt_unload_culvert)
