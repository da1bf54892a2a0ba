-- The marks of fenced resources, see package fence. They live in the file that
-- the guarded data lives in, so that both change in one transaction.

create table if not exists tenure_fence (
	resource blob primary key check (typeof(resource) = 'blob'),
	token    integer not null,
	term_id  blob    not null,
	renewal  integer not null
) without rowid;

create table if not exists tenure_fence_lane (
	resource blob    not null check (typeof(resource) = 'blob'),
	lane     blob    not null check (typeof(lane) = 'blob'),
	token    integer not null,
	position integer not null,
	digest   blob    not null,
	primary key (resource, lane)
) without rowid;
