package redistest

import (
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
	"strings"
	"testing"
	"time"
)

// errNoTLS: a server was built without TLS.
var errNoTLS = errors.New("it was built without TLS")

// StartTLS starts a server for this test alone that speaks nothing but TLS, with
// a certificate by an authority made for it, and asks clients for one too.
// [Server.Client] brings what is needed, and [Server.TLS] tells it. Where the
// server of [Redis] was built without TLS, another release takes its place. It
// skips as [Redis] does.
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
		if !errors.Is(err, errNoTLS) && !errors.Is(err, errNoServer) {
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

// TLS returns what clients of a server by [StartTLS] need.
func (s *Server) TLS() *tls.Config { return s.tls.Clone() }

// TLSFiles returns the files, in PEM, that such a client is given: the
// authority's certificate, its own, and the key.
func (s *Server) TLSFiles() (ca, cert, key string) {
	return filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "client.crt"), filepath.Join(s.dir, "client.key")
}

func tlsArgs(s *Server, port string) ([]string, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	server, err := ca.issue("server")
	if err != nil {
		return nil, err
	}
	client, err := ca.issue("client")
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(client.cert, client.key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	s.tls = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}

	path := func(name string) string { return filepath.Join(s.dir, name) }
	err = errors.Join(
		os.WriteFile(path("ca.crt"), encode("CERTIFICATE", ca.cert.Raw), 0o600),
		os.WriteFile(path("server.crt"), server.cert, 0o600),
		os.WriteFile(path("server.key"), server.key, 0o600),
		os.WriteFile(path("client.crt"), client.cert, 0o600),
		os.WriteFile(path("client.key"), client.key, 0o600),
	)
	if err != nil {
		return nil, err
	}
	args, err := usualArgs(s, "0")
	return append(args,
		"--tls-port", port, "--tls-auth-clients", "yes", "--tls-ca-cert-file", path("ca.crt"),
		"--tls-cert-file", path("server.crt"), "--tls-key-file", path("server.key"),
	), err
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issued is a certificate and its key, in PEM.
type issued struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template("authority")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert: cert, key: key}, err
}

func (a *authority) issue(name string) (issued, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issued{}, err
	}
	template := template(name)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return issued{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	return issued{encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER)}, err
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
