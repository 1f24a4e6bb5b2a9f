/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_FAULTS_LEAKS_H
#define CULVERT_TEST_FAULTS_LEAKS_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Entries of the daemon's BPF maps, counted from outside: rx, tx and slots must be empty when no
 * session lives.  The status cannot know of an entry that the daemon has forgotten.
 */

/* Returns how many entries there are, or -errno.  0 if the process has no such map. */
int64_t leaks_map_entries(pid_t pid);

#endif
