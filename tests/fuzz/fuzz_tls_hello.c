// SPDX-License-Identifier: BSD-2-Clause
/*
 * The parser of TLS hellos, against a model that copies the message out of its records first, and
 * reads it by offsets.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/tls_hello.h"
#include "fuzz.h"

struct model {
	uint8_t message[TLS_HELLO_MAX + 16384];
	size_t n, want;
	const uint8_t *name; /* of NAME_LEN bytes; NULL: no extension */
	size_t name_len;
};

static size_t get(const uint8_t *p, int n)
{
	size_t v = 0;

	for (int i = 0; i < n; i++)
		v = v * 256 + p[i];
	return v;
}

/* 0: the message is whole. */
static int gather(struct model *m, const uint8_t *p, size_t len)
{
	m->want = 4;
	for (size_t at = 0, size; m->n < m->want; at += size) {
		if ((at < len && p[at] != 22) || (at + 1 < len && p[at + 1] != 3))
			return -EPROTO;
		if (at + 5 > len)
			return -EAGAIN;
		size = get(p + at + 3, 2);
		at += 5;
		if (!size || size > 16384)
			return -EPROTO;
		for (size_t i = 0; i < size && at + i < len; i++)
			m->message[m->n++] = p[at + i];
		if (m->n && m->message[0] != 1)
			return -EPROTO;
		if (m->n >= 4)
			m->want = 4 + get(m->message + 1, 3);
		if (m->want > TLS_HELLO_MAX)
			return -E2BIG;
		if (m->n < m->want && at + size > len)
			return -EAGAIN;
	}
	return 0;
}

/* The end of what is behind a length of N bytes at AT; 0: it does not fit before END. */
static size_t skip(const uint8_t *p, size_t at, size_t end, int n)
{
	if (!at || at + (size_t)n > end || at + (size_t)n + get(p + at, n) > end)
		return 0;
	return at + (size_t)n + get(p + at, n);
}

/* The server_name extension of P from AT to END. */
static bool good_names(struct model *m, size_t at, size_t end)
{
	const uint8_t *p = m->message;

	if (skip(p, at, end, 2) != end)
		return false;
	for (at += 2; at < end;) {
		size_t next = at + 1 < end ? skip(p, at + 1, end, 2) : 0;

		if (!next || next == at + 3 || (!p[at] && m->name))
			return false;
		if (!p[at]) {
			m->name = p + at + 3;
			m->name_len = next - at - 3;
		}
		at = next;
	}
	return m->name;
}

static bool good_protocols(const uint8_t *p, size_t at, size_t end)
{
	if (skip(p, at, end, 2) != end || at + 2 == end)
		return false;
	for (at += 2; at < end;) {
		if (!p[at] || !skip(p, at, end, 1))
			return false;
		at = skip(p, at, end, 1);
	}
	return true;
}

static bool good_message(struct model *m)
{
	const uint8_t *p = m->message;
	size_t at = 4 + 34, end = m->want, next;
	bool seen[2] = { false, false };

	if (end < at + 1 || p[4] != 3 || p[at] > 32)
		return false;
	at = skip(p, at, end, 1);
	next = skip(p, at, end, 2);
	if (!next || next == at + 2 || (next - at) % 2)
		return false;
	at = next;
	next = skip(p, at, end, 1);
	if (!next || next == at + 1)
		return false;
	if (next == end)
		return true;
	if (skip(p, next, end, 2) != end)
		return false;
	for (at = next + 2; at < end; at = next) {
		size_t type = at + 2 <= end ? get(p + at, 2) : 0;

		next = skip(p, at + 2, end, 2);
		if (!next)
			return false;
		if (type != 0 && type != 16)
			continue;
		if (seen[type / 16])
			return false;
		seen[type / 16] = true;
		if (type ? !good_protocols(p, at + 4, next) : !good_names(m, at + 4, next))
			return false;
	}
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct model *m = calloc(1, sizeof(*m));
	uint8_t *room = exact_copy(data, size);
	char name[TLS_NAME_MAX + 1];
	struct tls_hello h;
	size_t need = 0;
	int want, got;

	if (!m)
		abort();
	if (size > TLS_HELLO_WIRE_MAX)
		size = TLS_HELLO_WIRE_MAX;
	want = gather(m, data, size);
	if (!want && !good_message(m))
		want = -EPROTO;
	got = tls_hello_parse(room, size, &h, &need);
	must(got == want, "%d, and the model says %d", got, want);
	must(got != -EAGAIN || need, "it needs nothing more");
	if (!got && (!m->name || !tls_name((const char *)m->name, m->name_len, name)))
		must(!h.name[0], "a name: %s", h.name);
	else if (!got)
		must(!strcmp(h.name, name) && strlen(name) == m->name_len, "%s, not %s", h.name,
		     name);
	must(got || h.alpn_len <= sizeof(h.alpn), "%zu bytes of protocols", h.alpn_len);
	free(room);
	free(m);
	return 0;
}
