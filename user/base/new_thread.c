// SPDX-License-Identifier: BSD-2-Clause
#include "base/new_thread.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

/* As the C library gets one.  Where it has just failed, one that fits now makes no difference. */
static bool has_room_for_stack(void)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK;
	pthread_attr_t attr;
	size_t size = 0;
	void *room;

	if (pthread_attr_init(&attr))
		return false;
	pthread_attr_getstacksize(&attr, &size);
	pthread_attr_destroy(&attr);
	/* cppcheck-suppress invalidFunctionArg ; MAP_ANONYMOUS asks for -1 */
	room = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (room == MAP_FAILED)
		return false;
	munmap(room, size);
	return true;
}

int new_thread(pthread_t *ret, void *(*fn)(void *arg), void *arg)
{
	int r = pthread_create(ret, NULL, fn, arg);

	return r == EAGAIN && !has_room_for_stack() ? -ENOMEM : -r;
}
