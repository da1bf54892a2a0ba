package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tenure-go/tenure/tests/servers"
)

// role makes a role that may log in, under a name of its own, since roles belong to
// the server that the tests share. It is dropped with the test.
func role(t *testing.T, d *servers.Database, what string) string {
	t.Helper()
	name := fmt.Sprint(d.Name, "_", what)
	c := servers.Connect(t, d.URL())
	if _, err := c.Exec(t.Context(), "create role "+name+" login"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, statement := range []string{"drop owned by " + name + " cascade", "drop role " + name} {
			if err := execer(t, d)(context.Background(), statement); err != nil {
				t.Error(err)
			}
		}
	})
	return name
}

// A writer cannot get past the check by a schema of its own in which the operators
// and functions that the check uses are something else: the functions of the fence
// run with their owner's rights and look at none of it.
func TestFenceHostileSearchPath(t *testing.T) {
	d := written(t)
	writer := role(t, d, "hostile")
	admin := servers.Connect(t, d.URL())
	for _, statement := range []string{
		"select tenure.grant_fence('" + writer + "')",
		"grant create on database " + d.Name + " to " + writer,
		"select tenure.enter('r', 9, 'b', 5)",
	} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	c := servers.Connect(t, d.URL("user="+writer))
	statements := []string{
		"create schema evil",
		"create function evil.stolen() returns void language sql as $$ create table if not exists evil.proof as select current_user as u $$",
	}
	for _, kind := range []string{"text", "bigint", "integer", "pg_catalog.bool"} {
		for _, op := range []string{"=", "<>", "<", "<=", ">", ">="} {
			f := fmt.Sprintf("evil.%s_%x", strings.TrimPrefix(kind, "pg_catalog."), op)
			statements = append(statements,
				fmt.Sprintf("create function %s(%s, %s) returns boolean language plpgsql as $$ begin if current_user <> session_user then perform evil.stolen(); end if; return true; end $$", f, kind, kind),
				fmt.Sprintf("create operator evil.%s (leftarg = %s, rightarg = %s, function = %s)", op, kind, kind, f))
		}
	}
	for _, f := range []string{
		"current_setting(text, boolean) returns text", "current_setting(text) returns text", "set_config(text, text, boolean) returns text",
		"pg_try_advisory_xact_lock_shared(integer, integer) returns boolean", "pg_is_in_recovery() returns boolean", "version() returns text",
		"format(text, text) returns text", "octet_length(text) returns integer",
	} {
		statements = append(statements, "create function evil."+f+" language plpgsql as $$ begin perform evil.stolen(); return null; end $$")
	}
	statements = append(statements,
		"create domain evil.boolean as pg_catalog.bool", "create domain evil.text as pg_catalog.text",
		"create temporary table fence_mark as select 1 as id", "create temporary table lane as select 1 as id",
		"set search_path = evil, pg_temp, pg_catalog")
	for _, statement := range statements {
		if _, err := c.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	for sql, want := range map[string]string{
		"select tenure.fence('r', 8, 'a', 9)":                                       "TN001",
		"select tenure.fence('r', 9, 'a', 9)":                                       "TN002",
		"select tenure.fence('r', 9, 'b', 3)":                                       "TN001",
		"select tenure.fence('r', 9, 'b', -1)":                                      "TN004",
		"select tenure.fence('', 9, 'b', 5)":                                        "TN004",
		"select tenure.fence('r', 9, 'b', 5)":                                       "",
		"select tenure.enter('r', 8, 'a', 5)":                                       "TN001",
		"select tenure.fence_chain('r', 'l', 8, 1, 'd', 'a', 5)":                    "TN001",
		"select tenure.fence_chain('r', 'l', 9, 2, 'd', 'b', 5)":                    "TN003",
		"select tenure.fence_chain_replayed('r', 'l', 9, 2, 'd', 'b', 5)":           "TN003",
		"select tenure.last('r', 'l')":                                              "",
		"select tenure.fence_check(false, 'r', 8, 'a', 5)":                          "42501",
		"select tenure.fence_lower('r', 3, 'let me in')":                            "42501",
		"update tenure.fence_mark set token = 1":                                    "42501",
		"select tenure.grant_fence('" + writer + "')":                               "42501",
		"insert into tenure.audit (what, name, reason) values ('x', 'y', 'z')":      "42501",
		"select tenure.note_audit('x', 'y', 'z', '{}')":                             "42501",
		"select tenure.fence_fully('r', 8, 'a', 5)":                                 "42501",
		"select tenure.acquire('e', 'h', 'a', 1, '', 0, false, false, 0, false, 1)": "42501",
	} {
		_, err := c.Exec(t.Context(), sql)
		var e interface{ SQLState() string }
		got := ""
		if errors.As(err, &e) {
			got = e.SQLState()
		}
		if got != want {
			t.Errorf("%s: SQLSTATE %q, want %q: %v", sql, got, want, err)
		}
	}
	var stolen bool
	if err := admin.QueryRow(t.Context(), "select to_regclass('evil.proof') is not null").Scan(&stolen); err != nil || stolen {
		t.Errorf("code of the writer ran with the rights of the fence's owner (%v)", err)
	}
}
