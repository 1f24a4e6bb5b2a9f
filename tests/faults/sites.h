/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_FAULTS_SITES_H
#define CULVERT_TEST_FAULTS_SITES_H

#include <stddef.h>
#include <stdint.h>

#include "page.h"

/* The driver's view of the page: the places in the daemon where a call can be made to fail. */

struct sites;

/* What an arm does; see struct faults_arm. */
struct fault {
	uint32_t site;
	enum faults_action action;
	int error;
	uint32_t skip, every, limit;
};

/* Make a page in DIR and map it.  Returns 0 or -errno. */
int sites_open(const char *dir, struct sites **ret);
void sites_close(struct sites *s);

/* What FAULTS_ENV must say for the daemon. */
const char *sites_path(const struct sites *s);

/* 0 if the interposer works in the daemon, and has had room for every site. */
int sites_check(const struct sites *s);

/* List the indices of sites that are in use; returns how many. */
size_t sites_list(const struct sites *s, uint32_t *indices, size_t most);

const char *sites_function(const struct sites *s, uint32_t site);
/* What tells the site from others, also in the next daemon. */
uint64_t sites_key(const struct sites *s, uint32_t site);
/* Its index, also before the daemon has been there. */
uint32_t sites_find(struct sites *s, uint64_t key);
uint64_t sites_calls(const struct sites *s, uint32_t site);

void sites_arm(struct sites *s, unsigned int arm, const struct fault *f);
void sites_disarm(struct sites *s, unsigned int arm);
/* How often ARM has struck since it was set. */
uint32_t sites_hits(const struct sites *s, unsigned int arm);

/* "recv user/datapath/carrier_copy.c:58 fill": by addr2line from PROGRAM. */
void sites_describe(const struct sites *s, uint32_t site, const char *program, char *buf,
		    size_t len);

#endif
