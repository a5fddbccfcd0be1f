package dashboard

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
)

// anyHost in Config.Hosts lets all names through.
const anyHost = "*"

// checkHost refuses requests that came by a name that is not the page's: a web site can
// have its own name lead here, and its script then reads what its visitors can.
func (c *call) checkHost() error {
	name, ip := hostOf(c.r.Host)
	if name == "localhost" || ip.IsLoopback() || slices.Contains(c.hosts, anyHost) || slices.Contains(c.hosts, name) {
		return nil
	}
	if addr, ok := c.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if _, local := hostOf(addr.String()); ip.IsValid() && ip == local {
			return nil
		}
	}
	c.log(slog.LevelWarn, "dashboard request refused: it came by another name", slog.String("host", c.r.Host))
	return httpjson.Refuse(http.StatusMisdirectedRequest,
		"this page is not served by that name: rrl dashboard --host or Hosts of dashboard.Config adds it")
}

// hostOf returns the host of a Host header or an address, and its address if it is one.
func hostOf(text string) (name string, ip netip.Addr) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	} else if inner, ok := strings.CutPrefix(text, "["); ok {
		text = strings.TrimSuffix(inner, "]")
	}
	name = strings.ToLower(strings.TrimSuffix(text, "."))
	if ip, err := netip.ParseAddr(name); err == nil {
		ip = ip.Unmap().WithZone("")
		return ip.String(), ip
	}
	return name, netip.Addr{}
}
