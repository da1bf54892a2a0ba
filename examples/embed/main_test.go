package main

import (
	"database/sql"
	"os"
	"os/exec"
	"testing"

	"github.com/tenure-go/tenure/fence"
)

// The program is run as a reader would run it: twice, one after the other.
func TestEmbed(t *testing.T) {
	if os.Getenv("EMBED_RUN_MAIN") != "" {
		main()
		return
	}
	dir := t.TempDir()
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestEmbed$")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "EMBED_RUN_MAIN=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	db, err := sql.Open("sqlite", dir+"/invoices.db")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("select token from runs order by rowid")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var tokens []fence.Token
	for rows.Next() {
		var token fence.Token
		if err := rows.Scan(&token); err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	if len(tokens) != 2 || tokens[0] != 1 || tokens[1] != 2 {
		t.Errorf("the runs wrote under tokens %v, want 1 and 2", tokens)
	}
}
