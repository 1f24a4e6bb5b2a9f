/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "config/config.h"

/* Readers of other programs' files share these: statements, and the lines that are written. */

#define NO_EQUAL "no equal in culvert"
#define LOG "culvert logs sessions as JSON: see session-log"
#define NO_DECRYPTION "culvert does not decrypt: the servers get TLS"
#define NO_ENCRYPTION "culvert does not encrypt: clients must speak TLS"

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
	unsigned int unit; /* of times without a unit, in ms */
	const char *queue; /* how many wait where all servers have their max-sessions */
	char **words;      /* of all statements */
	struct statement *statements;
	struct foreign_line *lines;
	size_t n_words, n, n_lines;
	unsigned int n_twins; /* names that were taken */
	bool lost;            /* something has no equal */
};

/* A section of culvert.conf, as the statements that are applied to it make it. */
struct draft {
	struct foreign *f;
	unsigned int roles;  /* which rows of a table count */
	struct statement *s; /* that is applied */
	char **args;         /* its words behind the keyword */
	const char *text;    /* of the keyword's row */
	struct {
		const char *key, *value; /* keys that begin with "." are not written */
		unsigned int from;
	} * keys;
	size_t n_keys;
	char *upstream; /* from malloc(3) */
};

/* WORDS: keywords with "|" between them.  "*" at the end: anything may follow. */
struct keyword {
	const char *words;
	unsigned int roles;
	void (*take)(struct draft *d); /* NULL: it changes nothing */
	const char *text;
};

/* Begin statements with words of at most LEN bytes together. */
void foreign_open(struct foreign *f, const char *file, size_t len);
void foreign_close(struct foreign *f);
/*
 * Read the statements of TEXT, which is changed: a line is one, or (BLOCKS) it ends with ";" or a block.
 * NULL, or what is wrong.
 */
const char *foreign_read(struct foreign *f, char *text, bool blocks);

/* The outermost statement that begins with a word of KINDS (has_word()) and whose word AT is NAME. */
struct statement *foreign_find(struct foreign *f, const char *kinds, size_t at, const char *name);
/* The end of the statements in the block B, and in blocks in it. */
struct statement *foreign_end(const struct foreign *f, struct statement *b);

#define foreign_keep(f, ...) config_keep(&(f)->own, __VA_ARGS__)

/* Add MORE to TEXT, from malloc(3) or NULL, behind SEPARATOR if it is not the first. */
char *text_join(char *text, const char *separator, const char *more);
/* Let F own TEXT; NULL: there is none. */
const char *text_keep(struct foreign *f, char *text);
/* Is WORD, with END behind it, in LIST, where blanks are around each word? */
bool has_word(struct foreign *f, const char *list, const char *word, const char *end);
/* Where the first statement begins, behind blanks and comments. */
const char *foreign_begin(const char *text);
/* "1m30s" as culvert writes seconds. */
const char *foreign_seconds(struct foreign *f, const char *text);
/* A network without its host bits, which other programs ignore; any other TEXT as it is. */
const char *foreign_network(struct foreign *f, const char *text);
/* A name for a forward: WISH, or one that is not taken yet. */
const char *foreign_name(struct foreign *f, const char *wish);

/* KEYWORD (NULL: the statement) has no equal: REASON, or what to do.  Said once for a statement. */
void lose(struct draft *d, const char *keyword, const char *reason);
/* The same of what does no harm, once for all statements. */
void note(struct draft *d, const char *keyword, const char *text);

/* The value of KEY; NULL: none. */
const char *draft_find(const struct draft *d, const char *key);
/* Set KEY, in the place of an earlier value, or add a line if KEY may have several. */
void draft_set(struct draft *d, const char *key, const char *value);
/* Set what several statements have decided: upstream; and of a forward. */
void draft_end(struct draft *d, bool forward);
/* Write the section HEAD; free what D has. */
void draft_write(struct draft *d, const char *head);
/* Write a section [sni NAME not-tls] that leads where the forward does. */
void draft_write_not_tls(const struct draft *forward, const char *name);
void draft_close(struct draft *d);

/* Do what the row of S in TABLE says; the last row has no words, and is for all others. */
void draft_apply(struct draft *d, const struct keyword *table, struct statement *s);
/* For rows: set the key TEXT to the argument, a network, seconds, an address without its port. */
void take_value(struct draft *d);
void take_network(struct draft *d);
void take_seconds(struct draft *d);
void take_host(struct draft *d);
/* Listen at ADDRESS, where clients send a PROXY header, if HEADER, because of KEYWORD. */
void take_listener(struct draft *d, const char *address, bool header, const char *keyword);
/* Set a key, TEXT being "KEY VALUE". */
void take_key(struct draft *d);
/* Say TEXT of the statement: lose(), or note(). */
void take_lost(struct draft *d);
void take_note(struct draft *d);

/*
 * Let culvert read all lines.  Those with mistakes become comments: a line, or the whole section
 * without which the line would change who may connect, or whereto.  The number of forwards that are
 * left, or -EINVAL.
 */
int foreign_try(struct foreign *f);
void foreign_write(const struct foreign *f, FILE *to);

/*
 * haproxy.c, nginx.c: is TEXT a file of that program?  Make lines in F of TEXT, which is changed;
 * NULL, or what prevents that.
 */
bool haproxy_is(const char *text);
const char *haproxy_convert(struct foreign *f, char *text);
bool nginx_is(const char *text);
const char *nginx_convert(struct foreign *f, char *text);
