package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"
)

// tlsConfig returns the configuration for TLS, nil without TLS.
func (o *Options) tlsConfig(client *redis.Options) (*tls.Config, error) {
	files := o.TLSCA != "" || o.TLSCert != "" || o.TLSKey != ""
	if !o.TLS && !files && o.TLSServerName == "" && !o.TLSSkipVerify && client.TLSConfig == nil {
		return nil, nil //nolint:nilnil // no TLS is no error
	}
	if client.Network == "unix" {
		return nil, errors.New("there is no TLS over a unix socket")
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: o.TLSServerName,
		InsecureSkipVerify: o.TLSSkipVerify, //nolint:gosec // only if the user asks for it
	}
	if o.TLSCA != "" {
		pem, err := os.ReadFile(o.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca: %s has no certificate in PEM", o.TLSCA)
		}
	}
	if o.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
