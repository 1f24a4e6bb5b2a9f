// SPDX-License-Identifier: BSD-2-Clause
#include "config/services.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE " \t\r\n"

struct service {
	char *name; /* owned */
	in_port_t port;
};

static struct service *kept;
static size_t n_kept;
static bool keeping;

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what is stored: it is in `kept`, for as long as the process lives */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

static int add(const char *name, in_port_t port)
{
	struct service *more = realloc(kept, (n_kept + 1) * sizeof(*more));
	char *own;

	if (!more)
		return -ENOMEM;
	kept = more;
	own = strdup(name);
	if (!own)
		return -ENOMEM;
	kept[n_kept++] = (struct service){ .name = own, .port = port };
	return 0;
}

/* "80/tcp"; 0: it is nothing of the kind. */
static in_port_t parse_port(const char *word)
{
	char *end;
	unsigned long n = word[0] >= '1' && word[0] <= '9' ? strtoul(word, &end, 10) : 0;

	return n && n <= UINT16_MAX && !strcmp(end, "/tcp") ? htons((uint16_t)n) : 0;
}

/* "http 80/tcp www # World Wide Web".  What is no such line is left out, as by the C library. */
static int add_line(char *line)
{
	char *rest, *name, *word;
	in_port_t port;
	int r;

	line[strcspn(line, "#")] = '\0';
	name = strtok_r(line, SPACE, &rest);
	word = name ? strtok_r(NULL, SPACE, &rest) : NULL;
	port = word ? parse_port(word) : 0;
	if (!port)
		return 0;
	r = add(name, port);
	while (!r && (word = strtok_r(NULL, SPACE, &rest)))
		r = add(word, port);
	return r;
}

int services_keep(const char *path)
{
	FILE *f = fopen(path, "re");
	char *line = NULL;
	size_t size = 0;
	int r = 0;

	services_forget();
	keeping = true;
	if (!f)
		return errno == ENOENT ? 0 : -errno;
	while (!r && getline(&line, &size, f) >= 0)
		r = add_line(line);
	if (!r && !feof(f))
		r = -EIO;
	free(line);
	fclose(f);
	if (r)
		services_forget();
	return r;
}

void services_forget(void)
{
	for (size_t i = 0; i < n_kept; i++)
		free(kept[i].name);
	free(kept);
	kept = NULL;
	n_kept = 0;
	keeping = false;
}

bool services_find(const char *name, in_port_t *ret, bool *ret_kept)
{
	*ret_kept = keeping;
	for (size_t i = 0; i < n_kept; i++) {
		if (!strcmp(kept[i].name, name)) {
			*ret = kept[i].port;
			return true;
		}
	}
	return false;
}
