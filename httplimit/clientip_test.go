package httplimit_test

import (
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
)

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestClientIP(t *testing.T) {
	t.Parallel()
	const (
		xff       = "X-Forwarded-For"
		forwarded = "Forwarded"
		realIP    = "X-Real-Ip"
	)
	behind := httplimit.ClientIPConfig{Trusted: prefixes("10.0.0.0/8", "fd00::/8")}
	behindMapped := httplimit.ClientIPConfig{Trusted: prefixes("::ffff:10.0.0.0/104")}
	behindReal, behind7239 := behind, behind
	behindReal.Header, behind7239.Header = "x-real-ip", "forwarded"
	const proxy = "10.0.0.1:80"
	sent := func(name string, lines ...string) http.Header { return http.Header{name: lines} }
	for name, test := range map[string]struct {
		cfg    httplimit.ClientIPConfig
		peer   string
		header http.Header
		want   string
	}{
		"IPv4":             {peer: "192.0.2.1:80", want: "192.0.2.1"},
		"IPv6":             {peer: "[2001:db8:1:2:3:4:5:6]:80", want: "2001:db8:1:2::/64"},
		"IPv6, other bits": {cfg: httplimit.ClientIPConfig{IPv6Bits: 48}, peer: "[2001:db8:1:2:3:4:5:6]:80", want: "2001:db8:1::/48"},
		"IPv6, all bits":   {cfg: httplimit.ClientIPConfig{IPv6Bits: 128}, peer: "[2001:db8::6]:80", want: "2001:db8::6"},
		"mapped":           {peer: "[::ffff:192.0.2.1]:80", want: "192.0.2.1"},
		"zone":             {peer: "[fe80::1%eth0]:80", want: "fe80::/64"},
		"no port":          {peer: "192.0.2.1", want: "192.0.2.1"},
		"unix socket":      {peer: "@", want: ""},
		"nobody":           {peer: "", want: ""},
		"header, no list":  {peer: proxy, header: sent(xff, "192.0.2.9"), want: "10.0.0.1"},
		"forged":           {cfg: behind, peer: "192.0.2.1:80", header: sent(xff, "192.0.2.9"), want: "192.0.2.1"},
		"socket, forged":   {cfg: behind, peer: "@", header: sent(xff, "192.0.2.9"), want: ""},
		"proxy":            {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9"), want: "192.0.2.9"},
		"IPv6 proxy":       {cfg: behind, peer: "[fd00::1]:80", header: sent(xff, "192.0.2.9"), want: "192.0.2.9"},
		"mapped proxy":     {cfg: behind, peer: "[::ffff:10.0.0.1]:80", header: sent(xff, "192.0.2.9"), want: "192.0.2.9"},
		"mapped prefix":    {cfg: behindMapped, peer: proxy, header: sent(xff, "192.0.2.9"), want: "192.0.2.9"},
		"no header":        {cfg: behind, peer: proxy, want: "10.0.0.1"},
		"client's own":     {cfg: behind, peer: proxy, header: sent(xff, "1.1.1.1, 192.0.2.9"), want: "192.0.2.9"},
		"two proxies":      {cfg: behind, peer: proxy, header: sent(xff, "1.1.1.1,192.0.2.9 ,10.0.0.2,\t10.0.0.3 "), want: "192.0.2.9"},
		"several lines":    {cfg: behind, peer: proxy, header: sent(xff, "1.1.1.1", "192.0.2.9, 10.0.0.2", "10.0.0.3"), want: "192.0.2.9"},
		"all trusted":      {cfg: behind, peer: proxy, header: sent(xff, "10.0.0.4, 10.0.0.3"), want: "10.0.0.4"},
		"junk of client":   {cfg: behind, peer: proxy, header: sent(xff, "'; DROP, 192.0.2.9"), want: "192.0.2.9"},
		"junk of proxy":    {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9, unknown"), want: "10.0.0.1"},
		"junk farther off": {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9, unknown, 10.0.0.2"), want: "10.0.0.2"},
		"empty entry":      {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9, "), want: "10.0.0.1"},
		"empty line":       {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9", ""), want: "10.0.0.1"},
		"with port":        {cfg: behind, peer: proxy, header: sent(xff, "192.0.2.9:4711"), want: "192.0.2.9"},
		"IPv6 with port":   {cfg: behind, peer: proxy, header: sent(xff, "[2001:db8::1]:4711"), want: "2001:db8::/64"},
		"IPv6 in brackets": {cfg: behind, peer: proxy, header: sent(xff, "[2001:db8::1]"), want: "2001:db8::/64"},
		"IPv4 in brackets": {cfg: behind, peer: proxy, header: sent(xff, "[192.0.2.9]"), want: "10.0.0.1"},
		"open bracket":     {cfg: behind, peer: proxy, header: sent(xff, "[2001:db8::1"), want: "10.0.0.1"},
		"octal":            {cfg: behind, peer: proxy, header: sent(xff, "0192.0.2.9"), want: "10.0.0.1"},
		"zone in header":   {cfg: behind, peer: proxy, header: sent(xff, "fe80::1%x"), want: "fe80::/64"},
		"real":             {cfg: behindReal, peer: proxy, header: http.Header{realIP: {" 192.0.2.9 "}, xff: {"1.1.1.1"}}, want: "192.0.2.9"},
		"real, forged":     {cfg: behindReal, peer: "192.0.2.1:80", header: sent(realIP, "192.0.2.9"), want: "192.0.2.1"},
		"real, missing":    {cfg: behindReal, peer: proxy, header: sent(xff, "1.1.1.1"), want: "10.0.0.1"},
		"real, twice":      {cfg: behindReal, peer: proxy, header: sent(realIP, "1.1.1.1", "192.0.2.9"), want: "10.0.0.1"},
		"real, a list":     {cfg: behindReal, peer: proxy, header: sent(realIP, "1.1.1.1, 192.0.2.9"), want: "10.0.0.1"},
		"forwarded":        {cfg: behind7239, peer: proxy, header: sent(forwarded, "for=192.0.2.9;proto=http;by=10.0.0.1"), want: "192.0.2.9"},
		"forwarded, case":  {cfg: behind7239, peer: proxy, header: sent(forwarded, `proto=http; FOR="192.0.2.9:4711"`), want: "192.0.2.9"},
		"forwarded, IPv6":  {cfg: behind7239, peer: proxy, header: sent(forwarded, `For="[2001:db8::1]:4711"`), want: "2001:db8::/64"},
		"forwarded, two": {
			cfg: behind7239, peer: proxy, header: sent(forwarded, `for=1.1.1.1, for=192.0.2.9;host="a,b", for=10.0.0.2`), want: "192.0.2.9",
		},
		"forwarded, lines":  {cfg: behind7239, peer: proxy, header: sent(forwarded, "for=192.0.2.9", "for=10.0.0.2"), want: "192.0.2.9"},
		"forwarded, quote":  {cfg: behind7239, peer: proxy, header: sent(forwarded, `for="1.1.1.1, for=192.0.2.9`), want: "192.0.2.9"},
		"forwarded, open":   {cfg: behind7239, peer: proxy, header: sent(forwarded, `for="192.0.2.9`), want: "10.0.0.1"},
		"forwarded, hidden": {cfg: behind7239, peer: proxy, header: sent(forwarded, "for=1.1.1.1, for=_hidden"), want: "10.0.0.1"},
		"forwarded, none":   {cfg: behind7239, peer: proxy, header: sent(forwarded, "for=1.1.1.1, by=10.0.0.3"), want: "10.0.0.1"},
		"forwarded, not":    {cfg: behind7239, peer: proxy, header: sent(xff, "1.1.1.1"), want: "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRequest(t)
			r.RemoteAddr = test.peer
			maps.Copy(r.Header, test.header)
			got, err := httplimit.ClientIP(test.cfg)(r)
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}

func TestClientIPOfHugeHeader(t *testing.T) {
	t.Parallel()
	r := newRequest(t)
	r.Header.Set("X-Forwarded-For", strings.Repeat("10.0.0.9, ", 100_000)+"192.0.2.9")
	cfg := httplimit.ClientIPConfig{Trusted: prefixes("192.0.2.0/24", "10.0.0.0/8")}
	got, err := httplimit.ClientIP(cfg)(r)
	require.NoError(t, err)
	assert.Equal(t, "10.0.0.9", got)
}
