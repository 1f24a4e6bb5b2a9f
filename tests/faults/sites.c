/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sites.h"

struct sites {
	struct faults_page *page;
	char path[120];
};

int sites_open(const char *dir, struct sites **ret)
{
	static unsigned int count;
	struct sites *s = calloc(1, sizeof(*s));
	int fd, r = 0;

	if (!s)
		return -ENOMEM;
	snprintf(s->path, sizeof(s->path), "%s/page-%u", dir, ++count);
	fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*s->page)))
		r = -errno;
	if (!r) {
		s->page = mmap(NULL, sizeof(*s->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		r = s->page == MAP_FAILED ? -errno : 0;
	}
	if (fd >= 0)
		close(fd);
	if (r)
		free(s);
	else
		*ret = s;
	return r;
}

void sites_close(struct sites *s)
{
	if (!s)
		return;
	munmap(s->page, sizeof(*s->page));
	unlink(s->path);
	free(s);
}

const char *sites_path(const struct sites *s)
{
	return s->path;
}

int sites_check(const struct sites *s)
{
	if (atomic_load(&s->page->magic) != FAULTS_MAGIC)
		return -ENOENT;
	return atomic_load(&s->page->full) ? -ENOSPC : 0;
}

size_t sites_list(const struct sites *s, uint32_t *indices, size_t most)
{
	size_t n = 0;

	for (uint32_t i = 0; i < FAULTS_SITES && n < most; i++)
		if (atomic_load(&s->page->sites[i].key))
			indices[n++] = i;
	return n;
}

const char *sites_function(const struct sites *s, uint32_t site)
{
	return s->page->functions[faults_function(atomic_load(&s->page->sites[site].key))];
}

uint64_t sites_key(const struct sites *s, uint32_t site)
{
	return atomic_load(&s->page->sites[site].key);
}

uint32_t sites_find(struct sites *s, uint64_t key)
{
	return faults_find(s->page, key);
}

uint64_t sites_calls(const struct sites *s, uint32_t site)
{
	return atomic_load(&s->page->sites[site].calls);
}

void sites_arm(struct sites *s, unsigned int arm, const struct fault *f)
{
	struct faults_arm *a = &s->page->arms[arm];

	atomic_store(&a->on, 0);
	a->site = f->site;
	a->action = f->action;
	a->error = f->error;
	a->skip = f->skip;
	a->every = f->every;
	a->limit = f->limit;
	atomic_store(&a->seen, 0);
	atomic_store(&a->hits, 0);
	atomic_store(&a->on, 1);
}

void sites_disarm(struct sites *s, unsigned int arm)
{
	atomic_store(&s->page->arms[arm].on, 0);
}

uint32_t sites_hits(const struct sites *s, unsigned int arm)
{
	return atomic_load(&s->page->arms[arm].hits);
}

static const char *after_last_slash(char *text)
{
	char *slash = strrchr(text, '/');

	return slash ? slash + 1 : text;
}

void sites_describe(const struct sites *s, uint32_t site, const char *program, char *buf,
		    size_t len)
{
	char command[700], function[120] = "?", line[300] = "?";
	FILE *f;

	/* the call itself lies before the address to which it returns */
	snprintf(command, sizeof(command), "addr2line -f -e '%s' 0x%llx 2>/dev/null", program,
		 (unsigned long long)faults_address(sites_key(s, site)) - 1);
	f = popen(command, "re");
	if (f && fgets(function, sizeof(function), f))
		function[strcspn(function, ".\n")] = '\0'; /* "f.constprop.0" is f */
	if (f && fgets(line, sizeof(line), f))
		line[strcspn(line, " \n")] = '\0';
	if (f)
		pclose(f);
	snprintf(buf, len, "%s %s (%s)", sites_function(s, site), after_last_slash(line), function);
}
