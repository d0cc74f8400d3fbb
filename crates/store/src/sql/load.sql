-- Where the time goes: by service, version, host, hour, process, thread or kind.
WITH whole AS (
    SELECT SUM(count) AS n FROM {samples} WHERE {where}
),
chosen AS (
    SELECT
        {by} AS grouped_by, SUM(count) AS n, SUM(count * period) AS ns,
        COUNT(DISTINCT host) AS hosts, COUNT(DISTINCT stack) AS stacks,
        MIN(time) AS first_time, MAX(time) AS last_time
    FROM {samples}
    WHERE {where}
    GROUP BY {by}
)
SELECT
    c.grouped_by, 1e2 * c.n / w.n AS percent, CAST(c.n AS BIGINT) AS samples, c.ns / 1e9 AS seconds,
    c.hosts, c.stacks, c.first_time, c.last_time
FROM chosen c CROSS JOIN whole w
ORDER BY c.n DESC, c.grouped_by
LIMIT {limit}
