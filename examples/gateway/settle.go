package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"github.com/rratelimiter/rratelimiter/httplimit"
)

// settling is a transport to the model. It settles the tokens of requests by what the answers say.
type settling struct{ *gateway }

func (s settling) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.transport.RoundTrip(r)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		s.settle(r, 0)
		return resp, err
	}
	used, err := estimate(r)
	resp.Body = &answerBody{ReadCloser: resp.Body, used: used, settle: func(used int64) { s.settle(r, used) }}
	return resp, err
}

// settle waits for Redis, not for the client: that may have gone.
func (s settling) settle(r *http.Request, used int64) {
	if err := httplimit.Settle(context.WithoutCancel(r.Context()), used); err != nil {
		s.log.ErrorContext(r.Context(), "tokens not settled", "used", used, "error", err)
	}
}

// answerBody keeps the end of an answer, where the usage is: in JSON, and in the last event
// of a stream. An answer without it costs the estimate.
type answerBody struct {
	io.ReadCloser

	used   int64
	settle func(used int64)
	end    []byte
}

const longestEnd = 1 << 10

// In a text of the model the quotes would be escaped.
var totalTokens = regexp.MustCompile(`"total_tokens": ?(\d+)`)

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.end = append(b.end, p[:n]...)
	b.end = b.end[max(0, len(b.end)-longestEnd):]
	return n, err
}

func (b *answerBody) Close() error {
	if all := totalTokens.FindAllSubmatch(b.end, -1); len(all) > 0 {
		if used, err := strconv.ParseInt(string(all[len(all)-1][1]), 10, 64); err == nil {
			b.used = used
		}
	}
	if b.settle != nil {
		b.settle(b.used)
	}
	b.settle = nil
	return b.ReadCloser.Close()
}
