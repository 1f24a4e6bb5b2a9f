/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PID_FILE_H
#define CULVERT_PID_FILE_H

#include <stddef.h>

/*
 * The file that holds the process id of the daemon, for scripts that send it signals.  It is
 * written before root is given up, and filled with blanks at the end, because removing it is
 * root's: whoever reads it then signals nobody.
 */

/* Write it: a descriptor, or -errno; ERR says what is wrong.  Another file of that name is kept. */
int pid_file_open(const char *path, char *err, size_t errlen);
/* Fill it with blanks.  Negative descriptors are fine. */
void pid_file_close(int fd);

#endif
