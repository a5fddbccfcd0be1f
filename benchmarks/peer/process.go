package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"sync"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

// processArgument is the first argument by which a program serves as the process
// of a library in Go.
const processArgument = "peer-process"

// Calls are the calls of a process, a [Request] each.
type Calls struct {
	mu    sync.Mutex
	peers map[int]Peer
}

// A Request is one call of a [Peer], or the opening of one.
type Request struct {
	ID               int // of the peer
	Kind, Addr       string
	Connections      int
	Prefix           string
	Limiters, AtMost int
	Rule             Rule
	Load             load.Load
	Crowd            load.Crowd
}

// An Answer is the result of a Request.
type Answer struct {
	Number int
	Result *load.Result
	Grants []load.Grant
}

// Serve serves requests, if the program was started for that, until the standard input
// ends: with the process that started this one, whatever is under way.
func Serve() {
	if len(os.Args) < 2 || os.Args[1] != processArgument {
		return
	}
	server := rpc.NewServer()
	err := server.Register(&Calls{peers: map[int]Peer{}})
	if err == nil {
		server.ServeCodec(jsonrpc.NewServerCodec(standard{}))
		err = errors.New("what came is no request")
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// standard is the standard input and output as one connection.
type standard struct{}

func (standard) Read(p []byte) (int, error) {
	n, err := os.Stdin.Read(p)
	if err != nil {
		os.Exit(0)
	}
	return n, nil
}

func (standard) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (standard) Close() error                { return nil }

// Open opens a peer under the request's ID.
func (c *Calls) Open(q Request, _ *Answer) error {
	kind, ok := Find(q.Kind)
	if !ok {
		return fmt.Errorf("no peer is called %q", q.Kind)
	}
	p, err := kind.Open(context.Background(), q.Addr, q.Connections)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peers[q.ID] = p
	return nil
}

func (c *Calls) peer(q Request) Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peers[q.ID]
}

// Make is [Peer]'s.
func (c *Calls) Make(q Request, _ *Answer) error {
	return c.peer(q).Make(context.Background(), q.Prefix, q.Limiters, q.Rule)
}

// Each is [Peer]'s.
func (c *Calls) Each(q Request, a *Answer) (err error) {
	a.Number, err = c.peer(q).Each(context.Background())
	return err
}

// Drain is [Peer]'s.
func (c *Calls) Drain(q Request, a *Answer) (err error) {
	a.Number, err = c.peer(q).Drain(context.Background(), q.AtMost)
	return err
}

// Load is [Peer]'s.
func (c *Calls) Load(q Request, a *Answer) (err error) {
	a.Result, err = c.peer(q).Load(context.Background(), q.Load)
	return err
}

// Crowd is [Peer]'s.
func (c *Calls) Crowd(q Request, a *Answer) (err error) {
	a.Grants, err = c.peer(q).Crowd(context.Background(), q.Crowd)
	return err
}

// Close is [Peer]'s.
func (c *Calls) Close(q Request, _ *Answer) error { return c.peer(q).Close() }

// A process runs a library in Go, and serves all of the library's clients.
type process struct {
	cmd    *exec.Cmd
	client *rpc.Client
	users  int // clients that are open, under processes.mu
	last   int // the last client's id
}

var processes = struct {
	mu   sync.Mutex
	open map[string]*process
}{open: map[string]*process{}}

// pipes are a process's standard input and output as one connection.
type pipes struct {
	io.Reader
	io.WriteCloser
}

func startPeerProcess() (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, processArgument)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd: cmd, client: jsonrpc.NewClient(pipes{out, in})}, nil
}

// inProcess is a Peer whose callers are in a process of its library's own.
type inProcess struct {
	process *process
	kind    string
	id      int
}

// OpenApart opens a peer in a process of its library's own, so that what that
// process uses is what the library uses. The program must call [Serve].
func OpenApart(ctx context.Context, kind Kind, addr string, connections int) (Peer, error) {
	if kind.Java {
		return kind.Open(ctx, addr, connections) // which is apart by itself
	}
	processes.mu.Lock()
	defer processes.mu.Unlock()
	p := processes.open[kind.Name]
	if p == nil {
		var err error
		if p, err = startPeerProcess(); err != nil {
			return nil, err
		}
		processes.open[kind.Name] = p
	}
	p.users++
	p.last++
	opened := &inProcess{process: p, kind: kind.Name, id: p.last}
	_, err := opened.call(ctx, "Open", Request{Kind: kind.Name, Addr: addr, Connections: connections})
	if err != nil {
		return nil, errors.Join(err, opened.leave())
	}
	return opened, nil
}

// leave ends the process if it has no users left.
func (p *inProcess) leave() error {
	if p.process.users--; p.process.users > 0 {
		return nil
	}
	delete(processes.open, p.kind)
	return errors.Join(p.process.client.Close(), p.process.cmd.Wait())
}

// call asks the process. Once ctx is over it does not wait for the answer.
func (p *inProcess) call(ctx context.Context, name string, q Request) (Answer, error) {
	q.ID = p.id
	var a Answer
	call := p.process.client.Go("Calls."+name, q, &a, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		return a, call.Error
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

func (p *inProcess) Close() error {
	processes.mu.Lock()
	defer processes.mu.Unlock()
	_, err := p.call(context.Background(), "Close", Request{})
	return errors.Join(err, p.leave())
}

func (p *inProcess) Make(ctx context.Context, prefix string, n int, rule Rule) error {
	_, err := p.call(ctx, "Make", Request{Prefix: prefix, Limiters: n, Rule: rule})
	return err
}

func (p *inProcess) Each(ctx context.Context) (int, error) {
	a, err := p.call(ctx, "Each", Request{})
	return a.Number, err
}

func (p *inProcess) Drain(ctx context.Context, most int) (int, error) {
	a, err := p.call(ctx, "Drain", Request{AtMost: most})
	return a.Number, err
}

func (p *inProcess) Load(ctx context.Context, l load.Load) (*load.Result, error) {
	a, err := p.call(ctx, "Load", Request{Load: l})
	return a.Result, err
}

func (p *inProcess) Crowd(ctx context.Context, c load.Crowd) ([]load.Grant, error) {
	a, err := p.call(ctx, "Crowd", Request{Crowd: c})
	return a.Grants, err
}
