-- The most frequent crashes: those of the same functions are one problem.
WITH chosen AS (
    SELECT DISTINCT
        {by} AS grouped_by, key, process, signal, function, message, recording, host, version, build, time
    FROM {crashes}
    WHERE {where}
)
SELECT
    grouped_by, COUNT(*) AS crashes, COUNT(DISTINCT host) AS hosts, COUNT(DISTINCT build) AS builds,
    MIN(time) AS first_time, MAX(time) AS last_time,
    MIN(version) AS first_version, MAX(version) AS last_version,
    process, signal, MIN(function) AS crashed_in, MIN(message) AS message, key
FROM chosen
GROUP BY grouped_by, key, process, signal
ORDER BY grouped_by, COUNT(*) DESC, MAX(time) DESC, key
LIMIT {limit}
