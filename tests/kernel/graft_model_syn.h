/* SPDX-License-Identifier: BSD-2-Clause */
/* The two files of the model of graft_model.h have this in common. */
#pragma once

#include "graft_model.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define TCP 6

struct place {
	struct graft_entry *g;
	struct graft_side *mine, *other;
	uint32_t slot;
};

/* graft_model.c */
void model_set_place(struct model *m, uint32_t slot, uint32_t side, struct place *ret);
bool model_leads(struct model *m, const struct model_tuple *u, const struct graft_tuple *tuple,
		 struct place *ret);
bool model_is_sound(const struct model_parts *p, bool odd);

/* graft_model_syn.c */
bool model_is_same(const struct graft_tuple *a, const struct graft_tuple *b);
bool model_begin(struct model *m, const struct model_parts *p, struct place *ret);
enum model_verdict model_half_open(struct model *m, struct model_frame *f, const struct place *at,
				   const struct model_parts *p);
void model_give_up(struct model *m, struct graft_entry *g, enum graft_past why);
void model_remake(struct model_frame *f, uint8_t *ip, const struct graft_entry *g);
