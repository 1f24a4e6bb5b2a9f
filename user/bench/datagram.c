// SPDX-License-Identifier: BSD-2-Clause
/* Datagrams, and their sink, which uses batches and GRO to cost little beside the relay. */
#include "datagram.h"

#include <string.h>
#include <sys/socket.h>

#include "wire.h"

#define BATCH 64
#define LOADS 64

static struct pattern pattern_of(const struct datagram *d, size_t n)
{
	uint64_t seed = pattern_mix(d->flow + d->number) + d->kind;
	struct pattern p;

	pattern_open(&p, pattern_mix(seed + d->loads) + n, PATTERN_UP);
	return p;
}

void datagram_write(uint8_t *to, size_t n, const struct datagram *d)
{
	const struct pattern p = pattern_of(d, n);

	memcpy(to, d, sizeof(*d));
	memcpy(to + sizeof(*d), pattern_bytes(&p), n - sizeof(*d));
}

bool datagram_read(const uint8_t *from, size_t n, struct datagram *ret)
{
	struct pattern p;

	if (n < sizeof(*ret))
		return false;
	memcpy(ret, from, sizeof(*ret));
	p = pattern_of(ret, n);
	n -= sizeof(*ret);
	/* verify only a sample of a load: verifying all would take the time that is measured */
	return pattern_check(&p, from + sizeof(*ret), n, ret->kind == DATAGRAM_LOAD) == n;
}

/* --- the sink --- */

/*
 * A message has the bytes received from one sender, perhaps several datagrams.  The answer replaces
 * a single datagram.
 */
static struct mmsghdr got[BATCH], answers[BATCH];
static struct message {
	struct sockaddr_storage from;
	struct iovec part;
	_Alignas(struct cmsghdr) uint8_t control[64];
	uint8_t data[65536];
} messages[BATCH];

/* Datagrams received of each flow.  A later flow may take the place of a flow that is over. */
static struct {
	uint64_t flow, n;
} loads[LOADS];

static uint64_t *loads_of(uint64_t flow)
{
	unsigned int i = flow % LOADS;

	if (loads[i].flow != flow)
		loads[i].n = 0;
	loads[i].flow = flow;
	return &loads[i].n;
}

/* Put the answer to DATA in its place.  False: DATA has none.  A wrong question stays as it is. */
static bool answer(uint8_t *data, size_t n, struct sink_tally *t)
{
	struct datagram d = { 0 };
	bool right = datagram_read(data, n, &d);

	t->received += n;
	t->wrong += !right;
	if (d.kind == DATAGRAM_LOAD) {
		*loads_of(d.flow) += right;
		return false;
	}
	d.kind = DATAGRAM_ANSWER;
	d.loads = *loads_of(d.flow);
	if (right)
		datagram_write(data, n, &d);
	t->sent += n;
	return true;
}

void datagram_serve(int fd, struct sink_tally *t)
{
	unsigned int ready = 0;
	int n;

	for (int i = 0; i < BATCH; i++) {
		struct message *m = &messages[i];

		m->part = (struct iovec){ m->data, sizeof(m->data) };
		got[i].msg_hdr = (struct msghdr){
			.msg_name = &m->from,
			.msg_namelen = sizeof(m->from),
			.msg_iov = &m->part,
			.msg_iovlen = 1,
			.msg_control = m->control,
			.msg_controllen = sizeof(m->control),
		};
	}
	n = recvmmsg(fd, got, BATCH, MSG_DONTWAIT, NULL);
	for (int i = 0; i < n; i++) {
		size_t left = got[i].msg_len, piece = left;
		struct cmsghdr *gro = CMSG_FIRSTHDR(&got[i].msg_hdr);
		uint8_t *data = messages[i].data;
		bool answered = false;

		if (gro)
			piece = *(int *)CMSG_DATA(gro);
		for (; left; left -= piece, data += piece) {
			piece = piece < left ? piece : left;
			answered = answer(data, piece, t);
		}
		/* merged datagrams get no answer: a question among them will be asked again */
		if (!answered || piece != got[i].msg_len)
			continue;
		messages[i].part.iov_len = piece;
		got[i].msg_hdr.msg_controllen = 0;
		answers[ready++] = got[i];
	}
	for (unsigned int sent = 0; sent < ready;) {
		n = sendmmsg(fd, answers + sent, ready - sent, 0);
		sent += n > 0 ? (unsigned int)n : 1; /* one that cannot be sent is lost */
	}
}
