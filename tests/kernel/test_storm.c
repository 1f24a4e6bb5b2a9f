/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * T16 under load: a sender and a receiver at work while A goes in and out of rx.
 *
 * The fence rests on SO_RCVLOWAT, which the kernel caps at half of SO_RCVBUF if that is locked
 * (F1), and which tcp_epollin_ready ignores when the buffer is nearly full or the window nearly
 * closed.  So it is as strong as the buffer is large compared with what can come in meanwhile.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "kt.h"

/*
 * Into rx, with the remedy of T17: senders that are slowed down like this retransmit now and then,
 * and one overlap is enough to leave copied_seq ahead for good.
 */
static int enter(struct kt_session *s)
{
	kt_conf(s->slot_a)->epoch = kt_conf(s->slot_a)->epoch + 1;
	return kt_add(kt_bpf->maps.rx, s->slot_a, s->a);
}

static void prepare(struct kt_session *s)
{
	kt_conf(s->slot_a)->mode = KT_REDIRECT;
	kt_conf(s->slot_a)->flags = KT_F_TRIM;
	kt_targets(s);
}

static void set_rcvbuf(int fd, int size)
{
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)), 0);
}

/* A client and a server at work while the main thread moves A in and out of rx. */
struct load {
	struct kt_session *s;
	pthread_t sender, receiver;
	_Atomic bool no_more, stop; /* for the sender, the receiver */
	_Atomic uint64_t sent, got;
	_Atomic int error; /* first -errno of either thread */
	bool verify;	   /* the server expects all bytes; else it takes what comes */
};

static void *load_send(void *arg)
{
	struct load *l = arg;
	unsigned int seed = 1;

	while (!l->no_more) {
		size_t want = 1 + (size_t)(rand_r(&seed) % (32 * KIB));
		ssize_t n;

		/* Not too far ahead, so that A runs empty now and then. */
		if (l->verify && l->sent - l->got > 256 * KIB) {
			usleep(100);
			continue;
		}
		n = kt_push(l->s->client, l->sent, want);
		if (n < 0) {
			l->error = (int)n;
			break;
		}
		l->sent += (uint64_t)n;
		if (n < (ssize_t)want)
			usleep(50);
	}
	return NULL;
}

static void *load_receive(void *arg)
{
	static unsigned char trash[256 * KIB];
	struct load *l = arg;

	while (!l->stop) {
		ssize_t n;

		if (l->verify)
			n = kt_pull(l->s->server, l->got, 256 * KIB);
		else
			n = recv(l->s->server, trash, sizeof(trash), MSG_DONTWAIT);
		if (n < 0 && !(errno == EAGAIN && !l->verify)) {
			l->error = (int)n;
			break;
		}
		if (n > 0)
			l->got += (uint64_t)n;
		else
			poll(&(struct pollfd){ .fd = l->s->server, .events = POLLIN }, 1, 10);
	}
	return NULL;
}

static void load_start(struct load *l, struct kt_session *s, bool verify)
{
	*l = (struct load){ .s = s, .verify = verify };
	assert_int_equal(pthread_create(&l->sender, NULL, load_send, l), 0);
	assert_int_equal(pthread_create(&l->receiver, NULL, load_receive, l), 0);
}

/* In this order: the receiver has to see what the sender sent last. */
static void load_stop_sender(struct load *l)
{
	l->no_more = true;
	pthread_join(l->sender, NULL);
}

static void load_stop_receiver(struct load *l)
{
	l->stop = true;
	pthread_join(l->receiver, NULL);
}

/* Reads A until EAGAIN (T3) and writes it to B: count, or -errno. */
static int64_t copy_until_empty(struct load *l)
{
	static unsigned char buf[64 * KIB];
	int64_t copied = 0, end = kt_now_ms() + KT_DEADLINE_MS;
	ssize_t n;

	while ((n = recv(l->s->a, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		ssize_t done = 0, m;

		while (done < n) {
			m = send(l->s->b, buf + done, (size_t)(n - done),
				 MSG_DONTWAIT | MSG_NOSIGNAL);
			if (m < 0 && errno != EAGAIN)
				return -errno;
			if (m < 0)
				poll(&(struct pollfd){ .fd = l->s->b, .events = POLLOUT }, 1, 10);
			else
				done += m;
			if (l->error || kt_now_ms() > end)
				return -ETIMEDOUT;
		}
		copied += n;
	}
	return n < 0 && errno == EAGAIN ? copied : -EPIPE;
}

enum fence { NO_FENCE, LOWAT, LOWAT_AND_FILTER };

/* Out of rx: 0 or an error. */
static int leave(struct kt_session *s, enum fence fence)
{
	int lock = 0, r = 0;

	if (fence == LOWAT_AND_FILTER)
		r = kt_filter(s->a, true);
	if (!r && fence != NO_FENCE)
		lock = kt_fence(s->a);
	r = r ?: lock < 0 ? lock : kt_del(kt_bpf->maps.rx, s->slot_a);
	if (!r && fence != NO_FENCE)
		r = kt_unfence(s->a, lock);
	if (!r && fence == LOWAT_AND_FILTER)
		r = kt_filter(s->a, false);
	return r;
}

/* One hand-over into the kernel and back.  Returns NULL, or what went wrong. */
static const char *enter_and_leave(struct load *l, uint64_t *copied)
{
	volatile struct kt_stat *st = kt_stat(l->s->slot_a);
	int64_t end = kt_now_ms() + KT_DEADLINE_MS, n;
	uint64_t upto = st->bytes + 32 * KIB;

	n = copy_until_empty(l);
	if (n < 0)
		return "copy";
	*copied += (uint64_t)n;
	if (enter(l->s))
		return "insertion";
	kt_kick(l->s->a);
	while (st->bytes < upto) {
		if (l->error || kt_now_ms() > end)
			return "nothing redirected";
		usleep(20);
	}
	if (leave(l->s, LOWAT_AND_FILTER))
		return "removal";
	while (kt_sent_seq(l->s->b) - l->s->base_b != (int64_t)(st->bytes + *copied)) {
		if (l->error || kt_now_ms() > end)
			return "backlog never drained";
		usleep(20);
	}
	return NULL;
}

/*
 * F5, T16: hand-overs under load, behind both parts of the fence, as the daemon makes them; every
 * byte arrives once and in order.  (The low-water mark alone loses an skb now and then: see the
 * storms.)
 */
static void f5_no_byte_lost_behind_the_fence(void **state)
{
	struct kt_session *s = kt_open(0);
	static struct load l;
	const char *wrong = NULL;
	uint64_t copied = 0;
	int64_t rest, start = kt_now_ms();
	int cycles;

	(void)state;
	prepare(s);
	set_rcvbuf(s->a, 2 * MIB);
	load_start(&l, s, true);
	for (cycles = 0; cycles < 400 && !wrong && kt_now_ms() < start + 6000; cycles++)
		wrong = enter_and_leave(&l, &copied);
	load_stop_sender(&l);
	KT_WAIT(wrong || kt_outq(s->client) == 0);
	rest = wrong ? 0 : copy_until_empty(&l);
	KT_WAIT(wrong || l.error || l.got == l.sent);
	load_stop_receiver(&l);
	print_message("F5: %d cycles in %lld ms, %llu bytes redirected, %llu copied\n", cycles,
		      (long long)(kt_now_ms() - start),
		      (unsigned long long)kt_stat(s->slot_a)->bytes,
		      (unsigned long long)(copied + (uint64_t)rest));
	if ((wrong || l.error) && kt_pressure()) {
		print_message("skipped: SO_RCVLOWAT is no fence when TCP is short of memory\n");
		skip();
	}
	if (wrong)
		fail_msg("%s in cycle %d: %s", wrong, cycles, strerror(-l.error));
	assert_int_equal(l.error, 0);
	assert_true(rest >= 0);
	assert_int_equal(l.got, l.sent);
	assert_int_equal(kt_stat(s->slot_a)->bytes + copied + (uint64_t)rest, l.sent);
	assert_true(cycles > 1); /* more is a matter of the machine */
}

struct storm {
	int cycles;
	bool pressure; /* TCP was short of memory: LOWAT is void */
	int64_t lost; /* received by A's TCP, and neither redirected nor read: the daemon's audit */
};

/* One hand-over, as fast as possible: what was read in between, or -1. */
static int64_t storm_cycle(struct kt_session *s, enum fence fence, int64_t end)
{
	static unsigned char trash[256 * KIB];
	volatile struct kt_stat *st = kt_stat(s->slot_a);
	uint64_t upto = st->bytes + 1;
	int64_t copied = 0;
	ssize_t n;

	if (enter(s))
		return -1;
	kt_kick(s->a);
	while (st->bytes < upto && kt_now_ms() < end)
		;
	if (leave(s, fence))
		return -1;
	while ((n = recv(s->a, trash, sizeof(trash), MSG_DONTWAIT)) > 0)
		copied += n;
	return copied;
}

/* Reads A until the client's last byte is acknowledged and read. */
static int64_t read_the_rest(struct kt_session *s)
{
	static unsigned char trash[256 * KIB];
	int64_t copied = 0, end = kt_now_ms() + KT_DEADLINE_MS;
	bool acked;

	do { /* the last read has to come after the last byte */
		ssize_t n;

		acked = kt_outq(s->client) == 0;
		while ((n = recv(s->a, trash, sizeof(trash), MSG_DONTWAIT)) > 0)
			copied += n;
	} while (!acked && kt_now_ms() < end);
	return copied;
}

/*
 * Hand-overs for ms milliseconds.  Asserts that the audit is right: what it misses is exactly what
 * neither the server nor the reader of A has got.
 */
static struct storm storm(int rcvbuf, enum fence fence, int64_t ms)
{
	struct kt_session *s = kt_open(0);
	volatile struct kt_stat *st = kt_stat(s->slot_a);
	int64_t end = kt_now_ms() + ms, copied = 0, n = 0;
	struct storm storm = { 0 };
	static struct load l;

	prepare(s);
	set_rcvbuf(s->a, rcvbuf);
	load_start(&l, s, false);
	while (kt_now_ms() < end && n >= 0) {
		if (storm.cycles++ % 64 == 0)
			storm.pressure |= kt_pressure();
		n = storm_cycle(s, fence, end);
		copied += n;
	}
	load_stop_sender(&l);
	copied += read_the_rest(s);
	KT_WAIT(n < 0 || l.error || l.got == st->bytes);
	load_stop_receiver(&l);
	assert_true(n >= 0);
	assert_int_equal(l.error, 0);
	assert_int_equal(l.got, st->bytes);
	assert_int_equal(kt_info(s->a).tcpi_bytes_received, l.sent);
	storm.lost = (int64_t)kt_info(s->a).tcpi_bytes_received - (int64_t)st->bytes - copied;
	assert_true(storm.lost >= 0);
	if (st->overlap)
		print_message("T17: %llu bytes trimmed\n", (unsigned long long)st->overlap);
	assert_int_equal(st->untrimmed, 0);
	return storm;
}

/* Storms until one is without loss, three at most: what the last one lost. */
static int64_t storm_and_tell(const char *what, int rcvbuf, enum fence fence, int most)
{
	struct storm r = { .lost = 1 };

	for (int i = 0; i < most && r.lost; i++) {
		r = storm(rcvbuf, fence, 2000);
		print_message("T16: %s: %lld bytes lost in %d hand-overs%s\n", what,
			      (long long)r.lost, r.cycles,
			      r.pressure ? "; TCP was short of memory" : "");
	}
	if (r.lost && r.pressure && fence == LOWAT) {
		print_message("skipped: SO_RCVLOWAT is no fence when TCP is short of memory\n");
		skip();
	}
	return r.lost;
}

/*
 * T16, sk_psock_verdict_recv: without the fence, an skb vanishes now and then.  That is told and
 * never asserted, because a race need not show.
 */
static void t16_storm_without_the_fence(void **state)
{
	(void)state;
	storm_and_tell("no fence", 2 * MIB, NO_FENCE, 1);
}

/* T16: with a small receive buffer the fence has a hole; told, for the same reason. */
static void t16_storm_with_a_small_buffer(void **state)
{
	(void)state;
	storm_and_tell("fence, SO_RCVBUF 128 KiB", 64 * KIB, LOWAT, 1);
}

/*
 * T16, the remedy: the same storm with the fence.  It is not watertight: when this thread loses its
 * CPU between fence and removal for so long that the buffer fills up, the verdict runs after all
 * (seen once in 40 runs of this test on a busy machine: 2 MB at once).  So one storm of three has
 * to be without loss; the audit, asserted in each, is what makes the rest safe.
 */
static void t16_storm_with_the_fence(void **state)
{
	(void)state;
	assert_int_equal(storm_and_tell("fence", 2 * MIB, LOWAT, 3), 0);
}

/* T16: the filter around the fence makes the small buffer safe too, at the price of resent data. */
static void t16_storm_with_the_filter(void **state)
{
	(void)state;
	assert_int_equal(storm_and_tell("fence and filter, SO_RCVBUF 128 KiB", 64 * KIB,
					LOWAT_AND_FILTER, 3), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(f5_no_byte_lost_behind_the_fence),
		kt_test(t16_storm_without_the_fence),
		kt_test(t16_storm_with_the_fence),
		kt_test(t16_storm_with_a_small_buffer),
		kt_test(t16_storm_with_the_filter),
	};

	return kt_main(tests);
}
