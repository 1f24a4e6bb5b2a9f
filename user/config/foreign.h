/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "config/config.h"

/*
 * What readers of other programs' files share: the statements that they read, and the lines of a
 * culvert.conf that they write.
 */

struct statement {
	char **words; /* the last is followed by NULL */
	size_t n;
	unsigned int line, depth; /* DEPTH: how many blocks are around it */
	bool told;                /* it has been said what is not converted of it */
};

struct foreign_line {
	const char *text;
	unsigned int from; /* the line of the foreign file */
	bool off;          /* written as a comment */
};

struct foreign {
	const char *file;  /* its name, for comments */
	struct config own; /* owner of the texts, see config_keep() */
	char **words;      /* of all statements */
	size_t n_words;
	struct statement *statements;
	size_t n;
	struct foreign_line *lines;
	size_t n_lines;
	const char *once[64]; /* keywords of foreign_once() */
	size_t n_once;
	void *names;          /* of forwards, see tsearch(3) */
	unsigned int n_twins; /* names that were taken */
	bool lost;            /* something has no equal */
};

/* Begin statements with words of at most LEN bytes together. */
void foreign_open(struct foreign *f, const char *file, size_t len);
void foreign_close(struct foreign *f);

/* Add a word, which lives as long as F, to the statement that foreign_end() will end. */
void foreign_word(struct foreign *f, char *word);
/* End a statement; nothing happens if it has no word. */
void foreign_end(struct foreign *f, unsigned int line, unsigned int depth);

#define foreign_keep(f, ...) config_keep(&(f)->own, __VA_ARGS__)

/* S has KEYWORD, and culvert has no equal of it: REASON, or what to do.  Said once for S. */
void foreign_lost(struct foreign *f, const struct statement *s, const char *keyword,
		  const char *reason);
/* The same of something that does no harm; said once for all statements with KEYWORD. */
void foreign_once(struct foreign *f, const struct statement *s, const char *keyword,
		  const char *reason);

/* The settings of a section. */
struct keys {
	struct {
		const char *key, *value;
		unsigned int from;
	} * all;
	size_t n;
};

/* The value of KEY; NULL: none. */
const char *keys_find(const struct keys *k, const char *key);
/* Set KEY, in the place of an earlier value. */
void keys_set(struct keys *k, const struct statement *s, const char *key, const char *value);
/* Add a further line of KEY. */
void keys_add(struct keys *k, const struct statement *s, const char *key, const char *value);

/* A text that grows, from zero. */
struct text {
	char *all;
	size_t len;
};

/* Add MORE, behind SEPARATOR if it is not the first. */
void text_join(struct text *t, const char *separator, const char *more);
/* The text, which lives as long as F; NULL: nothing was added.  T is empty then. */
const char *text_keep(struct foreign *f, struct text *t);

/* Milliseconds as culvert writes seconds. */
const char *foreign_seconds(struct foreign *f, unsigned long long ms);
/* ADDRESS of IPv4 without its port, or another address as it is. */
const char *foreign_host(struct foreign *f, const char *address);
/* TEXT with escapes as in C. */
const char *foreign_escape(struct foreign *f, const char *text);
/* A name for a forward: WISH, or one that is not taken yet. */
const char *foreign_name(struct foreign *f, const char *wish);

/* Write the section HEAD of S, with K; OFF: as a comment. */
void foreign_section(struct foreign *f, const struct statement *s, const char *head,
		     const struct keys *k, bool off);

/*
 * Let culvert read all lines.  Those with mistakes become comments: a line, or the whole section
 * without which the line would change who may connect, or whereto.  The number of forwards that are
 * left, or -EINVAL.
 */
int foreign_try(struct foreign *f);

void foreign_write(const struct foreign *f, FILE *to);
