-- The stacks of any filter, outermost function first: the lines of a flame graph.
WITH chosen AS (
    SELECT stack, SUM(count) AS n FROM {samples} WHERE {where} GROUP BY stack
),
distinct_stacks AS (
    SELECT DISTINCT id, frames FROM stacks WHERE {partitions} AND id IN (SELECT stack FROM chosen)
),
places AS (
    {expand}
),
calls AS (
    SELECT DISTINCT id, depth, function FROM frames WHERE {partitions}
),
labels_of AS (
    SELECT p.id, p.place * 100000 + c.depth AS place, REPLACE(c.function, ';', ':') AS label
    FROM places p JOIN calls c ON c.id = p.frame
),
folded AS (
    SELECT id, {fold} AS folded FROM labels_of GROUP BY id
)
SELECT CAST(SUM(c.n) AS BIGINT) AS samples, f.folded
FROM chosen c JOIN folded f ON f.id = c.stack
GROUP BY f.folded
ORDER BY SUM(c.n) DESC, f.folded
LIMIT {limit}
