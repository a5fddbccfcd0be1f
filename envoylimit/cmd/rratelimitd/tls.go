package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
)

// tlsFiles are those of --tls-cert and so on.
type tlsFiles struct{ cert, key, clientCA string }

// credentials returns those of the gRPC server; nil without TLS. Certificates are read for each connection, so that renewed
// ones count.
func (f tlsFiles) credentials() (credentials.TransportCredentials, error) {
	switch {
	case f == (tlsFiles{}):
		return nil, nil //nolint:nilnil // no TLS is no error
	case f.cert == "" || f.key == "":
		return nil, errors.New("--tls-cert and --tls-key go together, and --tls-client-ca with them")
	}
	if _, err := f.config(nil); err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: f.config}), nil
}

func (f tlsFiles) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	if f.clientCA == "" {
		return config, nil
	}
	pem, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-ca: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-client-ca: %s has no certificate in PEM", f.clientCA)
	}
	return config, nil
}
