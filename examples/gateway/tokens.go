package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// usualAnswer is how many tokens an answer is taken to have until it is there.
const usualAnswer = 100

// estimate returns about how many tokens a request costs. It reads no body: a token is
// some four letters.
func estimate(r *http.Request) (int64, error) { return usualAnswer + max(0, r.ContentLength)/4, nil }

// model passes requests on to the language model, and limits the tokens a minute that each user
// may use. They are charged the estimate, until the answer says what it was.
func (g *gateway) model() http.Handler {
	proxy := g.proxy(g.chat)
	proxy.Transport = settling{g, g.transport}
	return httplimit.New(
		g.client.Keyed(clientPrefix, rratelimiter.PerMinute(g.tokens)),
		httplimit.WithSettle(),
		httplimit.WithCost(estimate),
		httplimit.WithName("tokens"),
		httplimit.WithPrefix("tokens:"),
		httplimit.WithKey(httplimit.User(user)),
		httplimit.WithTimeout(g.timeout),
		httplimit.WithErrorHandler(g.failed),
	)(proxy)
}

// settling is a transport to the model. It settles requests by what the answers say.
type settling struct {
	*gateway

	base http.RoundTripper
}

func (s settling) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.Header.Del("Accept-Encoding") // the transport's own is undone before the answer is read
	resp, err := s.base.RoundTrip(out)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		s.settle(r, 0)
		return resp, err
	}
	resp.Body = &answerBody{ReadCloser: resp.Body, settle: func(used int64) { s.settle(r, used) }}
	return resp, nil
}

// settle waits for Redis, not for the client: that may have gone.
func (s settling) settle(r *http.Request, used int64) {
	if err := httplimit.Settle(context.WithoutCancel(r.Context()), used); err != nil {
		s.log.ErrorContext(r.Context(), "tokens not settled", "path", r.URL.Path, "used", used, "error", err)
	}
}

// answerBody keeps the end of an answer, where the usage is: in JSON, and in the last event
// of a stream. An answer without it leaves the estimate.
type answerBody struct {
	io.ReadCloser

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
			b.settle(used)
		}
	}
	b.end = nil
	return b.ReadCloser.Close()
}
