package httplimit

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
)

// StatusClientGone is the status by which a Policy.Charge learns that the client left before the handler had written
// anything. It is not sent.
const StatusClientGone = 499

// outcome is a ResponseWriter that notes the status of the answer. It has the methods that handlers look for, and
// http.ResponseController finds the rest.
type outcome struct {
	http.ResponseWriter

	status int // 0: nothing was written
}

// of returns the status of a request whose handler has returned, or has panicked.
func (o *outcome) of(ctx context.Context, panicked bool) int {
	switch {
	case o.status != 0:
		return o.status
	case panicked:
		return http.StatusInternalServerError
	case errors.Is(ctx.Err(), context.Canceled):
		return StatusClientGone
	}
	return http.StatusOK
}

func (o *outcome) wrote(status int) { o.status = cmp.Or(o.status, status) }

func (o *outcome) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		o.wrote(status)
	}
	o.ResponseWriter.WriteHeader(status)
}

func (o *outcome) Write(p []byte) (int, error) {
	o.wrote(http.StatusOK)
	return o.ResponseWriter.Write(p)
}

func (o *outcome) WriteString(s string) (int, error) {
	o.wrote(http.StatusOK)
	return io.WriteString(o.ResponseWriter, s)
}

func (o *outcome) ReadFrom(src io.Reader) (int64, error) {
	n, err := io.Copy(o.ResponseWriter, src)
	if n > 0 { // a handler may still write another status
		o.wrote(http.StatusOK)
	}
	return n, err
}

func (o *outcome) Flush() { _ = o.FlushError() }

// FlushError is Flush for http.ResponseController.
func (o *outcome) FlushError() error {
	err := http.NewResponseController(o.ResponseWriter).Flush()
	if err == nil {
		o.wrote(http.StatusOK)
	}
	return err
}

func (o *outcome) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err == nil {
		o.wrote(http.StatusSwitchingProtocols)
	}
	return conn, buffered, err
}

// CloseNotify is for gin's Context.Stream, which panics without it.
func (o *outcome) CloseNotify() <-chan bool {
	for w := o.ResponseWriter; ; {
		switch of := w.(type) {
		case http.CloseNotifier: //nolint:staticcheck // as gin has it
			return of.CloseNotify()
		case interface{ Unwrap() http.ResponseWriter }:
			w = of.Unwrap()
		default:
			return make(chan bool) // not known
		}
	}
}

func (o *outcome) Push(target string, opts *http.PushOptions) error {
	if pusher, ok := o.ResponseWriter.(http.Pusher); ok {
		return pusher.Push(target, opts)
	}
	return http.ErrNotSupported
}

// Unwrap returns the ResponseWriter behind, for http.ResponseController.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }
