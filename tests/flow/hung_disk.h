/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_HUNG_DISK_H
#define CULVERT_TEST_HUNG_DISK_H

#include <sys/types.h>

/*
 * A file system (FUSE, served by a thread of this process) with one file, "log", which OWNER may
 * write, until it answers nothing any more, like a disk that has failed or a server that is gone.
 */

/* Mount it on DIR.  -errno: it cannot be had here. */
int hung_disk_mount(const char *dir, uid_t owner);
/* From now on whoever uses it waits, until it is unmounted or he is killed. */
void hung_disk_hang(void);
/* Who still waits gets an error.  Of one that is not mounted, too. */
void hung_disk_unmount(void);

#endif
