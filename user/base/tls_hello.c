// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the payloads of the records are moved together, in place, until the message
 * is whole, as its own length says.  Then it is read from front to end.  A reader that would read
 * beyond its end sets `bad`, and gives 0 or nothing.  So one check at the end is enough.
 */
#include "base/tls_hello.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "base/minmax.h"

#define RECORD_HEADER 5
#define RECORD_MAX 16384
#define HANDSHAKE 22
#define CLIENT_HELLO 1
#define MESSAGE_HEADER 4
#define EXTENSION_NAME 0
#define EXTENSION_ALPN 16
#define HOST_NAME 0
#define LABEL_MAX 63

struct reader {
	const uint8_t *at, *end;
	bool bad;
};

/* A number of N bytes. */
static size_t number(struct reader *r, int n)
{
	size_t v = 0;

	if (r->end - r->at < n) {
		r->bad = true;
		r->at = r->end;
		return 0;
	}
	while (n-- > 0)
		v = v << 8 | *r->at++;
	return v;
}

/* The bytes after a length of N bytes. */
static struct reader vector(struct reader *r, int n)
{
	size_t len = number(r, n);
	struct reader v = { .at = r->at };

	if ((size_t)(r->end - r->at) < len) {
		r->bad = true;
		len = 0;
	}
	v.end = r->at += len;
	return v;
}

static bool is_empty(const struct reader *r)
{
	return r->at == r->end;
}

bool tls_name(const char *text, size_t len, char ret[TLS_NAME_MAX + 1])
{
	size_t label = 0;
	struct in_addr in;

	for (size_t i = 0; i < len && len <= TLS_NAME_MAX; i++) {
		char c = (char)tolower((unsigned char)text[i]);

		if (c == '.' ? !label :
			       !(isascii(c) && isalnum((unsigned char)c)) && c != '-' && c != '_')
			return false;
		label = c == '.' ? 0 : label + 1;
		if (label > LABEL_MAX)
			return false;
		ret[i] = c;
	}
	if (!label || len > TLS_NAME_MAX)
		return false;
	ret[len] = '\0';
	return inet_aton(ret, &in) == 0;
}

/* False: EXTENSION is malformed. */
static bool take_name(struct reader *extension, struct tls_hello *ret)
{
	struct reader list = vector(extension, 2);
	bool found = false;

	while (!is_empty(&list) && !list.bad) {
		size_t type = number(&list, 1);
		struct reader name = vector(&list, 2);

		if (is_empty(&name) || (type == HOST_NAME && found))
			return false;
		if (type != HOST_NAME)
			continue;
		found = true;
		if (!tls_name((const char *)name.at, (size_t)(name.end - name.at), ret->name))
			ret->name[0] = '\0';
	}
	return found && !list.bad && is_empty(extension);
}

static bool take_alpn(struct reader *extension, struct tls_hello *ret)
{
	struct reader list = vector(extension, 2);
	const uint8_t *begin = list.at;

	while (!is_empty(&list) && !list.bad) {
		struct reader one = vector(&list, 1);

		if (is_empty(&one))
			return false;
		if ((size_t)(one.end - begin) <= sizeof(ret->alpn))
			ret->alpn_len = (size_t)(one.end - begin);
	}
	memcpy(ret->alpn, begin, ret->alpn_len);
	return begin != list.end && !list.bad && is_empty(extension);
}

/* The message without its header. */
static bool take_message(struct reader *r, struct tls_hello *ret)
{
	bool legacy = number(r, 1) == 3, names = false, protocols = false, good = true;
	struct reader all;

	number(r, 1);
	for (int i = 0; i < 4; i++) /* its random bytes */
		number(r, 8);
	all = vector(r, 1); /* session */
	good = all.end - all.at <= 32;
	all = vector(r, 2); /* cipher suites */
	good = good && !is_empty(&all) && (all.end - all.at) % 2 == 0;
	all = vector(r, 1); /* compression */
	good = good && !is_empty(&all);
	if (r->bad || !legacy || !good || is_empty(r)) /* TLS 1.0 may end here */
		return !r->bad && legacy && good;
	all = vector(r, 2);
	while (good && !is_empty(&all)) {
		size_t type = number(&all, 2);
		struct reader extension = vector(&all, 2);

		if (type == EXTENSION_NAME) {
			good = !names && take_name(&extension, ret);
			names = true;
		} else if (type == EXTENSION_ALPN) {
			good = !protocols && take_alpn(&extension, ret);
			protocols = true;
		}
		good = good && !extension.bad && !all.bad;
	}
	return good && !r->bad && is_empty(r);
}

int tls_hello_parse(uint8_t *p, size_t len, struct tls_hello *ret, size_t *ret_need)
{
	struct reader r = { .at = p, .end = p + len }, message;
	size_t have = 0, want = MESSAGE_HEADER;

	memset(ret, 0, sizeof(*ret));
	while (have < want) {
		size_t left = (size_t)(r.end - r.at), size, missing;

		/* judge the first bytes at once: a client of another protocol may send no more */
		if ((left > 0 && r.at[0] != HANDSHAKE) || (left > 1 && r.at[1] != 3))
			return -EPROTO;
		if (left < RECORD_HEADER) {
			*ret_need = RECORD_HEADER - left + want - have;
			return -EAGAIN;
		}
		number(&r, 3);
		size = number(&r, 2);
		left -= RECORD_HEADER;
		if (!size || size > RECORD_MAX)
			return -EPROTO;
		missing = size > left ? size - left : 0; /* of this record */
		size -= missing;
		memmove(p + have, r.at, size);
		r.at += size;
		have += size;
		if (have && p[0] != CLIENT_HELLO)
			return -EPROTO;
		if (have >= MESSAGE_HEADER)
			want = MESSAGE_HEADER + ((size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3]);
		if (want > TLS_HELLO_MAX)
			return -E2BIG;
		if (have < want && missing) {
			*ret_need = smaller(missing, want - have);
			return -EAGAIN;
		}
	}
	message = (struct reader){ .at = p + MESSAGE_HEADER, .end = p + want };
	return take_message(&message, ret) ? 0 : -EPROTO;
}

bool tls_hello_offers(const struct tls_hello *h, const char *name, size_t len)
{
	for (size_t at = 0; at < h->alpn_len; at += 1 + h->alpn[at])
		if (h->alpn[at] == len && !memcmp(h->alpn + at + 1, name, len))
			return true;
	return false;
}
