-- Functions by the time that they take with everything that they call.
WITH chosen AS (
    SELECT {by} AS grouped_by, stack, SUM(count) AS n, SUM(count * period) AS ns
    FROM {samples}
    WHERE {where}
    GROUP BY {by}, stack
),
whole AS (
    SELECT grouped_by, SUM(n) AS n FROM chosen GROUP BY grouped_by
),
on_stack AS (
    SELECT DISTINCT stack, function FROM stack_functions WHERE {partitions}
),
counted AS (
    SELECT c.grouped_by, s.function, SUM(c.n) AS n, SUM(c.ns) AS ns
    FROM chosen c JOIN on_stack s ON s.stack = c.stack
    GROUP BY c.grouped_by, s.function
),
ranked AS (
    SELECT
        c.grouped_by, c.function, c.n, c.ns, w.n AS whole,
        ROW_NUMBER() OVER (PARTITION BY c.grouped_by ORDER BY c.n DESC, c.function) AS place
    FROM counted c JOIN whole w ON w.grouped_by = c.grouped_by
),
named AS (
    SELECT DISTINCT id, function, module FROM functions WHERE {partitions}
)
SELECT
    r.grouped_by, 1e2 * r.n / r.whole AS percent, CAST(r.n AS BIGINT) AS samples, r.ns / 1e9 AS seconds,
    n.function, n.module
FROM ranked r JOIN named n ON n.id = r.function
WHERE r.place <= {limit}
ORDER BY r.grouped_by, r.n DESC, r.function
