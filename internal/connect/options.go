package connect

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// defaultAddress is used if neither flag nor environment names another.
	defaultAddress = "redis://127.0.0.1:6379"

	defaultTimeout = 3 * time.Second
)

// Options say which servers to reach, and how. The zero value, with what Bind
// adds, is the server at defaultAddress.
type Options struct {
	Redis          string // addresses, separated by commas
	SentinelMaster string // the addresses are those of Sentinels
	Ring           bool   // the addresses are the shards of a redis.Ring
	Timeout        time.Duration

	User                 string
	PasswordFile         string
	SentinelUser         string
	SentinelPasswordFile string

	TLS           bool
	TLSCA         string
	TLSCert       string
	TLSKey        string
	TLSServerName string
	TLSSkipVerify bool

	// Getenv answers for the environment; nil stands for os.Getenv.
	Getenv func(string) string
}

// Flags is a set of flags: that of package flag, or of pflag.
type Flags interface {
	StringVar(p *string, name, value, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
	DurationVar(p *time.Duration, name string, value time.Duration, usage string)
}

// Bind adds the flags that set o.
func (o *Options) Bind(flags Flags) {
	flags.StringVar(&o.Redis, "redis", "", "`ADDRESS` or URL of the server, or several with commas between them: a cluster, unless "+
		"--ring or --sentinel-master is given (default $REDIS_URL, or "+defaultAddress+")")
	flags.StringVar(&o.SentinelMaster, "sentinel-master", "", "the addresses are Sentinels, and this is their `NAME` for the master")
	flags.BoolVar(&o.Ring, "ring", false, "the addresses are the shards of a go-redis Ring, called shard1, shard2, … "+
		"unless written NAME=ADDRESS")
	flags.DurationVar(&o.Timeout, "connect-timeout", cmp.Or(o.Timeout, defaultTimeout), "how long to wait for a server")

	flags.StringVar(&o.User, "user", "", "log in as this ACL `USER`")
	flags.StringVar(&o.PasswordFile, "password-file", "", "`FILE` with the password (default the URL's, or $REDIS_PASSWORD, or $REDISCLI_AUTH)")
	flags.StringVar(&o.SentinelUser, "sentinel-user", "", "log in to Sentinels as this `USER`")
	flags.StringVar(&o.SentinelPasswordFile, "sentinel-password-file", "", "`FILE` with the Sentinels' own password (default $REDIS_SENTINEL_PASSWORD)")

	flags.BoolVar(&o.TLS, "tls", false, "connect by TLS, as rediss:// and the other --tls flags do")
	flags.StringVar(&o.TLSCA, "tls-ca", "", "`FILE` with the authorities to trust, in PEM (default the system's)")
	flags.StringVar(&o.TLSCert, "tls-cert", "", "`FILE` with this client's certificate, in PEM")
	flags.StringVar(&o.TLSKey, "tls-key", "", "`FILE` with its key, in PEM")
	flags.StringVar(&o.TLSServerName, "tls-server-name", "", "the `NAME` that certificates must have (default: the host of each address)")
	flags.BoolVar(&o.TLSSkipVerify, "tls-skip-verify", false, "trust any certificate: anyone in between can read and change all")
}

// Check returns an error for flags that are wrong for every command.
func (o *Options) Check() error {
	if o.Timeout < 0 {
		return errors.New("--connect-timeout is negative")
	}
	if o.Ring && o.SentinelMaster != "" {
		return errors.New("--ring and --sentinel-master exclude each other")
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key go together: give both")
	}
	if o.SentinelMaster == "" && (o.SentinelUser != "" || o.SentinelPasswordFile != "") {
		return errors.New("--sentinel-user and --sentinel-password-file need --sentinel-master")
	}
	if o.Redis == "" {
		return nil
	}
	_, _, err := parseAddresses(o.Redis, o.Ring)
	return err
}

func (o *Options) getenv(name string) string {
	if o.Getenv != nil {
		return o.Getenv(name)
	}
	return os.Getenv(name)
}

// settings are options that were read and fit together.
type settings struct {
	addrs  []address
	client *redis.Options // of the first address, what the others share included
	tls    bool           // the client's dialer does it

	replica bool // the server that was asked last is one

	sentinelUser, sentinelPassword string
}

// settings reads what the flags, the URL and the environment say.
func (o *Options) settings() (*settings, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	text := o.Redis
	if text == "" {
		text = o.getenv("REDIS_URL")
	}
	if text == "" {
		text = defaultAddress
	}
	addrs, client, err := parseAddresses(text, o.Ring)
	if err != nil {
		return nil, err
	}
	s := &settings{addrs: addrs, client: client}
	if err := o.login(s); err != nil {
		return nil, err
	}
	config, err := o.tlsConfig(client)
	if err != nil {
		return nil, err
	}
	o.limitTime(client)
	s.tls, client.TLSConfig = config != nil, nil
	client.Dialer = dialer(client.Addr, config, client.DialTimeout)
	return s, nil
}

// login sets who to log in as. A flag has more weight than the URL, and the URL
// more than the environment.
func (o *Options) login(s *settings) error {
	if o.User != "" {
		if s.client.Username != "" && s.client.Username != o.User {
			// The URL's password is another user's.
			s.client.Password = ""
		}
		s.client.Username = o.User
	}
	if o.PasswordFile != "" {
		password, err := readPassword("--password-file", o.PasswordFile)
		if err != nil {
			return err
		}
		s.client.Password = password
	}
	for _, name := range []string{"REDIS_PASSWORD", "REDISCLI_AUTH"} {
		if s.client.Password == "" {
			s.client.Password = o.getenv(name)
		}
	}
	if s.client.Username != "" && s.client.Password == "" {
		return fmt.Errorf("there is no password for user %q: give it by --password-file FILE or $REDIS_PASSWORD", s.client.Username)
	}

	s.sentinelUser, s.sentinelPassword = o.SentinelUser, o.getenv("REDIS_SENTINEL_PASSWORD")
	if o.SentinelPasswordFile != "" {
		var err error
		if s.sentinelPassword, err = readPassword("--sentinel-password-file", o.SentinelPasswordFile); err != nil {
			return err
		}
	}
	return nil
}

func readPassword(flag, path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("%s: %s is empty", flag, path)
	}
	return password, nil
}

// limitTime sets how long things may take if the URL does not: a user at a terminal wants to
// know soon that no server answers.
func (o *Options) limitTime(client *redis.Options) {
	if client.DialTimeout == 0 {
		client.DialTimeout = o.timeout()
	}
	if client.MaxRetries == 0 {
		client.MaxRetries = 1
	}
	if client.ReadTimeout == 0 {
		client.ReadTimeout = o.CallTimeout()
	}
	client.DialerRetries = 1
	client.ContextTimeoutEnabled = true
}

// CallTimeout returns how long a limiter's call may go unanswered.
func (o *Options) CallTimeout() time.Duration { return max(o.timeout(), defaultTimeout) }

func (o *Options) timeout() time.Duration {
	if o.Timeout <= 0 {
		return defaultTimeout
	}
	return o.Timeout
}
