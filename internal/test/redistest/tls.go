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

// StartTLS starts a server for this test alone that speaks nothing but TLS, with a
// certificate made for it, and asks clients for one too. [Server.Client] brings what is
// needed, and [Server.TLS] tells it. Where the server of [Redis] was built without TLS,
// another release takes its place. It skips as [Redis] does.
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

// TLS returns what clients of a server by [StartTLS] need.
func (s *Server) TLS() *tls.Config { return s.tls.Clone() }

// TLSFiles returns the files, in PEM, that such a client is given: the
// authority's certificate, its own, and the key.
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
