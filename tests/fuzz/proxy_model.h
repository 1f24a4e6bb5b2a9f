/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_PROXY_MODEL_H
#define CULVERT_TESTS_PROXY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "relay/proxy_protocol.h"

/*
 * What proxy_protocol.h promises, a second time and by other means: text is scanned freely, printed
 * as it should be, and compared; IPv6 is a list of groups; the checksum goes bit by bit.
 */

/* True if BYTES begin with a whole and good header, which is at *RET then. */
bool proxy_model(const uint8_t *bytes, size_t n, struct proxy_header *ret);

uint32_t proxy_model_crc(const uint8_t *bytes, size_t n);

/* An IPv4-mapped address as IPv4. */
void proxy_model_unmap(struct addr *a);

/* The 108 bytes of PATH, as the kernel would count them. */
void proxy_model_unix(const char *path, struct addr *ret);

#endif
