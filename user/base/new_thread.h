/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_NEW_THREAD_H
#define CULVERT_NEW_THREAD_H

#include <pthread.h>

/*
 * pthread_create(3), which says EAGAIN whatever is missing.  0; -ENOMEM: there is no room for the
 * thread's stack; or another -errno.
 */
int new_thread(pthread_t *ret, void *(*fn)(void *arg), void *arg);

#endif
