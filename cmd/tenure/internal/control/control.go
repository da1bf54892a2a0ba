// Package control is the socket by which a guarded job, and whatever it starts,
// asks the `tenure run` above it: am I still leader, I make progress, I resign.
//
// A connection carries one request and one answer, each a line of JSON.
// Only processes of the same user, and root, are served.
package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What can be asked for.
const (
	DoCheck    = "check"
	DoProgress = "progress"
	DoResign   = "resign"
)

// Request is what a job asks.
type Request struct {
	Do string `json:"do"`
	// Term is the term the asker was started in; empty: whichever is current. A
	// request of an earlier term is answered with its loss.
	Term string `json:"term,omitempty"`
	// Confirm lets a check ask the store, instead of this machine's clocks.
	Confirm bool `json:"confirm,omitempty"`
}

// Answer is what it gets. Leading says whether the asker's term is valid; the
// rest is set as far as it is known. Numbers of 64 bits are strings.
type Answer struct {
	Leading     bool   `json:"leading"`
	Name        string `json:"name"`
	Token       string `json:"token,omitempty"`
	Term        string `json:"term,omitempty"`
	RemainingMS string `json:"remaining_ms,omitempty"` // until the job must be gone
	Confirmed   bool   `json:"confirmed"`              // the store itself said so
	Reason      string `json:"reason,omitempty"`       // why not leading
	Error       string `json:"error,omitempty"`        // the request could not be carried out
}

// Handler answers requests. It is called concurrently; ctx ends when the asker
// is gone or has waited long enough.
type Handler func(ctx context.Context, r Request) Answer

// Bounds of a conversation.
const (
	requestMax = 4096 // bytes
	answerMax  = 64 << 10
	patience   = 30 * time.Second
)

// ErrGone: nobody listens any more at the socket, so whatever term the asker
// was started in is over or about to be.
var ErrGone = errors.New("the tenure run that started this job is gone")

// Server is the listening side.
type Server struct {
	listener *net.UnixListener
	handle   Handler
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// Listen opens the socket in dir, which must be private to this user, and
// serves until Close.
func Listen(dir string, handle Handler) (*Server, error) {
	path := filepath.Join(dir, "control")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	s := &Server{listener: listener, handle: handle}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s, nil
}

// Path is where the socket is.
func (s *Server) Path() string { return s.listener.Addr().String() }

// Close stops serving, removes the socket and waits for what is being answered.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.wg.Wait()
	return err
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of file descriptors, say: the clients wait
			time.Sleep(10 * time.Millisecond)
			continue
		}
		s.wg.Go(func() { s.serve(conn) })
	}
}

func (s *Server) serve(conn *net.UnixConn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	stop := context.AfterFunc(s.ctx, func() { conn.SetReadDeadline(time.Now()) })
	defer stop()
	answer := s.answer(ctx, conn)
	data, err := json.Marshal(answer)
	if err == nil {
		conn.Write(append(data, '\n'))
	}
}

func (s *Server) answer(ctx context.Context, conn *net.UnixConn) Answer {
	// The request is read first in any case: closing a connection with unread data
	// would throw the answer away.
	line, err := bufio.NewReader(io.LimitReader(conn, requestMax)).ReadBytes('\n')
	if err != nil {
		return Answer{Error: fmt.Sprintf("no request: allowed is a line of JSON of at most %d bytes", requestMax)}
	}
	if err := checkPeer(conn); err != nil {
		return Answer{Error: err.Error()}
	}
	var r Request
	if err := json.Unmarshal(line, &r); err != nil {
		return Answer{Error: fmt.Sprintf("the request is not understood: %v", err)}
	}
	switch r.Do {
	case DoCheck, DoProgress, DoResign:
		return s.handle(ctx, r)
	}
	return Answer{Error: fmt.Sprintf("do is %q: allowed are %s, %s and %s", r.Do, DoCheck, DoProgress, DoResign)}
}

// checkPeer lets in this user and root. The socket's mode says the same; this
// holds also where a directory was opened to others.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if inner != nil {
		return inner
	}
	return allowPeer(cred.Uid, uint32(os.Geteuid()))
}

func allowPeer(peer, own uint32) error {
	if peer != own && peer != 0 {
		return fmt.Errorf("user %d may not ask: allowed are user %d and root", peer, own)
	}
	return nil
}

// Ask sends a request to the socket at path and returns the answer. An error
// that is not [ErrGone] says nothing about the term.
func Ask(ctx context.Context, path string, r Request) (Answer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return Answer{}, fmt.Errorf("%w (%s)", ErrGone, path)
	case err != nil:
		return Answer{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()
	data, err := json.Marshal(r)
	if err != nil {
		return Answer{}, err
	}
	if _, err := conn.Write(append(data, '\n')); err != nil {
		return Answer{}, ended(ctx, err)
	}
	line, err := bufio.NewReader(io.LimitReader(conn, answerMax)).ReadBytes('\n')
	if err != nil {
		return Answer{}, ended(ctx, err)
	}
	var a Answer
	if err := json.Unmarshal(line, &a); err != nil {
		return Answer{}, fmt.Errorf("the answer is not understood: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// ended makes an error of a connection that broke: the caller's wish, or a
// wrapper that ended in between.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return ErrGone
	}
	return err
}
