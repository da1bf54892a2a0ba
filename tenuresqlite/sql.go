package tenuresqlite

import (
	_ "embed"
)

// schemaVersion is the version of the tables in sql/schema.sql that this package
// writes. It is raised when an older Tenure could misread a newer file.
const schemaVersion = 1

var (
	//go:embed sql/schema.sql
	sqlSchema string
	//go:embed sql/schema_version.sql
	sqlSchemaVersion string
	//go:embed sql/table_exists.sql
	sqlTableExists string

	//go:embed sql/load.sql
	sqlLoad string
	//go:embed sql/list.sql
	sqlList string
	//go:embed sql/save.sql
	sqlSave string
	//go:embed sql/removed.sql
	sqlRemoved string

	//go:embed sql/history.sql
	sqlHistory string
	//go:embed sql/history_add.sql
	sqlHistoryAdd string
	//go:embed sql/history_prune_count.sql
	sqlHistoryPruneCount string
	//go:embed sql/history_prune_age.sql
	sqlHistoryPruneAge string

	//go:embed sql/fence_schema.sql
	sqlFenceSchema string
	//go:embed sql/fence_lock.sql
	sqlFenceLock string
	//go:embed sql/fence_mark.sql
	sqlFenceMark string
	//go:embed sql/fence_mark_keep.sql
	sqlFenceMarkKeep string
	//go:embed sql/fence_lane.sql
	sqlFenceLane string
	//go:embed sql/fence_lane_keep.sql
	sqlFenceLaneKeep string
)
