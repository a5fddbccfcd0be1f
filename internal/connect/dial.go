package connect

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// dialer returns a dialer, with TLS if there is a config.
//
// A cluster's node that does not know its address gives an empty host: it is then the node
// asked first. Each server must have a certificate for its own address, unless the config names
// another; go-redis' dialers differ in that.
func dialer(first string, config *tls.Config, timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(first)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if none, port, err := net.SplitHostPort(addr); err == nil && none == "" && network != "unix" {
			addr = net.JoinHostPort(host, port)
		}
		d := &net.Dialer{Timeout: timeout}
		if config == nil {
			return d.DialContext(ctx, network, addr)
		}
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, network, addr)
	}
}
