package tenuresqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/tenure-go/tenure/store"
)

// fsInfo is what is known of a file system.
type fsInfo struct {
	kind     string
	remote   bool // other hosts may see it, or locks and change events may not work
	volatile bool // empty after a restart of the host or of the container
	free     uint64
}

// fileInfo is what is known of the file without opening it.
type fileInfo struct {
	mode  uint32 // permission bits
	uid   uint32
	links uint64
	open  bool // others may replace it, by the mode of its directory
}

// freeMin is the free space below which a file system is called nearly full.
const freeMin = 16 << 20

// Init makes the file and its tables if they are missing, see
// [store.Initializer]. It is never needed: the first acquire does the same.
func (s *Store) Init(ctx context.Context) (string, error) {
	made, err := write(ctx, s, true, func(t *txn) (bool, error) { return t.changed, nil })
	switch {
	case err != nil:
		return "", err
	case made:
		return "made Tenure's tables in " + s.path, nil
	}
	return s.path + " has Tenure's tables already", nil
}

// Diagnose looks at the file and where it lies, see [store.Diagnoser]. It
// changes nothing.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	var found []store.Finding
	add := func(ok bool, what, format string, args ...any) {
		found = append(found, store.Finding{OK: ok, What: what, Text: fmt.Sprintf(format, args...)})
	}

	s.diagnosePlace(add)
	facts, err := read(ctx, s, s.lookInside)
	if errors.Is(err, errNoFile) {
		add(true, "schema", "no tables yet: the first acquire makes them")
		return found, nil
	}
	if err != nil {
		return found, err
	}
	add(true, "schema", "version %d", facts.schema)
	switch facts.journal {
	case string(WAL):
		add(true, "journal", "write-ahead log: readers and the writer do not wait for one another")
	default:
		add(true, "journal", "%s: a reader can delay a renewal; a file of its own for the lease would use a write-ahead log", facts.journal)
	}
	if len(facts.others) > 0 {
		add(false, "sharing", "the file also holds %s: a long write there blocks every renewal; use a file of its own for the lease", strings.Join(facts.others, ", "))
	} else {
		add(true, "sharing", "the file holds nothing but Tenure's tables")
	}
	if facts.integrity == "ok" {
		add(true, "integrity", "Tenure's tables are whole")
	} else {
		add(false, "integrity", "%s: restore the file, or move it away and start a new one above the old tokens", facts.integrity)
	}
	add(true, "clock", "boot %s, file %x:%x", facts.boot, facts.id.dev, facts.id.ino)
	if facts.foreign > 0 {
		add(false, "copy", "%d of %d records were written before this host started, or in a file that this one is a copy of: each is waited out for a full TTL",
			facts.foreign, facts.records)
	}
	return found, nil
}

// diagnosePlace says what is to be known without opening the file.
func (s *Store) diagnosePlace(add func(ok bool, what, format string, args ...any)) {
	switch f, err := fileFacts(s.path); {
	case err != nil && creatable(s.path) != nil:
		add(false, "file", "%v", creatable(s.path))
	case err != nil:
		add(true, "file", "%s does not exist yet: the first acquire makes it", s.path)
	case f.links > 1:
		add(false, "file", "%s has %d names (hard links): SQLite keeps a journal for each name, which damages the file; use one name", s.path, f.links)
	case f.mode&0o022 != 0:
		add(false, "file", "%s has mode %04o: whoever may write it may take every election; allow its owner alone (chmod 600)", s.path, f.mode)
	case f.open:
		add(false, "file", "others than the owner of %s may replace the file in it: allow its owner alone (chmod 700)", filepath.Dir(s.path))
	default:
		if fault := accessFault(s.path, true); fault != nil {
			add(false, "file", "%v", fault)
		} else {
			add(true, "file", "%s, mode %04o, owned by user %d", s.path, f.mode, f.uid)
		}
	}
	dir := filepath.Dir(s.path)
	fsys, err := fileSystem(dir)
	switch {
	case err != nil:
		add(false, "file system", "%s: %v", dir, err)
	case fsys.remote:
		add(false, "file system", "%s: SQLite's locks are unreliable there, and other hosts are not excluded; use a local disk, or a server's store", fsys.kind)
	case fsys.volatile:
		add(false, "file system", "%s: the file is lost when the host or the container restarts, and tokens then start again at 1; use a disk", fsys.kind)
	case fsys.free < freeMin:
		add(false, "file system", "%s, %d MiB free: a full one refuses every renewal", fsys.kind, fsys.free>>20)
	default:
		add(true, "file system", "%s, %d MiB free", fsys.kind, fsys.free>>20)
	}
}

// facts is what one look inside the file finds.
type facts struct {
	schema           int
	journal          string
	others           []string // tables that are not Tenure's
	integrity        string
	boot             string
	id               fileID
	records, foreign int
}

func (s *Store) lookInside(c *conn) (facts, error) {
	f := facts{id: c.id}
	var err error
	if f.schema, err = c.schema(); err != nil {
		return f, err
	}
	if err := c.queryRow("pragma journal_mode", []any{&f.journal}); err != nil {
		return f, err
	}
	// Only Tenure's own tables: a job's file may be large.
	for _, table := range []string{"tenure_lease", "tenure_history"} {
		if err := c.queryRow("pragma quick_check("+table+")", []any{&f.integrity}); err != nil {
			return f, err
		}
		if f.integrity != "ok" {
			break
		}
	}
	tables, err := c.query(`select name from sqlite_master where type = 'table'
		and name not like 'tenure\_%' escape '\' and name not like 'sqlite\_%' escape '\' order by name limit 5`)
	if err != nil {
		return f, err
	}
	defer tables.Close()
	for tables.Next() {
		var name string
		if err := tables.Scan(&name); err != nil {
			return f, err
		}
		f.others = append(f.others, name)
	}
	if err := tables.Err(); err != nil {
		return f, err
	}
	entries, err := c.entries()
	if err != nil {
		return f, err
	}
	r, err := s.options.clock()
	if err != nil {
		return f, err
	}
	f.boot, f.records = r.boot, len(entries)
	for _, e := range entries {
		if _, foreign := e.left(clockID(r.boot, c.id), r.now); foreign {
			f.foreign++
		}
	}
	return f, nil
}
