-- Stacks that take much of a service's minute on a host, in few of them: what is slow only sometimes.
-- Much is 50 samples or more, half a second of a CPU at 97 Hz. Few is a tenth of the minutes of
-- these hosts, or one. Most stacks never have so much, so they are left out before minutes are
-- grouped: samples have nearly as many stacks and minutes as rows.
WITH frequent AS (
    SELECT service, host, stack
    FROM {samples}
    WHERE {where}
    GROUP BY service, host, stack
    HAVING SUM(count) >= 50
),
minutes AS (
    SELECT service, host, DATE_TRUNC('minute', time) AS minute, SUM(count) AS n
    FROM {samples}
    WHERE {where}
    GROUP BY service, host, DATE_TRUNC('minute', time)
),
whole AS (
    SELECT service, host, COUNT(*) AS minutes FROM minutes GROUP BY service, host
),
much AS (
    SELECT s.service, s.host, DATE_TRUNC('minute', s.time) AS minute, s.stack, SUM(s.count) AS n
    FROM frequent f
    JOIN (SELECT service, host, time, stack, count FROM {samples} WHERE {where}) s
        ON s.service = f.service AND s.host = f.host AND s.stack = f.stack
    GROUP BY s.service, s.host, DATE_TRUNC('minute', s.time), s.stack
    HAVING SUM(s.count) >= 50
),
by_host AS (
    SELECT
        a.service, a.host, a.stack, COUNT(*) AS minutes, SUM(a.n) AS n,
        MAX(1e2 * a.n / m.n) AS most_percent
    FROM much a JOIN minutes m ON m.service = a.service AND m.host = a.host AND m.minute = a.minute
    GROUP BY a.service, a.host, a.stack
),
by_stack AS (
    SELECT
        h.service, h.stack, SUM(h.minutes) AS minutes, SUM(w.minutes) AS of_minutes, COUNT(*) AS hosts,
        SUM(h.n) AS n, MAX(h.most_percent) AS most_percent
    FROM by_host h JOIN whole w ON w.service = h.service AND w.host = h.host
    GROUP BY h.service, h.stack
),
innermost AS (
    SELECT DISTINCT stack, function FROM stack_functions WHERE is_self AND {partitions}
),
named AS (
    SELECT DISTINCT id, function, module FROM functions WHERE {partitions}
)
SELECT
    b.most_percent AS percent_of_a_minute, CAST(b.minutes AS BIGINT) AS minutes,
    1e2 * b.minutes / b.of_minutes AS percent_of_minutes, b.hosts, CAST(b.n AS BIGINT) AS samples,
    b.service, b.stack, n.function AS innermost, n.module
FROM by_stack b
JOIN innermost i ON i.stack = b.stack
JOIN named n ON n.id = i.function
WHERE 1e2 * b.minutes / b.of_minutes <= 1e1 OR b.minutes = 1
ORDER BY b.most_percent DESC, b.n DESC, b.stack, b.service
LIMIT {limit}
