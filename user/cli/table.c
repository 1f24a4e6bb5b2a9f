/* SPDX-License-Identifier: BSD-2-Clause */
#include "cli/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define CELL_MAX 256

struct table {
	const struct table_column *columns;
	size_t n_columns;
	char **cells; /* n_rows * n_columns, owned; NULL: empty */
	size_t n_rows, max_rows;
	bool incomplete;
};

struct table *table_new(const struct table_column *columns, size_t n_columns)
{
	struct table *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->columns = columns;
	t->n_columns = n_columns;
	return t;
}

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what table_add() stores: it is in t->cells, and table_free() frees it */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

static bool make_room(struct table *t)
{
	size_t max = t->max_rows ? 2 * t->max_rows : 16;
	char **cells;

	if (t->n_rows < t->max_rows)
		return true;
	cells = reallocarray(t->cells, max, t->n_columns * sizeof(*cells));
	if (!cells)
		return false;
	t->cells = cells;
	t->max_rows = max;
	return true;
}

void table_add(struct table *t, const char *const *cells)
{
	char text[CELL_MAX];
	char **row;

	if (!t)
		return;
	if (!make_room(t)) {
		t->incomplete = true;
		return;
	}
	row = t->cells + t->n_rows++ * t->n_columns;
	for (size_t i = 0; i < t->n_columns; i++) {
		row[i] = NULL;
		if (!cells[i] || !cells[i][0])
			continue;
		row[i] = strdup(log_escape(cells[i], text, sizeof(text)));
		if (!row[i])
			t->incomplete = true;
	}
}

static int column_width(const struct table *t, size_t column)
{
	size_t width = strlen(t->columns[column].title);

	for (size_t i = 0; i < t->n_rows; i++) {
		const char *cell = t->cells[i * t->n_columns + column];

		if (cell && strlen(cell) > width)
			width = strlen(cell);
	}
	return (int)width;
}

/* Blanks are owed rather than printed, so no line ends in any. */
static void print_cell(FILE *out, const char *cell, int width, bool right, int *owed)
{
	int len = cell ? (int)strlen(cell) : 0;

	if (len == 0) {
		*owed += width + 2;
		return;
	}
	fprintf(out, "%*s%s", *owed + (right ? width - len : 0), "", cell);
	*owed = (right ? 0 : width - len) + 2;
}

int table_print(const struct table *t, FILE *out, unsigned int indent)
{
	int *widths;
	int owed;

	if (!t)
		return -ENOMEM;
	widths = calloc(t->n_columns, sizeof(*widths));
	if (!widths)
		return -ENOMEM;

	owed = (int)indent;
	for (size_t i = 0; i < t->n_columns; i++) {
		widths[i] = column_width(t, i);
		print_cell(out, t->columns[i].title, widths[i], t->columns[i].right, &owed);
	}
	fputc('\n', out);
	for (size_t row = 0; row < t->n_rows; row++) {
		owed = (int)indent;
		for (size_t i = 0; i < t->n_columns; i++)
			print_cell(out, t->cells[row * t->n_columns + i], widths[i],
				   t->columns[i].right, &owed);
		fputc('\n', out);
	}
	free(widths);
	return t->incomplete ? -ENOMEM : 0;
}

void table_free(struct table *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
		free(t->cells[i]);
	free(t->cells);
	free(t);
}
