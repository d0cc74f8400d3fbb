-- The time in each program and library itself, by the innermost function.
WITH chosen AS (
    SELECT stack, SUM(count) AS n, SUM(count * period) AS ns FROM {samples} WHERE {where} GROUP BY stack
),
whole AS (
    SELECT SUM(n) AS n FROM chosen
),
innermost AS (
    SELECT DISTINCT stack, function FROM stack_functions WHERE is_self AND {partitions}
),
named AS (
    SELECT DISTINCT id, module FROM functions WHERE {partitions}
),
counted AS (
    SELECT n.module, SUM(c.n) AS n, SUM(c.ns) AS ns
    FROM chosen c
    JOIN innermost i ON i.stack = c.stack
    JOIN named n ON n.id = i.function
    GROUP BY n.module
)
SELECT 1e2 * c.n / w.n AS percent, CAST(c.n AS BIGINT) AS samples, c.ns / 1e9 AS seconds, c.module
FROM counted c CROSS JOIN whole w
ORDER BY c.n DESC, c.module
LIMIT {limit}
