-- Single crashes, the last first, with the arguments of their functions.
SELECT DISTINCT
    time, service, host, version, process, thread, signal, function AS crashed_in, message, arguments, report, build, key
FROM {crashes}
WHERE {where}
ORDER BY time DESC, host, report
LIMIT {limit}
