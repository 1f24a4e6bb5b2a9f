// SPDX-License-Identifier: BSD-2-Clause
/*
 * lwip-end: ends of TCP that are lwIP's (liblwip-dev), for foreign_stacks.py. It has a tap device
 * with an address of its own, behind which lwIP is.
 *
 *	lwip-end TAP ADDRESS RELAY PORT INSIDE SERVER
 *
 * A connection to port INSIDE of 127.0.0.1 becomes one of lwIP to PORT of RELAY; one that comes to port
 * SERVER of ADDRESS becomes one to port SERVER of 127.0.0.1. Bytes, FIN and reset pass both ways.
 * Where one end does not read, the window of the other closes. From SIGUSR1 on a hundredth of all
 * frames is lost, both ways.
 *
 * Debian's library is built for threads. It checks for the lock of its core only where its thread
 * has begun, in tcpip_init(). This program calls lwip_init() instead: one loop has frames, sockets
 * and timers, and no locks. A pbuf of its PBUF_POOL (2.1.3) ends after 592 bytes where 1,536 are used:
 * frames come in PBUF_RAM.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lwip/etharp.h>
#include <lwip/init.h>
#include <lwip/netif.h>
#include <lwip/tcp.h>
#include <lwip/timeouts.h>

#define FRAME_MOST 1514
#define SESSIONS_MOST 64
#define LOSS 100 /* one frame of so many */

struct session {
	LIST_ENTRY(session) link;
	struct tcp_pcb *pcb;  /* NULL: lwIP ends it without this program, or has ended it */
	struct pbuf *arrived; /* what the socket has not taken yet */
	int fd;
	bool is_connected;
	bool has_fin_of_lwip;
	bool has_fin_of_socket; /* lwIP has been told */
	bool is_told;           /* the socket, of lwIP's FIN */
	bool is_reset;
};

static LIST_HEAD(session_list, session) sessions = LIST_HEAD_INITIALIZER(sessions);
static struct {
	int tap;
	ip_addr_t address, relay;
	u16_t relay_port, inside, server;
	struct netif netif;
} lwip;
static volatile sig_atomic_t is_lossy;

/* Frames */

static bool is_lost(void)
{
	return is_lossy && random() % LOSS == 0;
}

static err_t send_frame(struct netif *netif, struct pbuf *p)
{
	char frame[FRAME_MOST];

	(void)netif;
	if (p->tot_len > sizeof(frame))
		errx(1, "lwIP sends a frame of %u bytes", p->tot_len);
	pbuf_copy_partial(p, frame, p->tot_len, 0);
	if (!is_lost() && write(lwip.tap, frame, p->tot_len) < 0 && errno != EIO)
		err(1, "tap");
	return ERR_OK;
}

static void receive_frames(void)
{
	char frame[65536];
	ssize_t n;

	while ((n = read(lwip.tap, frame, sizeof(frame))) > 0) {
		struct pbuf *p;

		if (n > FRAME_MOST)
			errx(1, "a frame of %zd bytes has come", n);
		if (is_lost())
			continue;
		p = pbuf_alloc(PBUF_RAW, (u16_t)n, PBUF_RAM);
		if (!p || pbuf_take(p, frame, (u16_t)n) || lwip.netif.input(p, &lwip.netif))
			errx(1, "lwIP takes no frames");
	}
	if (n < 0 && errno != EAGAIN && errno != EINTR && errno != EIO)
		err(1, "tap");
}

static err_t set_up_netif(struct netif *netif)
{
	netif->output = etharp_output;
	netif->linkoutput = send_frame;
	netif->mtu = FRAME_MOST - SIZEOF_ETH_HDR;
	netif->hwaddr_len = ETH_HWADDR_LEN;
	memcpy(netif->hwaddr, "\2lwip", ETH_HWADDR_LEN);
	netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_LINK_UP;
	return ERR_OK;
}

/* Events of lwIP: noted here, handled by the loop */

static err_t on_arrival(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t error)
{
	struct session *s = arg;

	(void)pcb, (void)error;
	if (!p)
		s->has_fin_of_lwip = true;
	else if (s->arrived)
		pbuf_cat(s->arrived, p);
	else
		s->arrived = p;
	return ERR_OK;
}

static err_t on_connection(void *arg, struct tcp_pcb *pcb, err_t error)
{
	struct session *s = arg;

	(void)pcb, (void)error;
	s->is_connected = true;
	return ERR_OK;
}

static void on_error(void *arg, err_t error)
{
	struct session *s = arg;

	(void)error;
	s->pcb = NULL;
	s->is_reset = true;
}

/* Sessions */

static struct session *begin_session(int fd, struct tcp_pcb *pcb)
{
	struct session *s = calloc(1, sizeof(*s));
	int bytes = 65536;

	if (!s || !pcb || fd < 0)
		err(1, "no connection");
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	s->fd = fd;
	s->pcb = pcb;
	tcp_arg(pcb, s);
	tcp_recv(pcb, on_arrival);
	tcp_err(pcb, on_error);
	tcp_nagle_disable(pcb);
	LIST_INSERT_HEAD(&sessions, s, link);
	return s;
}

static struct sockaddr_in loopback(u16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static err_t accept_of_lwip(void *arg, struct tcp_pcb *pcb, err_t error)
{
	struct sockaddr_in to = loopback(lwip.server);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)arg, (void)error;
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)))
		err(1, "port %u", lwip.server);
	begin_session(fd, pcb)->is_connected = true;
	return ERR_OK;
}

static void accept_inside(int listener)
{
	struct session *s = begin_session(accept(listener, NULL, NULL), tcp_new());

	if (tcp_connect(s->pcb, &lwip.relay, lwip.relay_port, on_connection))
		errx(1, "lwIP does not connect");
}

static void let_go(struct session *s)
{
	tcp_arg(s->pcb, NULL);
	tcp_recv(s->pcb, NULL);
	tcp_err(s->pcb, NULL);
	s->pcb = NULL;
}

static void reset_lwip(struct session *s)
{
	struct tcp_pcb *pcb = s->pcb;

	s->is_reset = true;
	if (pcb) {
		let_go(s);
		tcp_abort(pcb);
	}
}

/* A pcb in TIME_WAIT goes without a word: it is let go as soon as it has both FINs. */
static bool has_ended(struct session *s)
{
	const struct linger abort = { 1, 0 };
	bool has_fins = s->has_fin_of_lwip && s->has_fin_of_socket;

	if (has_fins && s->pcb)
		let_go(s);
	if (!s->is_reset && !(has_fins && s->is_told))
		return false;
	if (s->is_reset)
		setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
	close(s->fd);
	if (s->arrived)
		pbuf_free(s->arrived);
	LIST_REMOVE(s, link);
	free(s);
	return true;
}

static short wanted(const struct session *s)
{
	bool has_room = s->is_connected && s->pcb && !s->has_fin_of_socket && tcp_sndbuf(s->pcb) &&
			tcp_sndqueuelen(s->pcb) < TCP_SND_QUEUELEN / 2;
	bool has_news = s->arrived || (s->has_fin_of_lwip && !s->is_told);

	return (short)((has_room ? POLLIN : 0) | (has_news ? POLLOUT : 0));
}

static void to_lwip(struct session *s)
{
	char data[16384];
	size_t room = tcp_sndbuf(s->pcb);
	ssize_t n = recv(s->fd, data, room < sizeof(data) ? room : sizeof(data), MSG_DONTWAIT);

	if (n < 0) {
		reset_lwip(s);
		return;
	}
	if (n > 0 ? tcp_write(s->pcb, data, (u16_t)n, TCP_WRITE_FLAG_COPY) :
		    tcp_shutdown(s->pcb, 0, 1))
		errx(1, "lwIP takes no data");
	s->has_fin_of_socket = n == 0;
	tcp_output(s->pcb);
}

static void to_socket(struct session *s)
{
	while (s->arrived) {
		ssize_t n = send(s->fd, s->arrived->payload, s->arrived->len,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0) {
			if (errno != EAGAIN)
				reset_lwip(s);
			return;
		}
		s->arrived = pbuf_free_header(s->arrived, (u16_t)n);
		if (s->pcb)
			tcp_recved(s->pcb, (u16_t)n);
	}
	if (s->has_fin_of_lwip)
		s->is_told = !shutdown(s->fd, SHUT_WR);
}

static void look_at(struct session *s, short events)
{
	if (events & POLLERR)
		reset_lwip(s);
	if (!s->is_reset && (events & POLLIN))
		to_lwip(s);
	if (!s->is_reset && (events & POLLOUT))
		to_socket(s);
}

static void run(int listener)
{
	struct pollfd polled[SESSIONS_MOST + 2] = { { lwip.tap, POLLIN, 0 },
						    { listener, POLLIN, 0 } };

	for (;;) {
		struct session *s, *next, *of[SESSIONS_MOST];
		u32_t ms = sys_timeouts_sleeptime();
		nfds_t n = 0;

		for (s = LIST_FIRST(&sessions); s; s = next) {
			next = LIST_NEXT(s, link);
			if (has_ended(s))
				continue;
			if (n == SESSIONS_MOST)
				errx(1, "too many sessions");
			polled[n + 2] = (struct pollfd){ s->fd, wanted(s), 0 };
			of[n++] = s;
		}
		if (poll(polled, n + 2, ms < 1000 ? (int)ms : 1000) < 0)
			continue;
		for (nfds_t i = 0; i < n; i++)
			look_at(of[i], polled[i + 2].revents);
		if (polled[1].revents)
			accept_inside(listener);
		receive_frames();
		sys_check_timeouts();
	}
}

/* Beginning */

static void open_tap(const char *name)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	lwip.tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (lwip.tap < 0 || ioctl(lwip.tap, TUNSETIFF, &request))
		err(1, "%s", name);
}

static int listen_inside(void)
{
	struct sockaddr_in at = loopback(lwip.inside);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, SESSIONS_MOST))
		err(1, "port %u", lwip.inside);
	return fd;
}

static void listen_with_lwip(void)
{
	struct tcp_pcb *pcb = tcp_new();

	if (!pcb || tcp_bind(pcb, &lwip.address, lwip.server) || !(pcb = tcp_listen(pcb)))
		errx(1, "lwIP does not listen");
	tcp_accept(pcb, accept_of_lwip);
}

static u16_t port_of(const char *text)
{
	return (u16_t)strtoul(text, NULL, 10);
}

static void note_loss(int number)
{
	(void)number;
	is_lossy = 1;
}

int main(int argc, char **argv)
{
	ip4_addr_t mask;

	if (argc != 7)
		errx(2, "usage: lwip-end TAP ADDRESS RELAY PORT INSIDE SERVER");
	lwip.relay_port = port_of(argv[4]);
	lwip.inside = port_of(argv[5]);
	lwip.server = port_of(argv[6]);
	if (!ipaddr_aton(argv[2], &lwip.address) || !ipaddr_aton(argv[3], &lwip.relay))
		errx(2, "no address");
	signal(SIGUSR1, note_loss);
	lwip_init();
	open_tap(argv[1]);
	IP4_ADDR(&mask, 255, 255, 255, 0);
	if (!netif_add(&lwip.netif, ip_2_ip4(&lwip.address), &mask, ip_2_ip4(&lwip.relay), NULL,
		       set_up_netif, netif_input))
		errx(1, "lwIP takes no interface");
	netif_set_default(&lwip.netif);
	netif_set_up(&lwip.netif);
	listen_with_lwip();
	run(listen_inside());
}
