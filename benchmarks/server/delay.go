package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// ErrNoDelay says that this system has no delaying proxy.
var ErrNoDelay = errors.New("the delaying proxy needs Linux")

// delayArgument is the first argument by which a program serves as the delaying
// proxy, in a process of its own: LISTEN, SERVER and the delay follow.
const delayArgument = "delay-proxy"

// A Delay is a proxy before a server that holds back all bytes, in both
// directions, for a time. It keeps bytes in flight as a long wire does: any
// number of them at once.
type Delay struct {
	Addr    string
	process *redistest.Process
}

// StartDelay starts one in a process of its own, which is this program given
// delayArgument.
func StartDelay(ctx context.Context, server string, each time.Duration) (*Delay, error) {
	if !delays {
		return nil, ErrNoDelay
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addr, err := redistest.FreeAddr()
	if err != nil {
		return nil, err
	}
	p, err := redistest.StartProcess("", os.Stderr, self, delayArgument, addr, server, each.String())
	if err != nil {
		return nil, err
	}
	err = p.AwaitReady(ctx, func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("the delaying proxy does not come up: %w", err)
	}
	return &Delay{addr, p}, nil
}

// Close ends the proxy.
func (d *Delay) Close() { d.process.Kill() }

// Serve serves as the proxy if the program was started as one: then it does not return.
func Serve() {
	if len(os.Args) < 2 || os.Args[1] != delayArgument {
		return
	}
	err := fmt.Errorf("%s LISTEN SERVER DELAY", delayArgument)
	if len(os.Args) == 5 {
		var each time.Duration
		if each, err = time.ParseDuration(os.Args[4]); err == nil {
			err = runDelay(os.Args[2], os.Args[3], each)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
