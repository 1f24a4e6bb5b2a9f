/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_CONTROL_DOC_H
#define CULVERT_TESTS_CONTROL_DOC_H

/*
 * docs/control.md as tests read it: the rows of its tables.  Include after cmocka.h.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DOC_ROWS_MAX 400
#define DOC_CELLS 4

/* Cells without blanks around them; names in them are in backticks. */
struct doc_row {
	char section[64]; /* the heading above */
	char cells[DOC_CELLS][512];
};

static struct doc_row doc_rows[DOC_ROWS_MAX];
static size_t doc_n_rows;

/* The folder of the program is somewhere below that of the sources. */
static inline FILE *doc_open(void)
{
	char path[PATH_MAX], file[PATH_MAX + 32], *slash;
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

	assert_true(n > 0);
	path[n] = '\0';
	while ((slash = strrchr(path, '/'))) {
		FILE *f;

		*slash = '\0';
		snprintf(file, sizeof(file), "%s/docs/control.md", path);
		f = fopen(file, "re");
		if (f)
			return f;
	}
	fail_msg("docs/control.md is not found");
	return NULL;
}

static inline void doc_take_row(char *line, const char *section)
{
	struct doc_row *row = &doc_rows[doc_n_rows];
	size_t i = 0;

	assert_true(doc_n_rows < DOC_ROWS_MAX);
	memset(row, 0, sizeof(*row));
	snprintf(row->section, sizeof(row->section), "%s", section);
	for (char *cell = line + 1; *cell && i < DOC_CELLS; i++) {
		size_t len = strcspn(cell, "|");
		char *next = cell + len + (cell[len] == '|');

		while (len && cell[len - 1] == ' ')
			len--;
		while (len && *cell == ' ')
			cell++, len--;
		snprintf(row->cells[i], sizeof(row->cells[i]), "%.*s", (int)len, cell);
		cell = next;
	}
	doc_n_rows++;
}

static inline void doc_read(void)
{
	char line[2048], section[64] = "";
	FILE *f = doc_open();

	doc_n_rows = 0;
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		if (line[0] == '#')
			snprintf(section, sizeof(section), "%.60s", line + strspn(line, "# "));
		else if (line[0] == '|' && line[1] == ' ')
			doc_take_row(line, section);
	}
	fclose(f);
	assert_true(doc_n_rows > 50);
}

/* "`NAME`" is the first cell of a row of SECTION: that row, or NULL. */
static inline const struct doc_row *doc_find(const char *section, const char *name)
{
	char quoted[256];

	snprintf(quoted, sizeof(quoted), "`%s`", name);
	for (size_t i = 0; i < doc_n_rows; i++)
		if (!strcmp(doc_rows[i].cells[0], quoted) &&
		    (!section || !strcmp(doc_rows[i].section, section)))
			return &doc_rows[i];
	return NULL;
}

#endif
