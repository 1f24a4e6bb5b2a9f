/* SPDX-License-Identifier: BSD-2-Clause */
/* Generated packets, and the packet programs run on them. */
#pragma once

#include "graft_model.h"

#define LO 1

extern uint64_t chance; /* the seed */
uint64_t draw(void);
uint32_t below(uint32_t n);
bool one_in(uint32_t n);
void draw_bytes(void *p, size_t len);
void draw_address(struct graft_addr *a, bool ipv6);

/* Put options of IPv4, or an extension header of IPv6, into F. */
void add_header(struct model_frame *f);
/* F, a packet of PROTOCOL, becomes none that is a session's, or not quite. */
void spoil(struct model_frame *f, uint8_t protocol);
/* The LEN bytes at IS, of SLOT, are those at WANT; else each that differs is printed. */
bool same_bytes(uint32_t slot, const void *is, const void *want, size_t len);
void print_frame(const char *what, const struct model_frame *f);
/*
 * Run PROG on F, which it changes; GSO_SIZE: 0, or it is many packets.
 * Returns the verdict; -EINVAL: the kernel does not take such a packet for a test run.
 */
int run_frame(int prog, struct model_frame *f, uint32_t gso_size);
bool same_frame(const struct model_frame *is, const struct model_frame *want);
