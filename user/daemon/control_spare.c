// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/control_spare.h"

#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(
	SYSCALL(fcntl, SYSCALL_ARG(1, F_DUPFD_CLOEXEC)),
	SYSCALL(dup3),
	SYSCALL(close));

void control_spare_init(struct control_spare *spare, int copied)
{
	for (size_t i = 0; i < CONTROL_SPARES; i++)
		spare->fds[i] = -1;
	spare->copied = copied;
}

void control_spare_have(struct control_spare *spare)
{
	for (size_t i = 0; i < CONTROL_SPARES; i++)
		if (spare->fds[i] < 0)
			spare->fds[i] = fcntl(spare->copied, F_DUPFD_CLOEXEC, 0);
}

unsigned int control_spare_left(const struct control_spare *spare)
{
	unsigned int n = 0;

	for (size_t i = 0; i < CONTROL_SPARES; i++)
		n += spare->fds[i] >= 0;
	return n;
}

bool control_spare_spend(struct control_spare *spare)
{
	for (size_t i = 0; i < CONTROL_SPARES; i++) {
		if (spare->fds[i] < 0)
			continue;
		close(spare->fds[i]);
		spare->fds[i] = -1;
		return true;
	}
	return false;
}

void control_spare_close(struct control_spare *spare, int fd)
{
	for (size_t i = 0; spare && i < CONTROL_SPARES; i++) {
		if (spare->fds[i] >= 0)
			continue;
		/* closes FD and takes its number in one step: no other thread can come between */
		if (dup3(spare->copied, fd, O_CLOEXEC) != fd)
			break;
		spare->fds[i] = fd;
		return;
	}
	close(fd);
}

void control_spare_free(struct control_spare *spare)
{
	while (control_spare_spend(spare))
		;
}
