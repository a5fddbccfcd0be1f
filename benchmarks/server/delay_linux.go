package server

import (
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const delays = true

const chunkSize = 64 << 10

// delayLine is the proxy: one thread that waits for bytes and for the moments
// at which others are due. Go's own timers round up to a millisecond if a
// program sleeps, which is more than the delay.
type delayLine struct {
	each     time.Duration
	server   unix.Sockaddr
	epoll    int
	timer    int
	listener int
	peers    map[int]int // of each end of a connection the other
	queue    []chunk     // in the order in which they are due
	free     [][]byte
}

// chunk is bytes on their way; none says that the sender has closed.
type chunk struct {
	due  time.Time
	to   int
	data []byte
}

func runDelay(listen, server string, each time.Duration) error {
	d := &delayLine{each: each, peers: map[int]int{}}
	addr, err := netip.ParseAddrPort(server)
	if err != nil {
		return err
	}
	d.server = &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	at, err := net.ResolveTCPAddr("tcp4", listen)
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp4", at)
	if err != nil {
		return err
	}
	file, err := l.File()
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(file) // which closes when it is collected
	if err := l.Close(); err != nil {
		return err
	}
	d.listener = int(file.Fd())
	if d.epoll, err = unix.EpollCreate1(0); err != nil {
		return err
	}
	if d.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK); err != nil {
		return err
	}
	for _, fd := range []int{d.listener, d.timer} {
		if err := d.watch(fd); err != nil {
			return err
		}
	}
	return d.run()
}

func (d *delayLine) run() error {
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(d.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			switch fd := int(e.Fd); fd {
			case d.timer:
				var count [8]byte
				_, _ = unix.Read(fd, count[:])
			case d.listener:
				if err := d.accept(); err != nil {
					return err
				}
			default:
				d.read(fd)
			}
		}
		d.deliver()
		if err := d.setTimer(); err != nil {
			return err
		}
	}
}

func (d *delayLine) watch(fd int) error {
	return unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (d *delayLine) accept() error {
	down, _, err := unix.Accept4(d.listener, unix.SOCK_NONBLOCK)
	if err == unix.EAGAIN || err == unix.ECONNABORTED {
		return nil
	}
	if err != nil {
		return err
	}
	up, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(up, d.server); err != nil {
		return err
	}
	if err := unix.SetNonblock(up, true); err != nil {
		return err
	}
	d.peers[down], d.peers[up] = up, down
	for _, fd := range []int{down, up} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return err
		}
		if err := d.watch(fd); err != nil {
			return err
		}
	}
	return nil
}

func (d *delayLine) read(fd int) {
	to, ok := d.peers[fd]
	if !ok {
		return
	}
	var data []byte
	if n := len(d.free); n > 0 {
		data, d.free = d.free[n-1], d.free[:n-1]
	} else {
		data = make([]byte, chunkSize)
	}
	n, err := unix.Read(fd, data)
	if err == unix.EAGAIN || err == unix.EINTR {
		d.free = append(d.free, data)
		return
	}
	if err != nil || n == 0 {
		_ = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		n = 0
	}
	d.queue = append(d.queue, chunk{time.Now().Add(d.each), to, data[:n]})
}

func (d *delayLine) deliver() {
	now := time.Now()
	sent := 0
	for _, c := range d.queue {
		if c.due.After(now) {
			break
		}
		sent++
		d.write(c)
		d.free = append(d.free, c.data[:chunkSize])
	}
	d.queue = append(d.queue[:0], d.queue[sent:]...)
}

// write delivers a chunk. A receiver that is slow holds up all: the clients that are measured
// wait for each answer, so none ever has that much outstanding.
func (d *delayLine) write(c chunk) {
	from, ok := d.peers[c.to]
	if !ok {
		return
	}
	data := c.data
	for len(data) > 0 {
		n, err := unix.Write(c.to, data)
		if err == unix.EAGAIN || err == unix.EINTR {
			continue
		}
		if err != nil {
			break
		}
		data = data[n:]
	}
	if len(c.data) == 0 || len(data) > 0 {
		delete(d.peers, c.to)
		delete(d.peers, from)
		_ = unix.Close(c.to)
		_ = unix.Close(from)
	}
}

func (d *delayLine) setTimer() error {
	if len(d.queue) == 0 {
		return nil
	}
	wait := max(time.Until(d.queue[0].due), time.Nanosecond)
	return unix.TimerfdSettime(d.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(wait.Nanoseconds())}, nil)
}
