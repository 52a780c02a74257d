package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

func check(what string, err error) {
	if err != nil {
		fmt.Println("FAIL", what, err)
		os.Exit(1)
	}
}

func main() {
	links, err := netlink.LinkList()
	check("LinkList", err)
	for _, l := range links {
		fmt.Println("link", l.Attrs().Index, l.Attrs().Name)
	}
	updates := make(chan netlink.AddrUpdate)
	done := make(chan struct{})
	check("subscribe", netlink.AddrSubscribe(updates, done))
	p0, err := netlink.LinkByName("p0")
	check("LinkByName", err)
	addr, _ := netlink.ParseAddr("10.77.0.1/24")
	check("AddrAdd", netlink.AddrAdd(p0, addr))
	select {
	case u := <-updates:
		fmt.Println("update", u.LinkAddress.String(), u.NewAddr)
	case <-time.After(5 * time.Second):
		fmt.Println("FAIL no update")
		os.Exit(1)
	}
	fams, err := netlink.GenlFamilyList()
	check("GenlFamilyList", err)
	fmt.Println("families", len(fams) > 0)
	err = netlink.AddrAdd(p0, addr)
	fmt.Println("twice", err)
	runtime.LockOSThread()
	n, err := netns.Get()
	check("netns", err)
	h, err := netlink.NewHandleAt(n, syscall.NETLINK_ROUTE)
	check("handle", err)
	addrs, err := h.AddrList(p0, netlink.FAMILY_V4)
	check("AddrList", err)
	fmt.Println("addresses", len(addrs))
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	syscall.Kill(os.Getpid(), syscall.SIGTERM)
	<-c
	close(done)
	fmt.Println("ok")
}
