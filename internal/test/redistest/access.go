package redistest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// errNoTLS: a server was built without TLS.
var errNoTLS = errors.New("it was built without TLS")

// StartTLS starts a server for this test alone that speaks nothing but TLS, with a certificate made for it, and asks clients
// for one too. [Server.Client] uses the credentials that are needed. If the server of [Redis] was built without TLS, another
// release takes its place. It skips as [Redis] does.
func StartTLS(t testing.TB, args ...string) *Server {
	t.Helper()
	skipOwn(t)
	var why []error
	for _, v := range append([]Version{Default}, Versions()...) {
		s, err := startTLS(v, args)
		if err == nil {
			t.Cleanup(s.Kill)
			return s
		}
		if !errors.Is(err, errNoTLS) && !errors.Is(err, ErrNoServer) {
			t.Fatal(err)
		}
		why = append(why, err)
	}
	SkipOrFail(t, "no server with TLS: "+strings.ReplaceAll(errors.Join(why...).Error(), "\n", "; "))
	return nil
}

func startTLS(v Version, args []string) (*Server, error) {
	s, err := start(v, spec{args: args, prepare: tlsArgs, busPort: slices.Contains(args, "--cluster-enabled")})
	if err == nil {
		return s, nil
	}
	for _, said := range []string{"tls-port", "Failed finding TLS support"} {
		if strings.Contains(err.Error(), said) {
			binary, _ := v.binary()
			return nil, fmt.Errorf("%s: %w", filepath.Base(binary), errNoTLS)
		}
	}
	return nil, err
}

// TLSFiles returns the files, in PEM, that such a client is given: the authority's certificate, its own, and the key.
func (s *Server) TLSFiles() (ca, cert, key string) {
	return s.file("tls.crt"), s.file("tls.crt"), s.file("tls.key")
}

// tlsArgs makes one certificate, which is its own authority, for server and client.
func tlsArgs(s *Server, port string) ([]string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "redistest"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	s.tls = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	ca, certFile, keyFile := s.TLSFiles()
	err = errors.Join(
		os.WriteFile(certFile, cert, 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600),
	)
	return append(s.usualArgs("0"),
		"--tls-port", port, "--tls-auth-clients", "yes", "--tls-ca-cert-file", ca, "--tls-cert-file", certFile, "--tls-key-file", keyFile,
	), err
}

// LeastCommands is the part of an ACL rule that lets a user run all operations of this library on one server, on the master of a failover
// client or over a redis.Ring, and nothing else. The commands beside EVAL and EVALSHA are those that the scripts call: the server checks
// them against the rights of the user who runs the script. A user also needs the keys of [KeysOf], or of [KeysWithPrefix].
const LeastCommands = "+eval +evalsha " +
	"+time +exists +type +pttl +pexpire +pexpireat +persist +unlink +rename " +
	"+get +set +incrby +decrby " +
	"+hget +hmget +hset +hdel +hscan " +
	"+zadd +zcard +zcount +zmscore +zrange +zrangebyscore +zrem +zremrangebyrank +zscore"

// What a user needs beside [LeastCommands] for go-redis to work.
const (
	// ClusterCommands let a redis.ClusterClient find the nodes of a cluster, and
	// learn once what commands there are: refused, it asks again at every call.
	ClusterCommands = "+cluster|slots +command"
	// RingCommands let a redis.Ring see which shards are alive.
	RingCommands = "+ping"
)

// KeysOf is the part of an ACL rule that gives access to the limiter called name, which has no character that is special in a pattern.
func KeysOf(name string) string {
	tagged := name
	if !strings.Contains(name, "{") {
		tagged = "{" + name + "}"
	}
	return "~" + name + " ~" + tagged + ":*"
}

// KeysWithPrefix is the part of an ACL rule that gives access to all limiters whose names start with prefix, which has no brace in it.
func KeysWithPrefix(prefix string) string { return "~" + prefix + "* ~{" + prefix + "*" }

var users atomic.Int64

// AddUser adds a user with the rules given, such as "+get ~key", to a server, to all nodes of a [Cluster], shards of
// a [Ring] or servers that Sentinels watch, and returns a client logged in as this user. The user is gone when t ends.
// Of opt, the address and the login are replaced; nil stands for the defaults. The password is the name.
func AddUser(t testing.TB, of interface {
	Client(t testing.TB, opt *Options) Client
	servers() []*Server
}, opt *Options, rules ...string) Client {
	t.Helper()
	user := "user" + strconv.FormatInt(users.Add(1), 10)
	args := []any{"ACL", "SETUSER", user, "reset", "on", ">" + user}
	for _, rule := range rules {
		for word := range strings.FieldsSeq(rule) {
			args = append(args, word)
		}
	}
	for _, s := range of.servers() {
		must(t, s.ask(t.Context(), args...).Err())
		t.Cleanup(func() {
			if s.answers() {
				_ = s.ask(context.Background(), "ACL", "DELUSER", user)
			}
		})
	}
	o := valueOf(opt)
	o.Username, o.Password = user, user
	return of.Client(t, &o)
}

func (s *Server) servers() []*Server   { return []*Server{s} }
func (s *Sentinel) servers() []*Server { return s.data }
func (c *Cluster) servers() []*Server  { return c.nodes }
func (r *Ring) servers() []*Server     { return r.Servers }
