package tenuresqlite

import (
	"context"
	"errors"
)

// read lets f read the file as it is at one moment. It takes no lock that a
// writer would wait for in a file with a write-ahead log, and waits for none
// there. errNoFile: there is no file, or no table of Tenure in it.
//
// f reads the clock after the rows, if it needs it: by an earlier reading, a
// lease that was granted in between would seem to end too far ahead.
func read[T any](ctx context.Context, s *Store, f func(*conn) (T, error)) (T, error) {
	return run(ctx, s, s.reading, func(c *call) (v T, err error) {
		err = c.retry(s, func() error {
			cn, err := s.connect(c, s.reading, false)
			if err != nil {
				return err
			}
			version, err := cn.schema()
			if err != nil {
				return err
			}
			if version == 0 {
				return errNoFile
			}
			if err := s.known(version); err != nil {
				return err
			}
			v, err = f(cn)
			return err
		})
		if err != nil && !errors.Is(err, errNoFile) {
			err = undoneUnlessSaid(s.explain(err))
		}
		return v, err
	})
}
