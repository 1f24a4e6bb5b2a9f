/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONTROL_SPARE_H
#define CULVERT_CONTROL_SPARE_H

#include <stdbool.h>

/*
 * Descriptors that are kept so that the control socket answers while all others are in use: one is
 * given up for a client that cannot be accepted otherwise, and had again when a client goes.
 */
#define CONTROL_SPARES 2

struct control_spare {
	int fds[CONTROL_SPARES]; /* -1: given up */
	int copied; /* what they are copies of; nobody uses it for anything */
};

/* None yet; control_spare_have() will make them of COPIED. */
void control_spare_init(struct control_spare *spare, int copied);
/* As many as can be had. */
void control_spare_have(struct control_spare *spare);
unsigned int control_spare_left(const struct control_spare *spare);
/* Give one up; false: none is left. */
bool control_spare_spend(struct control_spare *spare);
/* Close FD; if a spare one is given up, FD's number becomes it.  SPARE may be NULL. */
void control_spare_close(struct control_spare *spare, int fd);
void control_spare_free(struct control_spare *spare);

#endif
