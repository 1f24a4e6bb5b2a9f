/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The hello of a TLS client (RFC 8446, section 4.1.2; the same since TLS 1.0), which names the
 * server.  Nothing is decrypted.  With Encrypted ClientHello this is the outer hello.
 */

#define TLS_HELLO_MAX 16384 /* bytes of the message, without the headers of its records */
/*
 * Bytes from the client that hold any such message: each of its bytes may come in its own record.
 */
#define TLS_HELLO_WIRE_MAX (TLS_HELLO_MAX * 6)
#define TLS_NAME_MAX 255

struct tls_hello {
	char name[TLS_NAME_MAX + 1]; /* a host name in lower case; "": none */
	size_t alpn_len;
	uint8_t alpn[512]; /* offered protocols that fit, each after a byte with its length */
};

/*
 * Parse the hello at P, of which LEN bytes have come.  The bytes at P are changed: the parts of a
 * hello of several records are moved together. 0; -EAGAIN: the hello is not whole, and at least
 * *RET_NEED bytes are missing; -EPROTO: no hello, or a malformed one; -E2BIG.
 */
int tls_hello_parse(uint8_t *p, size_t len, struct tls_hello *ret, size_t *ret_need);

/*
 * Copy the host name TEXT (LEN bytes) to RET, in lower case.  False: TEXT is no host name, or is an
 * IP address.
 */
bool tls_name(const char *text, size_t len, char ret[TLS_NAME_MAX + 1]);

/* Does H offer the protocol NAME of LEN bytes? */
bool tls_hello_offers(const struct tls_hello *h, const char *name, size_t len);
