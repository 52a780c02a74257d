// A program that speaks rtnetlink, to be linked statically: each line that it prints is something that holds of a
// kernel's sockets. `program DEVICE` adds addresses to the device, `program DEVICE senders` does a part of it;
// `program calls N` makes N calls in which a
// supervisor takes part, and waits for its input to end; `program wait` listens until SIGTERM; `program beside` uses
// other sockets while a netlink socket of a child of its own waits for a router; `program open` opens a socket;
// `program each DEVICE` adds an address for each line that it reads, by one socket; `program without seccomp CMD…` and
// `program without pidfd_getfd CMD…` start a program for which that call fails, as on an older kernel or in a container.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <unistd.h>

#define CHECK(is, what) check(!!(is), what, __LINE__)
static void check(int is, const char *what, int line) {
  if (!is) {
    printf("FAILED at line %d: %s (errno %d, %s)\n", line, what, errno, strerror(errno));
    exit(1);
  }
}

static const struct sockaddr_nl KERNEL = {.nl_family = AF_NETLINK};

static int opened(int flags) {
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE);
  CHECK(fd >= 0, "socket");
  return fd;
}

struct request {
  struct nlmsghdr header;
  struct ifaddrmsg body;
  char attributes[64];
};

// `ip address add 10.77.0.NUMBER/32 dev DEVICE`, or without a device a dump of addresses.
static struct request request(int index, unsigned char number, unsigned sequence) {
  struct request r = {0};
  r.header.nlmsg_len = NLMSG_LENGTH(sizeof r.body);
  r.header.nlmsg_seq = sequence;
  r.header.nlmsg_type = index ? RTM_NEWADDR : RTM_GETADDR;
  r.header.nlmsg_flags = NLM_F_REQUEST | (index ? NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL : NLM_F_DUMP);
  r.body.ifa_family = AF_INET;
  if (index) {
    r.body.ifa_prefixlen = 32;
    r.body.ifa_index = index;
    struct rtattr *a = (void *)((char *)&r + r.header.nlmsg_len);
    a->rta_type = IFA_LOCAL;
    a->rta_len = RTA_LENGTH(4);
    unsigned char address[4] = {10, 77, 0, number};
    memcpy(RTA_DATA(a), address, 4);
    r.header.nlmsg_len += RTA_SPACE(4);
  }
  return r;
}

static void ask(int fd, struct request r) {
  CHECK(sendto(fd, &r, r.header.nlmsg_len, 0, (void *)&KERNEL, sizeof KERNEL) == r.header.nlmsg_len, "sendto");
}

// The errno of an acknowledgement.
static int acknowledged(int fd, unsigned sequence) {
  char b[8192];
  struct sockaddr_nl from = {0};
  socklen_t length = sizeof from;
  ssize_t n = recvfrom(fd, b, sizeof b, 0, (void *)&from, &length);
  struct nlmsghdr *h = (void *)b;
  CHECK(n >= NLMSG_LENGTH(4), "an acknowledgement");
  CHECK(length == sizeof from && from.nl_family == AF_NETLINK && from.nl_pid == 0, "it is of the kernel");
  CHECK(h->nlmsg_type == NLMSG_ERROR && h->nlmsg_seq == sequence, "it is of this request");
  return -((struct nlmsgerr *)NLMSG_DATA(h))->error;
}

// Reads a dump to its end by recvmsg; how many messages there were.
static int dumped(int fd) {
  for (int count = 0;;) {
    char b[32768];
    struct iovec parts[2] = {{b, 1000}, {b + 1000, sizeof b - 1000}};
    struct sockaddr_nl from;
    struct msghdr m = {&from, sizeof from, parts, 2, 0, 0, 0};
    ssize_t whole = recvmsg(fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 0}, MSG_PEEK | MSG_TRUNC);
    ssize_t n = recvmsg(fd, &m, 0);
    CHECK(n > 0 && n == whole, "MSG_PEEK | MSG_TRUNC says the length");
    CHECK(m.msg_namelen == sizeof from && from.nl_pid == 0 && !(m.msg_flags & MSG_TRUNC), "recvmsg");
    for (struct nlmsghdr *h = (void *)b; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n), count++)
      if (h->nlmsg_type == NLMSG_DONE) return count;
  }
}

static void names(void) {
  int fd = opened(0);
  struct sockaddr_nl a = {.nl_family = AF_NETLINK};
  CHECK(bind(fd, (void *)&a, sizeof a) == 0, "bind");
  socklen_t length = sizeof a;
  CHECK(getsockname(fd, (void *)&a, &length) == 0 && length == sizeof a, "getsockname");
  CHECK(a.nl_family == AF_NETLINK && a.nl_pid == (unsigned)getpid(), "the port id is the process id");
  int second = opened(0);
  CHECK(connect(second, (void *)&KERNEL, sizeof KERNEL) == 0, "connect");
  CHECK(getsockname(second, (void *)&a, &length) == 0 && a.nl_pid && a.nl_pid != (unsigned)getpid(), "another port id");
  CHECK(getpeername(second, (void *)&a, &length) == 0 && a.nl_family == AF_NETLINK && a.nl_pid == 0, "getpeername");
  a.nl_pid = 77777;
  CHECK(bind(second, (void *)&a, sizeof a) == -1 && errno == EINVAL, "a bound socket keeps its port id");
  CHECK(bind(second, (void *)&a, 3) == -1 && errno == EINVAL, "a short address");
  CHECK(bind(second, (void *)8, sizeof a) == -1 && errno == EFAULT, "a bad address");
  int options[][2] = {{SO_DOMAIN, AF_NETLINK}, {SO_PROTOCOL, NETLINK_ROUTE}, {SO_TYPE, SOCK_RAW}};
  for (int i = 0; i < 3; i++) {
    int value = -1;
    length = sizeof value;
    CHECK(getsockopt(fd, SOL_SOCKET, options[i][0], &value, &length) == 0 && value == options[i][1], "what it is");
  }
  int one = 1, value = 0;
  CHECK(setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &one, sizeof one) == 0, "setsockopt");
  length = sizeof value;
  CHECK(getsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &value, &length) == 0 && value == 1, "getsockopt");
  length = 3;
  CHECK(getsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &value, &length) == -1 && errno == EINVAL, "a short number");
  length = 0;
  CHECK(getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, 0, &length) == 0, "how many groups");
  CHECK(setsockopt(fd, SOL_NETLINK, 4711, &one, sizeof one) == -1 && errno == ENOPROTOOPT, "no such option");
  CHECK(sendto(fd, "", 0, 0, 0, 0) == -1 && errno == ENODATA, "nothing to send");
  CHECK(socket(AF_NETLINK, SOCK_STREAM, NETLINK_ROUTE) == -1 && errno == ESOCKTNOSUPPORT, "not for streams");
  close(fd);
  close(second);
  puts("names and options");
}

static void transfers(int index) {
  int fd = opened(0);
  ask(fd, request(index, 1, 1));
  CHECK(acknowledged(fd, 1) == 0, "an address is added");
  ask(fd, request(index, 1, 2));
  CHECK(acknowledged(fd, 2) == EEXIST, "and not twice");
  struct request r = request(0, 0, 3);
  ask(fd, r);
  int count = dumped(fd);
  CHECK(count >= 2, "a dump");
  CHECK(write(fd, &r, r.header.nlmsg_len) == r.header.nlmsg_len, "write");
  CHECK(dumped(fd) == count, "a dump that was asked for by write");
  CHECK(send(fd, &r, r.header.nlmsg_len, 0) == r.header.nlmsg_len, "send");
  char b[32768];
  for (int done = 0; !done;) {
    ssize_t n = read(fd, b, sizeof b);
    CHECK(n > 0, "read");
    for (struct nlmsghdr *h = (void *)b; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) done = h->nlmsg_type == NLMSG_DONE;
  }
  // All at once.
  struct request rs[3] = {request(index, 2, 11), request(index, 3, 12), request(index, 2, 13)};
  struct iovec parts[4];
  struct mmsghdr ms[4] = {0};
  for (int i = 0; i < 3; i++) {
    parts[i] = (struct iovec){&rs[i], rs[i].header.nlmsg_len};
    ms[i].msg_hdr = (struct msghdr){(void *)&KERNEL, sizeof KERNEL, &parts[i], 1, 0, 0, 0};
  }
  int two = opened(0);
  CHECK(sendmmsg(two, ms, 3, 0) == 3 && ms[0].msg_len == rs[0].header.nlmsg_len, "sendmmsg");
  char bs[4][512];
  struct sockaddr_nl from[4];
  memset(ms, 0, sizeof ms);
  for (int i = 0; i < 4; i++) {
    parts[i] = (struct iovec){bs[i], sizeof bs[i]};
    ms[i].msg_hdr = (struct msghdr){&from[i], sizeof from[i], &parts[i], 1, 0, 0, 0};
  }
  CHECK(recvmmsg(two, ms, 4, MSG_WAITFORONE, 0) == 3, "recvmmsg");
  int errors[3] = {0, 0, -EEXIST};
  for (int i = 0; i < 3; i++) {
    struct nlmsghdr *h = (void *)bs[i];
    CHECK(ms[i].msg_len >= NLMSG_LENGTH(4) && h->nlmsg_seq == 11u + i, "in order");
    CHECK(((struct nlmsgerr *)NLMSG_DATA(h))->error == errors[i], "each has its answer");
    CHECK(ms[i].msg_hdr.msg_namelen == sizeof from[i] && from[i].nl_family == AF_NETLINK, "each has its address");
  }
  struct timespec patience = {0, 30000000};
  CHECK(sendmmsg(two, &(struct mmsghdr){.msg_hdr = {.msg_iov = &(struct iovec){&r, r.header.nlmsg_len}, .msg_iovlen = 1}}, 1, 0) == 1, "sendmmsg of one");
  CHECK(recvmmsg(two, ms, 1, 0, &patience) == 1, "recvmmsg with a time");
  ask(two, r);
  CHECK(recvfrom(two, b, sizeof b, 0, (void *)8, &(socklen_t){12}) == -1 && errno == EFAULT, "a bad address");
  CHECK(sendmsg(two, (void *)8, 0) == -1 && errno == EFAULT, "a bad message");
  close(fd);
  close(two);
  puts("every way to send and receive");
}

static int number = 20; // of the next address

static void changes(int fd, int index) {
  struct request r = request(index, number++, 5);
  ask(fd, r);
  CHECK(acknowledged(fd, 5) == 0, "a change");
}

static int listening(int flags) {
  int fd = opened(flags);
  struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_IFADDR};
  CHECK(bind(fd, (void *)&a, sizeof a) == 0, "bind to a group");
  return fd;
}

static int notified(int fd) {
  char b[8192];
  struct sockaddr_nl from;
  struct iovec part = {b, sizeof b};
  struct msghdr m = {&from, sizeof from, &part, 1, 0, 0, 0};
  ssize_t n = recvmsg(fd, &m, 0);
  return n < 0 ? -1 : ((struct nlmsghdr *)b)->nlmsg_type;
}

static void readiness(int index) {
  int fd = opened(0), quiet = listening(SOCK_NONBLOCK), polled = listening(SOCK_NONBLOCK);
  CHECK(notified(quiet) == -1 && errno == EAGAIN, "nothing is there");
  struct pollfd waited = {polled, POLLIN, 0};
  CHECK(poll(&waited, 1, 0) == 0, "nothing to read");
  int epoll = epoll_create1(0);
  struct epoll_event event = {EPOLLIN, {.u64 = 4711}};
  CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, polled, &event) == 0, "epoll_ctl");
  changes(fd, index);
  event.data.u64 = 0;
  CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.data.u64 == 4711, "epoll");
  CHECK(poll(&waited, 1, 10000) == 1 && waited.revents == POLLIN, "poll");
  CHECK(notified(polled) == RTM_NEWADDR && notified(quiet) == RTM_NEWADDR, "notifications");
  CHECK(notified(polled) == -1 && errno == EAGAIN && epoll_wait(epoll, &event, 1, 0) == 0, "and no more");
  fcntl(quiet, F_SETFL, 0);
  struct timeval patience = {0, 200000};
  CHECK(setsockopt(quiet, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0, "SO_RCVTIMEO");
  CHECK(notified(quiet) == -1 && errno == EAGAIN, "it waits so long");
  // The answer is there when send has returned.
  struct request r = request(0, 0, 6);
  ask(fd, r);
  char b[32768];
  CHECK(recv(fd, b, sizeof b, MSG_DONTWAIT) > 0, "the answer is there at once");
  close(fd), close(quiet), close(polled), close(epoll);
  puts("readiness and patience");
}

static volatile int handled;
static void handle(int signal) {
  (void)signal;
  handled++;
}
static void *interrupt(void *thread) {
  usleep(200000);
  pthread_kill(*(pthread_t *)thread, SIGUSR1);
  return 0;
}
static void *change(void *index) {
  usleep(600000);
  int fd = opened(0);
  changes(fd, *(int *)index);
  close(fd);
  return 0;
}

static void waiting(int index) {
  int fd = listening(0);
  pthread_t self = pthread_self(), thread, other;
  struct sigaction action = {.sa_handler = handle};
  sigaction(SIGUSR1, &action, 0);
  CHECK(pthread_create(&thread, 0, interrupt, &self) == 0, "a thread");
  CHECK(notified(fd) == -1 && errno == EINTR && handled == 1, "a signal interrupts a receive");
  pthread_join(thread, 0);
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, 0);
  pthread_create(&thread, 0, interrupt, &self);
  pthread_create(&other, 0, change, &index);
  CHECK(notified(fd) == RTM_NEWADDR && handled == 2, "SA_RESTART: it goes on, and a notification comes");
  pthread_join(thread, 0);
  pthread_join(other, 0);
  pid_t child = fork();
  if (!child) {
    action.sa_handler = SIG_DFL;
    sigaction(SIGUSR1, &action, 0);
    notified(fd);
    _exit(0);
  }
  usleep(100000);
  kill(child, SIGUSR1);
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1, "a signal ends it");
  close(fd);
  puts("signals");
}

static void give(int to, int fd) {
  char c[CMSG_SPACE(4)] = {0};
  struct msghdr m = {0, 0, &(struct iovec){"x", 1}, 1, c, sizeof c, 0};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(4);
  memcpy(CMSG_DATA(h), &fd, 4);
  CHECK(sendmsg(to, &m, 0) == 1, "SCM_RIGHTS");
}
static int taken(int from) {
  char c[CMSG_SPACE(4)], x;
  struct msghdr m = {0, 0, &(struct iovec){&x, 1}, 1, c, sizeof c, 0};
  CHECK(recvmsg(from, &m, 0) == 1 && m.msg_controllen > 0, "SCM_RIGHTS");
  int fd;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), 4);
  return fd;
}

static void copies(int index) {
  int fd = opened(0), copy = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 300);
  CHECK(copy >= 0 && high >= 300, "copies");
  changes(fd, index);
  close(fd);
  int null = open("/dev/null", O_WRONLY);
  CHECK(null == fd, "the number is another's");
  struct sockaddr_nl a;
  socklen_t length = sizeof a;
  CHECK(getsockname(fd, (void *)&a, &length) == -1 && errno == ENOTSOCK, "which is no socket");
  CHECK(sendto(fd, "x", 1, 0, 0, 0) == -1 && errno == ENOTSOCK, "and cannot be sent to");
  changes(copy, index);
  CHECK(dup2(copy, fd) == fd, "dup2");
  changes(fd, index);
  close(copy), close(fd);
  pid_t child = fork();
  if (!child) {
    changes(high, index);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0, "a child has it, too");
  number++; // the child's
  int pair[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
  give(pair[0], high);
  close(high);
  int got = taken(pair[1]);
  changes(got, index);
  close(got);
  puts("copies, children, descriptors in messages");
}

// To which group a datagram went, and that the kernel has sent it, as libsystemd and NetworkManager want to know; a filter
// sees a datagram as it is.
static void senders(int index) {
  int fd = opened(0), one = 1, value = 0;
  CHECK(setsockopt(fd, SOL_NETLINK, NETLINK_PKTINFO, &one, sizeof one) == 0, "NETLINK_PKTINFO");
  socklen_t length = sizeof value;
  CHECK(getsockopt(fd, SOL_NETLINK, NETLINK_PKTINFO, &value, &length) == 0 && value == 1, "it is set");
  CHECK(setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof one) == 0, "SO_PASSCRED");
  struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_IFADDR};
  CHECK(bind(fd, (void *)&a, sizeof a) == 0, "bind");
  // Of what comes, new addresses alone.
  struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(struct nlmsghdr, nlmsg_type)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, htons(RTM_NEWADDR), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  CHECK(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){4, f}, sizeof(struct sock_fprog)) == 0, "a filter");
  for (unsigned char i = 90; i < 94; i++) ask(fd, request(index, i, i));
  CHECK(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &one, sizeof one) == 0, "no filter");
  // Whole, too long for the buffer, without room for who has sent it, and by read.
  for (int i = 0; i < 4; i++) {
    char b[4096];
    struct iovec part = {b, i == 1 ? 20 : sizeof b};
    union { struct cmsghdr h; char b[128]; } control;
    struct msghdr peeked = {0}, m = {0, 0, &part, 1, &control, i == 2 ? CMSG_SPACE(sizeof(int)) : sizeof control, 0};
    ssize_t whole = recvmsg(fd, &peeked, MSG_PEEK | MSG_TRUNC);
    CHECK(whole > 20 && peeked.msg_flags & MSG_TRUNC, "MSG_PEEK says the length");
    if (i == 3) {
      CHECK(read(fd, b, sizeof b) >= whole && ((struct nlmsghdr *)b)->nlmsg_type == RTM_NEWADDR, "read");
      CHECK(((struct nlmsghdr *)b)->nlmsg_len == whole, "nothing stands before the message");
      break;
    }
    ssize_t n = recvmsg(fd, &m, 0);
    CHECK(n == (i == 1 ? 20 : whole) && !(m.msg_flags & MSG_TRUNC) == (i != 1), "recvmsg");
    CHECK(((struct nlmsghdr *)b)->nlmsg_type == RTM_NEWADDR, "the filter lets it pass");
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    CHECK(c && c->cmsg_level == SOL_NETLINK && c->cmsg_type == NETLINK_PKTINFO, "a group");
    CHECK(c->cmsg_len == CMSG_LEN(4) && *(int *)CMSG_DATA(c) == RTNLGRP_IPV4_IFADDR, "that of addresses");
    CHECK(!(m.msg_flags & MSG_CTRUNC) == (i != 2), "what has no room is said to be missing");
    if (i == 2) continue;
    c = CMSG_NXTHDR(&m, c);
    CHECK(c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS, "credentials");
    struct ucred *u = (void *)CMSG_DATA(c);
    CHECK(u->pid == 0 && u->uid == 0 && u->gid == 0 && !CMSG_NXTHDR(&m, c), "those of the kernel");
  }
  // An answer went to no group.
  char b[4096];
  struct iovec part = {b, sizeof b};
  union { struct cmsghdr h; char b[128]; } control;
  struct msghdr m = {0, 0, &part, 1, &control, sizeof control, 0};
  ask(fd, request(index, 90, 99));
  CHECK(recvmsg(fd, &m, 0) > 20 && ((struct nlmsghdr *)b)->nlmsg_type == NLMSG_ERROR, "an answer");
  CHECK(CMSG_FIRSTHDR(&m) && *(int *)CMSG_DATA(CMSG_FIRSTHDR(&m)) == 0, "of no group");
  close(fd);
  puts("groups and senders");
}

// What the C library asks a kernel itself.
static void library(int index) {
  struct ifaddrs *all;
  int count = 0;
  CHECK(getifaddrs(&all) == 0, "getifaddrs");
  for (struct ifaddrs *a = all; a; a = a->ifa_next) {
    unsigned char *b = a->ifa_addr ? (void *)&((struct sockaddr_in *)a->ifa_addr)->sin_addr : 0;
    count += b && a->ifa_addr->sa_family == AF_INET && b[0] == 10 && b[1] == 77;
  }
  freeifaddrs(all);
  CHECK(count > 3, "getifaddrs lists what was added");
  struct if_nameindex *names = if_nameindex();
  for (count = 0; names && names[count].if_index; count++)
    if ((int)names[count].if_index == index) index = 0;
  CHECK(index == 0, "if_nameindex lists the device");
  if_freenameindex(names);
  puts("the C library's own questions");
}

static void others(void) {
  int udp[2] = {socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET, SOCK_DGRAM, 0)};
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
  socklen_t length = sizeof a;
  CHECK(bind(udp[0], (void *)&a, sizeof a) == 0 && getsockname(udp[0], (void *)&a, &length) == 0, "UDP");
  CHECK(sendto(udp[1], "abc", 3, 0, (void *)&a, sizeof a) == 3, "sendto");
  char b[8];
  CHECK(recvfrom(udp[0], b, 8, 0, (void *)&from, &length) == 3 && from.sin_family == AF_INET, "recvfrom");
  int pair[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0, "socketpair");
  CHECK(send(pair[0], "abcd", 4, 0) == 4, "send");
  struct sockaddr_un u;
  length = sizeof u;
  CHECK(recvfrom(pair[1], b, 8, 0, (void *)&u, &length) == 4 && length == 0, "a socket of its own");
  int type;
  length = sizeof type;
  CHECK(getsockopt(pair[0], SOL_SOCKET, SO_DOMAIN, &type, &length) == 0 && type == AF_UNIX, "SO_DOMAIN");
  CHECK(sendto(999, b, 1, 0, 0, 0) == -1 && errno == EBADF, "EBADF");
  puts("other sockets");
}

static void terminated(int signal) {
  (void)signal;
  _exit(write(1, "terminated\n", 11) == 11 ? 7 : 1);
}

int main(int argc, char **argv) {
  setvbuf(stdout, 0, _IOLBF, 0);
  if (argc > 2 && !strcmp(argv[1], "calls")) {
    int fd = opened(0);
    struct sockaddr_nl a;
    for (int i = 0, n = atoi(argv[2]); i < n; i++) {
      // In turn: a new socket, a question, its answer, a name, a call on another socket.
      struct request r = request(0, 0, i);
      socklen_t length = sizeof a;
      switch (i % 5) {
      case 0: close(fd), fd = opened(0); break;
      case 1: ask(fd, r); break;
      case 2: dumped(fd), i++; break;
      case 4: CHECK(getsockname(fd, (void *)&a, &length) == 0, "getsockname"); break;
      }
    }
    puts("called");
    // Until it has been looked at.
    char b;
    return read(0, &b, 1) < 0;
  }
  if (argc > 1 && !strcmp(argv[1], "open")) {
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    puts(fd < 0 ? strerror(errno) : "opened");
    return 0;
  }
  if (argc > 3 && !strcmp(argv[1], "without")) {
    int seccomp = !strcmp(argv[2], "seccomp");
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, seccomp ? SYS_seccomp : SYS_pidfd_getfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (seccomp ? EINVAL : EPERM)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){4, f}) == 0, "a filter");
    execvp(argv[3], argv + 3);
    return 127;
  }
  if (argc > 2 && !strcmp(argv[1], "each")) {
    int fd = opened(0), device = if_nametoindex(argv[2]);
    for (puts("opened"); getchar() != EOF;) {
      struct request r = request(device, number++, 5);
      if (sendto(fd, &r, r.header.nlmsg_len, 0, (void *)&KERNEL, sizeof KERNEL) < 0)
        printf("errno %d\n", errno);
      else
        puts(acknowledged(fd, 5) ? "refused" : "changed");
    }
    return 0;
  }
  if (argc > 1 && !strcmp(argv[1], "beside")) {
    int fd = opened(0);
    puts("opened");
    if (getchar() == EOF) return 1;
    pid_t child = fork();
    if (!child) {
      bind(fd, (void *)&KERNEL, sizeof KERNEL);
      _exit(0);
    }
    usleep(100000);
    others();
    kill(child, SIGKILL);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "who waits can be killed");
    puts("killed");
    return getsockname(fd, (void *)&(struct sockaddr_nl){0}, &(socklen_t){12});
  }
  if (argc > 1 && !strcmp(argv[1], "wait")) {
    signal(SIGTERM, terminated);
    int fd = listening(0);
    puts("waits");
    for (;;) {
      int kind = notified(fd);
      printf("%s %d\n", kind < 0 ? "errno" : "notified", kind < 0 ? errno : kind);
    }
  }
  int index = 0, fd = opened(0);
  if (argc > 1) {
    // if_nametoindex of a static program is the kernel's or the supervisor's.
    index = if_nametoindex(argv[1]);
    CHECK(index > 0, "the device");
  }
  close(fd);
  if (argc > 2 && !strcmp(argv[2], "senders")) {
    senders(index);
    return 0;
  }
  names();
  transfers(index);
  readiness(index);
  waiting(index);
  copies(index);
  senders(index);
  library(index);
  others();
  puts("all of it");
}
