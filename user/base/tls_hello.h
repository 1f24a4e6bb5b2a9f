/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a client of TLS says first (RFC 8446, section 4.1.2; the same since TLS 1.0): whom it wants to
 * speak to.  Nothing is decrypted.  With Encrypted ClientHello this is the outer hello.
 */

#define TLS_HELLO_MAX 16384 /* bytes of the message, whatever records it comes in */
/* Bytes to look at until it is whole, or too large: each byte may come in a record of its own. */
#define TLS_HELLO_WIRE_MAX (TLS_HELLO_MAX * 6)
#define TLS_NAME_MAX 255

struct tls_hello {
	char name[TLS_NAME_MAX + 1]; /* a host name in lower case; "": none */
	size_t alpn_len;
	uint8_t alpn[512]; /* protocols offered, each behind a byte with its length; what fits */
};

/*
 * Take the hello that begins with the LEN bytes at P, which are changed: a hello of several records
 * is put together there.  0; -EAGAIN: it is not whole, and *RET_NEED bytes are to come at least;
 * -EPROTO: it is none, or cannot be read; -E2BIG.
 */
int tls_hello_parse(uint8_t *p, size_t len, struct tls_hello *ret, size_t *ret_need);

/* The name that TEXT of LEN bytes is, in lower case.  False: no host name, or an IP address. */
bool tls_name(const char *text, size_t len, char ret[TLS_NAME_MAX + 1]);

/* Does H offer the protocol NAME of LEN bytes? */
bool tls_hello_offers(const struct tls_hello *h, const char *name, size_t len);
