/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TABLE_H
#define CULVERT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * A table of text for people: columns as wide as their widest cell, two blanks between them.  Cells
 * pass through log_escape(), so they may come from anywhere.
 */
struct table;

struct table_column {
	const char *title; /* must outlive the table */
	bool right;        /* numbers: aligned to the right */
};

/* COLUMNS must outlive the table.  NULL when out of memory. */
struct table *table_new(const struct table_column *columns, size_t n_columns);

/*
 * Add a row of one cell a column, which are copied (and cut after about 250 bytes); NULL is an
 * empty cell.  Running out of memory, or a NULL table, is remembered until table_print().
 */
void table_add(struct table *t, const char *const *cells);

/* Print the titles and all rows, each behind INDENT blanks.  -ENOMEM if a row was lost. */
int table_print(const struct table *t, FILE *out, unsigned int indent);

/* NULL is fine. */
void table_free(struct table *t);

#endif
