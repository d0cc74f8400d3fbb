-- How complete stacks are, and why others end.
WITH chosen AS (
    SELECT {by} AS grouped_by, stack, SUM(count) AS n FROM {samples} WHERE {where} GROUP BY {by}, stack
),
whole AS (
    SELECT grouped_by, SUM(n) AS n FROM chosen GROUP BY grouped_by
),
endings AS (
    SELECT DISTINCT id, ending FROM stacks WHERE {partitions}
),
counted AS (
    SELECT c.grouped_by, e.ending, SUM(c.n) AS n
    FROM chosen c JOIN endings e ON e.id = c.stack
    GROUP BY c.grouped_by, e.ending
)
SELECT c.grouped_by, c.ending, 1e2 * c.n / w.n AS percent, CAST(c.n AS BIGINT) AS samples
FROM counted c JOIN whole w ON w.grouped_by = c.grouped_by
ORDER BY c.grouped_by, c.n DESC, c.ending
LIMIT {limit}
