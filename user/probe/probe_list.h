/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_LIST_H
#define CULVERT_PROBE_LIST_H

#include <stddef.h>

struct probe;

/* Which carriers rely on a check; may be combined. */
enum probe_carrier {
	PROBE_SOCKMAP = 1,
	PROBE_SPLICE = 2,
};

#define PROBE_CHECKS 22
#define PROBE_NEEDS 4

/* One kernel behaviour, in the order in which they are tried. */
struct probe_check {
	const char *name;
	unsigned int carriers;          /* enum probe_carrier */
	const char *shows;              /* what must hold */
	const char *why;                /* what goes wrong if it does not */
	const char *since;              /* where the kernel's history tells; else NULL */
	const char *needs[PROBE_NEEDS]; /* earlier checks without which this one means nothing */
	int (*run)(struct probe *p);
};

extern const struct probe_check probe_checks[PROBE_CHECKS];

/* The check that the LEN bytes at NAME name; PROBE_CHECKS if none. */
size_t probe_find(const char *name, size_t len);

#endif
