package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/limit"
)

// about has the facts about a server with which its errors are explained.
type about struct {
	addr     string // "" if it may be one of several
	user     string
	tls      bool
	replica  bool
	sentinel bool
}

func (s *settings) about(addr string) about {
	return about{addr: addr, user: s.client.Username, tls: s.tls}
}

// explained is an error in other words.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// Explain is Connection.Explain.
func (a about) Explain(err error) error {
	var already *explained
	if err == nil || errors.As(err, &already) || errors.Is(err, context.Canceled) {
		return err
	}
	text := a.login(err)
	if text == "" {
		text = a.rights(err)
	}
	if text == "" {
		text = a.state(err)
	}
	if text == "" && !errors.Is(err, limit.ErrUnknownOutcome) {
		text = a.network(err)
	}
	// A call may time out before its connection says which server it waited for.
	if text == "" && a.addr != "" && errors.Is(err, limit.ErrUnavailable) && !strings.Contains(err.Error(), a.addr) {
		text = fmt.Sprintf("%v, at %s", err, a.server())
	}
	if text == "" {
		return err
	}
	return &explained{text, err}
}

// server names the server.
func (a about) server() string {
	switch {
	case a.addr == "":
		return "the server"
	case a.sentinel:
		return "the Sentinel " + a.addr
	}
	return a.addr
}

// isLogin reports whether an error is about user and password.
func isLogin(err error) bool {
	return redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "WRONGPASS") || unauthenticated(err) || notAsked(err)
}

// unauthenticated reports whether a server refused a long command of a client that has not
// logged in.
func unauthenticated(err error) bool {
	return redis.HasErrorPrefix(err, "Protocol error: unauthenticated")
}

// notAsked is the answer to a password if none is set.
func notAsked(err error) bool {
	return strings.Contains(err.Error(), "without any password configured")
}

func (a about) login(err error) string {
	where := "in the URL (redis://:PASSWORD@host), by --password-file FILE or in $REDIS_PASSWORD"
	if a.sentinel {
		where = "by --sentinel-password-file FILE or in $REDIS_SENTINEL_PASSWORD"
	}
	switch {
	case redis.HasErrorPrefix(err, "NOAUTH"), unauthenticated(err):
		return fmt.Sprintf("%s wants a password (NOAUTH): give it %s", a.server(), where)
	case redis.HasErrorPrefix(err, "WRONGPASS"):
		return fmt.Sprintf("%s does not know this password for user %q, or the user is off (WRONGPASS)", a.server(), a.userName())
	case notAsked(err):
		return a.server() + " has no password set, but one was given: leave it out"
	}
	return ""
}

func (a about) userName() string {
	if a.user == "" {
		return "default"
	}
	return a.user
}

var (
	noCommand = regexp.MustCompile(`(?i)no permissions to run the '([^']+)' command`)
	noKey     = regexp.MustCompile(`(?i)no permissions to access (a|one of the) keys?|can't access at least one of the keys`)
)

// rights explains which right the user lacks.
func (a about) rights(err error) string {
	var said redis.Error
	if !errors.As(err, &said) {
		return ""
	}
	user := a.userName()
	const all = "what limiters need is in docs/servers.md"
	if m := noCommand.FindStringSubmatch(said.Error()); m != nil {
		command := strings.ToLower(m[1])
		return fmt.Sprintf("user %q may not run %s (NOPERM): ACL SETUSER %s +%s allows it; %s", user, strings.ToUpper(command), user, command, all)
	}
	switch {
	case noKey.MatchString(said.Error()):
		return fmt.Sprintf("user %q may not use these keys (NOPERM): a limiter called NAME needs ACL SETUSER %s ~NAME ~{NAME}:*; %s", user, user, all)
	case strings.Contains(said.Error(), "user executing the script can't run this command"):
		return fmt.Sprintf("user %q may not run a command that a limiter's script needs (NOPERM), and this server does not say which; %s", user, all)
	case strings.HasPrefix(said.Error(), "NOPERM"):
		return fmt.Sprintf("user %q lacks rights (%v); %s", user, said, all)
	}
	return ""
}

// isBusy reports whether an error is of a server that answers no one for now.
func isBusy(err error) bool {
	return redis.HasErrorPrefix(err, "LOADING") || redis.HasErrorPrefix(err, "BUSY") || strings.Contains(err.Error(), "max number of clients ")
}

// state explains what keeps a server from answering.
func (a about) state(err error) string {
	switch {
	// Calls are repeated while a server says READONLY, until their time is over.
	case redis.HasErrorPrefix(err, "READONLY"), a.replica && errors.Is(err, limit.ErrUnavailable):
		return a.server() + " is a replica, which takes no changes (READONLY): name its master, or the Sentinels that know it"
	case redis.HasErrorPrefix(err, "LOADING"):
		return a.server() + " is still loading its data from disk (LOADING): try again soon"
	case redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		return fmt.Sprintf("the cluster is down: %v", said(err))
	case nodes.Moving(err):
		return fmt.Sprintf("the cluster is moving these keys to another node: try again (%v)", said(err))
	case redis.HasErrorPrefix(err, "MASTERDOWN"):
		return a.server() + " is a replica that has lost its master (MASTERDOWN)"
	}
	return ""
}

// said returns the server's words alone.
func said(err error) string {
	if e, ok := errors.AsType[redis.Error](err); ok {
		return e.Error()
	}
	return err.Error()
}

// network explains errors between here and the server.
func (a about) network(err error) string {
	if text := a.tlsText(err); text != "" {
		return text
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Sprintf("can't reach %s: no host is called %q", a.server(), dns.Name)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		if op.Addr != nil && (op.Op == "dial" || a.addr == "") {
			a.addr = op.Addr.String()
		}
		if op.Op == "dial" && !op.Timeout() {
			return fmt.Sprintf("can't reach %s: %v", a.server(), cause(op.Err))
		}
	}
	switch {
	case strings.Contains(err.Error(), `reply: "HTTP/`):
		return a.server() + " is a web server or an HTTP proxy, not Redis"
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), op != nil && op.Timeout():
		if a.tls {
			// A server without TLS waits for the rest of what it takes for a command.
			return a.server() + " gave no answer in time; perhaps it has no TLS"
		}
		return a.server() + " gave no answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		if !a.tls {
			return a.server() + " ended the connection; perhaps it wants TLS: rediss:// or --tls"
		}
		return a.server() + " ended the connection"
	}
	return ""
}

// cause returns the innermost reason, without the name of a system call.
func cause(err error) error {
	if sys, ok := errors.AsType[*os.SyscallError](err); ok {
		return sys.Err
	}
	return err
}

// tlsText explains errors of certificates.
func (a about) tlsText(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		plain   tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &unknown):
		return fmt.Sprintf("%s has a certificate of an unknown authority: name its file with --tls-ca", a.server())
	case errors.As(err, &name):
		return fmt.Sprintf("%s has a certificate for another name: %v; --tls-server-name says which name to expect", a.server(), name)
	case errors.As(err, &invalid):
		return fmt.Sprintf("%s: %v", a.server(), invalid)
	case errors.As(err, &plain):
		return a.server() + " has no TLS: write redis:// and leave out the --tls flags"
	case strings.Contains(err.Error(), "tls: certificate required"), strings.Contains(err.Error(), "tls: bad certificate"):
		return a.server() + " wants a client certificate that it trusts: give --tls-cert and --tls-key"
	}
	return ""
}
