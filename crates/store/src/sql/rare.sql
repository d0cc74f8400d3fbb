-- Stacks that take much of a minute of a host, in few of the minutes: what is slow only sometimes.
WITH minutes AS (
    SELECT host, DATE_TRUNC('minute', time) AS minute, SUM(count) AS n
    FROM {samples}
    WHERE {where}
    GROUP BY host, DATE_TRUNC('minute', time)
),
chosen AS (
    SELECT host, DATE_TRUNC('minute', time) AS minute, stack, SUM(count) AS n
    FROM {samples}
    WHERE {where}
    GROUP BY host, DATE_TRUNC('minute', time), stack
),
whole AS (
    SELECT COUNT(*) AS minutes FROM minutes
),
by_stack AS (
    SELECT
        c.stack, COUNT(*) AS minutes, COUNT(DISTINCT c.host) AS hosts, SUM(c.n) AS n,
        MAX(1e2 * c.n / m.n) AS most_percent
    FROM chosen c JOIN minutes m ON m.host = c.host AND m.minute = c.minute
    GROUP BY c.stack
),
innermost AS (
    SELECT DISTINCT stack, function FROM stack_functions WHERE is_self AND {partitions}
),
named AS (
    SELECT DISTINCT id, function, module FROM functions WHERE {partitions}
)
SELECT
    b.most_percent AS percent_of_a_minute, b.minutes, 1e2 * b.minutes / w.minutes AS percent_of_minutes, b.hosts,
    CAST(b.n AS BIGINT) AS samples, b.stack, n.function AS innermost, n.module
FROM by_stack b CROSS JOIN whole w
JOIN innermost i ON i.stack = b.stack
JOIN named n ON n.id = i.function
WHERE 1e2 * b.minutes / w.minutes <= 1e1 OR b.minutes = 1
ORDER BY b.most_percent DESC, b.n DESC, b.stack
LIMIT {limit}
