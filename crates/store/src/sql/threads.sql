-- Threads by the time that they take: which of a service's pools is busy.
WITH whole AS (
    SELECT SUM(count) AS n FROM {samples} WHERE {where}
),
chosen AS (
    SELECT
        service, process, thread, SUM(count) AS n, SUM(count * period) AS ns, COUNT(DISTINCT host) AS hosts
    FROM {samples}
    WHERE {where}
    GROUP BY service, process, thread
)
SELECT
    1e2 * c.n / w.n AS percent, CAST(c.n AS BIGINT) AS samples, c.ns / 1e9 AS seconds, c.hosts,
    c.service, c.process, c.thread
FROM chosen c CROSS JOIN whole w
ORDER BY c.n DESC, c.service, c.process, c.thread
LIMIT {limit}
