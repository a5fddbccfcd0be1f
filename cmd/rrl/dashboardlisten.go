package main

import (
	"context"
	"fmt"
	"net"
)

// listenWith listens at the address of --listen. If other machines reach it, looking needs a
// token, unless --open is given.
func (b *board) listenWith(ctx context.Context, lookToken string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", b.listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", b.listen, err)
	}
	if ip := ipOf(listener.Addr()); lookToken == "" && !b.open && !ip.IsLoopback() {
		_ = listener.Close()
		return nil, fmt.Errorf("--listen %s lets other machines look at the limiters: give looking a token of at least %d characters "+
			"by $RRL_DASHBOARD_READ_TOKEN or --token, or let everyone look by --open", b.listen, minToken)
	}
	return listener, nil
}

func ipOf(addr net.Addr) net.IP {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.IP
	}
	return nil
}

// hostsAt returns the addresses by which browsers reach a listener: its own, and if
// that stands for all, those of this machine.
func hostsAt(listener net.Addr) []string {
	ip := ipOf(listener)
	if !ip.IsUnspecified() {
		return []string{ip.String()}
	}
	hosts := []string{net.IPv4zero.String(), net.IPv6zero.String()}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return hosts // the address at which a connection arrives will do
	}
	for _, addr := range addrs {
		if network, ok := addr.(*net.IPNet); ok {
			hosts = append(hosts, network.IP.String())
		}
	}
	return hosts
}

// urlOf returns an address of the page that browsers can open.
func urlOf(listener net.Addr, names []string) string {
	host, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return "http://" + listener.String() + "/"
	}
	switch {
	case ipOf(listener).IsLoopback(): // names are those of a proxy
	case len(names) > 0 && names[0] != "*":
		host = names[0]
	case ipOf(listener).IsUnspecified():
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + "/"
}
