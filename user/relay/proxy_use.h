/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROXY_USE_H
#define CULVERT_PROXY_USE_H

/*
 * What a forward does with PROXY headers (proxy_protocol.h), as `proxy-protocol` says it: "off", or
 * some of "receive" and one of "send-v1" and "send-v2", in any order, with commas or blanks between
 * them.
 */
enum proxy_use {
	PROXY_RECEIVE = 1 << 0, /* each client begins with one, of either version */
	PROXY_SEND_V1 = 1 << 1, /* the upstream is sent one */
	PROXY_SEND_V2 = 1 << 2,
};

#define PROXY_SEND (PROXY_SEND_V1 | PROXY_SEND_V2)
#define PROXY_USE_NAMES "off, or receive, send-v1 or send-v2, or receive and one of these two"

/* TEXT as a set of the above, 0 for "off".  -EINVAL; then *RET is as it was. */
int proxy_use_parse(const char *text, unsigned int *ret);

/* The same for people, as proxy_use_parse() takes it; constant. */
const char *proxy_use_text(unsigned int use);

#endif
