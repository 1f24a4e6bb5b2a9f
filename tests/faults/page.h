/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/*
 * A file that the driver makes and both map: the interposer inside the daemon notes every place in
 * the daemon that calls one of its functions (a "site"), and does there what an "arm" says.
 *
 * A site is a function and the address, relative to the program's start, to which the call returns.
 * An arm is written by the driver while ON is 0; setting ON publishes it.
 */

#define FAULTS_ENV "CULVERT_FAULTS_PAGE"
/* Bytes of each ring buffer of the daemon; works without a page. */
#define FAULTS_RING_ENV "CULVERT_FAULTS_RING"
#define FAULTS_MAGIC 0x43464c54U
#define FAULTS_FUNCTIONS 64
#define FAULTS_NAME_LEN 24
#define FAULTS_SITES 2048 /* a hash table; a few hundred are used */
#define FAULTS_ARMS 2

enum faults_action {
	FAULTS_ERROR, /* the call is not made and fails with ERROR (close: it is made) */
	FAULTS_SHORT, /* the call is made, for a single byte or event */
	FAULTS_LATE,  /* the call is made 2 ms later: what it deals with may have changed */
};

struct faults_site {
	_Atomic uint64_t key; /* 0: free; function << 48 | address */
	_Atomic uint64_t calls;
};

struct fault {
	uint32_t site;   /* index into sites */
	uint32_t action; /* enum faults_action */
	int32_t error;
	uint32_t skip;  /* calls to let pass first */
	uint32_t every; /* then each N-th one fails */
	uint32_t limit; /* most failures; 0: no limit */
};

struct faults_arm {
	_Atomic uint32_t on;
	struct fault fault;
	_Atomic uint32_t seen;
	_Atomic uint32_t hits;
};

struct faults_page {
	_Atomic uint32_t magic; /* set by the interposer when all below is valid */
	_Atomic uint32_t full;  /* sites that found no room */
	char functions[FAULTS_FUNCTIONS][FAULTS_NAME_LEN];
	struct faults_arm arms[FAULTS_ARMS];
	struct faults_site sites[FAULTS_SITES];
};

/* The index of the site KEY, which is added if need be; FAULTS_SITES if there is no room. */
static inline uint32_t faults_find(struct faults_page *page, uint64_t key)
{
	uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15ULL) >> 40) % FAULTS_SITES;

	for (uint32_t i = 0; i < FAULTS_SITES; i++, at = (at + 1) % FAULTS_SITES) {
		uint64_t old = atomic_load_explicit(&page->sites[at].key, memory_order_relaxed);

		if (!old && atomic_compare_exchange_strong(&page->sites[at].key, &old, key))
			return at;
		if (old == key)
			return at;
	}
	atomic_fetch_add(&page->full, 1);
	return FAULTS_SITES;
}

static inline unsigned int faults_function(uint64_t key)
{
	return (unsigned int)(key >> 48);
}

static inline uint64_t faults_address(uint64_t key)
{
	return key & 0xffffffffffffULL;
}
