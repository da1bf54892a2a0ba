package guard

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// screen is a terminal as its user sees it.
type screen struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	text   string
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master := os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	return &screen{t: t, master: master, slave: slave}
}

// attach makes the terminal the controlling one of a command in a session of
// its own.
func (s *screen) attach(c *exec.Cmd) {
	c.Stdin, c.Stdout, c.Stderr = s.slave, s.slave, s.slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

func (s *screen) typeIn(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// see waits until the text is on the screen, and forgets everything up to it.
func (s *screen) see(text string) {
	s.t.Helper()
	buf := make([]byte, 4096)
	s.master.SetReadDeadline(time.Now().Add(patience))
	for {
		if _, rest, ok := strings.Cut(s.text, text); ok {
			s.text = rest
			return
		}
		n, err := s.master.Read(buf)
		if err != nil {
			s.t.Fatalf("never saw %q: %v; on the screen: %q", text, err, s.text)
		}
		s.text += string(buf[:n])
	}
}

// As in a container with a terminal: the wrapper leads the session.
func TestTerminal(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	r := start(t, wrapperConfig{KillAfter: time.Second, Command: job("signals")}, s.attach).started()
	s.see("ready")
	s.typeIn("\x03")
	s.see("SIGINT")
	s.typeIn("\x1c")
	s.see("SIGQUIT") // and not a second SIGINT before it, passed on by the wrapper
	if strings.Contains(s.text, "SIGINT") {
		t.Errorf("Ctrl-C reached the job twice")
	}
	r.signal(r.pid, unix.SIGKILL)
	r.expect("exited 137")
	r.expect("gone")
}

// Without a shell nobody would continue a job that was suspended: it goes on at
// once, with the terminal.
func TestTerminalSuspendedWithoutShell(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	r := start(t, wrapperConfig{KillAfter: time.Second, Command: job("talk")}, s.attach).started()
	s.see("up")
	for range 2 {
		s.typeIn("\x1a")
		s.see("continued")
		s.typeIn("hello\n")
		s.see("got <hello>")
	}
	r.cmd.Process.Signal(unix.SIGCONT)
	s.see("continued")
	s.typeIn("end\n")
	r.expect("exited 7")
	r.expect("gone")
}

// When the command has ended the terminal is the wrapper's again: Ctrl-C reaches
// it, and through it what the command left behind.
func TestTerminalTakenBack(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	r := start(t, wrapperConfig{KillAfter: time.Hour, Command: job("with", "setsid ignore 15 journal left", "until", "left", "exit", "3")}, s.attach).started()
	r.expect("exited 3")
	s.typeIn("\x03")
	r.expect("gone")
}

// The job can read from the terminal, and Ctrl-C ends it.
func TestTerminalRead(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	r := start(t, wrapperConfig{KillAfter: time.Second, Command: []string{"sh", "-c", `read line; echo "got <$line>"; exec sleep 1000`}}, s.attach).started()
	s.typeIn("hello\n")
	s.see("got <hello>")
	s.typeIn("\x03")
	r.expect("exited 130")
	r.expect("gone")
}

// From a shell with job control: Ctrl-Z suspends the job and gives the terminal
// back, fg continues it, and after its end the shell goes on.
func TestTerminalJobControl(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	config, err := json.Marshal(wrapperConfig{KillAfter: time.Second, Command: job("talk")})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("bash", "--norc", "--noprofile", "-i")
	c.Env = append(os.Environ(), "PS1=prompt> ", "EXE="+exe, "CONFIG="+string(config), "HISTFILE=", "INPUTRC=/dev/null")
	c.Dir = t.TempDir()
	s.attach(c)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	s.see("prompt> ")
	// Also within a script, which is suspended with it.
	for _, line := range []string{`"$EXE" __wrapper "$CONFIG" 3>/dev/null`, `sh -c '"$EXE" __wrapper "$CONFIG" 3>/dev/null; exit $?'`} {
		s.typeIn(line + "\n")
		s.see("up")
		for range 2 {
			s.typeIn("\x1a")
			s.see("Stopped")
			s.see("prompt> ")
			s.typeIn("echo the shell is $((1+1))\n")
			s.see("the shell is 2")
			s.typeIn("fg\n")
			s.see("continued")
			s.typeIn("more\n")
			s.see("got <more>")
		}
		s.typeIn("end\n")
		s.see("prompt> ")
		s.typeIn("echo code $?\n")
		s.see("code 7")
	}

	// In the background from the start, the job does not take the terminal.
	s.typeIn(`"$EXE" __wrapper "$CONFIG" 3>/dev/null & sleep 0.1; echo shell` + "\n")
	s.see("shell")
	s.typeIn("jobs; echo $((2+2))\n")
	s.see("4")
	s.typeIn("kill -KILL %1; exit\n")
}
