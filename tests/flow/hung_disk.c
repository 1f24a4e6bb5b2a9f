// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a request that the thread has read must be answered, or nothing can end who
 * made it; one that still waits to be read ends with a signal that kills, as on NFS.  So to hang is
 * to read no more.
 */
#include "hung_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODE_FILE 2
#define VALID_S 100000 /* attributes need not be asked for again */
#define REQUEST_MAX (FUSE_MIN_READ_BUFFER + 65536)

static struct {
	char dir[128];
	uid_t owner;
	int device, stop; /* stop: readable when the thread shall end */
	uint64_t size;
	bool mounted;
	pthread_t thread;
} disk = { .device = -1, .stop = -1 };

static void answer(const struct fuse_in_header *to, int error, const void *body, size_t len)
{
	char packet[sizeof(struct fuse_out_header) + 256];
	struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + len), .error = error, .unique = to->unique,
	};

	memcpy(packet, &out, sizeof(out));
	if (len)
		memcpy(packet + sizeof(out), body, len);
	if (write(disk.device, packet, out.len) < 0 && errno != ENOENT) /* interrupted */
		perror("hung_disk");
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){
		.ino = node, .nlink = 1, .uid = disk.owner, .gid = disk.owner, .blksize = 4096,
		.mode = node == NODE_FILE ? S_IFREG | 0644 : S_IFDIR | 0755,
		.size = node == NODE_FILE ? disk.size : 0,
	};
}

static void answer_init(const struct fuse_in_header *h)
{
	const struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
		.max_write = 65536, .max_background = 10, .congestion_threshold = 8,
	};

	answer(h, 0, &out, sizeof(out));
}

static void answer_lookup(const struct fuse_in_header *h, const char *name)
{
	const struct fuse_entry_out out = {
		.nodeid = NODE_FILE, .entry_valid = VALID_S, .attr_valid = VALID_S,
		.attr = attributes(NODE_FILE),
	};

	if (strcmp(name, "log") != 0)
		answer(h, -ENOENT, NULL, 0);
	else
		answer(h, 0, &out, sizeof(out));
}

static void answer_getattr(const struct fuse_in_header *h)
{
	const struct fuse_attr_out out = {
		.attr_valid = VALID_S, .attr = attributes(h->nodeid),
	};

	answer(h, 0, &out, sizeof(out));
}

/* Without FLUSH, for which the kernel would wait even when it ends a process. */
static void answer_open(const struct fuse_in_header *h)
{
	const struct fuse_open_out out = { .open_flags = FOPEN_DIRECT_IO | FOPEN_NOFLUSH };

	answer(h, 0, &out, sizeof(out));
}

static void answer_write(const struct fuse_in_header *h, const struct fuse_write_in *in)
{
	const struct fuse_write_out out = { .size = in->size };

	disk.size = in->offset + in->size;
	answer(h, 0, &out, sizeof(out));
}

static void take(const char *request)
{
	const struct fuse_in_header *h = (const void *)request;
	const void *body = request + sizeof(*h);

	switch (h->opcode) {
	case FUSE_INIT:
		answer_init(h);
		break;
	case FUSE_LOOKUP:
		answer_lookup(h, body);
		break;
	case FUSE_GETATTR:
		answer_getattr(h);
		break;
	case FUSE_OPEN:
		answer_open(h);
		break;
	case FUSE_WRITE:
		answer_write(h, body);
		break;
	case FUSE_RELEASE:
		answer(h, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		answer(h, -ENOSYS, NULL, 0);
	}
}

static void *serve(void *arg)
{
	static _Alignas(8) char request[REQUEST_MAX];
	struct pollfd p[] = { { .fd = disk.stop, .events = POLLIN },
			      { .fd = disk.device, .events = POLLIN } };

	(void)arg;
	while (poll(p, 2, -1) > 0 && !p[0].revents) {
		ssize_t n = read(disk.device, request, sizeof(request));

		if (n > 0)
			take(request);
		else if (errno != EINTR && errno != EAGAIN && errno != ENOENT)
			break; /* ENODEV: unmounted */
	}
	return NULL;
}

int hung_disk_mount(const char *dir, uid_t owner)
{
	char options[128];
	int r;

	snprintf(disk.dir, sizeof(disk.dir), "%s", dir);
	disk.owner = owner;
	disk.size = 0;
	disk.device = open("/dev/fuse", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (disk.device < 0)
		return -errno;
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions",
		 disk.device);
	disk.stop = eventfd(0, EFD_CLOEXEC);
	if (disk.stop < 0 || mount("culvert-test", dir, "fuse", MS_NOSUID | MS_NODEV, options)) {
		r = -errno;
		close(disk.device);
		return r;
	}
	disk.mounted = true;
	r = -pthread_create(&disk.thread, NULL, serve, NULL);
	if (r)
		disk.thread = 0;
	return r;
}

void hung_disk_hang(void)
{
	uint64_t one = 1;

	if (!disk.thread)
		return;
	if (write(disk.stop, &one, sizeof(one)) != sizeof(one))
		perror("hung_disk");
	pthread_join(disk.thread, NULL);
	disk.thread = 0;
}

void hung_disk_unmount(void)
{
	if (!disk.mounted)
		return;
	hung_disk_hang();
	close(disk.device);
	close(disk.stop);
	umount2(disk.dir, MNT_DETACH);
	disk.mounted = false;
}
