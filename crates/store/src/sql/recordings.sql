-- What the store has: recordings by host, with their times.
WITH chosen AS (
    SELECT DISTINCT recording FROM {samples} WHERE {where}
),
parts AS (
    SELECT DISTINCT
        date, hour, service, id, host, version, first, last, command, resolution, samples, lost, trace_bytes
    FROM recordings
    WHERE {partitions} AND id IN (SELECT recording FROM chosen)
)
SELECT
    service, host, version, MIN(first) AS first_time, MAX(last) AS last_time,
    CAST(SUM(samples) AS BIGINT) AS samples, CAST(SUM(lost) AS BIGINT) AS lost,
    CAST(SUM(trace_bytes) AS BIGINT) AS trace_bytes, resolution, command
FROM parts
GROUP BY service, host, version, id, resolution, command
ORDER BY MIN(first), service, host
LIMIT {limit}
