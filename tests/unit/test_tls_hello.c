// SPDX-License-Identifier: BSD-2-Clause
/* TLS hellos: put together from any records, read, and refused; and what a host name is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "base/tls_hello.h"

/* A message that is being written. */
struct message {
	uint8_t bytes[TLS_HELLO_MAX + 64];
	size_t n;
};

static void put(struct message *m, uint64_t v, int n)
{
	while (n-- > 0)
		m->bytes[m->n++] = (uint8_t)(v >> 8 * n);
}

static void put_text(struct message *m, const char *text, int length)
{
	put(m, strlen(text), length);
	memcpy(m->bytes + m->n, text, strlen(text));
	m->n += strlen(text);
}

/* Set the N bytes at AT to the length of what is behind them. */
static void close_length(struct message *m, size_t at, int n)
{
	size_t len = m->n - at - (size_t)n;

	for (int i = 0; i < n; i++)
		m->bytes[at + (size_t)i] = (uint8_t)(len >> 8 * (n - 1 - i));
}

/* NAME, ALPN: NULL: none.  PADDING: bytes of an extension that nobody knows. */
static struct message make(const char *name, const char *alpn, size_t padding)
{
	struct message m = { .n = 0 };
	size_t extensions, at;

	put(&m, 1, 1);
	put(&m, 0, 3);
	put(&m, 0x0303, 2);
	for (int i = 0; i < 4; i++)
		put(&m, 0x0123456789abcdef, 8);
	put_text(&m, "session", 1);
	put(&m, 4, 2);
	put(&m, 0x13011302, 4);
	put(&m, 0x0100, 2);
	extensions = m.n;
	put(&m, 0, 2);
	if (padding) {
		put(&m, 0xfafa, 2);
		put(&m, padding, 2);
		m.n += padding;
	}
	if (name) {
		put(&m, 0, 2);
		put(&m, strlen(name) + 5, 2);
		put(&m, strlen(name) + 3, 2);
		put(&m, 0, 1);
		put_text(&m, name, 2);
	}
	if (alpn) {
		put(&m, 16, 2);
		at = m.n;
		put(&m, 0, 4);
		put_text(&m, alpn, 1);
		put_text(&m, "http/1.1", 1);
		close_length(&m, at, 2);
		close_length(&m, at + 2, 2);
	}
	close_length(&m, extensions, 2);
	close_length(&m, 1, 3);
	return m;
}

/* M in records of SIZE bytes.  Returns how many there are; the caller frees *RET. */
static size_t in_records(const struct message *m, size_t size, uint8_t **ret)
{
	size_t n = 0;

	*ret = malloc(6 * m->n + 1);
	assert_non_null(*ret);
	for (size_t at = 0, len; at < m->n; at += len) {
		len = m->n - at < size ? m->n - at : size;
		memcpy(*ret + n, (uint8_t[]){ 22, 3, 1, (uint8_t)(len >> 8), (uint8_t)len }, 5);
		memcpy(*ret + n + 5, m->bytes + at, len);
		n += 5 + len;
	}
	return n;
}

static int parse(const struct message *m, size_t size, struct tls_hello *ret)
{
	size_t need, n;
	uint8_t *bytes;
	int r;

	n = in_records(m, size, &bytes);
	r = tls_hello_parse(bytes, n, ret, &need);
	free(bytes);
	return r;
}

TEST(test_records)
{
	static const size_t sizes[] = { 1, 2, 3, 5, 100, 16384 };
	struct message m = make("Example.Org", "h2", 0);
	struct tls_hello h;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		assert_int_equal(parse(&m, sizes[i], &h), 0);
		assert_string_equal(h.name, "example.org");
		assert_true(tls_hello_offers(&h, "h2", 2) && tls_hello_offers(&h, "http/1.1", 8));
		assert_false(tls_hello_offers(&h, "h", 1) || tls_hello_offers(&h, "h3", 2));
	}
}

/* How often who waits for what is needed at least has to look at the N bytes of ALL. */
static size_t looks(const uint8_t *all, size_t n)
{
	size_t count = 0, have = 0, need = 1;
	struct tls_hello h;
	int r = -EAGAIN;

	for (; r == -EAGAIN; count++) {
		uint8_t *part;

		have += need;
		assert_in_range(have, 1, n);
		part = malloc(have);
		memcpy(part, all, have);
		r = tls_hello_parse(part, have, &h, &need);
		free(part);
	}
	assert_int_equal(r, 0);
	return count;
}

/* Every part of it asks for no more than is missing, and all of it is seen in few looks. */
TEST(test_parts)
{
	struct message m = make("example.org", NULL, 0);
	struct tls_hello h;

	for (size_t size = 1; size < 200; size = size * 3 + 1) {
		uint8_t *all, *part;
		size_t n = in_records(&m, size, &all), need;

		for (size_t k = 0; k < n; k++) {
			part = malloc(k ?: 1);
			memcpy(part, all, k);
			assert_int_equal(tls_hello_parse(part, k, &h, &need), -EAGAIN);
			assert_in_range(need, 1, n - k);
			free(part);
		}
		assert_in_range(looks(all, n), 2, 3 + n / (size + 5));
		free(all);
	}
}

TEST(test_sizes)
{
	size_t bare = make(NULL, NULL, 1).n - 1;
	struct message most = make(NULL, NULL, TLS_HELLO_MAX - bare);
	struct message more = make(NULL, NULL, TLS_HELLO_MAX - bare + 1);
	struct tls_hello h;

	assert_int_equal(most.n, TLS_HELLO_MAX);
	assert_int_equal(parse(&most, 16384, &h), 0);
	assert_int_equal(parse(&most, 1, &h), 0);
	assert_int_equal(parse(&more, 16384, &h), -E2BIG);
}

TEST(test_no_name)
{
	static const char *const none[] = {
		"example.org.", ".example.org", "a..b",       "192.0.2.1", "1",
		"2001:db8::1",  "exa mple",     "ex\x80mple", "a/b",       "*.b"
	};
	struct tls_hello h;

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		struct message m = make(none[i], NULL, 0);

		assert_int_equal(parse(&m, 100, &h), 0);
		assert_string_equal(h.name, "");
	}
	for (int i = 0; i < 2; i++) {
		struct message m = make(NULL, i ? "h2" : NULL, 0);

		assert_int_equal(parse(&m, 100, &h), 0);
		assert_string_equal(h.name, "");
	}
}

/* Each byte of a hello, in each value: the answer does not depend on what is behind the message. */
TEST(test_any_byte)
{
	struct message good = make("example.org", "h2", 0), bad;
	struct tls_hello h;

	for (size_t at = 0; at < good.n; at++)
		for (unsigned int v = 0; v < 256; v += 5) {
			int r;

			bad = good;
			bad.bytes[at] = (uint8_t)v;
			r = parse(&bad, 16384, &h);
			assert_true(r == 0 || r == -EPROTO || r == -E2BIG ||
				    (r == -EAGAIN && at < 4));
		}
	bad = good;
	bad.bytes[0] = 2;
	assert_int_equal(parse(&bad, 100, &h), -EPROTO);
	bad = good;
	bad.n--;
	close_length(&bad, 1, 3);
	assert_int_equal(parse(&bad, 100, &h), -EPROTO);
}

UNIT_MAIN(NULL, NULL)
