/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_FLOW_MODEL_H
#define CULVERT_TESTS_FLOW_MODEL_H

#include "flow.h"

/*
 * The rules of flow.h once more, written from its text.
 *
 * Bytes are followed from place to place here, so what the books must show is known without any
 * arithmetic on them: a byte is unread, or read and pending, or in the backlog, or accepted by the
 * target's TCP.  What must never happen can be made to happen: bytes vanish, or come twice.
 */
struct model_flow {
	enum flow_phase phase;
	enum carrier user_carrier;
	enum reason reason;
	bool starved, blocked, eof, ended_in_kernel;
	unsigned int looks; /* in vain, one after the other */
	uint64_t due_ms;    /* 0: none */
	unsigned int stuck;

	uint64_t unread, pending, backlog, accepted;  /* where bytes are */
	uint64_t read, written, redirected, received; /* which way they have gone */
	uint64_t vanished, twice, spilled; /* SPILLED: thrown away with the backlog */
};

bool model_may(unsigned int from, unsigned int to);
unsigned int model_wants(const struct model_flow *m);
enum carrier model_carrier(const struct model_flow *m);

void model_phase(struct model_flow *m, enum flow_phase to);
void model_look_later(struct model_flow *m, uint64_t now_ms);
void model_look_soon(struct model_flow *m, uint64_t now_ms);

void model_receive(struct model_flow *m, uint64_t n, bool redirect);
uint64_t model_read(struct model_flow *m, uint64_t n);
uint64_t model_write(struct model_flow *m, uint64_t n);
void model_drain(struct model_flow *m, uint64_t n);
/* What must never happen. */
void model_vanish(struct model_flow *m, uint64_t n);
void model_double(struct model_flow *m, uint64_t n);
void model_spill(struct model_flow *m, uint64_t n);

struct flow_books model_books(const struct model_flow *m);
bool model_drained(const struct model_flow *m);
enum audit model_audit_left(const struct model_flow *m);
enum audit model_audit_fin(const struct model_flow *m);

#endif
