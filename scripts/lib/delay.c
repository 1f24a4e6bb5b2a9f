// SPDX-License-Identifier: BSD-2-Clause
/*
 * lab-delay: a path between two Ethernet devices, for scripts/lab. Each frame that comes in at the
 * one leaves at the other a while later, both ways, or never.
 *
 *	lab-delay [--delay MS] [--loss PERCENT] [--seed N] [--limit FRAMES] [--counts FILE] A B
 *	lab-delay --plain DEVICE...
 *
 *	--delay   the time of a frame on its way; decimals count to the nanosecond
 *	--loss    the probability that a frame is lost, for each of the two ways by itself
 *	--seed    the losses are the same in each run with the same frames
 *	--limit   the most frames on their way, on each way; further frames are dropped
 *	--counts  a file that always has the counts of the last half second: "lost" as --loss says;
 *	          "missed" are those that lab-delay was too late to read, "refused" those that B did
 *	          not take
 *	--plain   turns off all that DEVICE does in place of the stack, so that frames are whole and of
 *	          the size they have on a wire: no segments put together, no checksums left out
 *
 * Returns from the foreground when both devices are being listened to. SIGTERM ends it. It ends
 * with an error when a device goes.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <math.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define VLAN_HEADER 4
#define FRAME_MOST (ETHER_HDR_LEN + 1500 + 2 * VLAN_HEADER) /* without its checksum */
#define BATCH 64
#define LIMIT_DEFAULT 16384
#define LIMIT_MOST (1 << 20)
#define SOCKET_BYTES (16 << 20)
#define COUNTS_NS 500000000ULL
#define NEVER UINT64_MAX

/* On its way, or a hole where one was lost: LENGTH is 0. */
struct frame {
	uint64_t due;
	uint32_t length;
	uint8_t bytes[FRAME_MOST];
};

struct counts {
	uint64_t frames, lost, missed, over_limit, too_long, refused;
};

/* One way. The frames from HEAD to TAIL, modulo LIMIT, are on it, in the order they are due in. */
struct way {
	const char *name; /* of the device that frames come in at */
	int index, in, out;
	struct frame *frames;
	uint64_t head, tail;
	uint64_t random;
	struct counts counts;
};

struct settings {
	uint64_t delay; /* in ns */
	uint64_t loss;  /* of 2^64; UINT64_MAX is each */
	uint64_t seed, limit;
	const char *counts_path;
	const char *devices[2];
};

static volatile sig_atomic_t is_ending;
static struct settings settings = { .seed = 1, .limit = LIMIT_DEFAULT };
static struct way ways[2];
static int counts_file = -1;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

static struct frame *frame_at(const struct way *w, uint64_t number)
{
	return &w->frames[number % settings.limit];
}

/* Receiving */

/* The kernel takes the tag out of a frame before a socket sees the frame: puts it in again. */
static void put_tag_back(struct frame *f, struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		struct tpacket_auxdata aux;
		uint16_t tag[2];

		if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA)
			continue;
		memcpy(&aux, CMSG_DATA(c), sizeof(aux));
		if (!(aux.tp_status & TP_STATUS_VLAN_VALID) || f->length < 2 * ETHER_ADDR_LEN ||
		    f->length + VLAN_HEADER > FRAME_MOST)
			continue;
		tag[0] = htons(aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid :
									   ETHERTYPE_VLAN);
		tag[1] = htons(aux.tp_vlan_tci);
		memmove(f->bytes + 2 * ETHER_ADDR_LEN + VLAN_HEADER, f->bytes + 2 * ETHER_ADDR_LEN,
			f->length - 2 * ETHER_ADDR_LEN);
		memcpy(f->bytes + 2 * ETHER_ADDR_LEN, tag, sizeof(tag));
		f->length += VLAN_HEADER;
	}
}

static void accept_frame(struct way *w, struct frame *f, struct mmsghdr *received, uint64_t due)
{
	f->due = due;
	f->length = received->msg_len;
	w->counts.frames++;
	if (received->msg_hdr.msg_flags & MSG_TRUNC) {
		w->counts.too_long++;
		f->length = 0;
	} else if (draw(&w->random) < settings.loss) {
		w->counts.lost++;
		f->length = 0;
	} else {
		put_tag_back(f, &received->msg_hdr);
	}
}

/* A device that is down for a while loses frames, and no more; one that has gone ends the path. */
static void forgive(const struct way *w, const char *what)
{
	char name[IF_NAMESIZE];

	if (errno == EAGAIN || errno == EINTR)
		return;
	if ((errno != ENETDOWN && errno != ENOBUFS) || !if_indextoname((unsigned)w->index, name))
		err(1, "%s: cannot %s", w->name, what);
}

/* Frames beyond the room are received into SPARE. Returns how many frames have come. */
static int receive_batch(struct way *w, uint64_t now)
{
	static struct frame spare[BATCH];
	static char control[BATCH][CMSG_SPACE(sizeof(struct tpacket_auxdata))];
	struct mmsghdr messages[BATCH];
	struct iovec parts[BATCH];
	uint64_t room = settings.limit - (w->tail - w->head);
	int n;

	for (unsigned int i = 0; i < BATCH; i++) {
		struct frame *f = i < room ? frame_at(w, w->tail + i) : &spare[i];

		parts[i] = (struct iovec){ f->bytes, FRAME_MOST };
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i],
						       .msg_iovlen = 1,
						       .msg_control = control[i],
						       .msg_controllen = sizeof(control[i]) };
	}
	n = recvmmsg(w->in, messages, BATCH, MSG_DONTWAIT, NULL);
	if (n < 0)
		forgive(w, "receive");
	for (int i = 0; i < n; i++) {
		if ((uint64_t)i < room)
			accept_frame(w, frame_at(w, w->tail++), &messages[i], now + settings.delay);
		else
			w->counts.over_limit++;
	}
	return n;
}

/* Sending */

/* Collects due frames from HEAD on. Returns their number; *RET_NEXT is the first one left. */
static unsigned int collect_due(const struct way *w, uint64_t now, struct mmsghdr *messages,
				struct iovec *parts, uint64_t *ret_next)
{
	unsigned int n = 0;
	uint64_t at;

	for (at = w->head; at != w->tail && n < BATCH; at++) {
		struct frame *f = frame_at(w, at);

		if (f->due > now)
			break;
		if (!f->length)
			continue;
		parts[n] = (struct iovec){ f->bytes, f->length };
		messages[n].msg_hdr = (struct msghdr){ .msg_iov = &parts[n], .msg_iovlen = 1 };
		n++;
	}
	*ret_next = at;
	return n;
}

/* A frame that the device does not take is dropped, as a wire would: nothing waits for it. */
static void send_all(struct way *w, struct mmsghdr *messages, unsigned int n)
{
	for (unsigned int sent = 0; sent < n;) {
		int r = sendmmsg(w->out, messages + sent, n - sent, MSG_DONTWAIT);

		if (r > 0) {
			sent += (unsigned int)r;
			continue;
		}
		forgive(&ways[w == ways], "send");
		if (errno != EINTR) {
			w->counts.refused++;
			sent++;
		}
	}
}

static void send_due(struct way *w, uint64_t now)
{
	struct mmsghdr messages[BATCH];
	struct iovec parts[BATCH];
	uint64_t next;

	while (w->head != w->tail) {
		unsigned int n = collect_due(w, now, messages, parts, &next);

		if (next == w->head)
			return;
		send_all(w, messages, n);
		w->head = next;
	}
	w->head = w->tail = 0; /* so that few frames stay in the cache */
}

/* Counts */

/* The frames that the kernel has dropped because nobody took them in time; asking sets its count to 0. */
static uint64_t missed_since_last(const struct way *w)
{
	struct tpacket_stats found = { 0 };
	socklen_t length = sizeof(found);

	if (getsockopt(w->in, SOL_PACKET, PACKET_STATISTICS, &found, &length))
		err(1, "%s: statistics", w->name);
	return found.tp_drops;
}

static void write_counts(void)
{
	char text[512];
	int length = 0;

	if (counts_file < 0)
		return;
	for (int i = 0; i < 2; i++) {
		struct counts *c = &ways[i].counts;

		c->missed += missed_since_last(&ways[i]);
		length += snprintf(text + length, sizeof(text) - (size_t)length,
				   "from %s: %" PRIu64 " frames, %" PRIu64 " lost, %" PRIu64
				   " missed, %" PRIu64 " over the limit, %" PRIu64
				   " too long, %" PRIu64 " refused\n",
				   ways[i].name, c->frames, c->lost, c->missed, c->over_limit,
				   c->too_long, c->refused);
	}
	if (pwrite(counts_file, text, (size_t)length, 0) != length)
		err(1, "%s", settings.counts_path);
}

/* The loop */

static uint64_t next_due(void)
{
	uint64_t next = NEVER;

	for (int i = 0; i < 2; i++)
		if (ways[i].head != ways[i].tail && frame_at(&ways[i], ways[i].head)->due < next)
			next = frame_at(&ways[i], ways[i].head)->due;
	return next;
}

static bool wait_for(struct pollfd *polled, uint64_t until, const sigset_t *signals)
{
	struct timespec timeout = { 0, 0 };
	uint64_t now = now_ns(), left = until > now ? until - now : 0;

	timeout.tv_sec = (time_t)(left / 1000000000ULL);
	timeout.tv_nsec = (long)(left % 1000000000ULL);
	if (ppoll(polled, 2, until == NEVER ? NULL : &timeout, signals) < 0 && errno != EINTR)
		err(1, "ppoll");
	return !is_ending;
}

/* SIGNALS: those that are blocked while it waits. */
static void carry(const sigset_t *signals)
{
	struct pollfd polled[2] = { { ways[0].in, POLLIN, 0 }, { ways[1].in, POLLIN, 0 } };
	uint64_t write_at = NEVER, until = NEVER;

	while (wait_for(polled, until, signals)) {
		uint64_t now = now_ns();
		bool has_come = false;

		for (int i = 0; i < 2; i++) {
			if (polled[i].revents && receive_batch(&ways[i], now) > 0)
				has_come = true;
			send_due(&ways[i], now);
		}
		if (now >= write_at) {
			write_counts();
			write_at = NEVER;
		}
		if (has_come && write_at == NEVER)
			write_at = now + COUNTS_NS;
		until = next_due();
		until = until < write_at ? until : write_at;
	}
	write_counts();
}

/* Beginning */

static void set_option(int fd, int level, int name, const void *value, socklen_t length)
{
	if (setsockopt(fd, level, name, value, length))
		err(1, "option %d of a packet socket", name);
}

/* The socket sees nothing until it is bound. */
static int open_socket(int index, const char *device)
{
	struct sockaddr_ll address = { .sll_family = AF_PACKET,
				       .sll_protocol = htons(ETH_P_ALL),
				       .sll_ifindex = index };
	struct packet_mreq membership = { .mr_ifindex = index, .mr_type = PACKET_MR_PROMISC };
	int one = 1, bytes = SOCKET_BYTES;
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		err(1, "packet socket");
	set_option(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one));
	set_option(fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof(one));
	set_option(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one));
	set_option(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof(membership));
	set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
	set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
		err(1, "%s", device);
	return fd;
}

static void open_way(struct way *w, const char *device, uint64_t seed)
{
	size_t bytes = settings.limit * sizeof(*w->frames);

	w->name = device;
	w->index = (int)if_nametoindex(device);
	if (!w->index)
		err(1, "%s", device);
	w->frames = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (w->frames == MAP_FAILED)
		err(1, "%zu bytes for frames", bytes);
	w->random = seed;
	draw(&w->random);
	w->in = open_socket(w->index, device);
}

static void open_ways(void)
{
	for (unsigned int i = 0; i < 2; i++)
		open_way(&ways[i], settings.devices[i], 2 * settings.seed + i);
	for (int i = 0; i < 2; i++)
		ways[i].out = ways[!i].in;
	if (settings.counts_path) {
		counts_file = open(settings.counts_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
				   0644);
		if (counts_file < 0)
			err(1, "%s", settings.counts_path);
		write_counts();
	}
}

static void note_end(int number)
{
	(void)number;
	is_ending = 1;
}

/* The signal comes only while it waits: none is missed between the look and the wait. */
static void take_signals(sigset_t *ret_before)
{
	struct sigaction action = { .sa_handler = note_end };
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, ret_before);
	sigdelset(ret_before, SIGTERM);
	sigdelset(ret_before, SIGINT);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
}

/*
 * A wire does not wait for a CPU, and its timers are exact. Beside stalls of 10 ms downloads by
 * cubic took ten times as long.
 */
static void be_prompt(void)
{
	struct sched_param lowest = { .sched_priority = sched_get_priority_min(SCHED_RR) };

	if (prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) ||
	    (sched_setscheduler(0, SCHED_RR, &lowest) && setpriority(PRIO_PROCESS, 0, -20)))
		warn("may be late");
}

/* Devices without offloads */

static int ask_device(int fd, const char *device, void *request)
{
	struct ifreq ifr = { .ifr_data = request };

	if (strlen(device) >= sizeof(ifr.ifr_name))
		errx(1, "%s: no name of a device", device);
	strcpy(ifr.ifr_name, device);
	return ioctl(fd, SIOCETHTOOL, &ifr);
}

/* Blocks of 32 features each; the kernel has fewer. */
#define BLOCKS 8

static void make_plain(int fd, const char *device)
{
	union {
		struct ethtool_gfeatures head;
		char room[sizeof(struct ethtool_gfeatures) +
			  BLOCKS * sizeof(struct ethtool_get_features_block)];
	} got = { .head = { .cmd = ETHTOOL_GFEATURES, .size = BLOCKS } };
	union {
		struct ethtool_sfeatures head;
		char room[sizeof(struct ethtool_sfeatures) +
			  BLOCKS * sizeof(struct ethtool_set_features_block)];
	} wanted = { .head = { .cmd = ETHTOOL_SFEATURES } };

	if (ask_device(fd, device, &got))
		err(1, "%s: features", device);
	wanted.head.size = got.head.size;
	for (unsigned int i = 0; i < got.head.size && i < BLOCKS; i++)
		wanted.head.features[i].valid = got.head.features[i].available &
						~got.head.features[i].never_changed;
	if (ask_device(fd, device, &wanted) < 0)
		err(1, "%s: features cannot be turned off", device);
}

static void make_all_plain(char **devices)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		err(1, "socket");
	for (; *devices; devices++)
		make_plain(fd, *devices);
	close(fd);
}

/* The command line */

static double decimal(const char *text, const char *option, double most)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= 0 && value <= most))
		errx(2, "--%s \"%s\" is not a number from 0 to %g", option, text, most);
	return value;
}

static uint64_t whole(const char *text, const char *option, uint64_t least, uint64_t most)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (end == text || *end || errno || *text == '-' || value < least || value > most)
		errx(2, "--%s \"%s\" is not a whole number from %" PRIu64 " to %" PRIu64, option,
		     text, least, most);
	return value;
}

static uint64_t chance(double percent)
{
	return percent >= 100 ? UINT64_MAX : (uint64_t)ldexp(percent / 100, 64);
}

static bool parse(int argc, char **argv)
{
	static const struct option known[] = {
		{ "delay", required_argument, NULL, 'd' },
		{ "loss", required_argument, NULL, 'l' },
		{ "seed", required_argument, NULL, 's' },
		{ "limit", required_argument, NULL, 'n' },
		{ "counts", required_argument, NULL, 'c' },
		{ "plain", no_argument, NULL, 'p' },
		{ 0 },
	};
	bool is_plain = false;

	for (int c; (c = getopt_long(argc, argv, "+", known, NULL)) != -1;) {
		if (c == 'd')
			settings.delay = (uint64_t)llround(decimal(optarg, "delay", 60000) * 1e6);
		else if (c == 'l')
			settings.loss = chance(decimal(optarg, "loss", 100));
		else if (c == 's')
			settings.seed = whole(optarg, "seed", 0, UINT64_MAX);
		else if (c == 'n')
			settings.limit = whole(optarg, "limit", 1, LIMIT_MOST);
		else if (c == 'c')
			settings.counts_path = optarg;
		else if (c == 'p')
			is_plain = true;
		else
			exit(2);
	}
	if (is_plain ? optind == argc : argc - optind != 2)
		errx(2, "wrong number of devices; its source says how it is used");
	return is_plain;
}

int main(int argc, char **argv)
{
	sigset_t before;

	if (parse(argc, argv)) {
		make_all_plain(argv + optind);
		return 0;
	}
	settings.devices[0] = argv[optind];
	settings.devices[1] = argv[optind + 1];
	open_ways();
	take_signals(&before);
	be_prompt();
	/* The parent's end says that it is ready. It does not go to the root: FILE may be relative. */
	if (daemon(1, 1))
		err(1, "daemon");
	carry(&before);
	return 0;
}
